// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workers that run tasks with futures, and wait for them. The module `future` has an overview.
//!
//! A worker knows two nodes: the *creator*, which is the running task with a future, or the task
//! with a future that has opened the scope or runs the graph of the running task; and the *topmost*
//! node on its stack. Between the two may be a task without a future, which a nested wait has begun.
//! Such a task has no creator.

use std::hint;
use std::ptr;
use std::sync::Arc;

use super::{Registry, SPINS, Worker};
use crate::dispatch::Groups;
use crate::error::Panicked;
use crate::pool::{FORKED, LocalQueues};
use crate::region::Region;
use crate::sleep::SleepFor;
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
        self.creator.get()
    }

    /// Sets the creator, and returns the creator before.
    #[inline]
    pub fn replace_creator(&self, creator: Creator) -> Creator {
        self.creator.replace(creator)
    }

    /// Runs a claimed node.
    pub fn run_node(&self, node: &Arc<TaskNode>) {
        let this = Creator::of(node);
        let creator = self.creator.replace(this);
        let below = self.topmost.replace(this);
        let below_node = below.node();
        if let Some(below) = &below_node {
            below.set_above(Some(Arc::clone(node)));
        }
        // The waiting task may be a part of a task on another stack.
        let whole = match creator == below {
            true => None,
            false => creator.node(),
        };
        if let Some(whole) = &whole {
            whole.add_target(node);
        }
        let region = self.enter_region(node.region().cloned());
        node.run_claimed(Some(self.registry));
        self.enter_region(region);
        if let Some(whole) = &whole {
            whole.remove_target(node);
        }
        if let Some(below) = &below_node {
            below.set_above(None);
        }
        self.topmost.set(below);
        self.creator.set(creator);
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
                true => node.cancel_claimed(Some(self.registry)),
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
        let here = 0_u8;
        let used = self
            .stack_base
            .get()
            .saturating_sub(ptr::from_ref(&here).addr());
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
        let (creator, topmost) = (self.creator.get().node(), self.topmost.get().node());
        if (creator.as_ref()).is_some_and(|creator| node.is_ancestor_or_self(creator)) {
            return Err(WaitFault::Cycle);
        }
        let root = match (&creator, &topmost) {
            (Some(creator), _) => Some(Arc::clone(creator)),
            (None, None) => Some(Arc::clone(node)),
            (None, Some(_)) => None,
        };
        let waiting = match (&creator, &topmost) {
            (Some(one), Some(other)) if Arc::ptr_eq(one, other) => [creator, None],
            _ => [creator, topmost],
        };
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
        let (depth, was_deep) = (self.wait_depth.get(), self.is_deep());
        let creator = self.creator.replace(Creator::NONE);
        // No thread wakes this worker for tasks of a global queue, which it does not run.
        let min_level = self.shared.min_level.swap(usize::MAX, Ordering::Relaxed);
        let may_run = depth < self.wait_depth_max;
        self.wait_depth.set(depth + 1);
        self.publish_all();
        let descendant = || {
            let root = root.filter(|_| may_run && !self.is_stack_full());
            root.and_then(TaskNode::pending_descendant)
        };
        let mut spins = 0;
        while !node.has_ended() {
            if let Some(job) = self.take_mail_unless_isolated() {
                self.run(job);
            } else if let Some(next) = descendant() {
                // The limit was checked above.
                let _ = self.run_pending_node(&next);
            } else if spins < SPINS {
                spins += 1;
                hint::spin_loop();
                continue;
            } else {
                self.inject_all();
                registry.future_waits.fetch_add(1, Ordering::SeqCst);
                let has_work = || node.has_ended() || self.has_mail() || descendant().is_some();
                self.sleep(SleepFor::SomeTasks, has_work);
                registry.future_waits.fetch_sub(1, Ordering::SeqCst);
            }
            spins = 0;
        }
        self.wait_depth.set(depth);
        self.shared.min_level.store(min_level, Ordering::Relaxed);
        self.creator.set(creator);
        if was_deep {
            self.take_back_injected();
        }
        self.publish_all();
    }

    /// Injects all tasks of the queues of this worker, so that other workers run them during a
    /// sleep.
    fn inject_all(&self) {
        if self.registry.global_queue.is_some() {
            return;
        }
        let mut has_injected = false;
        let mut inject = |queues: &mut LocalQueues<_>| {
            has_injected |= queues.len() > 0;
            queues.drain(|job| self.registry.injector.push(job));
        };
        inject(&mut self.local_queues.borrow_mut());
        self.outer_queues.borrow_mut().iter_mut().for_each(inject);
        if has_injected {
            self.wake_near();
            self.registry.sleepers.wake_all_waiting();
        }
    }

    /// Takes tasks that were not forked from the injector, in a deep wait for a graph: the tasks of
    /// the graph may be among them, and the wait searches only the queues of this worker.
    fn take_back_injected(&self) {
        if self.registry.global_queue.is_none() {
            self.take_injected_wanted(|job| job.groups() != FORKED);
        }
    }
}
