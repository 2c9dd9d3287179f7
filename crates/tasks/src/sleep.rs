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
//! it for a task that is there to be found. Whoever was woken and does not look for
//! tasks after that wakes somebody else in its place: see `Worker::work_until`.
//!
//! Beside that it is counted who is *idle*: who sleeps, also if it has been woken and has
//! not begun to look, as what it was woken for may be somebody else's by then; and who
//! has looked for something to do for a while. That number is a hint for those who have
//! tasks, and orders nothing.

use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

use crate::sync::thread::{self, Thread};
use crate::sync::{AtomicU64, Ordering, fence};

const BITS: usize = u64::BITS as usize;

/// How a worker's going to sleep has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parked {
    /// There was something to do.
    Stayed,
    /// There was something to do, and somebody has woken it meanwhile.
    Called,
    /// It has slept, and was woken.
    Slept,
}

/// Who is idle; on a line of its own, as workers read it before each task.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Idle(AtomicUsize);

impl Idle {
    fn begin(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A worker that looks for something to do is idle, as long as this lives.
#[derive(Debug)]
pub(crate) struct Looking<'a>(&'a Idle);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Who sleeps.
#[derive(Debug)]
pub(crate) struct Sleepers {
    idle: Idle,
    /// Bit `w % 64` of word `w / 64`: worker `w` sleeps, or is about to.
    asleep: Box<[AtomicU64]>,
    threads: Box<[OnceLock<Thread>]>,
}

impl Sleepers {
    pub fn new(workers: usize) -> Self {
        let words = std::iter::repeat_with(|| AtomicU64::new(0));
        let threads = std::iter::repeat_with(OnceLock::new);
        Self {
            idle: Idle::default(),
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

    /// A worker has looked for something to do for a while, and goes on.
    pub fn idle(&self) -> Looking<'_> {
        self.idle.begin();
        Looking(&self.idle)
    }

    /// Whether somebody seems to be idle.
    #[inline]
    pub fn is_any_idle(&self) -> bool {
        self.idle.0.load(Ordering::Relaxed) != 0
    }

    /// Sleeps until woken; not at all if `look` finds something to do. `begins` is told
    /// before.
    pub fn park(
        &self,
        worker: usize,
        look: impl FnOnce() -> bool,
        begins: impl FnOnce(),
    ) -> Parked {
        let (word, bit) = self.bit(worker);
        self.idle.begin();
        word.fetch_or(bit, Ordering::Release);
        fence(Ordering::SeqCst);
        if look() {
            // Whoever has woken it has something for it, which it sees from now on.
            let was_asleep = word.fetch_and(!bit, Ordering::Acquire) & bit != 0;
            self.idle.end();
            return match was_asleep {
                true => Parked::Stayed,
                false => Parked::Called,
            };
        }
        begins();
        while word.load(Ordering::Acquire) & bit != 0 {
            thread::park();
        }
        self.idle.end();
        Parked::Slept
    }

    /// Whether somebody seems to sleep.
    fn sleeps_any(&self) -> bool {
        let mut words = self.asleep.iter();
        words.any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Something to do has been put where workers look: wakes the first of these
    /// that sleeps, if any does; whether one did.
    pub fn wake_one(&self, order: impl Iterator<Item = usize>) -> bool {
        self.wake_if(|| true, order)
    }

    /// As [`Self::wake_one`], where there may be something to do, which is looked for only
    /// if anybody sleeps.
    pub fn wake_if(
        &self,
        is_any: impl FnOnce() -> bool,
        mut order: impl Iterator<Item = usize>,
    ) -> bool {
        fence(Ordering::SeqCst);
        self.sleeps_any() && is_any() && order.any(|worker| self.wake(worker))
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
