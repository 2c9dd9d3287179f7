// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fork and join of two functions.
//!
//! 1. The second function becomes a task on the stack of the calling worker, in that worker's own
//!    queues.
//! 2. The worker runs the first function.
//! 3. If no other worker has taken the second function, the worker removes it from its queues
//!    and calls it: a fork that is not stolen costs a few nanoseconds.
//! 4. Otherwise the worker runs other tasks until the thief is done.
//!
//! The stack frame stays until the task has run or will never run.
//!
//! The tasks of step 4 run on top of the stack of the waiting task, as in other fork-join pools:
//! each task adds the depth of its own recursion. To bound the depth, a worker that has
//! `NESTED_WAITS_MAX` waits on its stack sleeps instead of beginning another wait. The holder of
//! the stolen task either runs or waits for a task that was forked later, so the workers never all
//! sleep. With a global queue that gives all workers the oldest task first, all workers would often
//! sleep; such policies fork nothing.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::dispatch::Groups;
use crate::error::discard;
use crate::job::{Job, JobRef};
use crate::latch::Latch;
use crate::pool::FORKED;
use crate::sync::{AtomicBool, Ordering};
use crate::worker::{JobVtable, Worker};

/// The result of a function, or the payload of its panic.
type Outcome<R> = Result<R, Box<dyn Any + Send>>;

/// A function as a task, on the stack of its caller.
#[repr(C)]
struct Forked<F, R> {
    job: Job,
    /// The function. It belongs to the worker that holds the job.
    function: UnsafeCell<Option<F>>,
    /// The result. The worker that holds the job writes it before setting `done`; the caller reads
    /// it after that.
    outcome: UnsafeCell<Option<Outcome<R>>>,
    done: AtomicBool,
    caller: WaitingThread,
}

/// The thread that waits for the function and may sleep.
#[derive(Debug, Clone)]
enum WaitingThread {
    /// A worker of the same runtime.
    Worker(usize),
    /// A thread that is no worker of the runtime.
    Outside(Arc<Latch>),
}

impl<F: FnOnce() -> R + Send, R: Send> Forked<F, R> {
    fn new(function: F, groups: Groups, caller: WaitingThread) -> Self {
        let vtable = const { &JobVtable { run: run::<F, R> } };
        Self {
            job: Job::new(NonNull::from(vtable).cast(), groups),
            function: UnsafeCell::new(Some(function)),
            outcome: UnsafeCell::new(None),
            done: AtomicBool::new(false),
            caller,
        }
    }

    fn job_ptr(&self) -> NonNull<Job> {
        NonNull::from(self).cast()
    }

    /// # Safety
    /// Called once. The value is not moved or dropped before the job has run or was removed from
    /// the queues.
    unsafe fn job(&self) -> JobRef {
        // SAFETY: the caller guarantees that the value stays; fields that other threads write are
        // in cells.
        unsafe { JobRef::new(self.job_ptr()) }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Returns the result of a function that is done.
    fn into_outcome(self) -> Outcome<R> {
        match self.outcome.into_inner() {
            Some(outcome) => outcome,
            None => unreachable!("a task is done only when it has stored its outcome"),
        }
    }
}

/// Runs a forked function.
///
/// # Safety
/// The job is the first field of a [`Forked`] of these types.
unsafe fn run<F: FnOnce() -> R + Send, R: Send>(job: JobRef, worker: &Worker<'_>) {
    worker.count_task();
    let forked = job.as_ptr().cast::<Forked<F, R>>().as_ptr();
    // SAFETY: the forked function stays until it is done, as the caller guarantees, and this worker
    // holds its job.
    let caller = unsafe { complete(forked) };
    match caller {
        WaitingThread::Worker(caller) => worker.wake(caller),
        WaitingThread::Outside(latch) => latch.open(),
    }
}

/// Calls a forked function, sets `done` and returns the thread to wake.
/// # Safety
/// The forked function lives until it is done, and its job belongs to the caller.
unsafe fn complete<F: FnOnce() -> R, R>(forked: *const Forked<F, R>) -> WaitingThread {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if let Some(function) = (*(*forked).function.get()).take() {
            let outcome = catch_unwind(AssertUnwindSafe(function));
            *(*forked).outcome.get() = Some(outcome);
        }
        let caller = (*forked).caller.clone();
        // After this store the waiting thread may free the forked function.
        (*forked).done.store(true, Ordering::Release);
        caller
    }
}

/// Runs `a` on this worker, and `b` on this worker or on a worker that steals it.
pub(crate) fn join<A, B, RA, RB>(worker: &Worker<'_>, a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce() -> RB + Send,
    RB: Send,
{
    // Case: a global queue, in which the waiting worker would run the oldest task and wait inside
    // it; or a single worker, which has no thieves.
    if !worker.allows_stealing() {
        return (a(), b());
    }
    let forked = Forked::new(b, FORKED, WaitingThread::Worker(worker.index()));
    // SAFETY: this function neither returns nor moves `forked` before it is done or removed.
    worker.fork(unsafe { forked.job() });
    let first = catch_unwind(AssertUnwindSafe(a));
    // The task may still be in the worker's own steal slots. It is preferred to any other task.
    if worker.pop_fork(forked.job_ptr()) || worker.unpublish(forked.job_ptr()) {
        // The function is in no container any more, so it is a plain function again.
        let b = forked.function.into_inner();
        return match (first, b) {
            (Ok(first), Some(b)) => (first, b()),
            (Err(panic), b) => resume_after_drop(panic, b),
            (Ok(_), None) => unreachable!("a task that was taken back has not run"),
        };
    }
    worker.wait_for_fork(|| forked.is_done());
    match (first, forked.into_outcome()) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(panic), second) => resume_after_drop(panic, second),
        (first, Err(panic)) => resume_after_drop(panic, first),
    }
}

/// Resumes a panic. Before that, drops a result that is no longer needed and may itself panic when
/// dropped.
fn resume_after_drop<T>(panic: Box<dyn Any + Send>, rest: T) -> ! {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(rest))) {
        discard(another);
    }
    resume_unwind(panic)
}

/// Runs a function as a task of a runtime to which the calling thread does not belong. The calling
/// thread sleeps until the function has run.
pub(crate) fn run_inside<F, R>(inject: impl FnOnce(JobRef), function: F) -> R
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    let latch = Arc::new(Latch::default());
    let forked = Forked::new(
        function,
        Groups::NONE,
        WaitingThread::Outside(Arc::clone(&latch)),
    );
    // SAFETY: this function neither returns nor moves `forked` before it is done.
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

    /// Data written by a function, in a cell that loom checks.
    struct Data(UnsafeCell<u32>);

    // SAFETY: loom checks that accesses do not overlap with a write.
    unsafe impl Sync for Data {}

    impl Data {
        fn set(&self) {
            // SAFETY: no other thread accesses the data at that time, which loom checks.
            self.0.with_mut(|data| unsafe { *data = 7 });
        }

        fn get(&self) -> u32 {
            // SAFETY: no other thread writes the data at that time, which loom checks.
            self.0.with(|data| unsafe { *data })
        }
    }

    /// Sends the address of a forked function to another thread.
    struct SendPtr<F, R>(*const Forked<F, R>);

    // SAFETY: exactly one other thread gets the pointer, and completes the function.
    unsafe impl<F: Send, R: Send> Send for SendPtr<F, R> {}

    impl<F: FnOnce() -> R, R> SendPtr<F, R> {
        fn complete(self) -> WaitingThread {
            // SAFETY: the function is completed once, and freed after it is done.
            unsafe { complete(self.0) }
        }
    }

    /// Completes a function on another thread, waits by `waits` until it is done, and frees it.
    /// Checks that the written data are visible, and that the function is not accessed after it was
    /// freed.
    fn explore(caller: WaitingThread, waits: impl Fn(&dyn Fn() -> bool)) {
        let data = loom::sync::Arc::new(Data(UnsafeCell::new(0)));
        let own = loom::sync::Arc::clone(&data);
        let function = move || own.set();
        let forked = Box::new(Forked::new(function, FORKED, caller));
        let pointer = SendPtr(&raw const *forked);
        let thief = thread::spawn(move || match pointer.complete() {
            WaitingThread::Worker(_) => {}
            WaitingThread::Outside(latch) => latch.open(),
        });
        waits(&|| forked.is_done());
        assert!(forked.into_outcome().is_ok());
        assert_eq!(data.get(), 7);
        assert!(thief.join().is_ok());
    }

    #[test]
    fn a_polling_worker_sees_the_writes_of_the_thief() {
        loom::model(|| {
            explore(WaitingThread::Worker(0), |is_done| {
                while !is_done() {
                    thread::yield_now();
                }
            });
        });
    }

    #[test]
    fn an_outside_thread_sleeps_until_the_task_is_done() {
        loom::model(|| {
            let latch = Arc::new(Latch::default());
            let caller = WaitingThread::Outside(Arc::clone(&latch));
            explore(caller, |_| latch.wait());
        });
    }
}
