// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workers of a runtime that is closing: none leaves while another may make something
//! ready.
//!
//! Who takes a task counts as at work before that, and whoever finds none counts itself
//! off after that; between the two steps of either stands a fence, so that a worker that
//! has found nothing because another took it sees that one at work. So the last to count
//! itself off has seen that there is nothing.

use crate::sync::{AtomicUsize, Ordering, fence};

/// How many workers may have something to do.
#[derive(Debug, Default)]
pub(crate) struct AtWork(AtomicUsize);

impl AtWork {
    /// One begins to look for something to do.
    pub fn begins(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// One has found nothing: it sleeps, by `sleep`, until it is woken for something, or
    /// nobody is at work; whether that is so. The last one tells the others, by `wake`.
    pub fn rests(&self, sleep: impl FnOnce(&dyn Fn() -> bool), wake: impl FnOnce()) -> bool {
        let has_ended = || self.0.load(Ordering::Relaxed) == 0;
        fence(Ordering::SeqCst);
        if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            wake();
            return true;
        }
        sleep(&has_ended);
        if has_ended() {
            return true;
        }
        self.begins();
        false
    }
}
