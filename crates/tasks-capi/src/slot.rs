// SPDX-License-Identifier: MIT OR Apache-2.0
//! C functions for tasks with result slots, which `include/usher_tasks_wait.h` specifies.
//!
//! A slot owns a future of the task, and a pointer that the task writes before it ends. A wait for a
//! slot does not hold the gate of the runtime, because the destruction of the runtime waits for the
//! tasks anyway, and a slot may outlive its runtime.

use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{panic, ptr};

use usher_tasks::{Groups, Runtime, TaskFuture, TaskRef, TaskStatus, TaskWaitError};

use crate::current_task::{self, Entry, TaskCall};
use crate::error::{ErrorCode, Failure, boundary, boundary_or, probe};
use crate::runtime::{RuntimeHandle, SendPtr, enter, out};
use crate::waits;

/// Number of bytes that a slot and its task need at most, apart from the memory of submitted tasks.
const SLOT_BYTES: usize = 1024;

/// `usher_tasks_value_entry`: the function of a task that has a result.
pub type ValueEntry = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// The target of a `usher_tasks_slot *`.
#[derive(Debug)]
pub struct SlotHandle {
    runtime: *mut RuntimeHandle,
    future: TaskFuture<()>,
    value: Arc<AtomicPtr<c_void>>,
}

/// The function of a task, its argument and the place of its result.
struct ValueCall {
    runtime: SendPtr,
    entry: ValueEntry,
    arg: *mut c_void,
    /// The function that is called with the argument if the task never runs.
    discard: Option<Entry>,
    value: Arc<AtomicPtr<c_void>>,
}

// SAFETY: the C code that submits a task guarantees that the function and its argument may be used
// on any thread.
unsafe impl Send for ValueCall {}

impl ValueCall {
    /// Calls the function and stores its result. If the task has failed, panics with its message,
    /// without printing the message.
    fn run(mut self) {
        self.discard = None;
        let call = || {
            // SAFETY: the C code guarantees that the function may be called once with its argument.
            let value = unsafe { (self.entry)(self.arg) };
            self.value.store(value, Ordering::Relaxed);
        };
        if let Some(message) = current_task::call_as_task(self.runtime.0, call) {
            self.value.store(ptr::null_mut(), Ordering::Relaxed);
            panic::resume_unwind(Box::new(message));
        }
    }
}

impl Drop for ValueCall {
    fn drop(&mut self) {
        let Some(entry) = self.discard.filter(|_| !current_task::is_registering()) else {
            return;
        };
        let arg = self.arg;
        // SAFETY: the C code guarantees that `discard` may be called with the argument if the task
        // does not run. It cannot run any more. If `discard` fails, this call panics: the wait for
        // all tasks reports it, or the call that has cancelled the task fails.
        unsafe { current_task::run(self.runtime.0, TaskCall { entry, arg }) };
    }
}

impl SlotHandle {
    fn task(&self) -> &TaskRef {
        self.future.task()
    }

    fn wait(&self) -> Result<*mut c_void, Failure> {
        // The runtime of a task that has ended may be destroyed.
        let _waits = match self.task().status() {
            TaskStatus::Pending | TaskStatus::Running => waits::begin(self.runtime)?,
            TaskStatus::Ready | TaskStatus::Panicked | TaskStatus::Cancelled => None,
        };
        self.future.wait()?;
        Ok(self.value.load(Ordering::Relaxed))
    }
}

impl From<TaskWaitError> for Failure {
    fn from(error: TaskWaitError) -> Self {
        let code = match &error {
            TaskWaitError::Panicked { task, message } => {
                let text = format!("the submitted task {task} failed: {message}");
                return Self::new(ErrorCode::Failed, text);
            }
            TaskWaitError::Cancelled { .. } => ErrorCode::Cancelled,
            TaskWaitError::Cycle { .. } => ErrorCode::Inside,
            TaskWaitError::Isolated { .. } => ErrorCode::Isolated,
            TaskWaitError::Deadlock { .. } => ErrorCode::Deadlock,
            TaskWaitError::StackFull { .. } => ErrorCode::TooDeep,
            TaskWaitError::Forked { .. } => ErrorCode::Ended,
        };
        Self::new(code, error.to_string())
    }
}

/// Submits a ready task with a slot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_submit_slot(
    runtime: *mut RuntimeHandle,
    entry: Option<ValueEntry>,
    arg: *mut c_void,
    discard: Option<Entry>,
    t: u32,
    s: u32,
    slot: *mut *mut SlotHandle,
) -> c_int {
    boundary(|| {
        // SAFETY: `slot` is null or writable, as the caller guarantees.
        let out = unsafe { out(slot, "the pointer to the slot") }?;
        let what = "the function pointer of a submitted task";
        let entry = entry.ok_or_else(|| Failure::null(what))?;
        probe(SLOT_BYTES, "the slot of a submitted task")?;
        let value = Arc::new(AtomicPtr::new(ptr::null_mut()));
        let call = ValueCall {
            runtime: SendPtr(runtime),
            entry,
            arg,
            discard,
            value: Arc::clone(&value),
        };
        let task = move || call.run();
        let submit = |this: &Runtime| {
            let submit = || match Groups::new(t, s) {
                Groups::NONE => this.submit_future_on(arg.addr(), task),
                groups => this.submit_future(groups, task),
            };
            Ok(submit()?)
        };
        // If the task is not submitted, the drop of its function inside `registering` discards
        // nothing. SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        let entered = current_task::registering(|| unsafe { enter(runtime, submit) });
        let future = entered?;
        *out = Box::into_raw(Box::new(SlotHandle {
            runtime,
            future,
            value,
        }));
        Ok(())
    })
}

/// Returns the slot to which a pointer refers.
///
/// # Safety
/// `slot` is null or valid.
unsafe fn slot_of<'a>(slot: *const SlotHandle) -> Result<&'a SlotHandle, Failure> {
    // SAFETY: `slot` is null or valid, as the caller guarantees.
    unsafe { slot.as_ref() }.ok_or_else(|| Failure::null("slot"))
}

/// Waits for the task of a slot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_slot_wait(
    slot: *mut SlotHandle,
    value: *mut *mut c_void,
) -> c_int {
    boundary(|| {
        // SAFETY: `slot` is null or valid, as the caller guarantees.
        let waited = unsafe { slot_of(slot) }.and_then(SlotHandle::wait);
        if !value.is_null() {
            // SAFETY: `value` is not null, so it is writable, as the caller guarantees.
            unsafe { value.write(*waited.as_ref().unwrap_or(&ptr::null_mut())) };
        }
        waited.map(|_| ())
    })
}

/// Waits for the tasks of several slots.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_slot_wait_all(
    slots: *const *mut SlotHandle,
    count: usize,
) -> c_int {
    boundary(|| {
        if count == 0 {
            return Ok(());
        }
        if slots.is_null() {
            return Err(Failure::null("the array of slots"));
        }
        // SAFETY: `slots` is not null, so it has `count` elements, as the caller guarantees.
        let slots = unsafe { slice::from_raw_parts(slots, count) };
        if let Some(at) = slots.iter().position(|slot| slot.is_null()) {
            return Err(Failure::null(&format!("slot {at} of {count}")));
        }
        // SAFETY: the slots are not null, so they are valid, as the caller guarantees.
        let slots = slots.iter().map(|&slot| unsafe { &*slot });
        TaskRef::run_pending(slots.clone().map(SlotHandle::task));
        let mut first = Ok(());
        for slot in slots {
            first = first.and(slot.wait().map(|_| ()));
        }
        first
    })
}

/// Returns the state of the task of a slot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_slot_status(slot: *const SlotHandle) -> c_int {
    boundary_or(-1, || {
        // SAFETY: `slot` is null or valid, as the caller guarantees.
        unsafe { slot.as_ref() }.map_or(-1, |slot| slot.task().status() as c_int)
    })
}

/// Returns the number of the task of a slot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_slot_task(slot: *const SlotHandle) -> u64 {
    boundary_or(0, || {
        // SAFETY: `slot` is null or valid, as the caller guarantees.
        unsafe { slot.as_ref() }.map_or(0, |slot| slot.task().number())
    })
}

/// Cancels the task of a slot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_slot_cancel(slot: *mut SlotHandle) -> c_int {
    boundary(|| {
        // SAFETY: `slot` is null or valid, as the caller guarantees.
        let slot = unsafe { slot_of(slot) }?;
        match slot.task().cancel() {
            true => Ok(()),
            false => Err(Failure::new(
                ErrorCode::TooLate,
                format!(
                    "the submitted task {} has begun or ended, or was cancelled before",
                    slot.task().number()
                ),
            )),
        }
    })
}

/// Frees a slot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_slot_destroy(slot: *mut SlotHandle) {
    boundary_or((), || {
        if !slot.is_null() {
            // SAFETY: this crate created the slot from a box, and the caller no longer uses it.
            drop(unsafe { Box::from_raw(slot) });
        }
    });
}
