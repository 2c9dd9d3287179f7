// SPDX-License-Identifier: MIT OR Apache-2.0
//! C functions that submit ready tasks without tokens. The functions follow the rules of
//! `usher_tasks_register` and `usher_tasks_register_owned`, and take constant time.

use std::ffi::{c_int, c_void};

use usher_tasks::{Groups, Runtime, SubmitError};

use crate::current_task::{self, Entry};
use crate::error::boundary;
use crate::runtime::{OwnedTask, RuntimeHandle, SendPtr, call_of, discard_of, enter};

/// The name of a submitted task in errors.
const SUBMITTED: &str = "a submitted task";

/// Submits a task. A task without groups is grouped by the address of its argument.
fn submit(
    this: &Runtime,
    groups: Groups,
    data: usize,
    task: impl FnOnce() + Send + 'static,
) -> Result<(), SubmitError> {
    match groups {
        Groups::NONE => this.submit_on(data, task),
        groups => this.submit(groups, task),
    }
}

/// Submits a ready task.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_submit(
    runtime: *mut RuntimeHandle,
    entry: Option<Entry>,
    arg: *mut c_void,
    t: u32,
    s: u32,
) -> c_int {
    boundary(|| {
        let call = call_of(SUBMITTED, entry, arg)?;
        let pointer = SendPtr(runtime);
        // SAFETY: the caller guarantees that `entry` may be called once with `arg`, on any thread.
        let task = move || unsafe { pointer.run(call) };
        let groups = Groups::new(t, s);
        let submit = |this: &Runtime| Ok(submit(this, groups, arg.addr(), task)?);
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        unsafe { enter(runtime, submit) }
    })
}

/// Submits a ready task that owns its argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_submit_owned(
    runtime: *mut RuntimeHandle,
    entry: Option<Entry>,
    arg: *mut c_void,
    discard: Option<Entry>,
    t: u32,
    s: u32,
) -> c_int {
    boundary(|| {
        let call = call_of(SUBMITTED, entry, arg)?;
        let discard = discard_of(SUBMITTED, discard)?;
        let groups = Groups::new(t, s);
        let submit = |this: &Runtime| {
            let owned = OwnedTask {
                runtime,
                call,
                discard,
            };
            let task = move || owned.run();
            let submit = || submit(this, groups, arg.addr(), task);
            Ok(current_task::registering(submit)?)
        };
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        unsafe { enter(runtime, submit) }
    })
}
