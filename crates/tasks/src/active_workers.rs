// SPDX-License-Identifier: MIT OR Apache-2.0
//! Termination of a runtime that closes: a worker ends only after no worker can make a task ready
//! any more.
//!
//! 1. A worker increments the number of active workers before it searches for tasks.
//! 2. A worker decrements the number after it has found no task. If the number becomes 0, the
//!    worker ends and wakes all others, which end too.
//! 3. In each worker, a sequentially consistent fence separates the increment from the search, and
//!    the search from the decrement. If worker A finds no task because worker B has taken the last
//!    task, A therefore reads a number that includes B, and does not end.
//!
//! When the last worker becomes inactive, no task is left. Each of steps 1 and 2 is one atomic
//! operation. An inactive worker sleeps without a time limit, until a task is visible or no worker
//! is active.

use crate::sync::{AtomicUsize, Ordering, fence};

/// The number of workers that may make tasks ready.
#[derive(Debug, Default)]
pub(crate) struct ActiveWorkers(AtomicUsize);

impl ActiveWorkers {
    /// Counts a worker as active, before it searches for tasks.
    pub fn begin(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns whether no worker is active.
    pub fn is_none_active(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Counts a worker as inactive, after it has found no task. Returns true if no worker is
    /// active, which means that the worker ends.
    ///
    /// The last active worker calls `wake`, which wakes the other workers. Each other worker calls
    /// `sleep`, which returns when the worker is woken for a task or no worker is active.
    pub fn deactivate(&self, sleep: impl FnOnce(&dyn Fn() -> bool), wake: impl FnOnce()) -> bool {
        let all_inactive = || self.is_none_active();
        fence(Ordering::SeqCst);
        if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            wake();
            return true;
        }
        sleep(&all_inactive);
        if all_inactive() {
            return true;
        }
        self.begin();
        false
    }
}
