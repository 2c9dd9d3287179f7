// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runtimes that wait for one another, as C sees them: by handles, and also where a
//! thread that is no worker acts for a task, as it discards the argument of one.

use usher_tasks::WaitError;
use usher_tasks::waits::{Circle, Wait};

use crate::error::Failure;
use crate::here;
use crate::runtime::RuntimeHandle;

/// This thread is about to wait for that runtime, as long as this lives.
///
/// # Errors
/// Where a task runs here whose runtime is waited for by tasks of that one, itself
/// or by way of others.
pub fn before(runtime: *const RuntimeHandle) -> Result<Option<Wait>, Failure> {
    let (from, to) = (here::runtime().addr(), runtime.addr());
    if from == 0 || from == to {
        return Ok(None);
    }
    Wait::begin(from, to).map(Some).map_err(|Circle| deadlock())
}

/// What is said where that is refused.
pub fn deadlock() -> Failure {
    Failure::from(WaitError::Deadlock)
}
