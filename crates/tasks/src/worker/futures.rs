// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workers that run tasks with futures, and wait for them. The module `future` has an overview.
//!
//! The module `stacked_tasks` has the tasks with futures on the stack of a worker.

use std::hint;
use std::sync::Arc;

use super::stacked_tasks::SuspendedCreator;
use super::{Registry, SPINS, Worker};
use crate::dispatch::Groups;
use crate::error::Panicked;
use crate::pool::LocalQueues;
use crate::region::Region;
use crate::sleep::SleepFor;
use crate::stack_pointer::stack_pointer;
use crate::sync::{Ordering, fence};
use crate::task_node::{Creator, NodeRuntime, NodeWaiter, TaskNode, TaskWait, WaitFault};

impl NodeRuntime for Registry {
    fn wake_for_node(&self, worker: usize) {
        self.wake_worker(worker);
    }

    fn report_panic(&self, panicked: Panicked) {
        self.tokens.restore_panics(vec![panicked]);
    }
}

impl Registry {
    /// Wakes the workers that sleep in waits for nodes. The caller has added a node.
    pub fn wake_future_waits(&self) {
        fence(Ordering::SeqCst);
        if self.future_waits.load(Ordering::Relaxed) > 0 {
            self.sleepers.wake_all_waiting();
        }
    }

    /// Returns whether workers outside isolate regions may steal from one another.
    pub fn workers_steal(&self) -> bool {
        self.workers() > 1 && self.global_queue.is_none()
    }

    pub fn creator_pid(&self) -> u32 {
        self.creator_pid
    }
}

impl Worker<'_> {
    /// Returns the creator of the tasks that the running function adds.
    pub fn creator(&self) -> Creator {
        self.stacked.creator.get()
    }

    /// Sets the creator, and returns the creator before.
    #[inline]
    pub fn replace_creator(&self, creator: Creator) -> Creator {
        self.stacked.creator.replace(creator)
    }

    /// Removes the creator until the returned value is dropped. The running function waits.
    pub(super) fn suspend_creator(&self) -> SuspendedCreator<'_> {
        self.stacked.suspend_creator()
    }

    /// Runs a claimed node.
    pub fn run_node(&self, node: &Arc<TaskNode>) {
        let stacked = self.stacked.begin(node);
        let region = self.enter_region(node.region().cloned());
        node.run_claimed(Some(self.registry));
        self.enter_region(region);
        drop(stacked);
    }

    /// Runs a node on the stack of the running task if it has not begun.
    ///
    /// # Errors
    /// If the stack is too full.
    pub fn run_pending_node(&self, node: &Arc<TaskNode>) -> Result<(), WaitFault> {
        if !node.is_pending() {
            return Ok(());
        }
        if !self.may_wait_for(node) {
            return Err(WaitFault::Isolated);
        }
        if self.is_stack_full() {
            return Err(WaitFault::StackFull);
        }
        let tokens = self.tokens();
        // The entry of the node in the queues may end before the node, so the node counts itself.
        tokens.begin_active();
        if node.claim() {
            match tokens.is_cancelled() {
                // A panic of the function's destructor is reported by the wait for all tasks.
                true => tokens.call(node.number(), true, || {
                    node.cancel_claimed(Some(self.registry));
                }),
                false => self.trace(node.number(), Groups::NONE, || self.run_node(node)),
            }
        }
        tokens.end_active();
        Ok(())
    }

    /// Returns the isolate region of the running task.
    pub fn region(&self) -> Option<Arc<Region>> {
        self.region.borrow().clone()
    }

    /// Sets the isolate region, and returns the region before.
    pub fn enter_region(&self, region: Option<Arc<Region>>) -> Option<Arc<Region>> {
        if region.is_some() && !self.is_isolated() {
            self.region_queues.set(self.outer_queues.borrow().len());
        }
        self.is_isolated.set(region.is_some());
        self.allows_stealing
            .set(region.is_none() && self.registry.workers_steal());
        self.region.replace(region)
    }

    fn may_wait_for(&self, node: &TaskNode) -> bool {
        match &*self.region.borrow() {
            Some(region) => region.contains(node.region()),
            None => true,
        }
    }

    /// Returns whether less than a quarter of the stack is left.
    fn is_stack_full(&self) -> bool {
        let used = self.stack_base.get().saturating_sub(stack_pointer());
        used > self.stack_bytes / 4 * 3
    }

    /// Waits until the node has ended.
    ///
    /// # Errors
    /// If the wait would never end, or if the stack is too full to run the node.
    pub fn wait_for_node(&self, node: &Arc<TaskNode>) -> Result<(), WaitFault> {
        self.run_pending_node(node)?;
        if node.has_ended() {
            return Ok(());
        }
        if !self.may_wait_for(node) {
            return Err(WaitFault::Isolated);
        }
        let creator = self.creator().node();
        let topmost = self.stacked.topmost();
        if (creator.as_ref()).is_some_and(|creator| node.is_ancestor_or_self(creator)) {
            return Err(WaitFault::Cycle);
        }
        let root = match (&creator, &topmost) {
            (Some(creator), _) => Some(Arc::clone(creator)),
            (None, None) => Some(Arc::clone(node)),
            (None, Some(_)) => None,
        };
        let waiting = self.stacked.parts().into_iter().chain(topmost).collect();
        let _wait = TaskWait::begin(&self.registry.future_lock, waiting, node)?;
        self.wait_for_running_node(node, root.as_deref());
        Ok(())
    }

    /// Waits until a node on another stack has ended. Runs descendants of `root` during the wait.
    fn wait_for_running_node(&self, node: &TaskNode, root: Option<&TaskNode>) {
        let registry = self.registry;
        let waiting = NodeWaiter::Worker(self.index);
        if !node.add_waiting(waiting) {
            return;
        }
        let depth = self.wait_depth.get();
        let _creator = self.suspend_creator();
        // No thread wakes this worker for tasks of a global queue, which it does not run.
        let min_level = self.shared.min_level.swap(usize::MAX, Ordering::Relaxed);
        let may_run = depth < self.wait_depth_max;
        self.wait_depth.set(depth + 1);
        self.publish_all();
        let descendant = || {
            let root = root.filter(|_| may_run && !self.is_stack_full());
            root.and_then(|root| root.pending_descendant(|node| self.may_wait_for(node)))
        };
        let mut spins = 0;
        while !node.has_ended() {
            if let Some(job) = self.take_mail_unless_isolated() {
                self.run(job);
            } else if let Some(next) = descendant() {
                // The region and the stack were checked above.
                let _ = self.run_pending_node(&next);
            } else if spins < SPINS {
                spins += 1;
                hint::spin_loop();
                continue;
            } else {
                // A worker in a deep wait searches only the injected tasks for those that it wants.
                self.inject_published_forks();
                self.inject_queues();
                registry.future_waits.fetch_add(1, Ordering::SeqCst);
                let has_work = || node.has_ended() || self.has_mail() || descendant().is_some();
                self.sleep(SleepFor::SomeTasks, has_work);
                registry.future_waits.fetch_sub(1, Ordering::SeqCst);
            }
            spins = 0;
        }
        self.wait_depth.set(depth);
        self.shared.min_level.store(min_level, Ordering::Relaxed);
        self.publish_all();
    }

    /// Injects the tasks of the queues of this worker, so that other workers run them during a
    /// sleep. The queues of waits in an isolate region and of deep waits stay: only this worker runs
    /// the tasks of a region, and a deep wait searches only its own queues.
    fn inject_queues(&self) {
        if self.registry.global_queue.is_some() {
            return;
        }
        let mut has_injected = false;
        let mut inject = |queues: &mut LocalQueues<_>| {
            has_injected |= queues.len() > 0;
            queues.drain(|job| self.registry.injector.push(job));
        };
        let mut outer_queues = self.outer_queues.borrow_mut();
        // The queues with a lower number are of waits outside the region and of no deep waits. The
        // local queues follow the outer queues.
        let before_region = match self.is_isolated() {
            true => self.region_queues.get() + 1,
            false => usize::MAX,
        };
        let end = before_region.min(self.deep_queues.get());
        if outer_queues.len() < end {
            inject(&mut self.local_queues.borrow_mut());
        }
        outer_queues.iter_mut().take(end).for_each(inject);
        drop(outer_queues);
        if has_injected {
            self.wake_near();
            self.registry.sleepers.wake_all_waiting();
        }
    }
}
