// SPDX-License-Identifier: MIT OR Apache-2.0
//! C functions for join and scopes, which `include/usher_tasks_fork.h` specifies.
//!
//! The functions and tasks count as tasks of the runtime, so `usher_tasks_current` and
//! `usher_tasks_fail` work in them. A scope handle is in the stack frame of
//! `usher_tasks_scope_run`, which returns only after all tasks of the scope have ended. Spawning
//! takes constant time.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use usher_tasks::{Runtime, TaskScope};

use crate::current_task::{self, Entry, TaskCall};
use crate::error::{ErrorCode, Failure, boundary, no_memory};
use crate::runtime::{RuntimeHandle, SendPtr, call_of, enter};

/// `usher_tasks_scope_entry`: the body or a task of a scope.
pub type ScopeEntry = unsafe extern "C-unwind" fn(*mut ScopeHandle, *mut c_void);

/// The target of a `usher_tasks_scope *`.
#[derive(Debug)]
pub struct ScopeHandle {
    runtime: *mut RuntimeHandle,
    /// The scope. It is null until the body begins, which no other code precedes.
    scope: AtomicPtr<TaskScope<'static>>,
    failures: Mutex<Failures>,
}

// SAFETY: any thread may use a runtime handle, and the other fields are `Sync`.
unsafe impl Sync for ScopeHandle {}

/// The failures of the body and the tasks of a scope.
#[derive(Debug, Default)]
struct Failures {
    first: Option<String>,
    count: usize,
}

/// Sends the arguments of a scope's body or task to a worker.
#[derive(Clone, Copy)]
struct ScopeCall {
    handle: *const ScopeHandle,
    entry: ScopeEntry,
    arg: *mut c_void,
}

// SAFETY: `ScopeHandle` is `Sync`, and the C code guarantees that the function and its argument may
// be used on any thread.
unsafe impl Send for ScopeCall {}

impl ScopeCall {
    /// Calls the function, and records its failure in the scope.
    ///
    /// # Safety
    /// The scope has not ended, and the function may be called with its argument.
    unsafe fn run(self) {
        // SAFETY: the scope has not ended, so the frame of its handle exists.
        let handle = unsafe { &*self.handle };
        // SAFETY: the caller guarantees that the function may be called with its argument.
        let call = || unsafe { (self.entry)(self.handle.cast_mut(), self.arg) };
        if let Some(message) = current_task::call_as_task(handle.runtime, call) {
            let mut failures = lock(&handle.failures);
            failures.count += 1;
            failures.first.get_or_insert(message);
        }
    }
}

fn lock(failures: &Mutex<Failures>) -> std::sync::MutexGuard<'_, Failures> {
    failures.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(what: &str, message: &str) -> Failure {
    Failure::new(ErrorCode::Failed, format!("{what} failed: {message}"))
}

/// Runs two functions, at the same time if a worker is idle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_join(
    runtime: *mut RuntimeHandle,
    first: Option<Entry>,
    first_arg: *mut c_void,
    second: Option<Entry>,
    second_arg: *mut c_void,
) -> c_int {
    boundary(|| {
        let first = call_of("the first function of a join", first, first_arg)?;
        let second = call_of("the second function of a join", second, second_arg)?;
        let pointer = SendPtr(runtime);
        // SAFETY: the caller guarantees that each function may be called once with its argument, on
        // any thread.
        let task = |call: TaskCall| move || unsafe { pointer.call(call) };
        let join = |this: &Runtime| Ok(this.join(task(first), task(second)));
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        match unsafe { enter(runtime, join) }? {
            (None, None) => Ok(()),
            (Some(message), None) => Err(failed("the first function", &message)),
            (None, Some(message)) => Err(failed("the second function", &message)),
            (Some(first), Some(second)) => Err(failed(
                "the first function",
                &format!("{first}; the second function failed: {second}"),
            )),
        }
    })
}

/// Calls a function in an isolate region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_isolate(
    runtime: *mut RuntimeHandle,
    entry: Option<Entry>,
    arg: *mut c_void,
) -> c_int {
    boundary(|| {
        let call = call_of("an isolate region", entry, arg)?;
        let isolate = |this: &Runtime| {
            // SAFETY: the caller guarantees that the function may be called with its argument.
            this.isolate(|| unsafe { (call.entry)(call.arg) });
            Ok(())
        };
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        unsafe { enter(runtime, isolate) }
    })
}

/// Opens a scope, and returns after its body and its tasks have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_scope_run(
    runtime: *mut RuntimeHandle,
    body: Option<ScopeEntry>,
    arg: *mut c_void,
) -> c_int {
    boundary(|| {
        let entry = body.ok_or_else(|| Failure::null("the body of a scope"))?;
        let handle = ScopeHandle {
            runtime,
            scope: AtomicPtr::new(ptr::null_mut()),
            failures: Mutex::default(),
        };
        let call = ScopeCall {
            handle: &raw const handle,
            entry,
            arg,
        };
        let run = |this: &Runtime| {
            if this.is_in_foreign_region() {
                let text = "a scope of another runtime cannot be opened in an isolate region: \
                            open the scope on the runtime of the region";
                return Err(Failure::new(ErrorCode::Isolated, text.to_owned()));
            }
            this.scope(move |scope: &TaskScope<'_>| {
                let call = call;
                // SAFETY: the handle exists until the scope has ended.
                let handle = unsafe { &*call.handle };
                let scope = ptr::from_ref(scope).cast_mut();
                handle.scope.store(scope.cast(), Ordering::Release);
                // SAFETY: the scope has not ended, and the C code guarantees that the body may be
                // called.
                unsafe { call.run() };
            });
            Ok(())
        };
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        unsafe { enter(runtime, run) }?;
        let failures = handle
            .failures
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        match (failures.first, failures.count) {
            (None, _) => Ok(()),
            (Some(message), 0 | 1) => Err(failed("a task of the scope", &message)),
            (Some(message), count) => Err(failed(
                "a task of the scope",
                &format!("{message} (and {} more failed)", count - 1),
            )),
        }
    })
}

/// Spawns a task of a scope.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_scope_spawn(
    scope: *mut ScopeHandle,
    entry: Option<ScopeEntry>,
    arg: *mut c_void,
) -> c_int {
    boundary(|| {
        // SAFETY: `scope` is null or the handle of a scope that has not ended, as the caller
        // guarantees.
        let handle = unsafe { scope.as_ref() }.ok_or_else(|| Failure::null("scope"))?;
        let entry = entry.ok_or_else(|| Failure::null("the function pointer of a scope's task"))?;
        let call = ScopeCall { handle, entry, arg };
        // SAFETY: the body has set the pointer before any code could get the handle, and the scope
        // has not ended.
        let scope = unsafe { &*handle.scope.load(Ordering::Acquire) };
        let task = move |_: &TaskScope<'static>| {
            let call = call;
            // SAFETY: the scope ends after this task, and the C code guarantees that the function
            // may be called with its argument.
            unsafe { call.run() };
        };
        scope
            .try_spawn(task)
            .map_err(|_| no_memory("a task of a scope"))
    })
}
