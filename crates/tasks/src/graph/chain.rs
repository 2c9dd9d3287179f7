// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a task of a graph and, one after another, those that it hands on.
//!
//! A worker comes here once for a chain of tasks. Panics are caught around the chain,
//! not around each task: where one gets out, the cell that says which task runs tells
//! whose it is, and the chain goes on behind that task.
//!
//! Whoever runs a task touches nothing of the graph after its last dependency has been
//! resolved and nothing is handed on, or, where it has none, after it has counted
//! itself off: the graph may be gone by then. So nothing here takes a reference to the
//! graph as an argument that would still be one at the end.

use std::cell::Cell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::Inner;
use super::plan::{Counter, Pending, Plan};
use crate::error::{Panicked, message};
use crate::job::JobRef;
use crate::sync::{AtomicU8, AtomicU32, Ordering};
use crate::worker::{AbortOnUnwind, Worker};

impl<B: Fn(usize) + Sync> Inner<B> {
    /// Does what the task is there for.
    #[inline(always)]
    fn visit(&self, task: u32, worker: &Worker<'_>) {
        worker.count_task();
        match self.failed.load(Ordering::Relaxed) || worker.is_traced() {
            false => (self.body)(task as usize),
            true => self.visit_slowly(task, worker),
        }
    }

    #[cold]
    fn visit_slowly(&self, task: u32, worker: &Worker<'_>) {
        if self.failed.load(Ordering::Relaxed) {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let groups = self.jobs[task as usize].groups();
        worker.trace(u64::from(task), groups, || (self.body)(task as usize));
    }

    /// What the body leaves behind when it panics is its owner's business, who is told.
    #[cold]
    fn has_panicked(&self, task: u32, panic: Box<dyn std::any::Any + Send>) {
        self.failed.store(true, Ordering::Relaxed);
        self.panicked.lock().push(Panicked {
            task: u64::from(task),
            message: message(panic),
        });
    }
}

/// What is handed on where nothing is.
const NONE: u32 = u32::MAX;

/// Resolves what waited for that task, which has run; of those that are ready now, the
/// one that is to run next here, or [`NONE`].
///
/// # Safety
/// The graph lives, the task is one of it, and has not been resolved in this run. The
/// counters are the graph's.
#[inline(always)]
unsafe fn resolve<B, C: Counter, const ALONE: bool>(
    graph: *const Inner<B>,
    left: *const C,
    task: u32,
    worker: &Worker<'_>,
) -> u32 {
    // SAFETY: the caller's promise.
    let (inner, successors) = unsafe { (&*graph, (*graph).plan.successors(task)) };
    if successors.is_empty() {
        // SAFETY: the caller's promise.
        unsafe { end(graph, task, worker) };
        return NONE;
    }
    let mut next = NONE;
    for &successor in successors {
        // SAFETY: successors are tasks, and each has a counter. Until all of these have
        // been resolved the graph lives.
        if unsafe { !(*left.add(successor as usize)).down::<ALONE>() } {
            continue;
        }
        // It is ready now, and ours: so the graph lives until we have given it on.
        if worker.sends(inner.sends) {
            let job = inner.job(successor);
            if !worker.keeps(&job) {
                worker.ready(job);
                continue;
            }
        }
        if next != NONE {
            worker.push(inner.job(next));
        }
        next = successor;
    }
    next
}

/// A task without successors has run.
///
/// # Safety
/// The graph lives, and the task is one of it that has not ended in this run.
unsafe fn end<B>(graph: *const Inner<B>, task: u32, worker: &Worker<'_>) {
    // SAFETY: the caller's promise. Where this was the last, the graph lives until the
    // latch opens.
    let (done, waiter) = unsafe {
        if !Plan::ended(&raw const (*graph).plan, task) {
            return;
        }
        (Arc::clone(&(*graph).done), (*graph).waiter)
    };
    done.open();
    if let Some(waiter) = waiter {
        worker.wake(waiter);
    }
}

/// As [`resolve`], where a panic would be taken for the task's.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn resolve_or_abort<B, C: Counter, const ALONE: bool>(
    graph: *const Inner<B>,
    left: *const C,
    task: u32,
    worker: &Worker<'_>,
) -> u32 {
    let unwinding = AbortOnUnwind;
    // SAFETY: the caller's promise.
    let next = unsafe { resolve::<B, C, ALONE>(graph, left, task, worker) };
    mem::forget(unwinding);
    next
}

/// Runs tasks from one on, each when the one before it has been resolved, until none is
/// handed on or others have their turn.
///
/// # Safety
/// The graph lives, the task is ready and this worker's. The counters are the graph's,
/// and where `ALONE` nobody else uses them.
#[inline(always)]
unsafe fn chain<B: Fn(usize) + Sync, C: Counter, const ALONE: bool>(
    graph: *const Inner<B>,
    left: *const C,
    at: &Cell<u32>,
    worker: &Worker<'_>,
) {
    let mut task = at.get();
    while task != NONE {
        at.set(task);
        // SAFETY: the task has not run, so that the graph lives; when it has, it has
        // not been resolved.
        unsafe {
            (*graph).visit(task, worker);
            task = resolve_or_abort::<B, C, ALONE>(graph, left, task, worker);
            if task != NONE && worker.ends_turn() {
                // Ours yet, so that the graph lives.
                return worker.push((*graph).job(task));
            }
        }
        if !ALONE {
            worker.share();
        }
    }
}

/// Goes on behind a task that has panicked; the next one.
///
/// # Safety
/// The graph lives, and the task has not been resolved.
#[cold]
unsafe fn resume<B>(graph: *const Inner<B>, task: u32, worker: &Worker<'_>) -> u32 {
    // SAFETY: the caller's promise. Counters do not move; where nobody else uses them
    // they may be atomic all the same.
    unsafe {
        match &(*graph).plan.pending {
            Pending::Narrow(counters) => {
                let left = counters.left.as_ptr();
                resolve_or_abort::<B, AtomicU8, false>(graph, left, task, worker)
            }
            Pending::Wide(counters) => {
                let left = counters.left.as_ptr();
                resolve_or_abort::<B, AtomicU32, false>(graph, left, task, worker)
            }
        }
    }
}

/// Runs the task of a job, and those that it hands on.
///
/// # Safety
/// The job is one of a graph with that kind of body.
pub(super) unsafe fn run<B: Fn(usize) + Sync>(job: JobRef, worker: &Worker<'_>) {
    // SAFETY: the caller's promise; the job lives until it has run, and points to its
    // graph.
    let (graph, at) = unsafe {
        let graph = job.as_ptr().as_ref().kind().cast::<Inner<B>>().as_ptr();
        (graph.cast_const(), Cell::new((*graph).task(&job)))
    };
    while at.get() != NONE {
        // SAFETY: the task is ours and has not run. Counters do not move.
        let go = || unsafe {
            match (&(*graph).plan.pending, worker.is_alone()) {
                (Pending::Narrow(counters), true) => {
                    let left = counters.left.as_ptr();
                    chain::<B, AtomicU8, true>(graph, left, &at, worker);
                }
                (Pending::Narrow(counters), false) => {
                    let left = counters.left.as_ptr();
                    chain::<B, AtomicU8, false>(graph, left, &at, worker);
                }
                (Pending::Wide(counters), _) => {
                    let left = counters.left.as_ptr();
                    chain::<B, AtomicU32, false>(graph, left, &at, worker);
                }
            }
        };
        match catch_unwind(AssertUnwindSafe(go)) {
            Ok(()) => return,
            // SAFETY: the task has not been resolved, so that the graph lives.
            Err(panic) => unsafe {
                (*graph).has_panicked(at.get(), panic);
                at.set(resume(graph, at.get(), worker));
            },
        }
    }
}
