// SPDX-License-Identifier: MIT OR Apache-2.0
//! The web workload: the processes of a server each answer one request at a time, for clients on
//! other machines.
//!
//! The model is Apache 1.3 without persistent connections.
//!
//! 1. A process waits for a request and answers it (first half).
//! 2. The process waits until the client has closed the connection, and cleans up (second half).
//!    Each half takes the same number of operations.
//! 3. A client sends its next data a fixed time (`network_ns`) after a half is completed.
//!
//! Nearly all processes are therefore runnable, as the authors of the paper observed (Yamamura et
//! al., "Speeding Up Kernel Scheduler by Reducing Cache Misses", USENIX 2002, FREENIX track,
//! section 5.1).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{OperationResult, Workload};

#[derive(Debug, Default)]
struct Process {
    /// Whether data of the client have arrived that the process has not handled.
    ready: AtomicBool,
    waits: AtomicBool,
    /// Number of operations that are left of the present half.
    left: AtomicU32,
    /// Number of completed halves.
    halves: AtomicU64,
}

/// The server and its clients.
#[derive(Debug)]
pub struct Web {
    operations: u32,
    network_ns: u64,
    processes: Vec<Process>,
    /// Data on their way from clients, in the order of their arrival: time of arrival, and process.
    network: Mutex<VecDeque<(u64, usize)>>,
    /// Time of the next arrival; `u64::MAX` if no data are on their way.
    first_ns: AtomicU64,
    replied: AtomicU64,
}

impl Web {
    /// Creates `processes` processes, each with a request that has arrived. A half of a request
    /// takes `operations` operations; after a half, the client's next data arrive after
    /// `network_ns`.
    pub fn new(processes: usize, operations: u32, network_ns: u64) -> Self {
        let process = |_| Process {
            ready: AtomicBool::new(true),
            ..Process::default()
        };
        Self {
            operations: operations.max(1),
            network_ns,
            processes: (0..processes).map(process).collect(),
            network: Mutex::default(),
            first_ns: AtomicU64::new(u64::MAX),
            replied: AtomicU64::new(0),
        }
    }

    fn network(&self) -> MutexGuard<'_, VecDeque<(u64, usize)>> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_first(&self, network: &VecDeque<(u64, usize)>) {
        let first = network.front().map_or(u64::MAX, |&(when, _)| when);
        self.first_ns.store(first, SeqCst);
    }

    /// Completes half of a request. The client's next data are then on their way.
    fn reply(&self, task: usize, now_ns: u64) {
        let halves = self.processes[task].halves.fetch_add(1, SeqCst) + 1;
        if halves.is_multiple_of(2) {
            self.replied.fetch_add(1, SeqCst);
        }
        let mut network = self.network();
        let last = network.back().map_or(0, |&(when, _)| when);
        // The clocks of two threads may differ slightly. The maximum keeps the queue sorted.
        network.push_back(((now_ns + self.network_ns).max(last), task));
        self.note_first(&network);
    }

    /// Number of operations of half a request.
    pub fn operations(&self) -> u32 {
        self.operations
    }
}

impl Workload for Web {
    fn tasks(&self) -> usize {
        self.processes.len()
    }

    fn address_space(&self, task: usize) -> u32 {
        task as u32 + 1
    }

    fn step(&self, task: usize, now_ns: u64, _woken: &mut Vec<usize>) -> OperationResult {
        let process = &self.processes[task];
        let left = process.left.load(SeqCst);
        if left == 0 {
            if !process.ready.swap(false, SeqCst) {
                process.waits.store(true, SeqCst);
                // The data may have arrived before this process set the mark that it waits. The
                // arrival is therefore checked again.
                if !process.ready.swap(false, SeqCst) {
                    return OperationResult::Waits;
                }
                process.waits.store(false, SeqCst);
            }
            process.left.store(self.operations, SeqCst);
        }
        let left = process.left.fetch_sub(1, SeqCst) - 1;
        if left == 0 {
            self.reply(task, now_ns);
        }
        OperationResult::Done
    }

    fn arrivals(&self, now_ns: u64, woken: &mut Vec<usize>) {
        if self.first_ns.load(SeqCst) > now_ns {
            return;
        }
        let mut network = self.network();
        while let Some(&(when, task)) = network.front()
            && when <= now_ns
        {
            network.pop_front();
            let process = &self.processes[task];
            process.ready.store(true, SeqCst);
            if process.waits.swap(false, SeqCst) {
                woken.push(task);
            }
        }
        self.note_first(&network);
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        Some(self.first_ns.load(SeqCst)).filter(|&when| when < u64::MAX)
    }

    fn completed(&self) -> u64 {
        self.replied.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_takes_two_client_round_trips_and_all_operations() {
        let web = Web::new(2, 3, 100);
        let mut woken = vec![];
        let steps = |now: u64, woken: &mut Vec<usize>| {
            (0..5)
                .take_while(|_| web.step(0, now, woken) == OperationResult::Done)
                .count()
        };
        assert_eq!(steps(10, &mut woken), 3);
        assert_eq!((web.next_arrival_ns(), web.completed()), (Some(110), 0));
        web.arrivals(109, &mut woken);
        assert!(woken.is_empty());
        web.arrivals(110, &mut woken);
        assert_eq!(
            (woken.as_slice(), web.next_arrival_ns()),
            ([0].as_slice(), None)
        );
        assert_eq!(steps(120, &mut woken), 3);
        assert_eq!(web.completed(), 1);
    }

    #[test]
    fn data_that_arrived_before_the_wait_are_not_waited_for() {
        let web = Web::new(1, 1, 5);
        let mut woken = vec![];
        assert_eq!(web.step(0, 0, &mut woken), OperationResult::Done);
        web.arrivals(5, &mut woken);
        assert!(woken.is_empty(), "it did not wait");
        assert_eq!(web.step(0, 6, &mut woken), OperationResult::Done);
    }
}
