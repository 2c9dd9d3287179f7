// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fork and join of two functions.

use std::marker::PhantomData;

use usher_tasks::CurrentWorker;

use crate::global::global;

/// States on which thread a function of [`join_context`] runs.
pub struct FnContext {
    migrated: bool,
    /// The value is meaningful only on the thread of the function, so it is not `Send`.
    marker: PhantomData<*mut ()>,
}

impl FnContext {
    fn new(migrated: bool) -> Self {
        Self {
            migrated,
            marker: PhantomData,
        }
    }

    /// Returns whether the function runs on another thread than its caller.
    pub fn migrated(&self) -> bool {
        self.migrated
    }
}

/// Runs both functions, at the same time if a thread of the pool is idle, and returns their
/// results.
///
/// # Panics
/// If one of the functions panics, after both have ended. If the first function panics, the second
/// possibly does not run.
#[inline]
pub fn join<A, B, RA, RB>(oper_a: A, oper_b: B) -> (RA, RB)
where
    A: FnOnce() -> RA + Send,
    B: FnOnce() -> RB + Send,
    RA: Send,
    RB: Send,
{
    join_migrated(|_| oper_a(), |_| oper_b())
}

/// Runs both functions as [`join`] does. The argument of each function states whether it runs on
/// another thread than the caller.
///
/// # Panics
/// If one of the functions panics, as [`join`].
#[inline]
pub fn join_context<A, B, RA, RB>(oper_a: A, oper_b: B) -> (RA, RB)
where
    A: FnOnce(FnContext) -> RA + Send,
    B: FnOnce(FnContext) -> RB + Send,
    RA: Send,
    RB: Send,
{
    join_migrated(
        |migrated| oper_a(FnContext::new(migrated)),
        |migrated| oper_b(FnContext::new(migrated)),
    )
}

#[inline]
fn join_migrated<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce(bool) -> RA + Send,
    B: FnOnce(bool) -> RB + Send,
    RA: Send,
    RB: Send,
{
    CurrentWorker::with(|worker| match worker {
        Some(worker) => worker.join_context(a, b),
        None => global().join_context(a, b),
    })
}
