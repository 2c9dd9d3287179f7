// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of unfinished predecessors, for runtimes without task graphs: the last predecessor of a
//! task makes it ready. The C++ programs use the same algorithm (`peers/peer.h`).

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

    /// Runs a task. Tasks that it makes ready are passed to `spawn`; with `runs_first`, the first
    /// of them runs here next.
    pub fn run_from(&self, task: u32, runs_first: bool, mut spawn: impl FnMut(u32)) {
        let mut next = Some(task);
        while let Some(task) = next.take() {
            self.work.run(task);
            // No other thread uses the counter before the next frame.
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

    /// Counts a finished predecessor; true if it was the last. A thread that reads 1 is the last
    /// one and saves the write.
    fn resolve(&self, task: u32) -> bool {
        let pending = &self.pending[task as usize];
        pending.load(Ordering::Acquire) == 1 || pending.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
