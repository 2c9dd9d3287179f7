// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sleeping and waking of idle workers.
//!
//! 1. A worker that finds no task sets its bit in a bitmap of sleepers, executes a sequentially
//!    consistent fence and searches once more. If it finds work, it clears the bit; otherwise it
//!    sleeps until another thread has cleared the bit.
//! 2. A thread that makes a task visible executes a sequentially consistent fence, and clears the
//!    bit of one sleeping worker and wakes it.
//!
//! Because of the two fences, the worker sees the task or the thread sees the bit, so no wake-up is
//! lost. `README.md` in this folder describes the protocol in detail. If no worker sleeps, a
//! wake-up costs the fence and one load per 64 workers. If a worker sleeps, a wake-up tries the
//! workers in the order of the caller, and makes one system call. A sleep has no time limit.

use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

use crate::sync::thread::{self, Thread};
use crate::sync::{AtomicU64, Ordering, fence};

const BITS: usize = u64::BITS as usize;

/// The result of [`Sleepers::park`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParkResult {
    /// The worker did not sleep, because there was work. No thread has tried to wake it.
    FoundWork,
    /// The worker did not sleep, because there was work. Another thread has also woken the worker,
    /// and that wake-up may have been for another task.
    Notified,
    /// The worker slept and was woken.
    Slept,
}

/// The number of idle workers. The counter shares no cache line with other data, because workers
/// read it before each task.
#[derive(Debug, Default)]
#[repr(align(128))]
struct IdleWorkers(AtomicUsize);

impl IdleWorkers {
    fn begin(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a worker as idle while it searches for work.
#[derive(Debug)]
pub(crate) struct SearchGuard<'a>(&'a IdleWorkers);

impl Drop for SearchGuard<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The set of sleeping workers.
#[derive(Debug)]
pub(crate) struct Sleepers {
    idle: IdleWorkers,
    /// Bit `w % 64` of word `w / 64` is set while worker `w` sleeps or is about to sleep.
    asleep: Box<[AtomicU64]>,
    threads: Box<[OnceLock<Thread>]>,
}

impl Sleepers {
    pub fn new(workers: usize) -> Self {
        let words = std::iter::repeat_with(|| AtomicU64::new(0));
        let threads = std::iter::repeat_with(OnceLock::new);
        Self {
            idle: IdleWorkers::default(),
            asleep: words.take(workers.div_ceil(BITS)).collect(),
            threads: threads.take(workers).collect(),
        }
    }

    /// Registers the calling thread as the thread of this worker.
    pub fn register_thread(&self, worker: usize) {
        // A worker runs on one thread only, so the cell is set once.
        let _ = self.threads[worker].set(thread::current());
    }

    fn bit(&self, worker: usize) -> (&AtomicU64, u64) {
        (&self.asleep[worker / BITS], 1 << (worker % BITS))
    }

    /// Counts a worker as idle until the guard is dropped. Used by a worker that has searched for
    /// work in vain for a while, and continues to search.
    pub fn begin_search(&self) -> SearchGuard<'_> {
        self.idle.begin();
        SearchGuard(&self.idle)
    }

    /// Returns whether any worker seems to be idle.
    #[inline]
    pub fn is_any_idle(&self) -> bool {
        self.idle.0.load(Ordering::Relaxed) != 0
    }

    /// Sleeps until another thread wakes this worker. Does not sleep if `has_work` returns true.
    /// Calls `before_sleep` immediately before sleeping.
    pub fn park(
        &self,
        worker: usize,
        has_work: impl FnOnce() -> bool,
        before_sleep: impl FnOnce(),
    ) -> ParkResult {
        let (word, bit) = self.bit(worker);
        self.idle.begin();
        word.fetch_or(bit, Ordering::Release);
        fence(Ordering::SeqCst);
        if has_work() {
            // If a thread has cleared the bit to wake this worker, the acquire operation makes that
            // thread's work visible.
            let was_asleep = word.fetch_and(!bit, Ordering::Acquire) & bit != 0;
            self.idle.end();
            return match was_asleep {
                true => ParkResult::FoundWork,
                false => ParkResult::Notified,
            };
        }
        before_sleep();
        while word.load(Ordering::Acquire) & bit != 0 {
            thread::park();
        }
        self.idle.end();
        ParkResult::Slept
    }

    /// Returns whether any worker seems to sleep.
    fn is_any_asleep(&self) -> bool {
        let mut words = self.asleep.iter();
        words.any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Wakes the first sleeping worker of `order`. The caller must have made the work visible
    /// before. Returns whether a worker was woken.
    pub fn wake_one(&self, order: impl Iterator<Item = usize>) -> bool {
        self.wake_if(|| true, order)
    }

    /// Wakes the first sleeping worker of `order` if `has_work` returns true. Calls `has_work` only
    /// if a worker sleeps. Returns whether a worker was woken.
    pub fn wake_if(
        &self,
        has_work: impl FnOnce() -> bool,
        mut order: impl Iterator<Item = usize>,
    ) -> bool {
        fence(Ordering::SeqCst);
        self.is_any_asleep() && has_work() && order.any(|worker| self.wake(worker))
    }

    /// Wakes a worker and returns whether it slept. The caller must have executed a sequentially
    /// consistent fence since the work became visible.
    fn wake(&self, worker: usize) -> bool {
        let (word, bit) = self.bit(worker);
        let sleeps = word.load(Ordering::Relaxed) & bit != 0
            && word.fetch_and(!bit, Ordering::AcqRel) & bit != 0;
        if sleeps && let Some(thread) = self.threads[worker].get() {
            thread.unpark();
        }
        sleeps
    }

    /// Wakes this worker and returns whether it slept. The caller must have made work for the
    /// worker visible before.
    pub fn wake_worker(&self, worker: usize) -> bool {
        fence(Ordering::SeqCst);
        self.wake(worker)
    }

    /// Wakes all workers.
    pub fn wake_all(&self) {
        fence(Ordering::SeqCst);
        for worker in 0..self.threads.len() {
            self.wake(worker);
        }
    }
}
