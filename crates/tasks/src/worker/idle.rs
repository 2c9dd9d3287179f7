// SPDX-License-Identifier: MIT OR Apache-2.0
//! Idle workers: the search for a task, and the sleep while there is none.
//!
//! A worker that finds no task retries [`SPINS`] times, and then sleeps until another thread wakes
//! it (module `sleep`). A worker counts as searching from its start, and from each wake-up for any
//! task, until it finds a task, and after [`SPINS_BUSY`] attempts without a result. Other workers publish more
//! tasks while a worker searches or sleeps (module `share`). A sleep has no time limit.

use std::hint;

use super::{SPINS, Worker};
use crate::job::JobRef;
use crate::sleep::{ParkResult, SleepFor};

/// Number of attempts to find a task before a worker counts as idle. These attempts take longer
/// than the pause between two steals (module `share`).
const SPINS_BUSY: u32 = 50;

impl Worker<'_> {
    /// Runs tasks while tasks are found and `condition` holds.
    pub(super) fn run_while(&self, condition: impl Fn() -> bool) {
        while condition() {
            match self.find_work().or_else(|| self.spin_for_work(&condition)) {
                Some(job) => self.run(job),
                None => return,
            }
        }
    }

    /// Retries [`Self::find_work`] for a while before the worker goes to sleep.
    #[cold]
    fn spin_for_work(&self, condition: impl Fn() -> bool) -> Option<JobRef> {
        for spins in 1..SPINS {
            // In a deep wait, the worker does not take tasks of other workers, so it does not count
            // as idle.
            if spins == SPINS_BUSY && !self.is_deep() {
                self.begin_search();
            }
            hint::spin_loop();
            if !condition() {
                return None;
            }
            if let Some(job) = self.find_work() {
                return Some(job);
            }
        }
        None
    }

    /// Counts this worker as inactive. If other workers are active, sleeps until a task is visible
    /// or no worker is active. Returns whether this worker may end.
    pub(super) fn sleep_or_terminate(&self) -> bool {
        let registry = self.registry;
        let sleep = |all_inactive: &dyn Fn() -> bool| {
            self.sleep(SleepFor::AnyTask, || self.sees_work() || all_inactive());
        };
        registry
            .active_workers
            .deactivate(sleep, || registry.sleepers.wake_all())
    }

    pub(super) fn sleep(&self, sleep_for: SleepFor, has_work: impl FnOnce() -> bool) -> ParkResult {
        let has_work = || {
            // The worker does not count as running any more, so it counts as idle without a gap.
            self.end_search();
            has_work()
        };
        let begin = || {
            self.begin_sleep();
            // This worker cannot run some of the visible tasks. Other threads may have woken no
            // worker for them, because the limit of running workers was reached.
            if sleep_for == SleepFor::SomeTasks && self.registry.running().is_limited() {
                self.forward_wakeup();
            }
        };
        let sleepers = &self.registry.sleepers;
        let parked = sleepers.park(self.index, sleep_for, has_work, begin);
        self.end_sleep(sleep_for, parked)
    }

    pub(super) fn begin_sleep(&self) {
        self.counts().sleeps.add(1);
        self.counts().asleep.begin();
    }

    pub(super) fn end_sleep(&self, slept_for: SleepFor, parked: ParkResult) -> ParkResult {
        if parked == ParkResult::Slept {
            self.counts().asleep.end();
        }
        if slept_for == SleepFor::AnyTask && parked != ParkResult::FoundWork {
            // The thread that woke this worker has counted the worker as searching.
            self.is_searching.set(true);
        }
        parked
    }

    /// Counts this worker as searching.
    fn begin_search(&self) {
        if !self.is_searching.replace(true) {
            self.registry.running().begin_search();
        }
    }

    /// Counts this worker as searching no longer.
    #[inline]
    pub(super) fn end_search(&self) {
        if self.is_searching.take() {
            self.registry.running().end_search();
        }
    }
}
