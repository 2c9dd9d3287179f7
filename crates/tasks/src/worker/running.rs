// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limit of running workers ([`crate::follow`]): surplus workers sleep, and sleeping workers
//! are woken when the limit rises.
//!
//! A worker checks the limit before a task that it takes from a queue at every
//! [`CHECK_INTERVAL`]-th task, or when the observer requests a check. A surplus worker moves its
//! queued tasks to the injected tasks, where other workers find them, and sleeps until fewer
//! workers run than the limit permits. If tasks are left in the inboxes or steal slots of sleeping
//! workers, the observer lets a running worker move them to the injected tasks, so that they do not
//! starve.

use super::registry::{Registry, WorkerShared};
use super::{CHECK_INTERVAL, Worker, some};
use crate::sleep::{RunningWorkers, SleepFor};
use crate::sync::Ordering;

impl Registry {
    /// Returns the number of running workers and its limit.
    pub fn running(&self) -> &RunningWorkers {
        self.sleepers.running()
    }

    /// Sets the limit of running workers. Wakes workers if fewer run, and makes workers sleep if
    /// more run.
    pub fn limit_running(&self, limit: usize) {
        let running = self.running();
        running.set_limit(limit);
        let sleepers_have_tasks = running.is_limited() && self.sleepers_have_tasks();
        if sleepers_have_tasks {
            self.must_take_from_sleepers.store(true, Ordering::Relaxed);
        }
        if sleepers_have_tasks || running.is_above_limit() {
            for worker in self.awake() {
                worker.until_check.store(1, Ordering::Relaxed);
            }
        }
        // Other threads may have left tasks to the running workers. Each woken worker wakes the
        // next one if there are more tasks.
        let order = 0..self.workers();
        self.sleepers.wake_if(|| self.sees_work(), order);
    }

    /// Returns whether tasks are in the inboxes or steal slots of sleeping workers.
    fn sleepers_have_tasks(&self) -> bool {
        self.asleep()
            .any(|shared| !shared.inbox.is_empty() || !shared.steal_slots.is_empty())
    }

    fn asleep(&self) -> impl Iterator<Item = &WorkerShared> {
        let all = self.worker_shared.iter().enumerate();
        all.filter_map(|(at, shared)| self.sleepers.sleeps(at).then_some(shared))
    }

    /// Returns the workers that neither sleep nor are about to sleep.
    fn awake(&self) -> impl Iterator<Item = &WorkerShared> {
        let all = self.worker_shared.iter().enumerate();
        all.filter_map(|(at, shared)| (!self.sleepers.sleeps(at)).then_some(shared))
    }

    /// Returns the threads of the running workers.
    pub fn running_threads(&self) -> impl Iterator<Item = i32> {
        (self.awake()).map(|shared| shared.thread_id.load(Ordering::Relaxed))
    }

    /// Returns the number of tasks that have begun.
    pub fn tasks_begun(&self) -> u64 {
        (self.worker_shared.iter())
            .map(|shared| shared.counts.tasks_and_forks())
            .sum()
    }

    /// Returns the number of tasks that have begun, except stolen functions of `join`.
    pub fn progress(&self) -> u64 {
        (self.worker_shared.iter())
            .map(|shared| shared.counts.tasks.get())
            .sum()
    }

    /// Returns whether a running worker must move the tasks of sleeping workers.
    pub fn must_take_from_sleepers(&self) -> bool {
        self.must_take_from_sleepers.load(Ordering::Relaxed)
    }

    /// Returns whether all workers have ended, or will end without running a task.
    pub fn has_ended(&self) -> bool {
        self.is_closing() && self.active_workers.is_none_active()
    }
}

impl Worker<'_> {
    /// Moves the tasks of sleeping workers to the injected tasks if the observer has found such
    /// tasks. A running worker takes tasks of other workers only if it has none of its own, but it
    /// checks regularly for injected tasks.
    pub(super) fn take_from_sleepers(&self) {
        let registry = self.registry;
        if !registry.must_take_from_sleepers() {
            return;
        }
        registry
            .must_take_from_sleepers
            .store(false, Ordering::Relaxed);
        for shared in registry.asleep() {
            let slots = &shared.steal_slots;
            let next = || some(shared.inbox.take()).or_else(|| slots.steal());
            while let Some(chain) = next().or_else(|| slots.take_overflow()) {
                chain
                    .into_iter()
                    .for_each(|job| registry.injector.push(job));
            }
        }
        // A worker in a deep wait searches only the injected tasks for those that it may run.
        registry.sleepers.wake_all_waiting();
    }

    /// Sleeps until fewer workers run than the limit permits and there are tasks. Other workers can
    /// run the queued tasks of this worker. Does nothing if this worker is not a surplus worker any
    /// more.
    pub(super) fn sleep_as_surplus(&self) {
        let registry = self.registry;
        self.end_search();
        let mut local_queues = self.local_queues.borrow_mut();
        if local_queues.len() > 0 {
            local_queues.drain(|job| registry.injector.push(job));
            registry.sleepers.wake_all_waiting();
        }
        drop(local_queues);
        let is_needed = || registry.running().is_below_limit() && registry.sees_work();
        let has_mail = || !self.shared.mailbox.is_empty();
        let has_work = || registry.is_closing() || has_mail() || is_needed();
        let begin = || self.begin_sleep();
        let parked = registry.sleepers.park_surplus(self.index, has_work, begin);
        self.end_sleep(SleepFor::AnyTask, parked);
    }

    /// Notes and returns whether more workers run than the limit permits, so that this worker
    /// sleeps before its next task. A worker that waits inside a task does not sleep, because the
    /// task waits for it.
    pub(super) fn check_surplus(&self) -> bool {
        let is_surplus = self.wait_depth.get() == 0
            && !self.waits_across.get()
            && self.registry.running().is_above_limit()
            && self.shared.mailbox.is_empty()
            && !self.registry.is_closing();
        self.is_surplus.set(is_surplus);
        if is_surplus {
            self.set_until_check(CHECK_INTERVAL);
        }
        is_surplus
    }
}
