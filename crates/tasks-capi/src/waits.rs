// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deadlock detection for C callers. Runtimes are identified by handles. It also covers a thread
//! that is no worker but acts for a task, because it discards the argument of one.

use usher_tasks::WaitError;
use usher_tasks::waits::{DeadlockCycle, Wait};

use crate::current_task;
use crate::error::Failure;
use crate::runtime::RuntimeHandle;

/// Enters a wait of this thread for that runtime, until the result is dropped.
///
/// # Errors
/// If a task runs here, and tasks of `runtime` wait for the runtime of that task, directly or
/// through others.
pub fn begin(runtime: *const RuntimeHandle) -> Result<Option<Wait>, Failure> {
    let (from, to) = (current_task::runtime().addr(), runtime.addr());
    if from == 0 || from == to {
        return Ok(None);
    }
    Wait::begin(from, to)
        .map(Some)
        .map_err(|DeadlockCycle| deadlock())
}

/// Returns the error for a wait that would close a cycle.
pub fn deadlock() -> Failure {
    Failure::from(WaitError::Deadlock)
}
