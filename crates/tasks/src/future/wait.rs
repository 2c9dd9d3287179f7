// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for nodes: by workers of the same runtime, and by other threads. The overview is in the
//! parent module. A wait has no time limit.

use std::process;
use std::sync::{Arc, Weak};

use super::{TaskNode, TaskWaitError};
use crate::current_worker::{self, ThisWorker};
use crate::join::WaitingThread;
use crate::latch::Latch;
use crate::sync::Mutex;
use crate::waits::{DeadlockCycle, RuntimeWait, leads};

/// The reason for which a worker cannot wait for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitFault {
    /// The wait would never end.
    Cycle,
    /// The stack is too full to run the task.
    StackFull,
}

/// Calls a function with the worker of the calling thread, if it is a worker of the node's runtime.
fn with_own_worker<R>(node: &TaskNode, function: impl FnOnce(Option<ThisWorker<'_>>) -> R) -> R {
    let registry = Weak::as_ptr(node.registry());
    current_worker::with(|this| {
        function(this.filter(|this| std::ptr::eq(Arc::as_ptr(&this.registry()), registry)))
    })
}

/// Runs a node if it has not begun and the calling thread is a worker of its runtime.
pub(super) fn run_if_pending(node: &Arc<TaskNode>) {
    // A forked child runs no tasks, because no thread could run the tasks that these submit.
    if node.is_pending() && node.creator_pid() == process::id() {
        with_own_worker(node, |this| {
            // A full stack is reported by the wait that follows.
            let _ = this.map(|this| this.worker().run_pending_node(node));
        });
    }
}

/// Waits until the node has ended.
pub(super) fn until_end(node: &Arc<TaskNode>) -> Result<(), TaskWaitError> {
    let (task, creator_pid) = (node.number(), node.creator_pid());
    if creator_pid != process::id() {
        return Err(TaskWaitError::Forked { creator_pid });
    }
    with_own_worker(node, |this| match this {
        Some(this) => this
            .worker()
            .wait_for_node(node)
            .map_err(|fault| match fault {
                WaitFault::Cycle => TaskWaitError::Cycle { task },
                WaitFault::StackFull => TaskWaitError::StackFull { task },
            }),
        None => wait_outside(node).map_err(|DeadlockCycle| TaskWaitError::Deadlock { task }),
    })
}

/// Waits in a thread that is no worker of the node's runtime. A worker of another runtime runs no
/// tasks during the wait.
fn wait_outside(node: &TaskNode) -> Result<(), DeadlockCycle> {
    let (from, to) = (
        current_worker::current_registry().addr(),
        Weak::as_ptr(node.registry()).addr(),
    );
    let _wait = match from {
        0 => None,
        from => Some(RuntimeWait::begin(from, to)?),
    };
    let latch = Arc::new(Latch::default());
    if node.add_waiting(WaitingThread::Outside(Arc::clone(&latch))) {
        latch.wait();
    }
    Ok(())
}

/// The lock under which waits of tasks for running tasks are checked and recorded.
pub(crate) type WaitLock = Mutex<()>;

/// The waits of a task for a running node, for all tasks of which the waiting task is a part. The
/// drop of this value removes the waits.
pub(crate) struct TaskWait<'a> {
    lock: &'a WaitLock,
    waiting: [Option<Arc<TaskNode>>; 2],
    target: &'a Arc<TaskNode>,
}

impl<'a> TaskWait<'a> {
    /// Records that the nodes `waiting` wait for `target`.
    ///
    /// # Errors
    /// If the wait would close a cycle.
    pub fn begin(
        lock: &'a WaitLock,
        waiting: [Option<Arc<TaskNode>>; 2],
        target: &'a Arc<TaskNode>,
    ) -> Result<Self, WaitFault> {
        let guard = lock.lock();
        let is_waiting = |node: &Arc<TaskNode>| {
            let mut nodes = waiting.iter().flatten();
            nodes.any(|waiting| Arc::ptr_eq(waiting, node))
        };
        let address = |node: &Arc<TaskNode>| Arc::as_ptr(node).addr();
        let next = |node: &Arc<TaskNode>, next: &mut Vec<_>| node.waits_for(next);
        if leads(Arc::clone(target), is_waiting, address, next) {
            return Err(WaitFault::Cycle);
        }
        for node in waiting.iter().flatten() {
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
        for node in self.waiting.iter().flatten() {
            node.remove_target(self.target);
        }
    }
}
