// SPDX-License-Identifier: MIT OR Apache-2.0
//! C functions for runtimes, and for tasks by token.
//!
//! Problem: a runtime may be destroyed while other threads are inside a call on it, or about to
//! begin a call.
//!
//! Idea: each handle has a read-write lock, the *gate*.
//!
//! 1. Each call of a thread that runs no task of the runtime locks the gate shared. If that fails,
//!    the call returns an error.
//! 2. `usher_tasks_runtime_destroy` locks the gate exclusively. Then all earlier calls have
//!    returned, and new calls are rejected.
//! 3. Tasks of the runtime use the runtime without the gate. The destroying thread waits until no
//!    task is ready or running. Other threads cannot register tasks any more, so no more tasks will
//!    run.
//! 4. The destroying thread discards the remaining tasks, frees the runtime and unlocks the gate.
//!
//! A thread may access a gate at any time, so gates and the flags beside them are never freed.
//! Handles therefore point into a static table of 4,096 entries, and at most 4,096 runtimes exist
//! at a time. Creating a further runtime is an error.
//!
//! Waiting for tasks and destroying a runtime have no time limit. A task cannot wait for or destroy
//! its own runtime, and a wait that could deadlock is rejected. Registering and resolving a task
//! take constant time on average.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::fmt::{self, Display};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::{process, ptr};

use usher_tasks::{Groups, Runtime, UnfinishedTasks, WaitError};

use crate::current_task::{self, Entry, TaskCall};
use crate::error::{ErrorCode, Failure, boundary, boundary_or};
use crate::options::Options;
use crate::report::Report;
use crate::waits;

/// Maximum number of runtimes that exist at a time.
const RUNTIMES_MAX: usize = 4096;

/// The target of a `usher_tasks_runtime *`.
#[derive(Debug)]
pub struct RuntimeHandle {
    gate: RwLock<()>,
    /// The runtime. The thread that creates or destroys the runtime writes this field, while
    /// `is_alive` is false.
    runtime: UnsafeCell<Option<Box<Runtime>>>,
    /// Whether calls may use the runtime. Cleared before the last tasks are discarded, so that the
    /// `discard` functions of these tasks cannot use the runtime.
    is_alive: AtomicBool,
    /// Whether the entry is in use: set before the runtime is stored, and cleared after the runtime
    /// was freed.
    is_reserved: AtomicBool,
    /// The process that created the runtime.
    creator_pid: AtomicU32,
}

// SAFETY: `runtime` is only read while `is_alive` is true, and only written while it is false. At
// most one thread writes: the thread that has reserved the entry, or the thread that has locked the
// gate exclusively.
unsafe impl Sync for RuntimeHandle {}

static HANDLES: [RuntimeHandle; RUNTIMES_MAX] = [const {
    RuntimeHandle {
        gate: RwLock::new(()),
        runtime: UnsafeCell::new(None),
        is_alive: AtomicBool::new(false),
        is_reserved: AtomicBool::new(false),
        creator_pid: AtomicU32::new(0),
    }
}; RUNTIMES_MAX];

/// Index of the entry at which the next search for a free entry begins. Entries are used
/// cyclically, so an entry that was just freed is not reused soon.
static NEXT_ENTRY: Mutex<usize> = Mutex::new(0);

impl RuntimeHandle {
    /// Stores a runtime in a free entry of the table, and sets the entry's `is_alive`.
    fn insert(runtime: Runtime) -> Result<&'static Self, Failure> {
        let runtime = Box::new(runtime);
        let mut next = NEXT_ENTRY.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries = (0..RUNTIMES_MAX).map(|step| (*next + step) % RUNTIMES_MAX);
        let free = entries.find(|&at| !HANDLES[at].is_reserved.load(Ordering::Acquire));
        let at = free.ok_or_else(|| {
            let text =
                format!("no more runtimes can be created: at most {RUNTIMES_MAX} exist at a time");
            Failure::new(ErrorCode::Memory, text)
        })?;
        *next = (at + 1) % RUNTIMES_MAX;
        let this = &HANDLES[at];
        this.is_reserved.store(true, Ordering::Relaxed);
        this.creator_pid
            .store(runtime.creator_pid(), Ordering::Relaxed);
        drop(next);
        // SAFETY: no thread reads `runtime` while `is_alive` is false, and only this thread writes
        // the entry, which it has reserved.
        unsafe { *this.runtime.get() = Some(runtime) };
        this.is_alive.store(true, Ordering::Release);
        Ok(this)
    }

    /// Returns the runtime if `is_alive` is set. The caller must be a task of the runtime or hold
    /// the gate shared, so that the runtime is not freed.
    ///
    /// # Errors
    /// If the runtime was destroyed or is being destroyed.
    fn runtime(&self) -> Result<&Runtime, Failure> {
        if !self.is_alive.load(Ordering::Acquire) {
            return Err(ended());
        }
        // SAFETY: `is_alive` is true, and no thread writes `runtime` in that state.
        unsafe { &*self.runtime.get() }.as_deref().ok_or_else(ended)
    }
}

fn ended() -> Failure {
    Failure::new(
        ErrorCode::Ended,
        "the runtime is being destroyed and accepts no more calls",
    )
}

/// Calls a function with a runtime. The runtime is not freed before the function returns.
///
/// # Errors
/// If the handle is null, if the runtime is being destroyed, or if the function returns an error.
///
/// # Safety
/// `handle` is null or was returned by this crate.
pub(crate) unsafe fn enter<T>(
    handle: *const RuntimeHandle,
    call: impl FnOnce(&Runtime) -> Result<T, Failure>,
) -> Result<T, Failure> {
    // SAFETY: `handle` is null or came from this crate, as the caller guarantees. Handles are never
    // freed.
    let this = unsafe { handle.as_ref() }.ok_or_else(|| Failure::null("runtime"))?;
    if current_task::is_in(handle) {
        return call(this.runtime()?);
    }
    let _open = this.gate.try_read().map_err(|_| ended())?;
    call(this.runtime()?)
}

fn inside(what: &str) -> Failure {
    let text = format!("a task cannot {what} its own runtime");
    Failure::new(ErrorCode::Inside, text)
}

/// Creates a runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_runtime_new(
    options: *const Options,
    runtime: *mut *mut RuntimeHandle,
) -> c_int {
    boundary(|| {
        // SAFETY: `runtime` is null or writable, as the caller guarantees.
        let out = unsafe { out(runtime, "the pointer to the runtime") }?;
        // SAFETY: `options` is null or has the size that its first field states, as the caller
        // guarantees.
        let options = unsafe { Options::read(options) }?;
        let handle = RuntimeHandle::insert(options.runtime()?)?;
        *out = ptr::from_ref(handle).cast_mut();
        Ok(())
    })
}

/// Sets an out-pointer to null and returns it.
///
/// # Safety
/// `pointer` is null or writable.
pub(crate) unsafe fn out<'a, T>(
    pointer: *mut *mut T,
    what: &str,
) -> Result<&'a mut *mut T, Failure> {
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: `pointer` is writable, as the caller guarantees. Its old value may be invalid, so it
    // is overwritten before it is borrowed.
    unsafe {
        pointer.write(ptr::null_mut());
        Ok(&mut *pointer)
    }
}

/// Destroys a runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_runtime_destroy(runtime: *mut RuntimeHandle) -> c_int {
    boundary(|| {
        if runtime.is_null() {
            return Ok(());
        }
        if current_task::is_in(runtime) {
            return Err(inside("destroy"));
        }
        let _waits = waits::begin(runtime)?;
        // SAFETY: `runtime` came from this crate, as the caller guarantees. Handles are never
        // freed.
        let this = unsafe { &*runtime };
        let creator_pid = this.creator_pid.load(Ordering::Relaxed);
        if creator_pid != process::id() {
            // Another thread may have held the gate at the fork. In this process it is never
            // unlocked.
            return Err(Failure::from(WaitError::Forked { creator_pid }));
        }
        let closed = this.gate.write().unwrap_or_else(PoisonError::into_inner);
        let ending = this.runtime()?;
        // The wait does not report unfinished tasks, because the destruction drops them.
        ending.wait_until_idle()?;
        this.is_alive.store(false, Ordering::Release);
        // The `discard` functions of tasks may call the library, so they must run before the
        // runtime is freed.
        ending.cancel();
        // SAFETY: `is_alive` is false, so no thread reads `runtime`: all tasks have ended, this
        // thread holds the gate exclusively, and calls of `discard` functions are rejected.
        let ended = unsafe { (*this.runtime.get()).take() };
        drop(ended);
        drop(closed);
        this.is_reserved.store(false, Ordering::Release);
        Ok(())
    })
}

/// Returns the number of workers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_workers(runtime: *const RuntimeHandle) -> u32 {
    boundary_or(0, || {
        let workers = |this: &Runtime| Ok(this.workers() as u32);
        // SAFETY: `runtime` is null or came from this crate, as the caller guarantees.
        unsafe { enter(runtime, workers) }.unwrap_or(0)
    })
}

/// Returns the index of the calling worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_worker_index(runtime: *const RuntimeHandle) -> c_int {
    boundary_or(-1, || {
        let index = |this: &Runtime| Ok(this.worker_index().map_or(-1, |index| index as c_int));
        // SAFETY: `runtime` is null or came from this crate, as the caller guarantees.
        unsafe { enter(runtime, index) }.unwrap_or(-1)
    })
}

/// A task that owns its argument.
pub(crate) struct OwnedTask {
    pub runtime: *mut RuntimeHandle,
    pub call: TaskCall,
    /// The function that is called with the argument if the task never runs.
    pub discard: Entry,
}

// SAFETY: any thread may use a runtime handle. The C code that registers the task guarantees that
// function and argument may be used on any thread.
unsafe impl Send for OwnedTask {}

impl OwnedTask {
    pub fn run(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: the C code that registered the task guarantees that the function may be called
        // with its argument. It is called once, because this function consumes the task.
        unsafe { current_task::run(this.runtime, this.call) };
    }
}

impl Drop for OwnedTask {
    fn drop(&mut self) {
        if current_task::is_registering() {
            return;
        }
        let entry = self.discard;
        let arg = self.call.arg;
        // SAFETY: the C code that registered the task guarantees that `discard` may be called with
        // the argument if the task has not run, and the task cannot run any more. If `discard`
        // fails, this call panics; the code that drops tasks catches the panic, and a wait reports
        // it.
        unsafe { current_task::run(self.runtime, TaskCall { entry, arg }) };
    }
}

/// Sends a handle to another thread inside a closure.
#[derive(Clone, Copy)]
pub(crate) struct SendPtr(pub *mut RuntimeHandle);

// SAFETY: any thread may use a runtime handle.
unsafe impl Send for SendPtr {}

impl SendPtr {
    /// Calls a function as a task, and returns its message if it has failed.
    ///
    /// # Safety
    /// The function may be called with its argument, and no other thread calls it at the same time.
    pub unsafe fn call(self, call: TaskCall) -> Option<String> {
        // SAFETY: the caller guarantees that the function may be called with its argument.
        current_task::call_as_task(self.0, || unsafe { (call.entry)(call.arg) })
    }

    /// # Safety
    /// The conditions of [`current_task::run`].
    pub unsafe fn run(self, call: TaskCall) {
        // SAFETY: the caller guarantees the conditions of `current_task::run`.
        unsafe { current_task::run(self.0, call) };
    }
}

/// Registers a task.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_register(
    runtime: *mut RuntimeHandle,
    token: u64,
    count: u32,
    entry: Option<Entry>,
    arg: *mut c_void,
    t: u32,
    s: u32,
) -> c_int {
    boundary(|| {
        let call = call_of(ByToken(token), entry, arg)?;
        let pointer = SendPtr(runtime);
        // SAFETY: the caller guarantees that `entry` may be called once with `arg`, on any thread.
        let task = move || unsafe { pointer.run(call) };
        let data = arg.addr();
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        unsafe {
            enter(runtime, |this| {
                Ok(match Groups::new(t, s) {
                    Groups::NONE => this.register_on(token, count, data, task),
                    groups => this.register(token, count, groups, task),
                }?)
            })
        }
    })
}

/// Returns the call of a task. `task` names the task in the error for a null pointer.
pub(crate) fn call_of(
    task: impl Display,
    entry: Option<Entry>,
    arg: *mut c_void,
) -> Result<TaskCall, Failure> {
    let entry = entry.ok_or_else(|| Failure::null(&format!("the function pointer of {task}")))?;
    Ok(TaskCall { entry, arg })
}

/// Returns the discard function of a task. `task` names the task in the error for a null pointer.
pub(crate) fn discard_of(task: impl Display, discard: Option<Entry>) -> Result<Entry, Failure> {
    discard.ok_or_else(|| Failure::null(&format!("the discard function of {task}")))
}

/// Names a task by its token.
struct ByToken(u64);

impl Display for ByToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.0)
    }
}

/// Registers a task that owns its argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_register_owned(
    runtime: *mut RuntimeHandle,
    token: u64,
    count: u32,
    entry: Option<Entry>,
    arg: *mut c_void,
    discard: Option<Entry>,
    t: u32,
    s: u32,
) -> c_int {
    boundary(|| {
        let call = call_of(ByToken(token), entry, arg)?;
        let discard = discard_of(ByToken(token), discard)?;
        let groups = Groups::new(t, s);
        let register = |this: &Runtime| {
            let owned = OwnedTask {
                runtime,
                call,
                discard,
            };
            let task = move || owned.run();
            let data = call.arg.addr();
            let register = || match groups {
                Groups::NONE => this.register_on(token, count, data, task),
                groups => this.register(token, count, groups, task),
            };
            Ok(current_task::registering(register)?)
        };
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        unsafe { enter(runtime, register) }
    })
}

/// Resolves one dependency of a task.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_resolve(runtime: *mut RuntimeHandle, token: u64) -> c_int {
    // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
    boundary(|| unsafe { enter(runtime, |this| Ok(this.resolve(token)?)) })
}

/// Writes a report of unfinished tasks to `report`, and returns the error that describes them. If
/// there is no memory for the report, restores the failed tasks, so that the next wait reports
/// them.
///
/// # Safety
/// `report` is null or writable.
unsafe fn report_unfinished(
    this: &Runtime,
    unfinished: UnfinishedTasks,
    report: *mut *mut Report,
) -> Failure {
    let given = Report::from_unfinished(unfinished).and_then(|built| {
        let Some(text) = built.text() else {
            return Err(built.into_unfinished());
        };
        // SAFETY: `report` is null or writable, as the caller guarantees.
        match unsafe { built.write_to(report) } {
            Ok(()) => Ok(text),
            Err(built) => Err(built.into_unfinished()),
        }
    });
    match given {
        Ok(text) => Failure::new(ErrorCode::Unfinished, text),
        Err(unfinished) => {
            let counts = [
                unfinished.panicked.len(),
                unfinished.unresolved.len(),
                unfinished.unregistered.len(),
            ];
            this.restore_panics(unfinished.panicked);
            Failure::no_memory_for_unfinished(counts)
        }
    }
}

/// Waits until no registered task is ready or running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_wait(
    runtime: *mut RuntimeHandle,
    report: *mut *mut Report,
) -> c_int {
    boundary(|| {
        let wait = |this: &Runtime| {
            if current_task::is_in(runtime) {
                return Err(inside("wait for"));
            }
            let _waits = waits::begin(runtime)?;
            match this.wait() {
                Ok(()) => Ok(()),
                Err(WaitError::Unfinished(unfinished)) => {
                    // SAFETY: `report` is null or writable, as the caller guarantees.
                    Err(unsafe { report_unfinished(this, unfinished, report) })
                }
                Err(error) => Err(Failure::from(error)),
            }
        };
        // SAFETY: `report` is null or writable, as the caller guarantees.
        unsafe { Report::clear(report) };
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        unsafe { enter(runtime, wait) }
    })
}

/// Drops the tasks that have not begun.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_cancel(
    runtime: *mut RuntimeHandle,
    dropped: *mut usize,
) -> c_int {
    boundary(|| {
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        let count = unsafe { enter(runtime, |this| Ok(this.cancel())) }?;
        if !dropped.is_null() {
            // SAFETY: `dropped` is not null, so it is writable, as the caller guarantees.
            unsafe { dropped.write(count) };
        }
        Ok(())
    })
}
