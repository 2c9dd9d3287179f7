// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nested waits: a task waits for a graph that it runs, or for a task that it has forked. During
//! the wait, the worker runs other tasks on the same stack, above the frames of the waiting task.
//!
//! 1. A wait for a graph gets new, empty queues. Tasks that become ready during the wait go there
//!    and run before older tasks.
//! 2. The worker runs tasks until the condition of the wait is true, and sleeps if it finds no
//!    task. The thread that makes the condition true wakes the worker.
//! 3. At the end, the remaining tasks move to the enclosing queues, and are published for other
//!    workers.
//!
//! To bound the stack, a wait that is nested more than 16 times (fewer with small stacks) is
//! *deep*. In a deep wait for a graph, the worker runs only tasks of that graph; the module `forks`
//! describes deep waits for forked tasks. The limit is one wait per 128 KiB of the stack, and at
//! most 16. A wait has no time limit. If there is no memory for the queues of step 1, the run of
//! the graph is an error.

use super::Worker;
use super::registry::lock;
use crate::job::JobRef;
use crate::levels::NoMemory;
use crate::pool::LocalQueues;
use crate::sleep::{ParkResult, SleepFor};
use crate::sync::Ordering;

impl<'a> Worker<'a> {
    /// Begins a wait for a graph that a task of this worker runs. Until the guard is dropped, tasks
    /// that become ready on this worker run before tasks that were ready before.
    ///
    /// # Errors
    /// If there is no memory for the queues. In that case, the state of the worker is unchanged.
    pub fn begin_nested_wait(&self) -> Result<NestedWaitGuard<'_, 'a>, NoMemory> {
        let (level, min_level) = (self.level.get(), self.min_level());
        let global_queue = self.registry.global_queue.as_ref();
        if let Some(global_queue) = global_queue.filter(|_| !self.is_isolated()) {
            lock(global_queue).ensure_level(level + 1)?;
            self.wait_depth.set(self.wait_depth.get() + 1);
            self.level.set(level + 1);
            self.shared.min_level.store(level + 1, Ordering::Relaxed);
        } else {
            let fresh = self.fresh_queues().ok_or(NoMemory)?;
            self.wait_depth.set(self.wait_depth.get() + 1);
            if self.is_deep() {
                // In a deep wait the worker takes tasks back from its own steal slots. These must
                // not contain tasks of earlier waits.
                self.reclaim_published();
            }
            let mut outer_queues = self.outer_queues.borrow_mut();
            outer_queues.push(self.local_queues.replace(fresh));
            if self.is_deep() {
                let deep_queues = self.deep_queues.get().min(outer_queues.len());
                self.deep_queues.set(deep_queues);
            }
        }
        Ok(NestedWaitGuard {
            worker: self,
            level,
            min_level,
        })
    }

    /// Returns empty queues, and reserves memory so that the current queues can be stored during
    /// the wait and the empty queues after the wait.
    fn fresh_queues(&self) -> Option<LocalQueues<JobRef>> {
        let (mut outer_queues, mut spare_queues) = (
            self.outer_queues.borrow_mut(),
            self.spare_queues.borrow_mut(),
        );
        outer_queues.try_reserve(1).ok()?;
        spare_queues.try_reserve(outer_queues.len() + 1).ok()?;
        spare_queues.pop().or_else(LocalQueues::try_new)
    }

    /// Returns whether a task of this worker waits for a graph that it runs.
    pub fn is_nested(&self) -> bool {
        !self.outer_queues.borrow().is_empty()
    }

    /// Returns whether waits are nested so deeply that the worker may run only tasks of the
    /// innermost wait.
    pub fn is_deep(&self) -> bool {
        self.wait_depth.get() > self.wait_depth_max
    }

    /// Runs tasks until `is_done` returns true, and sleeps while there are no tasks. The thread
    /// that makes `is_done` return true must wake this worker afterwards.
    pub fn run_until(&self, is_done: impl Fn() -> bool) {
        let registry = self.registry;
        // Tasks that run during the wait are no parts of the waiting task.
        let _creator = self.suspend_creator();
        let mut was_woken = false;
        loop {
            self.run_while(|| !is_done());
            if is_done() {
                self.end_search();
                if was_woken {
                    self.forward_wakeup();
                }
                return;
            }
            let parked = match &registry.global_queue {
                Some(global_queue) => {
                    let has_work = || lock(global_queue).has(self.min_level()) || is_done();
                    self.sleep(SleepFor::SomeTasks, has_work)
                }
                // All tasks of the graph that can run are with other workers.
                None if self.is_deep() => {
                    let has_work = || is_done() || !self.shared.mailbox.is_empty();
                    self.sleep(SleepFor::SomeTasks, has_work)
                }
                None => {
                    let has_work = || self.sees_work() || is_done();
                    self.sleep(SleepFor::AnyTask, has_work)
                }
            };
            was_woken |= parked != ParkResult::FoundWork;
        }
    }

    /// Wakes another worker in place of this worker, which was woken, possibly for a task, but will
    /// not search for tasks now.
    pub(super) fn forward_wakeup(&self) {
        let registry = self.registry;
        let Some(global_queue) = &registry.global_queue else {
            let sees_any = || registry.sees_work();
            registry
                .sleepers
                .wake_if(sees_any, registry.near(self.index));
            return;
        };
        // The search starts at level 0, because it is unknown for which level this worker was
        // woken.
        let mut next = lock(global_queue).filled_from(0);
        while let Some(level) = next {
            self.wake_for_level(level);
            next = lock(global_queue).filled_from(level + 1);
        }
    }

    /// Wakes a worker for a task of this level: a sleeping worker, else a waiting worker that may
    /// run tasks of the level.
    pub(super) fn wake_for_level(&self, level: usize) {
        let registry = self.registry;
        let near = || registry.near(self.index);
        if !registry.sleepers.wake_one(near()) && level > 0 {
            let may_run = |&worker: &usize| {
                registry.worker_shared[worker]
                    .min_level
                    .load(Ordering::Relaxed)
                    <= level
            };
            registry.sleepers.wake_waiting(near().filter(may_run));
        }
    }

    /// Waits until `is_done` returns true, for forked tasks, and runs other tasks as
    /// [`Self::run_until`] does. Tasks that this worker cannot run soon are published for other
    /// workers.
    pub(super) fn wait_for_fork(&self, is_done: impl Fn() -> bool) {
        self.wait_depth.set(self.wait_depth.get() + 1);
        self.run_until(is_done);
        // Tasks that were taken during the wait may be left in the queues. The waiting task
        // continues now and may take long, so other workers should run them.
        self.publish_all();
        self.wait_depth.set(self.wait_depth.get() - 1);
    }
}

/// Ends a nested wait when dropped. See [`Worker::begin_nested_wait`].
pub(crate) struct NestedWaitGuard<'w, 'a> {
    worker: &'w Worker<'a>,
    level: usize,
    min_level: usize,
}

impl Drop for NestedWaitGuard<'_, '_> {
    /// Moves the tasks that are left in the queues of the wait to the enclosing queues, and
    /// publishes them.
    fn drop(&mut self) {
        let worker = self.worker;
        worker.wait_depth.set(worker.wait_depth.get() - 1);
        worker.level.set(self.level);
        worker
            .shared
            .min_level
            .store(self.min_level, Ordering::Relaxed);
        let Some(enclosing) = worker.outer_queues.borrow_mut().pop() else {
            return;
        };
        if worker.outer_queues.borrow().len() < worker.deep_queues.get() {
            worker.deep_queues.set(usize::MAX);
        }
        let mut inner = worker.local_queues.replace(enclosing);
        worker.local_queues.borrow_mut().append(&mut inner);
        worker.spare_queues.borrow_mut().push(inner);
        worker.publish_all();
    }
}
