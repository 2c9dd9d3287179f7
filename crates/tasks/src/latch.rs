// SPDX-License-Identifier: MIT OR Apache-2.0
//! A latch, which lets threads sleep until an event has happened. A check whether the event has
//! happened is one atomic load. A thread that waits sleeps on a condition variable with a mutex.
//! After the event, the latch can be closed and used for another event. A wait has no time limit.

use crate::sync::{AtomicBool, Condvar, Mutex, Ordering};

/// A latch is open from the event until a call of [`Self::close`].
#[derive(Debug, Default)]
pub(crate) struct Latch {
    is_open: AtomicBool,
    /// The thread that opens the latch and a thread that begins to wait lock this mutex. A thread
    /// therefore cannot check the latch before it opens and begin to sleep after the notification.
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
