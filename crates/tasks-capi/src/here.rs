// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which task this thread runs, and whether it has failed.
//!
//! A task may run a graph on its own runtime, so that other tasks run inside it, on
//! the same thread. Whoever calls a task therefore puts back what was before.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::resume_unwind;
use std::{mem, process, ptr, thread};

use crate::error::{Code, Failure, boundary};
use crate::runtime::RuntimeHandle;

/// `usher_tasks_entry`. What it throws is not ours to catch, and ends the process:
/// an unwinding that Rust knows nothing of cannot get past where panics are caught.
pub type Entry = unsafe extern "C-unwind" fn(*mut c_void);

/// A function and its argument.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The function.
    pub entry: Entry,
    /// Its argument.
    pub arg: *mut c_void,
}

// SAFETY: whoever hands a task over promises that it may run on any thread.
unsafe impl Send for Call {}
// SAFETY: as above; and a task is called by one thread at a time.
unsafe impl Sync for Call {}

struct Here {
    /// The runtime whose task runs; null: none does.
    runtime: Cell<*mut RuntimeHandle>,
    /// The innermost task has failed.
    has_failed: Cell<bool>,
    /// A task is being registered: its argument is the caller's yet.
    registers: Cell<bool>,
}

thread_local! {
    static HERE: Here = const {
        Here {
            runtime: Cell::new(ptr::null_mut()),
            has_failed: Cell::new(false),
            registers: Cell::new(false),
        }
    };
    /// What the tasks that have failed said, the innermost last.
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The runtime whose task runs on this thread, or null.
pub fn runtime() -> *mut RuntimeHandle {
    HERE.with(|here| here.runtime.get())
}

/// Whether a task of that runtime runs on this thread.
pub fn is_in(runtime: *const RuntimeHandle) -> bool {
    ptr::eq(self::runtime(), runtime)
}

/// Whether a task is being registered by this thread.
pub fn registers() -> bool {
    HERE.with(|here| here.registers.get())
}

/// Registers a task: what becomes of its argument meanwhile is nobody's business.
pub fn registering<T>(register: impl FnOnce() -> T) -> T {
    HERE.with(|here| here.registers.set(true));
    let registered = register();
    HERE.with(|here| here.registers.set(false));
    registered
}

/// Ends the process where what leaves a task is nothing of ours.
struct AbortOnException;

impl Drop for AbortOnException {
    fn drop(&mut self) {
        // A panic is a task's own, and caught where it was called from.
        if !thread::panicking() {
            eprintln!(
                "libusher_tasks: an exception has left a task, which must catch it and call \
                 usher_tasks_fail(): giving up"
            );
            process::abort();
        }
    }
}

/// Calls as a task of that runtime; what it said if it has failed.
///
/// # Safety
/// The call is as its maker promised, and nobody calls it at the same time.
unsafe fn call_as_task(runtime: *mut RuntimeHandle, call: Call) -> Option<String> {
    let outer = HERE.with(|here| {
        let runtime = here.runtime.replace(runtime);
        (runtime, here.has_failed.replace(false))
    });
    let leaving = AbortOnException;
    // SAFETY: the caller's promise.
    unsafe { (call.entry)(call.arg) };
    mem::forget(leaving);
    let has_failed = HERE.with(|here| {
        here.runtime.set(outer.0);
        here.has_failed.replace(outer.1)
    });
    has_failed.then(|| SAID.with(|said| said.borrow_mut().pop().unwrap_or_default()))
}

/// Runs a task, or discards the argument of one. One that has failed goes on as a panic
/// that nothing is printed of.
///
/// # Safety
/// The call is as its maker promised, and nobody calls it at the same time.
pub unsafe fn run(runtime: *mut RuntimeHandle, call: Call) {
    // SAFETY: the caller's promise.
    if let Some(said) = unsafe { call_as_task(runtime, call) } {
        resume_unwind(Box::new(said));
    }
}

fn fail(message: String) -> Result<(), Failure> {
    if runtime().is_null() {
        let words = "usher_tasks_fail: the caller is no task";
        return Err(Failure::new(Code::Outside, words));
    }
    if !HERE.with(|here| here.has_failed.replace(true)) {
        SAID.with(|said| said.borrow_mut().push(message));
    }
    Ok(())
}

/// The calling task has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_fail(message: *const c_char) -> c_int {
    boundary(|| {
        if message.is_null() {
            return fail("without a message".to_owned());
        }
        // SAFETY: the caller promises a text that ends.
        let message = unsafe { CStr::from_ptr(message) };
        fail(message.to_string_lossy().into_owned())
    })
}

/// The runtime whose task calls.
#[unsafe(no_mangle)]
pub extern "C" fn usher_tasks_current() -> *mut RuntimeHandle {
    HERE.try_with(|here| here.runtime.get())
        .unwrap_or(ptr::null_mut())
}
