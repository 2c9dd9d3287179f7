// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deadlock detection for C callers: if a wait of a task would close a cycle of runtimes that wait
//! for one another, the wait is rejected. The table of waits is that of `usher_tasks::waits`; the
//! address of its handle identifies a runtime. `usher_tasks` only detects waits of workers. This
//! file also detects waits in a `discard` function, which any thread may call in place of a task.

use usher_tasks::WaitError;
use usher_tasks::waits::{DeadlockCycle, RuntimeWait};

use crate::current_task;
use crate::error::Failure;
use crate::runtime::RuntimeHandle;

/// If this thread runs a task of another runtime, records that the other runtime waits for
/// `runtime`. The wait ends when the result is dropped.
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
