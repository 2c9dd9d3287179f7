// SPDX-License-Identifier: MIT OR Apache-2.0
//! The task that the current thread runs, and whether that task has failed, in thread-local
//! variables.
//!
//! 1. Before a task is called, the runtime of the task replaces the previous value, and the failure
//!    flag is cleared.
//! 2. `usher_tasks_fail()` sets the flag and stores the message.
//! 3. After the task has returned, the previous values are restored. They belong to an outer task
//!    if the task ran while that outer task waited for a graph on the same thread.
//! 4. A failed task ends with a panic that contains its message, which the runtime catches.
//!
//! Only the first failure of a task counts; later messages are dropped. `usher_tasks_fail()`
//! outside a task is an error. A foreign exception that leaves a task aborts the process. Each step
//! takes constant time.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::resume_unwind;
use std::{mem, process, ptr, thread};

use crate::error::{ErrorCode, Failure, boundary};
use crate::runtime::RuntimeHandle;

/// `usher_tasks_entry`. A C++ exception that leaves the function ends the process, because the
/// exception cannot unwind through the Rust frames that catch panics.
pub type Entry = unsafe extern "C-unwind" fn(*mut c_void);

/// A function and its argument.
#[derive(Debug, Clone, Copy)]
pub struct TaskCall {
    /// The function.
    pub entry: Entry,
    /// Argument of the function.
    pub arg: *mut c_void,
}

// SAFETY: the C code that registers a task guarantees that the function and its argument may be
// used on any thread.
unsafe impl Send for TaskCall {}
// SAFETY: the function and its argument may be used on any thread, and only one thread at a time
// calls a task.
unsafe impl Sync for TaskCall {}

struct CurrentTask {
    /// The runtime of the running task; null if no task runs on this thread.
    runtime: Cell<*mut RuntimeHandle>,
    /// Whether the running task has failed. If tasks are nested on this thread, it refers to the
    /// innermost task.
    has_failed: Cell<bool>,
    /// Whether this thread is registering a task. The argument of that task still belongs to the
    /// caller.
    is_registering: Cell<bool>,
}

thread_local! {
    static CURRENT_TASK: CurrentTask = const {
        CurrentTask {
            runtime: Cell::new(ptr::null_mut()),
            has_failed: Cell::new(false),
            is_registering: Cell::new(false),
        }
    };
    /// Messages of tasks on this thread that have failed and are still running. The message of the
    /// innermost task is last.
    static FAILURES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Returns the runtime of the task that runs on this thread, or null.
pub fn runtime() -> *mut RuntimeHandle {
    CURRENT_TASK.with(|current| current.runtime.get())
}

/// Returns whether a task of `runtime` runs on this thread.
pub fn is_in(runtime: *const RuntimeHandle) -> bool {
    ptr::eq(self::runtime(), runtime)
}

/// Returns whether this thread is registering a task.
pub fn is_registering() -> bool {
    CURRENT_TASK.with(|current| current.is_registering.get())
}

/// Calls `register`. If `register` fails and drops the task, the drop does not discard the task's
/// argument.
pub fn registering<T>(register: impl FnOnce() -> T) -> T {
    CURRENT_TASK.with(|current| current.is_registering.set(true));
    let registered = register();
    CURRENT_TASK.with(|current| current.is_registering.set(false));
    registered
}

/// Aborts the process if a foreign exception leaves a task.
struct AbortOnException;

impl Drop for AbortOnException {
    fn drop(&mut self) {
        // If a Rust panic unwinds, the task has panicked, and the caller of the task catches the
        // panic.
        if !thread::panicking() {
            eprintln!(
                "libusher_tasks: aborting, because an exception left a task; a task must catch \
                 its exceptions and call usher_tasks_fail()"
            );
            process::abort();
        }
    }
}

/// Calls a function as a task of `runtime`, and returns the message of the task if it has failed.
pub fn call_as_task(runtime: *mut RuntimeHandle, call: impl FnOnce()) -> Option<String> {
    let outer = CURRENT_TASK.with(|current| {
        let runtime = current.runtime.replace(runtime);
        (runtime, current.has_failed.replace(false))
    });
    let guard = AbortOnException;
    call();
    mem::forget(guard);
    let has_failed = CURRENT_TASK.with(|current| {
        current.runtime.set(outer.0);
        current.has_failed.replace(outer.1)
    });
    has_failed.then(|| FAILURES.with(|failures| failures.borrow_mut().pop().unwrap_or_default()))
}

/// Runs a task, or discards its argument. If the task has failed, this function panics with the
/// task's message, without printing the message.
///
/// # Safety
/// The function may be called with its argument, as the code that registered the task guarantees,
/// and no other thread calls it at the same time.
pub unsafe fn run(runtime: *mut RuntimeHandle, call: TaskCall) {
    // SAFETY: the function may be called with this argument, and no other thread calls it now, as
    // the caller guarantees.
    let call = || unsafe { (call.entry)(call.arg) };
    if let Some(message) = call_as_task(runtime, call) {
        resume_unwind(Box::new(message));
    }
}

fn fail(message: String) -> Result<(), Failure> {
    if runtime().is_null() {
        let text = "usher_tasks_fail() was called by a thread that runs no task";
        return Err(Failure::new(ErrorCode::Outside, text));
    }
    if !CURRENT_TASK.with(|current| current.has_failed.replace(true)) {
        FAILURES.with(|failures| failures.borrow_mut().push(message));
    }
    Ok(())
}

/// Marks the calling task as failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_fail(message: *const c_char) -> c_int {
    boundary(|| {
        if message.is_null() {
            return fail("without a message".to_owned());
        }
        // SAFETY: `message` is not null, so it is a string that ends with a 0, as the caller
        // guarantees.
        let message = unsafe { CStr::from_ptr(message) };
        fail(message.to_string_lossy().into_owned())
    })
}

/// Returns the runtime of the calling task.
#[unsafe(no_mangle)]
pub extern "C" fn usher_tasks_current() -> *mut RuntimeHandle {
    CURRENT_TASK
        .try_with(|current| current.runtime.get())
        .unwrap_or(ptr::null_mut())
}
