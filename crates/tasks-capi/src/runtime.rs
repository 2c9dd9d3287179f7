// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runtimes, and tasks by token.
//!
//! A runtime ends while others may be inside a call on it, or about to be. Other threads
//! pass a gate (a lock that they share, and that whoever destroys takes alone): so when
//! the gate is shut their calls have returned, and from then on they are refused. Tasks
//! need no gate. When none is ready or runs, and nobody else can register any, none ever
//! will; only then is anything freed.
//!
//! The gate itself is never freed, as a thread may stand before it for any time, and
//! with it what says that the runtime has ended: handles point into a table that stays.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::{process, ptr};

use usher_tasks::{Groups, Left, Runtime, WaitError};

use crate::error::{Code, Failure, boundary, boundary_or};
use crate::here::{self, Call, Entry};
use crate::options::Options;
use crate::report::Report;
use crate::waits;

/// Runtimes that there can be at a time.
const RUNTIMES_MAX: usize = 4096;

/// What a `usher_tasks_runtime *` points to.
#[derive(Debug)]
pub struct RuntimeHandle {
    gate: RwLock<()>,
    /// Written by whoever makes or destroys it, while it does not live.
    runtime: UnsafeCell<Option<Box<Runtime>>>,
    /// Else not even what the last tasks leave behind may call.
    lives: AtomicBool,
    /// Somebody's, from before it lives until it has ended.
    is_taken: AtomicBool,
    /// The process that made it.
    maker: AtomicU32,
}

// SAFETY: the runtime is read while it lives alone, and written while it does not, by
// one thread: its maker who took the place, or its destroyer who has shut the gate.
unsafe impl Sync for RuntimeHandle {}

static HANDLES: [RuntimeHandle; RUNTIMES_MAX] = [const {
    RuntimeHandle {
        gate: RwLock::new(()),
        runtime: UnsafeCell::new(None),
        lives: AtomicBool::new(false),
        is_taken: AtomicBool::new(false),
        maker: AtomicU32::new(0),
    }
}; RUNTIMES_MAX];

/// Where a place is looked for next: those given back last are given out last.
static NEXT: Mutex<usize> = Mutex::new(0);

impl RuntimeHandle {
    /// A place for a runtime, which lives there from now on.
    fn keep(runtime: Runtime) -> Result<&'static Self, Failure> {
        let runtime = Box::new(runtime);
        let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
        let mut places = (0..RUNTIMES_MAX).map(|step| (*next + step) % RUNTIMES_MAX);
        let free = places.find(|&at| !HANDLES[at].is_taken.load(Ordering::Acquire));
        let at = free.ok_or_else(|| {
            let words = format!("{RUNTIMES_MAX} runtimes at a time: there is no place for more");
            Failure::new(Code::Memory, words)
        })?;
        *next = (at + 1) % RUNTIMES_MAX;
        let this = &HANDLES[at];
        this.is_taken.store(true, Ordering::Relaxed);
        this.maker.store(runtime.maker(), Ordering::Relaxed);
        drop(next);
        // SAFETY: nobody reads it before it lives, nor writes what is taken.
        unsafe { *this.runtime.get() = Some(runtime) };
        this.lives.store(true, Ordering::Release);
        Ok(this)
    }

    /// The runtime, if it lives. It does as long as the caller is one of its tasks, or
    /// holds the gate open.
    ///
    /// # Errors
    /// Where it has ended.
    fn runtime(&self) -> Result<&Runtime, Failure> {
        if !self.lives.load(Ordering::Acquire) {
            return Err(ended());
        }
        // SAFETY: nobody writes it while it lives.
        unsafe { &*self.runtime.get() }.as_deref().ok_or_else(ended)
    }
}

fn ended() -> Failure {
    Failure::new(Code::Ended, "the runtime is being destroyed")
}

/// Calls on a runtime that lives, which it does until that has returned.
///
/// # Errors
/// Where it is null, or being destroyed; and those of the call.
///
/// # Safety
/// It is null, or was made by us.
pub(crate) unsafe fn enter<T>(
    handle: *const RuntimeHandle,
    call: impl FnOnce(&Runtime) -> Result<T, Failure>,
) -> Result<T, Failure> {
    // SAFETY: the caller's promise; handles are never freed.
    let this = unsafe { handle.as_ref() }.ok_or_else(|| Failure::null("runtime"))?;
    if here::is_in(handle) {
        return call(this.runtime()?);
    }
    let _open = this.gate.try_read().map_err(|_| ended())?;
    call(this.runtime()?)
}

fn inside(what: &str) -> Failure {
    let words = format!("a task cannot {what} its own runtime");
    Failure::new(Code::Inside, words)
}

/// Makes a runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_runtime_new(
    options: *const Options,
    runtime: *mut *mut RuntimeHandle,
) -> c_int {
    boundary(|| {
        // SAFETY: null, or the caller's to be written.
        let out = unsafe { out(runtime, "the place for the runtime") }?;
        // SAFETY: the caller promises options of the size that they say.
        let options = unsafe { Options::read(options) }?;
        let handle = RuntimeHandle::keep(options.runtime()?)?;
        *out = ptr::from_ref(handle).cast_mut();
        Ok(())
    })
}

/// A place for a pointer, which is null until there is one.
///
/// # Safety
/// It is null, or valid for writes.
pub(crate) unsafe fn out<'a, T>(place: *mut *mut T, what: &str) -> Result<&'a mut *mut T, Failure> {
    if place.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: the caller's promise; what was there may be anything, so it is written
    // before it is borrowed.
    unsafe {
        place.write(ptr::null_mut());
        Ok(&mut *place)
    }
}

/// Ends a runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_runtime_destroy(runtime: *mut RuntimeHandle) -> c_int {
    boundary(|| {
        if runtime.is_null() {
            return Ok(());
        }
        if here::is_in(runtime) {
            return Err(inside("destroy"));
        }
        let _waits = waits::before(runtime)?;
        // SAFETY: the caller promises one that was made by us; handles are never freed.
        let this = unsafe { &*runtime };
        let maker = this.maker.load(Ordering::Relaxed);
        if maker != process::id() {
            // Whoever held the gate open there never leaves it here.
            return Err(Failure::from(WaitError::Forked { maker }));
        }
        let shut = this.gate.write().unwrap_or_else(PoisonError::into_inner);
        let ending = this.runtime()?;
        // What is left is told to nobody: it is to be dropped.
        ending.wait_until_idle()?;
        this.lives.store(false, Ordering::Release);
        // Arguments are discarded by functions that may call in, so not when all is
        // on its way out.
        ending.cancel();
        // SAFETY: it does not live any more: tasks have all ended, others stand before
        // the gate, and what is discarded is refused.
        let ended = unsafe { (*this.runtime.get()).take() };
        drop(ended);
        drop(shut);
        this.is_taken.store(false, Ordering::Release);
        Ok(())
    })
}

/// How many workers there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_workers(runtime: *const RuntimeHandle) -> u32 {
    boundary_or(0, || {
        let workers = |this: &Runtime| Ok(this.workers() as u32);
        // SAFETY: the caller promises one that was made by us, or null.
        unsafe { enter(runtime, workers) }.unwrap_or(0)
    })
}

/// A task, with an argument that is its own.
struct Owned {
    runtime: *mut RuntimeHandle,
    call: Call,
    /// For the argument, should the task never run.
    discard: Entry,
}

// SAFETY: the runtime may be called by any thread, and the rest by the promise of
// whoever registers.
unsafe impl Send for Owned {}

impl Owned {
    fn run(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: the promise of whoever registered it; run once, as it is gone now.
        unsafe { here::run(this.runtime, this.call) };
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if here::registers() {
            return;
        }
        let entry = self.discard;
        let arg = self.call.arg;
        // SAFETY: as for running it, which nobody can any more. One that fails goes on as
        // a panic: whoever drops tasks catches it, and a wait tells it.
        unsafe { here::run(self.runtime, Call { entry, arg }) };
    }
}

/// A pointer that goes to another thread inside a closure.
#[derive(Clone, Copy)]
struct To(*mut RuntimeHandle);

// SAFETY: a runtime may be called by any thread.
unsafe impl Send for To {}

impl To {
    /// # Safety
    /// As for [`here::run`].
    unsafe fn run(self, call: Call) {
        // SAFETY: the caller's promise.
        unsafe { here::run(self.0, call) };
    }
}

/// Files a task.
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
        let to = To(runtime);
        // SAFETY: the caller promises a function that may be called so; once.
        let task = move || unsafe { to.run(call) };
        let data = arg.addr();
        // SAFETY: the caller promises a runtime that lives, or null.
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

fn call_of(token: u64, entry: Option<Entry>, arg: *mut c_void) -> Result<Call, Failure> {
    let entry = entry.ok_or_else(|| Failure::null(&format!("the entry of task {token}")))?;
    Ok(Call { entry, arg })
}

/// Files a task whose argument is its own.
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
        let discard =
            discard.ok_or_else(|| Failure::null(&format!("the discard of task {token}")))?;
        let groups = Groups::new(t, s);
        let register = |this: &Runtime| {
            let owned = Owned {
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
            Ok(here::registering(register)?)
        };
        // SAFETY: the caller promises a runtime that lives, or null.
        unsafe { enter(runtime, register) }
    })
}

/// Takes one off what a task waits for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_resolve(runtime: *mut RuntimeHandle, token: u64) -> c_int {
    // SAFETY: the caller promises a runtime that lives, or null.
    boundary(|| unsafe { enter(runtime, |this| Ok(this.resolve(token)?)) })
}

/// Tells what was left; where there is no memory for that, those that failed are told
/// the next time.
///
/// # Safety
/// The place is null, or valid for writes.
unsafe fn tell(this: &Runtime, left: Left, report: *mut *mut Report) -> Failure {
    let given = Report::of_left(left).and_then(|told| {
        let Some(words) = told.words() else {
            return Err(told.into_left());
        };
        // SAFETY: the caller's promise.
        match unsafe { told.give(report) } {
            Ok(()) => Ok(words),
            Err(told) => Err(told.into_left()),
        }
    });
    match given {
        Ok(words) => Failure::new(Code::Left, words),
        Err(left) => {
            let counts = [
                left.panicked.len(),
                left.unresolved.len(),
                left.unregistered.len(),
            ];
            this.tell_again(left.panicked);
            Failure::no_memory_for_left(counts)
        }
    }
}

/// Waits until no registered task is ready or runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_wait(
    runtime: *mut RuntimeHandle,
    report: *mut *mut Report,
) -> c_int {
    boundary(|| {
        let wait = |this: &Runtime| {
            if here::is_in(runtime) {
                return Err(inside("wait for"));
            }
            let _waits = waits::before(runtime)?;
            match this.wait() {
                Ok(()) => Ok(()),
                // SAFETY: null, or the caller's to be written.
                Err(WaitError::Left(left)) => Err(unsafe { tell(this, left, report) }),
                Err(error) => Err(Failure::from(error)),
            }
        };
        // SAFETY: null, or the caller's to be written.
        unsafe { Report::clear(report) };
        // SAFETY: the caller promises a runtime that lives, or null.
        unsafe { enter(runtime, wait) }
    })
}

/// Drops what has not begun.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_cancel(
    runtime: *mut RuntimeHandle,
    dropped: *mut usize,
) -> c_int {
    boundary(|| {
        // SAFETY: the caller promises a runtime that lives, or null.
        let count = unsafe { enter(runtime, |this| Ok(this.cancel())) }?;
        if !dropped.is_null() {
            // SAFETY: not null, so the caller's to be written.
            unsafe { dropped.write(count) };
        }
        Ok(())
    })
}
