// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of unfinished predecessors, for runtimes without task graphs. Each finished task
//! decrements the counters of its successors; the thread that finishes the last predecessor of a
//! task makes the task ready. The C++ programs use the same algorithm (`peers/peer.h`).

use std::sync::atomic::{AtomicU32, Ordering};

use crate::tasks::workload::Workload;

/// The number of unfinished predecessors of each task.
pub struct Counters {
    work: Workload,
    pending: Vec<AtomicU32>,
}

impl Counters {
    pub fn new(work: Workload) -> Self {
        Self {
            work,
            pending: work.waits().iter().map(|&n| AtomicU32::new(n)).collect(),
        }
    }

    /// Runs a task. Tasks that become ready by the task are passed to `spawn`. With `runs_first`,
    /// this thread runs the first of them itself instead, and continues with its successors.
    pub fn run_from(&self, task: u32, runs_first: bool, mut spawn: impl FnMut(u32)) {
        let mut next = Some(task);
        while let Some(task) = next.take() {
            self.work.run(task);
            // The counter is reset for the next frame. No other thread uses it before then, because
            // all predecessors are finished.
            let waits = self.work.waits()[task as usize];
            self.pending[task as usize].store(waits, Ordering::Relaxed);
            for &successor in self.work.successors(task) {
                if !self.resolve(successor) {
                    continue;
                }
                match next {
                    None if runs_first => next = Some(successor),
                    _ => spawn(successor),
                }
            }
        }
    }

    /// Counts a finished predecessor. Returns true if it was the last predecessor. A thread that
    /// reads 1 counts the last predecessor and need not write the counter.
    fn resolve(&self, task: u32) -> bool {
        let pending = &self.pending[task as usize];
        pending.load(Ordering::Acquire) == 1 || pending.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
