// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forking and joining: two functions at the same time, if there is anybody for the
//! second.
//!
//! The second one lies, as a task, on the stack of the worker that calls, which puts
//! it among its ready tasks and runs the first one. After that it takes the second
//! one back, if nobody has taken it, and calls it: a fork without a thief costs a
//! few nanoseconds. Else it runs other tasks until the thief has done it. Either
//! way the stack stays until the task has run, or will never run.
//!
//! Those other tasks run on top of the stack of the one that waits, as in other pools
//! that fork and join: each adds the depth of its own recursion. So that they do not
//! pile up without bound, a worker that has some number of waits on its stack sleeps
//! where it would wait once more. Whoever has what it waits for either goes on or waits
//! for something that was forked later than that, so that never all of them sleep. From
//! a queue that gives all workers the oldest first (policies with a lock) that would be
//! usual: there, nothing is forked.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::dispatch::Groups;
use crate::error::discard;
use crate::job::{Job, JobRef, Kind};
use crate::latch::Latch;
use crate::pool::FORKED;
use crate::sync::{AtomicBool, Ordering};
use crate::worker::Worker;

/// What a function gave, or what it panicked with.
type Outcome<R> = Result<R, Box<dyn Any + Send>>;

/// A function as a task, on its caller's stack.
#[repr(C)]
struct Forked<F, R> {
    job: Job,
    /// Its worker's, from the moment that one has the job.
    function: UnsafeCell<Option<F>>,
    /// Written by that worker before `done` says so, read by the caller after.
    outcome: UnsafeCell<Option<Outcome<R>>>,
    done: AtomicBool,
    caller: Caller,
}

/// Who waits for a function, and may sleep.
#[derive(Debug, Clone)]
enum Caller {
    /// A worker of the same runtime.
    Worker(usize),
    /// Some other thread.
    Outside(Arc<Latch>),
}

impl<F: FnOnce() -> R + Send, R: Send> Forked<F, R> {
    fn new(function: F, groups: Groups, caller: Caller) -> Self {
        let kind = const { &Kind { run: run::<F, R> } };
        Self {
            job: Job::new(NonNull::from(kind), groups),
            function: UnsafeCell::new(Some(function)),
            outcome: UnsafeCell::new(None),
            done: AtomicBool::new(false),
            caller,
        }
    }

    fn place(&self) -> NonNull<Job> {
        NonNull::from(self).cast()
    }

    /// # Safety
    /// Once; and it is not moved or dropped before the job has run or has been taken
    /// back.
    unsafe fn job(&self) -> JobRef {
        // SAFETY: the caller's promise; what others write to is in cells.
        unsafe { JobRef::new(self.place()) }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// What came of it; it is done.
    fn into_outcome(self) -> Outcome<R> {
        match self.outcome.into_inner() {
            Some(outcome) => outcome,
            None => unreachable!("a task is done when its outcome is there"),
        }
    }
}

/// Runs a forked function.
///
/// # Safety
/// The job is the head of such a one.
unsafe fn run<F: FnOnce() -> R + Send, R: Send>(job: JobRef, worker: &Worker<'_>) {
    worker.count_task();
    let forked = job.as_ptr().cast::<Forked<F, R>>().as_ptr();
    // SAFETY: the caller's promise; it stays until it is done, and we have its job.
    let caller = unsafe { complete(forked) };
    match caller {
        Caller::Worker(caller) => worker.wake(caller),
        Caller::Outside(latch) => latch.open(),
    }
}

/// Calls a forked function, and says that it is done; who is to be told of that.
///
/// # Safety
/// It lives until it is done, and its job is the caller's.
unsafe fn complete<F: FnOnce() -> R, R>(forked: *const Forked<F, R>) -> Caller {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(function) = (*(*forked).function.get()).take() {
            let outcome = catch_unwind(AssertUnwindSafe(function));
            *(*forked).outcome.get() = Some(outcome);
        }
        let caller = (*forked).caller.clone();
        // The one who waits may be gone after that, and it with that one.
        (*forked).done.store(true, Ordering::Release);
        caller
    }
}

/// Runs `a` here and `b` here or, where others look for tasks of this worker,
/// elsewhere.
pub(crate) fn join<A, B, RA, RB>(worker: &Worker<'_>, a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce() -> RB + Send,
    RB: Send,
{
    // In one order for all, who waits would run whatever comes first, and wait in that;
    // alone nobody would take it.
    if !worker.shares() {
        return (a(), b());
    }
    let forked = Forked::new(b, FORKED, Caller::Worker(worker.index()));
    // SAFETY: this function does not end, nor moves it, before it is done or back.
    worker.fork(unsafe { forked.job() });
    let first = catch_unwind(AssertUnwindSafe(a));
    // Else it may lie on our own shelf still: rather that than anything else.
    if worker.unfork(forked.place()) || worker.unlay(forked.place()) {
        // Nobody else has it, nor will: it is a function again.
        let b = forked.function.into_inner();
        return match (first, b) {
            (Ok(first), Some(b)) => (first, b()),
            (Err(panic), b) => throw(panic, b),
            (Ok(_), None) => unreachable!("a task that was taken back has not run"),
        };
    }
    worker.work_for(|| forked.is_done());
    match (first, forked.into_outcome()) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(panic), second) => throw(panic, second),
        (first, Err(panic)) => throw(panic, first),
    }
}

/// Goes on with a panic, and drops before that what nobody gets now, which may panic, too.
fn throw<T>(panic: Box<dyn Any + Send>, rest: T) -> ! {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(rest))) {
        discard(another);
    }
    resume_unwind(panic)
}

/// Runs a function as a task of a runtime that this thread is no worker of, and
/// sleeps meanwhile.
pub(crate) fn run_inside<F, R>(inject: impl FnOnce(JobRef), function: F) -> R
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    let latch = Arc::new(Latch::default());
    let forked = Forked::new(function, Groups::NONE, Caller::Outside(Arc::clone(&latch)));
    // SAFETY: this function does not end, nor moves it, before it is done.
    inject(unsafe { forked.job() });
    latch.wait();
    match forked.into_outcome() {
        Ok(value) => value,
        Err(panic) => resume_unwind(panic),
    }
}

#[cfg(all(test, feature = "loom"))]
mod interleavings {
    use loom::cell::UnsafeCell;
    use loom::thread;

    use super::*;

    /// What a function does, in a place whose users loom knows.
    struct Data(UnsafeCell<u32>);

    // SAFETY: loom checks that nobody uses it while another writes.
    unsafe impl Sync for Data {}

    impl Data {
        fn set(&self) {
            // SAFETY: nobody else has it at that time, which loom checks.
            self.0.with_mut(|data| unsafe { *data = 7 });
        }

        fn get(&self) -> u32 {
            // SAFETY: as above.
            self.0.with(|data| unsafe { *data })
        }
    }

    /// A function's place, for another thread.
    struct To<F, R>(*const Forked<F, R>);

    // SAFETY: one other thread has it, and completes it.
    unsafe impl<F: Send, R: Send> Send for To<F, R> {}

    impl<F: FnOnce() -> R, R> To<F, R> {
        fn complete(self) -> Caller {
            // SAFETY: it is freed when it is done, and completed once.
            unsafe { complete(self.0) }
        }
    }

    /// Completes a function on another thread, `waits` until it is done and frees it:
    /// what it has done is seen, and nothing of it is used after.
    fn explore(caller: Caller, waits: impl Fn(&dyn Fn() -> bool)) {
        let data = loom::sync::Arc::new(Data(UnsafeCell::new(0)));
        let own = loom::sync::Arc::clone(&data);
        let function = move || own.set();
        let forked = Box::new(Forked::new(function, FORKED, caller));
        let to = To(&raw const *forked);
        let thief = thread::spawn(move || match to.complete() {
            Caller::Worker(_) => {}
            Caller::Outside(latch) => latch.open(),
        });
        waits(&|| forked.is_done());
        assert!(forked.into_outcome().is_ok());
        assert_eq!(data.get(), 7);
        assert!(thief.join().is_ok());
    }

    #[test]
    fn a_worker_that_looks_sees_what_the_thief_has_done() {
        loom::model(|| {
            explore(Caller::Worker(0), |is_done| {
                while !is_done() {
                    thread::yield_now();
                }
            });
        });
    }

    #[test]
    fn a_thread_from_outside_sleeps_until_it_is_done() {
        loom::model(|| {
            let latch = Arc::new(Latch::default());
            let caller = Caller::Outside(Arc::clone(&latch));
            explore(caller, |_| latch.wait());
        });
    }
}
