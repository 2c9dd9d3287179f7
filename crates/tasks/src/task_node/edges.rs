// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of waits for running nodes: a wait that could never end is rejected. A check takes time
//! nearly linear in the number of waits that it follows, and a lock.

use std::sync::Arc;

use super::TaskNode;
use crate::sync::Mutex;
use crate::waits::leads;

/// The reason for which a worker cannot wait for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitFault {
    /// The wait would never end.
    Cycle,
    /// The stack is too full to run the task.
    StackFull,
    /// The task is outside the isolate region of the calling task.
    Isolated,
}

/// The lock under which waits of tasks for running tasks are checked and recorded.
pub(crate) type WaitLock = Mutex<()>;

/// The waits of a task for a running node, for all tasks of which the waiting task is a part. The
/// drop of this value removes the waits.
pub(crate) struct TaskWait<'a> {
    lock: &'a WaitLock,
    waiting: Vec<Arc<TaskNode>>,
    target: &'a Arc<TaskNode>,
}

impl<'a> TaskWait<'a> {
    /// Records that the nodes `waiting` wait for `target`.
    ///
    /// # Errors
    /// If the wait would close a cycle.
    pub fn begin(
        lock: &'a WaitLock,
        waiting: Vec<Arc<TaskNode>>,
        target: &'a Arc<TaskNode>,
    ) -> Result<Self, WaitFault> {
        let guard = lock.lock();
        let is_waiting =
            |node: &Arc<TaskNode>| waiting.iter().any(|waiting| Arc::ptr_eq(waiting, node));
        let address = |node: &Arc<TaskNode>| Arc::as_ptr(node).addr();
        let next = |node: &Arc<TaskNode>, next: &mut Vec<_>| node.waits_for(next);
        if leads(Arc::clone(target), is_waiting, address, next) {
            return Err(WaitFault::Cycle);
        }
        for node in &waiting {
            node.add_target(target);
        }
        drop(guard);
        Ok(Self {
            lock,
            waiting,
            target,
        })
    }
}

impl Drop for TaskWait<'_> {
    fn drop(&mut self) {
        let _guard = self.lock.lock();
        for node in &self.waiting {
            node.remove_target(self.target);
        }
    }
}
