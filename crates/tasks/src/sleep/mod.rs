// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sleeping and waking of idle workers, and the limit of running workers.
//!
//! 1. A worker that finds no task decrements the number of running workers, sets its bit in a
//!    bitmap, executes a sequentially consistent fence and searches once more. If it finds work, it
//!    clears the bit; otherwise it sleeps until another thread has cleared the bit.
//! 2. A thread that makes a task visible executes a sequentially consistent fence. If fewer workers
//!    run than the limit permits, the thread clears the bit of one sleeping worker, increments the
//!    number of running workers and wakes the worker.
//!
//! Because of the two fences, the worker sees the task, or the thread sees the bit and the
//! decremented number, so no wake-up is lost. `README.md` in this folder describes the protocol in
//! detail. If no worker sleeps or the limit is reached, a wake-up costs the fence and two loads.
//! Otherwise it tries the workers in the order of the caller, and makes one system call. A sleep
//! has no time limit.

mod running;

use std::sync::OnceLock;

pub(crate) use self::running::RunningWorkers;
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

/// For what a worker sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SleepFor {
    /// Any ready task.
    AnyTask,
    /// The end of a nested wait in which the worker may run only some of the ready tasks.
    SomeTasks,
}

/// A set of workers: bit `w % 64` of word `w / 64` is set if worker `w` is in the set.
#[derive(Debug)]
struct WorkerSet(Box<[AtomicU64]>);

impl WorkerSet {
    fn new(workers: usize) -> Self {
        let words = std::iter::repeat_with(|| AtomicU64::new(0));
        Self(words.take(workers.div_ceil(BITS)).collect())
    }

    fn bit(&self, worker: usize) -> (&AtomicU64, u64) {
        (&self.0[worker / BITS], 1 << (worker % BITS))
    }

    fn add(&self, worker: usize) {
        let (word, bit) = self.bit(worker);
        word.fetch_or(bit, Ordering::Release);
    }

    /// Removes a worker and returns whether it was in the set. The writes that the thread made
    /// which added or removed the worker before are visible afterwards.
    fn remove(&self, worker: usize) -> bool {
        let (word, bit) = self.bit(worker);
        word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    fn has(&self, worker: usize, order: Ordering) -> bool {
        let (word, bit) = self.bit(worker);
        word.load(order) & bit != 0
    }
}

/// The sleeping workers, and the number of running workers.
#[derive(Debug)]
pub(crate) struct Sleepers {
    running: RunningWorkers,
    /// The workers that sleep, or are about to sleep, for any task.
    asleep: WorkerSet,
    /// The workers that sleep, or are about to sleep, in a wait for some tasks.
    waiting: WorkerSet,
    threads: Box<[OnceLock<Thread>]>,
}

impl Sleepers {
    /// Creates the state of this number of workers, which all run. All of them may run.
    pub fn new(workers: usize) -> Self {
        let threads = std::iter::repeat_with(OnceLock::new);
        Self {
            running: RunningWorkers::new(workers),
            asleep: WorkerSet::new(workers),
            waiting: WorkerSet::new(workers),
            threads: threads.take(workers).collect(),
        }
    }

    /// Returns the number of running workers and its limit.
    pub fn running(&self) -> &RunningWorkers {
        &self.running
    }

    /// Registers the calling thread as the thread of this worker.
    pub fn register_thread(&self, worker: usize) {
        // A worker runs on one thread only, so the cell is set once.
        let _ = self.threads[worker].set(thread::current());
    }

    fn set(&self, sleep_for: SleepFor) -> &WorkerSet {
        match sleep_for {
            SleepFor::AnyTask => &self.asleep,
            SleepFor::SomeTasks => &self.waiting,
        }
    }

    /// Returns whether this worker sleeps or is about to sleep. The answer may be outdated when the
    /// function returns.
    pub fn sleeps(&self, worker: usize) -> bool {
        self.asleep.has(worker, Ordering::Relaxed) || self.waiting.has(worker, Ordering::Relaxed)
    }

    /// Sleeps until another thread wakes this worker. Does not sleep if `has_work` returns true.
    /// Calls `before_sleep` immediately before sleeping.
    pub fn park(
        &self,
        worker: usize,
        sleep_for: SleepFor,
        has_work: impl FnOnce() -> bool,
        before_sleep: impl FnOnce(),
    ) -> ParkResult {
        self.running.end();
        self.park_ended(worker, self.set(sleep_for), has_work, before_sleep)
    }

    /// As [`Self::park`] for any task, but does nothing unless more workers run than the limit
    /// permits.
    pub fn park_surplus(
        &self,
        worker: usize,
        has_work: impl FnOnce() -> bool,
        before_sleep: impl FnOnce(),
    ) -> ParkResult {
        match self.running.end_surplus() {
            true => self.park_ended(worker, &self.asleep, has_work, before_sleep),
            false => ParkResult::FoundWork,
        }
    }

    /// Sleeps, for a worker that does not count as running any more. The thread that removes the
    /// worker from the set counts it as running again.
    fn park_ended(
        &self,
        worker: usize,
        set: &WorkerSet,
        has_work: impl FnOnce() -> bool,
        before_sleep: impl FnOnce(),
    ) -> ParkResult {
        set.add(worker);
        fence(Ordering::SeqCst);
        if has_work() {
            // If another thread has removed this worker to wake it, the removal makes that thread's
            // work visible.
            return match set.remove(worker) {
                true => {
                    self.running.begin();
                    ParkResult::FoundWork
                }
                false => ParkResult::Notified,
            };
        }
        before_sleep();
        while set.has(worker, Ordering::Acquire) {
            thread::park();
        }
        ParkResult::Slept
    }

    /// Wakes the first of the workers `order` that sleeps for any task, if the limit permits. The
    /// caller must have made the work visible before. Returns whether a worker was woken.
    pub fn wake_one(&self, order: impl Iterator<Item = usize>) -> bool {
        self.wake_if(|| true, order)
    }

    /// As [`Self::wake_one`], if `has_work` returns true. Calls `has_work` only if the limit
    /// permits one more worker.
    pub fn wake_if(
        &self,
        has_work: impl FnOnce() -> bool,
        mut order: impl Iterator<Item = usize>,
    ) -> bool {
        fence(Ordering::SeqCst);
        self.running.is_below_limit()
            && has_work()
            && order.any(|worker| self.wake(SleepFor::AnyTask, worker))
    }

    /// As [`Self::wake_one`], for workers that sleep in a wait for some tasks.
    pub fn wake_waiting(&self, mut order: impl Iterator<Item = usize>) -> bool {
        fence(Ordering::SeqCst);
        self.running.is_below_limit() && order.any(|worker| self.wake(SleepFor::SomeTasks, worker))
    }

    /// Wakes a worker that sleeps for this, and returns whether there was one. The caller must have
    /// executed a sequentially consistent fence since the work became visible.
    fn wake(&self, sleep_for: SleepFor, worker: usize) -> bool {
        let set = self.set(sleep_for);
        let sleeps = set.has(worker, Ordering::Relaxed) && set.remove(worker);
        if sleeps {
            if sleep_for == SleepFor::AnyTask {
                self.running.begin_search();
            }
            self.running.begin();
            if let Some(thread) = self.threads[worker].get() {
                thread.unpark();
            }
        }
        sleeps
    }

    /// Wakes this worker, for a condition for which it waits, whatever the limit is. The caller
    /// must have made the condition true before.
    pub fn wake_worker(&self, worker: usize) {
        fence(Ordering::SeqCst);
        if !self.wake(SleepFor::AnyTask, worker) {
            self.wake(SleepFor::SomeTasks, worker);
        }
    }

    /// Wakes all workers that sleep for any task, whatever the limit is.
    pub fn wake_all(&self) {
        self.wake_set(SleepFor::AnyTask);
    }

    /// Wakes all workers that sleep in a wait for some tasks, whatever the limit is.
    pub fn wake_all_waiting(&self) {
        self.wake_set(SleepFor::SomeTasks);
    }

    fn wake_set(&self, sleep_for: SleepFor) {
        fence(Ordering::SeqCst);
        for worker in 0..self.threads.len() {
            self.wake(sleep_for, worker);
        }
    }
}
