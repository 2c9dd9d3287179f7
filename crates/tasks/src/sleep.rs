// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workers that have nothing to do sleep, and are woken when there is something.
//!
//! Nothing may be lost between a worker's last look and its sleep. The worker sets
//! its bit, and looks once more; whoever has something to do puts it where workers
//! look, and then reads the bits. Between the two steps of either stands a fence
//! that is sequentially consistent, so of the two at least one sees the other: the
//! worker finds the task, or is found asleep.
//!
//! Who wakes a worker clears its bit, and so wakes each sleeper once; a worker
//! sleeps as long as its bit is set. A worker that finds something in its last
//! look clears its bit itself. If it has been cleared by then, somebody has woken
//! it for a task that is there to be found.

use std::sync::OnceLock;

use crate::sync::thread::{self, Thread};
use crate::sync::{AtomicU64, Ordering, fence};

const BITS: usize = u64::BITS as usize;

/// Who sleeps.
#[derive(Debug)]
pub(crate) struct Sleepers {
    /// Bit `w % 64` of word `w / 64`: worker `w` sleeps, or is about to.
    asleep: Box<[AtomicU64]>,
    threads: Box<[OnceLock<Thread>]>,
}

impl Sleepers {
    pub fn new(workers: usize) -> Self {
        let words = std::iter::repeat_with(|| AtomicU64::new(0));
        let threads = std::iter::repeat_with(OnceLock::new);
        Self {
            asleep: words.take(workers.div_ceil(BITS)).collect(),
            threads: threads.take(workers).collect(),
        }
    }

    /// This thread is that worker from now on.
    pub fn enrol(&self, worker: usize) {
        // A worker has one thread in its life.
        let _ = self.threads[worker].set(thread::current());
    }

    fn bit(&self, worker: usize) -> (&AtomicU64, u64) {
        (&self.asleep[worker / BITS], 1 << (worker % BITS))
    }

    /// Sleeps until woken; not at all if `look` finds something to do. Whether it
    /// slept; `begins` is told before.
    pub fn park(&self, worker: usize, look: impl FnOnce() -> bool, begins: impl FnOnce()) -> bool {
        let (word, bit) = self.bit(worker);
        word.fetch_or(bit, Ordering::Release);
        fence(Ordering::SeqCst);
        if look() {
            word.fetch_and(!bit, Ordering::Relaxed);
            return false;
        }
        begins();
        while word.load(Ordering::Acquire) & bit != 0 {
            thread::park();
        }
        true
    }

    /// Whether somebody seems to sleep.
    pub fn sleeps_any(&self) -> bool {
        let mut words = self.asleep.iter();
        words.any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Something to do has been put where workers look: wakes the first of these
    /// that sleeps, if any does; whether one did.
    pub fn wake_one(&self, mut order: impl Iterator<Item = usize>) -> bool {
        fence(Ordering::SeqCst);
        self.sleeps_any() && order.any(|worker| self.wake(worker))
    }

    /// Wakes that worker; whether it slept. The caller has put up a fence since
    /// there was something to do.
    fn wake(&self, worker: usize) -> bool {
        let (word, bit) = self.bit(worker);
        let sleeps = word.load(Ordering::Relaxed) & bit != 0
            && word.fetch_and(!bit, Ordering::AcqRel) & bit != 0;
        if sleeps && let Some(thread) = self.threads[worker].get() {
            thread.unpark();
        }
        sleeps
    }

    /// Wakes that worker, for what has been put where it looks.
    pub fn wake_for(&self, worker: usize) -> bool {
        fence(Ordering::SeqCst);
        self.wake(worker)
    }

    /// Wakes all.
    pub fn wake_all(&self) {
        fence(Ordering::SeqCst);
        for worker in 0..self.threads.len() {
            self.wake(worker);
        }
    }
}
