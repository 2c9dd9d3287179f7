// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deadlock detection for C callers: a wait that would close a cycle of runtimes is rejected.
//! Runtimes are identified by their handles. Unlike the detection in `usher_tasks`, this detection
//! also covers a thread that is no worker but acts for a task, because it discards the argument of
//! the task.

use usher_tasks::WaitError;
use usher_tasks::waits::{DeadlockCycle, RuntimeWait};

use crate::current_task;
use crate::error::Failure;
use crate::runtime::RuntimeHandle;

/// Enters a wait of this thread for `runtime`, which lasts until the result is dropped.
///
/// # Errors
/// If a task runs on this thread, and tasks of `runtime` wait for the runtime of that task,
/// directly or through other runtimes.
pub fn begin(runtime: *const RuntimeHandle) -> Result<Option<RuntimeWait>, Failure> {
    let (from, to) = (current_task::runtime().addr(), runtime.addr());
    if from == 0 || from == to {
        return Ok(None);
    }
    RuntimeWait::begin(from, to)
        .map(Some)
        .map_err(|DeadlockCycle| deadlock())
}

/// Returns the error for a wait that would close a cycle.
pub fn deadlock() -> Failure {
    Failure::from(WaitError::Deadlock)
}
