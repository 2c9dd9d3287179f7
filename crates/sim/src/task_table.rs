// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of all threads and programs of a simulated kernel, by index, and of the CPUs that they
//! may use.
//!
//! Three properties of a thread are computed only in this file: whether it is stopped, which CPUs
//! it may use, and its weight. The index of a thread that has ended is reused; the index of a
//! program is not. Each access takes constant time. A change of masks visits all threads of a
//! program, in one step per thread and 64 CPUs. Memory grows with the number of programs that have
//! arrived, and with the greatest number of simultaneous threads.

use crate::job::{Job, RunState, Thread, ThreadId};
use crate::kernel::GroupBy;
use crate::machine::Mask;

/// The threads and programs by index.
#[derive(Debug, Default)]
pub(crate) struct TaskTable {
    pub threads: Vec<Thread>,
    pub jobs: Vec<Job>,
    /// Number of threads that have been created.
    pub threads_created: u64,
    free: Vec<ThreadId>,
}

impl TaskTable {
    /// Stores a new thread under a free index.
    pub fn store(&mut self, thread: Thread) -> ThreadId {
        self.threads_created += 1;
        match self.free.pop() {
            Some(id) => {
                self.threads[id] = thread;
                id
            }
            None => {
                self.threads.push(thread);
                self.threads.len() - 1
            }
        }
    }

    /// Frees the indices of threads that have ended.
    pub fn release(&mut self, ended: Vec<ThreadId>) {
        self.free.extend(ended);
    }

    /// Returns a program's threads that have not ended.
    pub fn living(&self, program: usize) -> impl Iterator<Item = ThreadId> {
        let threads = self.jobs[program].threads.iter().copied();
        threads.filter(|&thread| self.threads[thread].run_state != RunState::Ended)
    }

    /// Returns the program of a thread.
    pub fn job_of(&self, thread: ThreadId) -> &Job {
        &self.jobs[self.threads[thread].program]
    }

    /// Returns the weight of a thread in its queue.
    pub fn weight(&self, thread: ThreadId, group_by: GroupBy) -> f64 {
        match group_by {
            GroupBy::Threads => 1.0,
            GroupBy::Programs => 1.0 / f64::from(self.job_of(thread).runnable.max(1)),
        }
    }

    /// Returns whether the thread or its program is stopped. This function is the only place where
    /// the two states are combined.
    pub fn is_stopped(&self, thread: ThreadId) -> bool {
        self.threads[thread].signal_stopped || self.job_of(thread).frozen
    }

    /// Returns whether a thread may use a CPU.
    pub fn may_run(&self, thread: ThreadId, cpu: usize) -> bool {
        self.where_allowed(thread).has(cpu)
    }

    /// Returns the CPUs that a thread may use.
    pub fn where_allowed(&self, thread: ThreadId) -> &Mask {
        let mask = self.threads[thread].allowed.as_ref();
        mask.unwrap_or(&self.job_of(thread).mask)
    }

    /// Updates the allowed CPUs of a program and of each of its threads. As in Linux, an empty set
    /// is replaced by a wider set: first by the seat, then by all online CPUs.
    pub fn update_masks(&mut self, program: usize, online: Mask) {
        let seat = self.jobs[program].seat.as_ref();
        let seat = seat
            .map(|seat| seat.and(&online))
            .filter(|mask| !mask.is_empty())
            .unwrap_or(online);
        let own = |affinity: &Mask| {
            let own = affinity.and(&seat);
            if own.is_empty() { seat.clone() } else { own }
        };
        let mut threads = self.jobs[program].threads.clone();
        threads.retain(|&thread| self.threads[thread].run_state != RunState::Ended);
        let mut whole: Option<Mask> = None;
        let mut same = true;
        for &thread in &threads {
            let affinity = self.threads[thread].affinity.as_ref();
            let mask = affinity.map_or_else(|| seat.clone(), own);
            whole = Some(match whole {
                Some(whole) if whole == mask => whole,
                Some(whole) => {
                    same = false;
                    whole.or(&mask)
                }
                None => mask.clone(),
            });
            self.threads[thread].allowed = Some(mask);
        }
        if same {
            for &thread in &threads {
                self.threads[thread].allowed = None;
            }
        }
        self.jobs[program].mask = whole.unwrap_or(seat);
    }
}
