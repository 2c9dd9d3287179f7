// SPDX-License-Identifier: MIT OR Apache-2.0
//! Termination of a closing runtime: no worker ends while another may still make a task ready.
//!
//! A worker counts as active before it takes a task, and becomes inactive after it has found none.
//! In each worker, a sequentially consistent fence separates these two steps. If a worker finds
//! nothing because another worker took the task, it therefore sees the other worker as active. When
//! the last worker becomes inactive, no task is left.

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

    /// Counts a worker as inactive, after it has found no task. The worker then sleeps by `sleep`
    /// until it is woken for a task or no worker is active. Returns whether no worker is active.
    /// The last worker wakes the others by `wake`.
    pub fn deactivate(&self, sleep: impl FnOnce(&dyn Fn() -> bool), wake: impl FnOnce()) -> bool {
        let all_inactive = || self.0.load(Ordering::Relaxed) == 0;
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
