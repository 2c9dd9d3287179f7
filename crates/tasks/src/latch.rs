// SPDX-License-Identifier: MIT OR Apache-2.0
//! Something that happens once, and those who wait for it.

use crate::sync::{AtomicBool, Condvar, Mutex, Ordering};

/// Open once it has happened, until it is closed for the next time.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    is_open: AtomicBool,
    /// Held while opening, so that nobody falls asleep in between.
    door: Mutex<()>,
    opened: Condvar,
}

impl Latch {
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    pub fn open(&self) {
        let door = self.door.lock();
        self.is_open.store(true, Ordering::Release);
        self.opened.notify_all();
        drop(door);
    }

    pub fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }

    pub fn wait(&self) {
        let mut door = self.door.lock();
        while !self.is_open() {
            door = self.opened.wait(door);
        }
    }
}
