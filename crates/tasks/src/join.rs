// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fork and join of two functions.
//!
//! 1. The calling worker enqueues the second function as a task in its own queues. The data of the
//!    task are in the stack frame of the caller.
//! 2. The worker runs the first function.
//! 3. If no other worker has taken the task, the worker removes it from its queues and calls the
//!    second function. A fork that is not stolen costs a few nanoseconds.
//! 4. If another worker (the thief) has taken the task, the worker runs other tasks until the thief
//!    has finished it.
//!
//! The caller returns only after the task has run or was removed from all queues, so the stack
//! frame exists as long as the task.
//!
//! As in other fork-join pools, the tasks of step 4 use the stack of the waiting task, and each of
//! them may recurse and wait again. To bound the stack, a worker with 16 nested waits on its stack
//! (`NESTED_WAITS_MAX`, fewer with small stacks) runs in step 4 only the forked task for which it
//! waits (`worker/forks.rs`). A policy with a global queue would give each waiting worker the
//! oldest task, so all workers would often reach the limit. Under such a policy, and with a single
//! worker, the caller therefore calls the functions one after the other.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::current_worker::ThisWorker;
use crate::dispatch::Groups;
use crate::error::discard;
use crate::job::{Job, JobRef};
use crate::latch::Latch;
use crate::pool::FORKED;
use crate::sync::{AtomicBool, Ordering};
use crate::task_node::Creator;
use crate::worker::{JobVtable, Registry, Worker};

/// The payload of a panic.
pub(crate) type Payload = Box<dyn Any + Send>;

/// The result of a function, or the payload of its panic.
type Outcome<R> = Result<R, Payload>;

/// A function as a task, in the stack frame of the function's caller.
#[repr(C)]
struct Forked<F, R> {
    job: Job,
    /// The function, until it is called. Only the worker that holds the job accesses this field.
    function: UnsafeCell<Option<F>>,
    /// The result of the function. The worker that holds the job writes this field and then sets
    /// `done`. The caller reads the field after it has seen `done`.
    outcome: UnsafeCell<Option<Outcome<R>>>,
    done: AtomicBool,
    caller: WaitingThread,
    /// The task with a future of which the function is a part.
    creator: Creator,
}

/// The thread that waits for the function and may sleep.
#[derive(Clone)]
pub(crate) enum WaitingThread {
    /// A worker of the same runtime, by its index.
    Worker(usize),
    /// A worker of another runtime. The reference keeps the registry alive until the worker was
    /// woken.
    OtherWorker(Arc<Registry>, usize),
    /// A thread that is no worker of any runtime, and the latch at which it sleeps.
    Outside(Arc<Latch>),
}

impl WaitingThread {
    /// Wakes the thread, for which `registry` has run the last task.
    pub fn wake(self, registry: &Registry) {
        match self {
            Self::Worker(index) => registry.wake_worker(index),
            Self::OtherWorker(registry, index) => registry.wake_worker(index),
            Self::Outside(latch) => latch.open(),
        }
    }
}

/// The argument of a forked function states whether the function *migrated*: whether it runs on
/// another worker than its caller.
impl<F: FnOnce(bool) -> R + Send, R: Send> Forked<F, R> {
    fn new(function: F, groups: Groups, caller: WaitingThread, creator: Creator) -> Self {
        let vtable = const { &JobVtable { run: run::<F, R> } };
        Self {
            job: Job::new(NonNull::from(vtable).cast(), groups),
            function: UnsafeCell::new(Some(function)),
            outcome: UnsafeCell::new(None),
            done: AtomicBool::new(false),
            caller,
            creator,
        }
    }

    fn job_ptr(&self) -> NonNull<Job> {
        NonNull::from(self).cast()
    }

    /// # Safety
    /// This function is called once per value. The value is not moved or dropped before the job has
    /// run or was removed from the queues.
    unsafe fn job(&self) -> JobRef {
        // SAFETY: the caller guarantees that the value is neither moved nor dropped. Fields that
        // other threads write are in cells.
        unsafe { JobRef::new(self.job_ptr()) }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Returns the result of a function that has run.
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
unsafe fn run<F: FnOnce(bool) -> R + Send, R: Send>(job: JobRef, worker: &Worker<'_>) {
    worker.count_fork();
    let forked = job.as_ptr().cast::<Forked<F, R>>().as_ptr();
    // SAFETY: the forked function exists until `done` is set.
    let before = worker.replace_creator(unsafe { (*forked).creator });
    // SAFETY: the caller guarantees that the forked function exists until `done` is set, and this
    // worker holds its job.
    let caller = unsafe { complete(forked, Some(worker.index())) };
    worker.replace_creator(before);
    caller.wake(worker.registry());
}

/// Calls a forked function on worker number `runner`, sets `done` and returns the thread to wake.
///
/// # Safety
/// The forked function exists until `done` is set, and the caller holds its job.
unsafe fn complete<F: FnOnce(bool) -> R, R>(
    forked: *const Forked<F, R>,
    runner: Option<usize>,
) -> WaitingThread {
    // SAFETY: the caller holds the job, so `forked` exists and only this thread accesses its cells.
    unsafe {
        if let Some(function) = (*(*forked).function.get()).take() {
            let has_migrated = match (*forked).caller {
                WaitingThread::Worker(caller) => Some(caller) != runner,
                WaitingThread::OtherWorker(..) | WaitingThread::Outside(_) => true,
            };
            let outcome = catch_unwind(AssertUnwindSafe(|| function(has_migrated)));
            *(*forked).outcome.get() = Some(outcome);
        }
        let caller = (*forked).caller.clone();
        // After this store, the waiting thread may free the forked function, so this function does
        // not access it any more.
        (*forked).done.store(true, Ordering::Release);
        caller
    }
}

/// Runs `a` on this worker, and `b` on this worker or on a worker that steals it. The argument of
/// each function states whether it runs on another worker.
#[inline]
pub(crate) fn join<A, B, RA, RB>(worker: &Worker<'_>, a: A, b: B) -> (RA, RB)
where
    A: FnOnce(bool) -> RA,
    B: FnOnce(bool) -> RB + Send,
    RB: Send,
{
    // Stealing is not possible with a single worker. With a global queue, a waiting worker would
    // run the oldest task and might begin a wait inside that task.
    if !worker.allows_stealing() {
        return (a(false), b(false));
    }
    let caller = WaitingThread::Worker(worker.index());
    let forked = Forked::new(b, FORKED, caller, worker.creator());
    // SAFETY: this function neither returns nor moves `forked` before the job has run or was
    // removed from the queues.
    worker.fork(unsafe { forked.job() });
    let first = catch_unwind(AssertUnwindSafe(|| a(false)));
    // The second function has priority over other tasks. It may be in the worker's own queues or
    // steal slots.
    if worker.pop_fork(forked.job_ptr()) || worker.unpublish(forked.job_ptr()) {
        // The job was removed from all containers, so no other thread accesses the function.
        let b = forked.function.into_inner();
        return match (first, b) {
            (Ok(first), Some(b)) => (first, b(false)),
            (Err(panic), b) => resume_after_drop(panic, b),
            (Ok(_), None) => unreachable!("a task that was taken back has not run"),
        };
    }
    worker.wait_for_forks(|job| job.as_ptr() == forked.job_ptr(), || forked.is_done());
    match (first, forked.into_outcome()) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(panic), second) => resume_after_drop(panic, second),
        (first, Err(panic)) => resume_after_drop(panic, first),
    }
}

/// Drops `rest`, a result that is no longer needed, and resumes a panic. A panic of that drop is
/// discarded.
pub(crate) fn resume_after_drop<T>(panic: Box<dyn Any + Send>, rest: T) -> ! {
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
    let caller = WaitingThread::Outside(Arc::clone(&latch));
    run_as_task(inject, function, caller, |_| latch.wait())
}

/// Runs a function as a task of another runtime than that of `worker`, which is the worker of the
/// calling thread. The worker runs tasks of its own runtime during the wait, so runtimes may wait
/// for one another.
pub(crate) fn run_across<F, R>(
    worker: &ThisWorker<'_>,
    inject: impl FnOnce(JobRef),
    function: F,
) -> R
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    let caller = WaitingThread::OtherWorker(worker.to_registry(), worker.worker().index());
    let wait = |is_done: &dyn Fn() -> bool| worker.worker().wait_across(is_done);
    run_as_task(inject, function, caller, wait)
}

/// Injects a function as a task. `wait` returns when its argument returns true.
fn run_as_task<F, R>(
    inject: impl FnOnce(JobRef),
    function: F,
    caller: WaitingThread,
    wait: impl FnOnce(&dyn Fn() -> bool),
) -> R
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    let forked = Forked::new(|_| function(), Groups::NONE, caller, Creator::NONE);
    // SAFETY: this function neither returns nor moves `forked` before the wait has ended, which
    // happens after the job has run.
    inject(unsafe { forked.job() });
    wait(&|| forked.is_done());
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

    // SAFETY: loom fails the test if an access overlaps with a write.
    unsafe impl Sync for Data {}

    impl Data {
        fn set(&self) {
            // SAFETY: no other thread accesses the data during this write. Loom fails the test
            // otherwise.
            self.0.with_mut(|data| unsafe { *data = 7 });
        }

        fn get(&self) -> u32 {
            // SAFETY: no other thread writes the data during this read. Loom fails the test
            // otherwise.
            self.0.with(|data| unsafe { *data })
        }
    }

    /// Sends the address of a forked function to another thread.
    struct SendPtr<F, R>(*const Forked<F, R>);

    // SAFETY: exactly one other thread gets the pointer, and only that thread completes the
    // function.
    unsafe impl<F: Send, R: Send> Send for SendPtr<F, R> {}

    impl<F: FnOnce(bool) -> R, R> SendPtr<F, R> {
        fn complete(self) -> WaitingThread {
            // SAFETY: this is the only call of `complete` for this function, and the function is
            // freed only after `done` is set.
            unsafe { complete(self.0, None) }
        }
    }

    /// Completes a forked function on another thread, waits by `waits` until `done` is set, and
    /// frees the forked function. Checks that the data that the function wrote are visible, and
    /// that no thread accesses the forked function after it was freed.
    fn explore(caller: WaitingThread, waits: impl Fn(&dyn Fn() -> bool)) {
        let data = loom::sync::Arc::new(Data(UnsafeCell::new(0)));
        let own = loom::sync::Arc::clone(&data);
        let function = move |_| own.set();
        let forked = Box::new(Forked::new(function, FORKED, caller, Creator::NONE));
        let pointer = SendPtr(&raw const *forked);
        let thief = thread::spawn(move || match pointer.complete() {
            WaitingThread::Worker(_) | WaitingThread::OtherWorker(..) => {}
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
