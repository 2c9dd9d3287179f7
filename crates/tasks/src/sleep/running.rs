// SPDX-License-Identifier: MIT OR Apache-2.0
//! The number of running workers, and its limit.
//!
//! A worker *runs* while it searches for tasks or runs one, also if the task blocks. If more
//! workers than CPUs run, they only share the CPUs by time slices: each of them searches the queues
//! of all others, and a wake-up of a further worker is wasted. The limit is therefore the number of
//! CPUs plus the number of blocked workers ([`crate::follow`]); without that module it is the
//! number of workers.
//!
//! The limit is not exact: two threads may each wake a worker at the same time where one more may
//! run, and a worker that is woken for its condition runs in any case. A surplus worker sleeps
//! after its current task.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize as Hint};
use std::thread::Thread;

use crate::sync::{AtomicIsize, Ordering, fence};

/// The number of running workers, its limit, and the number of searching workers. The numbers share
/// no cache line with other data, because workers read them before each task.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct RunningWorkers {
    /// A thread that wakes a worker counts the worker only after it has removed the worker from the
    /// set of sleepers, and the worker may end before. The number is therefore too low, or
    /// negative, for a moment. If it were too high, a thread could leave all workers asleep.
    running: AtomicIsize,
    /// From 1 to the number of workers.
    limit: AtomicIsize,
    /// Running workers that search for their first task since they started or were woken, or have
    /// searched without a result for a while. Only a hint.
    searching: Hint,
    workers: isize,
    observer: Observer,
}

/// The thread that sets the limit. It sleeps while no worker runs.
#[derive(Debug, Default)]
struct Observer {
    thread: OnceLock<Thread>,
    sleeps: AtomicBool,
}

impl RunningWorkers {
    pub fn new(workers: usize) -> Self {
        let workers = workers as isize;
        Self {
            running: AtomicIsize::new(workers),
            limit: AtomicIsize::new(workers),
            searching: Hint::new(workers.unsigned_abs()),
            workers,
            observer: Observer::default(),
        }
    }

    /// Returns the number of running workers. It may be outdated when the function returns.
    pub fn count(&self) -> usize {
        usize::try_from(self.load()).unwrap_or(0)
    }

    fn load(&self) -> isize {
        self.running.load(Ordering::Relaxed)
    }

    /// Counts one more running worker.
    pub(super) fn begin(&self) {
        let before = self.running.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            fence(Ordering::SeqCst);
            if self.observer.sleeps.swap(false, Ordering::Acquire)
                && let Some(thread) = self.observer.thread.get()
            {
                thread.unpark();
            }
        }
    }

    /// Counts one running worker less.
    pub(super) fn end(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts one running worker less if there are more than the limit permits. Returns whether
    /// there were.
    pub(super) fn end_surplus(&self) -> bool {
        let less = |running: isize| (running > self.load_limit()).then(|| running - 1);
        let order = Ordering::Relaxed;
        self.running.fetch_update(order, order, less).is_ok()
    }

    /// Returns the number of workers that may run.
    pub fn limit(&self) -> usize {
        self.load_limit().unsigned_abs()
    }

    fn load_limit(&self) -> isize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit, at least 1 and at most the number of workers. After an increase, the caller
    /// wakes workers if there are tasks, because other threads have not woken them.
    pub fn set_limit(&self, limit: usize) {
        let limit = isize::try_from(limit).unwrap_or(isize::MAX);
        let limit = limit.clamp(1, self.workers);
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns whether the limit is below the number of workers.
    pub fn is_limited(&self) -> bool {
        self.load_limit() < self.workers
    }

    /// Returns whether one more worker may run.
    #[inline]
    pub fn is_below_limit(&self) -> bool {
        self.load() < self.load_limit()
    }

    /// Returns whether more workers run than the limit permits.
    pub fn is_above_limit(&self) -> bool {
        self.load() > self.load_limit()
    }

    /// Counts one more searching worker. Called for a worker that is woken for any task, and by a
    /// worker that has searched without a result for a while.
    pub fn begin_search(&self) {
        self.searching.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one searching worker less.
    pub fn end_search(&self) {
        self.searching.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether any worker seems to be idle: asleep or searching.
    #[inline]
    pub fn is_any_idle(&self) -> bool {
        self.load() < self.workers || self.searching.load(Ordering::Relaxed) != 0
    }

    /// Returns whether one more worker could run a task: a worker searches for tasks, or the limit
    /// permits one more.
    pub fn could_more_run(&self) -> bool {
        self.is_below_limit() || self.searching.load(Ordering::Relaxed) != 0
    }

    /// Registers the calling thread as the thread that sets the limit.
    pub fn register_observer(&self) {
        let _ = self.observer.thread.set(std::thread::current());
    }

    /// Sleeps while no worker runs, for the thread that sets the limit. May return earlier.
    pub fn park_observer(&self) {
        self.observer.sleeps.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.load() <= 0 {
            std::thread::park();
        }
        self.observer.sleeps.store(false, Ordering::Relaxed);
    }
}
