// SPDX-License-Identifier: MIT OR Apache-2.0
//! A web server: processes that answer one request each, and clients elsewhere.
//!
//! As Apache 1.3 does with connections that are not kept: a process waits for a
//! request, answers it, waits until the client has closed the connection, and
//! clears up. Both halves take the same number of operations. Each client sends its
//! next request as soon as it has its answer, so that nearly all processes are
//! runnable, as the paper's authors saw theirs (Yamamura et al., "Speeding Up Kernel
//! Scheduler by Reducing Cache Misses", USENIX 2002, FREENIX track, section 5.1).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Step, Workload};

#[derive(Debug, Default)]
struct Process {
    /// Something came from its client.
    ready: AtomicBool,
    waits: AtomicBool,
    /// Operations left of this half.
    left: AtomicU32,
    /// Halves done.
    halves: AtomicU64,
}

/// The server and its clients.
#[derive(Debug)]
pub struct Web {
    operations: u32,
    network_ns: u64,
    processes: Vec<Process>,
    /// What is on its way from clients: when it comes, to whom; in that order.
    network: Mutex<VecDeque<(u64, usize)>>,
    /// When the first of it comes; `u64::MAX` for nothing.
    first_ns: AtomicU64,
    answered: AtomicU64,
}

impl Web {
    /// So many processes, each with a request; operations of half a request; time
    /// between what a process sends and what the client answers.
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
            answered: AtomicU64::new(0),
        }
    }

    fn network(&self) -> MutexGuard<'_, VecDeque<(u64, usize)>> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_first(&self, network: &VecDeque<(u64, usize)>) {
        let first = network.front().map_or(u64::MAX, |&(when, _)| when);
        self.first_ns.store(first, SeqCst);
    }

    /// Half a request is done: the client's turn.
    fn reply(&self, task: usize, now_ns: u64) {
        let halves = self.processes[task].halves.fetch_add(1, SeqCst) + 1;
        if halves.is_multiple_of(2) {
            self.answered.fetch_add(1, SeqCst);
        }
        let mut network = self.network();
        let last = network.back().map_or(0, |&(when, _)| when);
        // Clocks of two threads may differ by a little; the order may not.
        network.push_back(((now_ns + self.network_ns).max(last), task));
        self.note_first(&network);
    }

    /// Operations of half a request.
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

    fn step(&self, task: usize, now_ns: u64, _woken: &mut Vec<usize>) -> Step {
        let process = &self.processes[task];
        let left = process.left.load(SeqCst);
        if left == 0 {
            if !process.ready.swap(false, SeqCst) {
                process.waits.store(true, SeqCst);
                // It may have come before the mark was there.
                if !process.ready.swap(false, SeqCst) {
                    return Step::Waits;
                }
                process.waits.store(false, SeqCst);
            }
            process.left.store(self.operations, SeqCst);
        }
        let left = process.left.fetch_sub(1, SeqCst) - 1;
        if left == 0 {
            self.reply(task, now_ns);
        }
        Step::Done
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
        self.answered.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_two_turns_of_the_client_and_all_operations() {
        let web = Web::new(2, 3, 100);
        let mut woken = vec![];
        let steps = |now: u64, woken: &mut Vec<usize>| {
            (0..5)
                .take_while(|_| web.step(0, now, woken) == Step::Done)
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
    fn what_came_before_the_wait_is_not_waited_for() {
        let web = Web::new(1, 1, 5);
        let mut woken = vec![];
        assert_eq!(web.step(0, 0, &mut woken), Step::Done);
        web.arrivals(5, &mut woken);
        assert!(woken.is_empty(), "it did not wait");
        assert_eq!(web.step(0, 6, &mut woken), Step::Done);
    }
}
