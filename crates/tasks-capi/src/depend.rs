// SPDX-License-Identifier: MIT OR Apache-2.0
//! C functions for tasks that are ordered by the data that they use, on `DataDependencies`.
//! `include/usher_tasks_depend.h` specifies them. Submitting takes time linear in the number of
//! addresses and predecessors.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use usher_tasks::{Access, DataDependencies, Groups, Runtime};

use crate::current_task::{self, Entry, TaskCall};
use crate::error::{ErrorCode, Failure, boundary, boundary_or, probe};
use crate::runtime::{RuntimeHandle, call_of, enter, out};

const DEPENDENT: &str = "a task with dependencies";
/// Number of bytes that a task needs at most, and for each address.
const TASK_BYTES: usize = 1024;
const ADDRESS_BYTES: usize = 256;
/// Number of addresses that no array can have.
const ADDRESSES_MAX: usize = isize::MAX as usize / size_of::<*const c_void>() + 1;

/// The target of a `usher_tasks_dependencies *`.
#[derive(Debug)]
pub struct DependenciesHandle {
    runtime: *mut RuntimeHandle,
    tasks: DataDependencies,
}

/// What has happened to the argument of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum State {
    /// The call that submits the task has not returned. If it fails, the argument belongs to the
    /// caller.
    Submitting,
    /// The call has succeeded, so the argument belongs to the task.
    Submitted,
    /// The task has begun.
    Begun,
    /// The task was dropped before it began.
    Dropped,
}

/// The function of a task, its argument, and the function that is called with the argument if the
/// task never runs.
struct DependentCall {
    runtime: *mut RuntimeHandle,
    call: TaskCall,
    discard: Option<Entry>,
    state: Arc<AtomicU8>,
}

// SAFETY: any thread may use a runtime handle. The C code that submits the task guarantees that
// functions and argument may be used on any thread.
unsafe impl Send for DependentCall {}

impl DependentCall {
    fn run(self) {
        self.state.store(State::Begun as u8, Ordering::Relaxed);
        // SAFETY: the C code guarantees that the function may be called once with its argument.
        unsafe { current_task::run(self.runtime, self.call) };
    }
}

impl Drop for DependentCall {
    fn drop(&mut self) {
        if self.state.load(Ordering::Relaxed) == State::Begun as u8 {
            return;
        }
        let before = self.state.swap(State::Dropped as u8, Ordering::AcqRel);
        if before == State::Submitted as u8 {
            // SAFETY: the task cannot run any more.
            unsafe { discard(self.runtime, self.discard, self.call.arg) };
        }
    }
}

/// Calls the discard function of a task. If that function fails, this call panics: the wait for all
/// tasks reports it, or the call that has dropped the task fails.
///
/// # Safety
/// The task will not run, and its argument belongs to the library.
unsafe fn discard(runtime: *mut RuntimeHandle, discard: Option<Entry>, arg: *mut c_void) {
    if let Some(entry) = discard {
        // SAFETY: the C code guarantees that `discard` may be called with the argument in this case.
        unsafe { current_task::run(runtime, TaskCall { entry, arg }) };
    }
}

/// Discards the argument of a task that was dropped while it was submitted: in a task, so that a wait
/// reports a failure of the discard function. If there is no memory for the task, in this thread.
///
/// # Safety
/// `runtime` is null or was returned by this crate.
unsafe fn discard_dropped(
    runtime: *mut RuntimeHandle,
    discard_arg: Option<Entry>,
    arg: *mut c_void,
) {
    let Some(entry) = discard_arg else { return };
    let discarded = DependentCall {
        runtime,
        call: TaskCall { entry, arg },
        discard: discard_arg,
        state: Arc::new(AtomicU8::new(State::Submitted as u8)),
    };
    let submit = |this: &Runtime| Ok(this.submit(Groups::NONE, move || discarded.run())?);
    // If the submission fails, it drops and thereby discards the argument. A failure of the discard
    // function is then lost. SAFETY: as the caller guarantees.
    let _ = catch_unwind(AssertUnwindSafe(|| unsafe { enter(runtime, submit) }));
}

/// Creates a table for tasks of a runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_dependencies_new(
    runtime: *mut RuntimeHandle,
    dependencies: *mut *mut DependenciesHandle,
) -> c_int {
    boundary(|| {
        // SAFETY: `dependencies` is null or writable, as the caller guarantees.
        let out = unsafe { out(dependencies, "the pointer to the dependencies") }?;
        probe(TASK_BYTES, "dependencies")?;
        let new = |this: &Runtime| Ok(DataDependencies::new(this.handle()));
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        let tasks = unsafe { enter(runtime, new) }?;
        *out = Box::into_raw(Box::new(DependenciesHandle { runtime, tasks }));
        Ok(())
    })
}

/// Returns the addresses of an array of the caller.
///
/// # Safety
/// `addresses` is null or has `count` elements.
unsafe fn addresses<'a>(
    addresses: *const *const c_void,
    count: usize,
    what: &str,
) -> Result<&'a [*const c_void], Failure> {
    match (count, addresses.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Failure::null(what)),
        (ADDRESSES_MAX.., _) => {
            let text = format!("{what} cannot have {count} elements");
            Err(Failure::new(ErrorCode::Range, text))
        }
        // SAFETY: `addresses` is not null, so it has `count` elements, as the caller guarantees.
        (_, false) => Ok(unsafe { slice::from_raw_parts(addresses, count) }),
    }
}

/// Submits a task that runs after the tasks before it that use the same data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_dependencies_submit(
    dependencies: *mut DependenciesHandle,
    entry: Option<Entry>,
    arg: *mut c_void,
    discard_arg: Option<Entry>,
    t: u32,
    s: u32,
    in_: *const *const c_void,
    in_count: usize,
    out_: *const *const c_void,
    out_count: usize,
) -> c_int {
    boundary(|| {
        // SAFETY: `dependencies` is null or valid, as the caller guarantees.
        let table =
            unsafe { dependencies.as_ref() }.ok_or_else(|| Failure::null("dependencies"))?;
        let call = call_of(DEPENDENT, entry, arg)?;
        // SAFETY: the arrays are null or have these numbers of elements, as the caller guarantees.
        let (read, written) = unsafe {
            (
                addresses(in_, in_count, "the array in")?,
                addresses(out_, out_count, "the array out")?,
            )
        };
        let bytes = (read.len().saturating_add(written.len())).saturating_mul(ADDRESS_BYTES);
        probe(bytes.saturating_add(TASK_BYTES), DEPENDENT)?;
        let written = written.iter().map(|address| Access::Out(address.addr()));
        let read = read.iter().map(|address| Access::In(address.addr()));
        let accesses: Vec<Access> = written.chain(read).collect();
        let state = Arc::new(AtomicU8::new(State::Submitting as u8));
        let dependent = DependentCall {
            runtime: table.runtime,
            call,
            discard: discard_arg,
            state: Arc::clone(&state),
        };
        let task = move || dependent.run();
        let submit = |_: &Runtime| Ok(table.tasks.submit(Groups::new(t, s), &accesses, task)?);
        // SAFETY: the caller has given the runtime, and guarantees that it is valid.
        unsafe { enter(table.runtime, submit) }?;
        let (submitting, submitted) = (State::Submitting as u8, State::Submitted as u8);
        let order = Ordering::AcqRel;
        let exchanged = state.compare_exchange(submitting, submitted, order, Ordering::Acquire);
        if exchanged == Err(State::Dropped as u8) {
            // SAFETY: the runtime is valid, as above.
            unsafe { discard_dropped(table.runtime, discard_arg, arg) };
        }
        Ok(())
    })
}

/// Frees a table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_dependencies_destroy(dependencies: *mut DependenciesHandle) {
    boundary_or((), || {
        if !dependencies.is_null() {
            // SAFETY: this crate created the table from a box, and the caller no longer uses it.
            drop(unsafe { Box::from_raw(dependencies) });
        }
    });
}
