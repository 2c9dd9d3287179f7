// SPDX-License-Identifier: MIT OR Apache-2.0
//! C functions for runtimes, and for tasks by token.
//!
//! Problem: a runtime may be destroyed while other threads are inside a call on it, or about to
//! begin a call.
//!
//! Idea: each handle has a gate, a read-write lock. Calls of other threads hold the gate shared;
//! `usher_tasks_runtime_destroy` holds it exclusively. When the gate is closed, earlier calls have
//! returned and new calls are rejected. Tasks of the runtime need no gate. When no task is ready or
//! running and no other thread can register a task, no more tasks will run. Only then is the
//! runtime freed.
//!
//! A thread may wait at a gate for any time, so gates are never freed. Nor is the flag freed that
//! the runtime has ended. Handles therefore point into a static table of 4,096 entries.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
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

/// Upper limit of runtimes at a time.
const RUNTIMES_MAX: usize = 4096;

/// The target of a `usher_tasks_runtime *`.
#[derive(Debug)]
pub struct RuntimeHandle {
    gate: RwLock<()>,
    /// Written by the thread that creates or destroys the runtime, while the runtime is not alive.
    runtime: UnsafeCell<Option<Box<Runtime>>>,
    /// Cleared before the last tasks are discarded, so that discarded tasks cannot call the runtime
    /// either.
    is_alive: AtomicBool,
    /// Whether the entry is in use, from before the runtime is alive until it has been freed.
    is_reserved: AtomicBool,
    /// The process that created the runtime.
    creator_pid: AtomicU32,
}

// SAFETY: the runtime is read only while it is alive, and written only while it is not, by one
// thread: the creator, which has reserved the entry, or the destroyer, which has closed the gate.
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

/// Entry at which the search for a free entry begins. Entries that were freed last are reused last.
static NEXT_ENTRY: Mutex<usize> = Mutex::new(0);

impl RuntimeHandle {
    /// Stores a runtime in a free entry, and marks it as alive.
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
        // SAFETY: no thread reads the runtime before it is alive, and no other thread writes a
        // reserved entry.
        unsafe { *this.runtime.get() = Some(runtime) };
        this.is_alive.store(true, Ordering::Release);
        Ok(this)
    }

    /// Returns the runtime if it is alive. The runtime stays alive while the caller is one of its
    /// tasks or holds the gate shared.
    ///
    /// # Errors
    /// If the runtime has ended.
    fn runtime(&self) -> Result<&Runtime, Failure> {
        if !self.is_alive.load(Ordering::Acquire) {
            return Err(ended());
        }
        // SAFETY: no thread writes the runtime while it is alive.
        unsafe { &*self.runtime.get() }.as_deref().ok_or_else(ended)
    }
}

fn ended() -> Failure {
    Failure::new(
        ErrorCode::Ended,
        "the runtime is being destroyed and accepts no more calls",
    )
}

/// Calls a function on a runtime, which stays alive until the function returns.
///
/// # Errors
/// If the handle is null or the runtime is being destroyed; and the errors of the function.
///
/// # Safety
/// The handle is null or was returned by this crate.
pub(crate) unsafe fn enter<T>(
    handle: *const RuntimeHandle,
    call: impl FnOnce(&Runtime) -> Result<T, Failure>,
) -> Result<T, Failure> {
    // SAFETY: guaranteed by the caller; handles are never freed.
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
        // SAFETY: the out-pointer is null or writable, as the caller guarantees.
        let out = unsafe { out(runtime, "the pointer to the runtime") }?;
        // SAFETY: the caller guarantees options of the size that they state.
        let options = unsafe { Options::read(options) }?;
        let handle = RuntimeHandle::insert(options.runtime()?)?;
        *out = ptr::from_ref(handle).cast_mut();
        Ok(())
    })
}

/// Sets an out-pointer to null and returns it.
///
/// # Safety
/// The pointer is null or valid for writes.
pub(crate) unsafe fn out<'a, T>(
    pointer: *mut *mut T,
    what: &str,
) -> Result<&'a mut *mut T, Failure> {
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: guaranteed by the caller. The old value may be invalid, so it is overwritten before
    // it is borrowed.
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
        // SAFETY: the caller guarantees a handle from this crate; handles are never freed.
        let this = unsafe { &*runtime };
        let creator_pid = this.creator_pid.load(Ordering::Relaxed);
        if creator_pid != process::id() {
            // A thread that held the gate at the fork never releases it in this process.
            return Err(Failure::from(WaitError::Forked { creator_pid }));
        }
        let closed = this.gate.write().unwrap_or_else(PoisonError::into_inner);
        let ending = this.runtime()?;
        // Unfinished tasks are not reported, because they are dropped.
        ending.wait_until_idle()?;
        this.is_alive.store(false, Ordering::Release);
        // Functions that discard arguments may call the library, so they run before the runtime is
        // freed.
        ending.cancel();
        // SAFETY: the runtime is not alive: all its tasks have ended, other threads wait at the
        // gate, and calls from discarded tasks are rejected.
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
        // SAFETY: the caller guarantees a handle from this crate, or null.
        unsafe { enter(runtime, workers) }.unwrap_or(0)
    })
}

/// A task that owns its argument.
struct OwnedTask {
    runtime: *mut RuntimeHandle,
    call: TaskCall,
    /// Function that is called with the argument if the task never runs.
    discard: Entry,
}

// SAFETY: any thread may call the runtime; the code that registers the task guarantees that
// function and argument may be used on any thread.
unsafe impl Send for OwnedTask {}

impl OwnedTask {
    fn run(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: the code that registered the task guarantees that it may run; the task runs once,
        // because it is consumed here.
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
        // SAFETY: as for running the task, which is no longer possible. A failure continues as a
        // panic: the code that drops tasks catches the panic, and a wait reports it.
        unsafe { current_task::run(self.runtime, TaskCall { entry, arg }) };
    }
}

/// Sends a handle to another thread inside a closure.
#[derive(Clone, Copy)]
struct SendPtr(*mut RuntimeHandle);

// SAFETY: any thread may call a runtime.
unsafe impl Send for SendPtr {}

impl SendPtr {
    /// # Safety
    /// The same as of [`current_task::run`].
    unsafe fn run(self, call: TaskCall) {
        // SAFETY: guaranteed by the caller.
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
        let call = call_of(token, entry, arg)?;
        let pointer = SendPtr(runtime);
        // SAFETY: the caller guarantees a function that may be called once in this way.
        let task = move || unsafe { pointer.run(call) };
        let data = arg.addr();
        // SAFETY: the caller guarantees a valid runtime, or null.
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

fn call_of(token: u64, entry: Option<Entry>, arg: *mut c_void) -> Result<TaskCall, Failure> {
    let entry =
        entry.ok_or_else(|| Failure::null(&format!("the function pointer of task {token}")))?;
    Ok(TaskCall { entry, arg })
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
        let call = call_of(token, entry, arg)?;
        let discard = discard
            .ok_or_else(|| Failure::null(&format!("the discard function of task {token}")))?;
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
        // SAFETY: the caller guarantees a valid runtime, or null.
        unsafe { enter(runtime, register) }
    })
}

/// Resolves one dependency of a task.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_resolve(runtime: *mut RuntimeHandle, token: u64) -> c_int {
    // SAFETY: the caller guarantees a valid runtime, or null.
    boundary(|| unsafe { enter(runtime, |this| Ok(this.resolve(token)?)) })
}

/// Reports unfinished tasks to the caller. If there is no memory for the report, the next wait
/// reports the failed tasks.
///
/// # Safety
/// The pointer is null or valid for writes.
unsafe fn report_unfinished(
    this: &Runtime,
    unfinished: UnfinishedTasks,
    report: *mut *mut Report,
) -> Failure {
    let given = Report::from_unfinished(unfinished).and_then(|built| {
        let Some(text) = built.text() else {
            return Err(built.into_unfinished());
        };
        // SAFETY: guaranteed by the caller.
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
                    // SAFETY: the out-pointer is null or writable, as the caller guarantees.
                    Err(unsafe { report_unfinished(this, unfinished, report) })
                }
                Err(error) => Err(Failure::from(error)),
            }
        };
        // SAFETY: the out-pointer is null or writable, as the caller guarantees.
        unsafe { Report::clear(report) };
        // SAFETY: the caller guarantees a valid runtime, or null.
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
        // SAFETY: the caller guarantees a valid runtime, or null.
        let count = unsafe { enter(runtime, |this| Ok(this.cancel())) }?;
        if !dropped.is_null() {
            // SAFETY: the pointer is not null, so the caller guarantees that it is writable.
            unsafe { dropped.write(count) };
        }
        Ok(())
    })
}
