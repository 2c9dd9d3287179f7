// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tasks with futures on the stack of a worker, and which of them wait for others.
//!
//! A worker knows these nodes ([`StackedTasks`]):
//!
//! - The *creator* is the running task with a future, or the task with a future that has opened the
//!   scope or runs the graph of the running task.
//! - The *topmost* node is the last one that began on the stack.
//! - The *suspended* nodes are the creators of functions that wait, on the stack. Tasks that run
//!   during such a wait are no parts of the waiting task, so they have no creator at first.
//!
//! A task cannot end before a task that runs above one of its functions on a stack has ended. It
//! therefore waits for that task.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::task_node::{Creator, TaskNode};

/// The tasks with futures on the stack of a worker.
#[derive(Debug)]
pub(super) struct StackedTasks {
    pub creator: Cell<Creator>,
    topmost: Cell<Creator>,
    /// The creators of the functions that wait, from the bottom of the stack.
    suspended: RefCell<Vec<Creator>>,
    /// The number of suspended creators below the topmost node.
    below_topmost: Cell<usize>,
}

impl Default for StackedTasks {
    fn default() -> Self {
        Self {
            creator: Cell::new(Creator::NONE),
            topmost: Cell::new(Creator::NONE),
            suspended: RefCell::default(),
            below_topmost: Cell::new(0),
        }
    }
}

impl StackedTasks {
    /// Returns the topmost node.
    pub fn topmost(&self) -> Option<Arc<TaskNode>> {
        self.topmost.get().node()
    }

    /// Removes the creator until the returned value is dropped. The running function waits.
    pub fn suspend_creator(&self) -> SuspendedCreator<'_> {
        let creator = self.creator.replace(Creator::NONE);
        if creator != Creator::NONE {
            self.suspended.borrow_mut().push(creator);
        }
        SuspendedCreator {
            stacked: self,
            creator,
        }
    }

    /// Puts a node on the stack until the returned value is dropped. Until then, the topmost node
    /// and the tasks with parts above it wait for the node.
    pub fn begin<'a>(&'a self, node: &'a Arc<TaskNode>) -> StackedNode<'a> {
        let parts = self.parts();
        let this = Creator::of(node);
        let creator = self.creator.replace(this);
        let below = self.topmost.replace(this);
        let suspended = self.suspended.borrow().len();
        let below_topmost = self.below_topmost.replace(suspended);
        if let Some(below) = below.node() {
            below.set_above(Some(Arc::clone(node)));
        }
        parts.iter().for_each(|part| part.add_target(node));
        StackedNode {
            stacked: self,
            node,
            parts,
            creator,
            below,
            below_topmost,
        }
    }

    /// Returns the tasks of which a function is on the stack above the topmost node or runs now,
    /// without the topmost node itself.
    pub fn parts(&self) -> Vec<Arc<TaskNode>> {
        let suspended = self.suspended.borrow();
        let since = suspended[self.below_topmost.get()..].iter();
        let mut parts: Vec<Arc<TaskNode>> = Vec::new();
        let topmost = self.topmost.get();
        for creator in since
            .chain([&self.creator.get()])
            .filter(|&one| *one != topmost)
        {
            if let Some(node) = creator.node()
                && !parts.iter().any(|part| Arc::ptr_eq(part, &node))
            {
                parts.push(node);
            }
        }
        parts
    }
}

/// Removes the creator while a function waits; its drop restores the creator.
pub(super) struct SuspendedCreator<'a> {
    stacked: &'a StackedTasks,
    creator: Creator,
}

impl Drop for SuspendedCreator<'_> {
    fn drop(&mut self) {
        if self.creator != Creator::NONE {
            self.stacked.suspended.borrow_mut().pop();
        }
        self.stacked.creator.set(self.creator);
    }
}

/// A node on the stack. Its drop removes the node.
pub(super) struct StackedNode<'a> {
    stacked: &'a StackedTasks,
    node: &'a Arc<TaskNode>,
    parts: Vec<Arc<TaskNode>>,
    /// The creator, the topmost node and the number of suspended creators below it, before.
    creator: Creator,
    below: Creator,
    below_topmost: usize,
}

impl Drop for StackedNode<'_> {
    fn drop(&mut self) {
        let stacked = self.stacked;
        for part in &self.parts {
            part.remove_target(self.node);
        }
        if let Some(below) = self.below.node() {
            below.set_above(None);
        }
        stacked.below_topmost.set(self.below_topmost);
        stacked.topmost.set(self.below);
        stacked.creator.set(self.creator);
    }
}
