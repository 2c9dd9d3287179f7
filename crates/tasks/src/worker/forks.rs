// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for forked tasks: the second function of a `join`, and the tasks of a scope.
//!
//! Problem: up to a limit of nested waits, a waiting worker runs any task that it finds (module
//! `wait`). In a deeper wait it runs only *wanted* tasks, those for which it waits. A worker may
//! hold forked tasks for which other workers wait. If all workers began deep waits while they hold
//! one another's tasks, no worker would run these tasks.
//!
//! Idea: a worker in a deep wait moves all forked tasks that it does not want to the injector, and
//! searches the injector for wanted tasks. A deep wait repeats these steps until its condition is
//! true:
//!
//! 1. Run a task of the worker's mailbox.
//! 2. Run a wanted task of the worker's own queues and steal slots.
//! 3. Move the other forked tasks of the worker to the injector, and wake the workers that sleep in
//!    deep waits.
//! 4. Take all injected tasks. Keep the wanted tasks, and inject the others again.
//! 5. If no task was found, sleep until a task is injected or the condition is true.
//!
//! Each wanted task is in one of three places: on the stack of a worker, in the injector, or in the
//! queues of a worker that is in no deep wait and will run or publish it. Suppose that all workers
//! wait only for tasks on stacks. Then each worker waits for a task that began after the worker's
//! wait began, and that runs below another such wait. These times would form a cycle, so at least
//! one worker makes progress.
//!
//! The *mailbox* of a worker contains tasks that no other worker may run. The worker runs them also
//! in deep waits.
//!
//! A search in step 2 takes time linear in the number of forked tasks that the worker holds, and
//! step 4 takes time linear in the number of injected tasks. Waits have no time limit.

use std::hint;

use super::{Registry, SPINS, Worker};
use crate::job::{Chain, JobRef};
use crate::pool::FORKED;
use crate::sleep::SleepFor;
use crate::sync::thread;

impl Registry {
    /// Wakes a worker that waits for a condition. The caller has made the condition true before.
    pub fn wake_worker(&self, worker: usize) {
        self.sleepers.wake_worker(worker);
    }

    /// Adds a task that only worker number `worker` may run.
    pub fn send_mail(&self, worker: usize, job: JobRef) {
        self.worker_shared[worker].mailbox.push(job);
        self.wake_worker(worker);
    }

    /// Injects a forked task, for which a worker in a deep wait may wait.
    pub fn inject_fork(&self, job: JobRef) {
        self.inject(job);
        self.sleepers.wake_all_waiting();
    }
}

impl Worker<'_> {
    /// Enqueues a forked task that the running task does not take back. Other workers can take it
    /// at once.
    pub fn publish_fork(&self, job: JobRef) {
        match self.is_nested() {
            true => self.registry.inject_fork(job),
            false => self.publish_ready(job),
        }
    }

    /// Waits until `is_done` returns true, as [`Self::wait_for_fork`] does. In a deep wait, runs
    /// only the tasks for which `is_wanted` returns true. The thread that makes `is_done` return
    /// true must wake this worker.
    pub fn wait_for_forks(&self, is_wanted: impl Fn(&JobRef) -> bool, is_done: impl Fn() -> bool) {
        let depth = self.wait_depth.get();
        if depth < self.wait_depth_max || self.registry.global_queue.is_some() {
            return self.wait_for_fork(is_done);
        }
        self.wait_depth.set(depth + 1);
        let _creator = self.suspend_creator();
        let mut spins = 0;
        while !is_done() {
            match self.take_mail().or_else(|| self.take_wanted(&is_wanted)) {
                Some(job) => {
                    self.run(job);
                    spins = 0;
                }
                None if spins < SPINS => {
                    hint::spin_loop();
                    spins += 1;
                }
                None => {
                    let registry = self.registry;
                    let has_work = || {
                        if is_done() || !self.shared.mailbox.is_empty() {
                            return true;
                        }
                        let has_injected = !registry.injector.is_empty();
                        if has_injected {
                            // This worker does not count as running at this point, so that another
                            // worker may be woken for the tasks, and needs the CPU.
                            self.wake_near();
                            thread::yield_now();
                        }
                        has_injected
                    };
                    self.sleep(SleepFor::SomeTasks, has_work);
                }
            }
        }
        self.wait_depth.set(depth);
    }

    /// Waits until `is_done` returns true, for a task of another runtime. Runs tasks of this
    /// runtime during the wait. The thread that makes `is_done` return true must wake this worker.
    pub fn wait_across(&self, is_done: impl Fn() -> bool) {
        // The wait does not count as a nested wait: a worker that runs no tasks could not run the
        // tasks for which the other runtime may wait.
        let was_waiting = self.waits_across.replace(true);
        self.run_until(is_done);
        self.waits_across.set(was_waiting);
        self.publish_all();
    }

    /// Runs one task, of the own queues if `is_local` is set, and returns whether a task was found.
    pub fn run_one(&self, is_local: bool) -> bool {
        let depth = self.wait_depth.get();
        if depth >= self.wait_depth_max || self.is_isolated() {
            return false;
        }
        let was_waiting = self.waits_across.replace(true);
        let job = match is_local && self.registry.global_queue.is_none() {
            true => {
                self.drain_overflow();
                self.local_queues.borrow_mut().pop()
            }
            false => self.find_work(),
        };
        self.waits_across.set(was_waiting);
        let Some(job) = job else { return false };
        self.wait_depth.set(depth + 1);
        let creator = self.suspend_creator();
        self.run(job);
        drop(creator);
        self.wait_depth.set(depth);
        self.publish_all();
        true
    }

    /// Returns whether this worker has queued or published tasks.
    pub fn has_tasks(&self) -> bool {
        self.local_queues.borrow().len() > 0 || !self.shared.steal_slots.is_empty()
    }

    /// Takes the oldest task of the mailbox.
    #[inline]
    pub(super) fn take_mail(&self) -> Option<JobRef> {
        let mailbox = &self.shared.mailbox;
        let mut chain = mailbox.take();
        let first = chain.pop();
        chain.for_each(|job| mailbox.push(job));
        first
    }

    /// Takes the oldest task of the mailbox, unless this worker is in an isolate region. Tasks in
    /// the mailbox were not created in a region: a scope that is opened in a region is serial.
    pub(super) fn take_mail_unless_isolated(&self) -> Option<JobRef> {
        match self.is_isolated() {
            true => None,
            false => self.take_mail(),
        }
    }

    /// Returns whether this worker may run a task of its mailbox now.
    pub(super) fn has_mail(&self) -> bool {
        !self.is_isolated() && !self.shared.mailbox.is_empty()
    }

    /// Takes a task for which `is_wanted` returns true. If this worker holds none, makes all its
    /// tasks visible to other workers.
    fn take_wanted(&self, is_wanted: impl Fn(&JobRef) -> bool) -> Option<JobRef> {
        self.take_back_wanted(&is_wanted);
        if let Some(job) = self.local_queues.borrow_mut().take_fork(&is_wanted) {
            return Some(job);
        }
        self.inject_forks();
        self.publish_all();
        self.take_injected_wanted(&is_wanted);
        self.local_queues.borrow_mut().take_fork(&is_wanted)
    }

    /// Moves forked tasks from this worker's steal slots to the injector.
    pub(super) fn inject_published_forks(&self) {
        self.take_back_wanted(|_: &JobRef| false);
    }

    /// Moves wanted tasks from this worker's steal slots to its queues, and other forked tasks from
    /// there to the injector. Tasks that were not forked stay in the slots.
    fn take_back_wanted(&self, is_wanted: impl Fn(&JobRef) -> bool) {
        let steal_slots = &self.shared.steal_slots;
        let mut has_injected = false;
        let mut sort_out = |chain: Chain, others: &mut Chain| {
            for job in chain {
                if is_wanted(&job) {
                    self.local_queues.borrow_mut().push(job);
                    continue;
                }
                match job.groups() == FORKED {
                    true => {
                        self.registry.injector.push(job);
                        has_injected = true;
                    }
                    false => others.push(job),
                }
            }
        };
        let (mut kept, mut overflow) = (Vec::new(), Chain::EMPTY);
        while let Some(chain) = steal_slots.reclaim() {
            let mut others = Chain::EMPTY;
            sort_out(chain, &mut others);
            kept.push(others);
        }
        if let Some(chain) = steal_slots.take_overflow() {
            sort_out(chain, &mut overflow);
        }
        for others in kept.into_iter().rev().filter(|others| !others.is_empty()) {
            // All slots were empty, so one is free.
            let is_published = steal_slots.publish(|_| others.reversed());
            debug_assert!(is_published, "only this worker fills its slots");
        }
        if !overflow.is_empty() {
            steal_slots.fill_overflow(overflow.reversed());
        }
        if has_injected {
            self.wake_for_injected();
        }
    }

    /// Moves all forked tasks of this worker's queues to the injector.
    fn inject_forks(&self) {
        let mut forks = self.local_queues.borrow_mut().take_forks();
        for queues in self.outer_queues.borrow_mut().iter_mut() {
            forks.extend(queues.take_forks());
        }
        if forks.is_empty() {
            return;
        }
        forks
            .into_iter()
            .for_each(|job| self.registry.injector.push(job));
        self.wake_for_injected();
    }

    /// Moves the wanted tasks of the injector to this worker's queues.
    fn take_injected_wanted(&self, is_wanted: impl Fn(&JobRef) -> bool) {
        let injector = &self.registry.injector;
        let mut has_injected = false;
        for job in injector.take() {
            match is_wanted(&job) {
                true => self.local_queues.borrow_mut().push(job),
                false => {
                    injector.push(job);
                    has_injected = true;
                }
            }
        }
        // While this worker held the tasks, another worker may have seen an empty injector and gone
        // to sleep.
        if has_injected {
            self.wake_for_injected();
        }
    }

    fn wake_for_injected(&self) {
        let registry = self.registry;
        self.wake_near();
        registry.sleepers.wake_all_waiting();
    }
}
