// SPDX-License-Identifier: MIT OR Apache-2.0
//! A latch: threads wait until an event has happened. [`Latch`] uses a mutex and a condition
//! variable for waiting threads, and one atomic load for checks. It can be closed again for the
//! next run.

use crate::sync::{AtomicBool, Condvar, Mutex, Ordering};

/// Open once the event has happened, until [`Self::close`] resets it.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    is_open: AtomicBool,
    /// Held while the latch is opened, so that a thread cannot begin to wait between the check and
    /// the notification.
    mutex: Mutex<()>,
    opened: Condvar,
}

impl Latch {
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    pub fn open(&self) {
        let mutex = self.mutex.lock();
        self.is_open.store(true, Ordering::Release);
        self.opened.notify_all();
        drop(mutex);
    }

    pub fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }

    pub fn wait(&self) {
        let mut mutex = self.mutex.lock();
        while !self.is_open() {
            mutex = self.opened.wait(mutex);
        }
    }
}
