// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of dependencies, as a user of a runtime without graphs writes them;
//! the same as in `peers/peer.h`.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::tasks::workload::Workload;

/// What each task still waits for.
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

    /// Runs a task and, where it is to, one after another the first ones that become
    /// ready by it; hands others that do to `spawn`.
    pub fn run_from(&self, task: u32, runs_first: bool, mut spawn: impl FnMut(u32)) {
        let mut next = Some(task);
        while let Some(task) = next.take() {
            self.work.run(task);
            // Nobody else touches the counter before the next frame.
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

    /// Whoever finds 1 is the last: no need to write.
    fn resolve(&self, task: u32) -> bool {
        let pending = &self.pending[task as usize];
        pending.load(Ordering::Acquire) == 1 || pending.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
