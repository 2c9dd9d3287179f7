// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for nodes: by workers of the same runtime, and by other threads. The overview is in the
//! parent module. A wait has no time limit.

use std::process;
use std::sync::{Arc, Weak};

use super::TaskWaitError;
use crate::current_worker::{self, ThisWorker};
use crate::latch::Latch;
use crate::task_node::{NodeWaiter, TaskNode, WaitFault};
use crate::waits::{DeadlockCycle, RuntimeWait};
use crate::worker::Registry;

/// Calls a function with the worker of the calling thread, if it is a worker of the node's runtime.
fn with_own_worker<R>(node: &TaskNode, function: impl FnOnce(Option<ThisWorker<'_>>) -> R) -> R {
    let registry = Weak::as_ptr(node.registry()).cast::<Registry>();
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
                WaitFault::Isolated => TaskWaitError::Isolated { task },
            }),
        None => wait_outside(node).map_err(|DeadlockCycle| TaskWaitError::Deadlock { task }),
    })
}

/// Waits in a thread that is no worker of the node's runtime. A worker of another runtime runs no
/// tasks during the wait.
fn wait_outside(node: &TaskNode) -> Result<(), DeadlockCycle> {
    let (from, to) = (
        current_worker::current_registry().addr(),
        Weak::as_ptr(node.registry()).cast::<Registry>().addr(),
    );
    let _wait = match from {
        0 => None,
        from => Some(RuntimeWait::begin(from, to)?),
    };
    let latch = Arc::new(Latch::default());
    if node.add_waiting(NodeWaiter::Outside(Arc::clone(&latch))) {
        latch.wait();
    }
    Ok(())
}
