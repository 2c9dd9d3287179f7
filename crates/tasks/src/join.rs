// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two things at once, where there is somebody to do the other.
//!
//! The second of the two lies on the caller's stack and is offered to others like
//! any ready task. When the caller is done with the first it takes the second back
//! and does it itself, unless somebody has taken it; then it runs other tasks until
//! that one is done. The frame is not left before, whatever panics.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::dispatch::Groups;
use crate::job::{Job, JobRef};
use crate::worker::Worker;

/// Something to be done once, and what came of it.
#[repr(C)]
pub(crate) struct Forked<F, R> {
    job: Job,
    /// Whoever holds the job's.
    entry: UnsafeCell<Option<F>>,
    /// Theirs, too, until it is done.
    outcome: UnsafeCell<Option<thread::Result<R>>>,
    is_done: AtomicBool,
}

impl<F: FnOnce() -> R + Send, R: Send> Forked<F, R> {
    pub fn new(entry: F) -> Self {
        Self {
            job: Job::new(run::<F, R>, Groups::NONE),
            entry: UnsafeCell::new(Some(entry)),
            outcome: UnsafeCell::new(None),
            is_done: AtomicBool::new(false),
        }
    }

    /// The task, for somebody to run.
    ///
    /// # Safety
    /// Once; and this stays where it is until it is done, or the task is back.
    pub unsafe fn job(&self) -> JobRef {
        // SAFETY: the caller's promise. The pointer is to all of this, whose head the
        // job is.
        unsafe { JobRef::new(NonNull::from(self).cast()) }
    }

    pub fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// What came of it; `None`: it has not been done.
    pub fn outcome(self) -> Option<thread::Result<R>> {
        self.outcome.into_inner()
    }
}

/// Does what was forked.
///
/// # Safety
/// The job is the head of such a `Forked`.
unsafe fn run<F: FnOnce() -> R + Send, R: Send>(job: JobRef, _: &Worker<'_>) -> Option<JobRef> {
    let forked = job.as_ptr().cast::<Forked<F, R>>().as_ptr();
    // SAFETY: it stays where it is until it is done, and until then all in it is
    // whose the job is: ours.
    unsafe {
        let entry = (*(*forked).entry.get()).take();
        *(*forked).outcome.get() = entry.map(|entry| catch_unwind(AssertUnwindSafe(entry)));
        (*forked).is_done.store(true, Ordering::Release);
    }
    None
}

impl Worker<'_> {
    /// Does `a`, and `b` meanwhile or after it.
    ///
    /// # Panics
    /// As `a` and `b` do; where `a` does, `b` may not be done at all.
    pub fn join<A, B, RA, RB>(&self, a: A, b: B) -> (RA, RB)
    where
        A: FnOnce() -> RA,
        B: FnOnce() -> RB + Send,
        RB: Send,
    {
        if !self.has_own_order() {
            return (a(), b());
        }
        let forked = Forked::new(b);
        // SAFETY: once; and below this frame is left when it is done or back.
        self.offer(unsafe { forked.job() });
        let first = catch_unwind(AssertUnwindSafe(a));
        let is_back = self.take_back(&forked.job);
        while !is_back && !forked.is_done() {
            self.work_while(|| !forked.is_done());
            if !forked.is_done() {
                thread::yield_now();
            }
        }
        let first = first.unwrap_or_else(|panic| resume_unwind(panic));
        let second = match forked.entry.into_inner() {
            Some(entry) => entry(),
            None => match forked.outcome.into_inner() {
                Some(outcome) => outcome.unwrap_or_else(|panic| resume_unwind(panic)),
                None => unreachable!("what is done has an outcome"),
            },
        };
        (first, second)
    }
}
