// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a task of a graph, and then the chain of successors that it makes ready.
//!
//! A worker enters this module once per chain. Panics are caught around the chain, not around each
//! task. A cell holds the number of the running task: after a panic it identifies the task, and the
//! chain continues behind it.
//!
//! The graph may be freed as soon as the last of its tasks has been resolved. A worker that holds
//! no task of the graph must not access the graph. The last access of a worker is therefore one of
//! these:
//!
//! - the worker resolves the last successor of its task, and no successor is left for it to run
//!   next;
//! - the worker counts a task without successors as ended.
//!
//! No function here takes a reference to the graph as an argument, because such a reference would
//! have to stay valid until the function returns.

use std::cell::Cell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::GraphInner;
use super::plan::{Counter, DependencyCounters, Plan};
use crate::error::{Panicked, message};
use crate::job::JobRef;
use crate::sync::{AtomicU8, AtomicU32, Ordering};
use crate::worker::{AbortOnUnwind, Worker};

impl<B: Fn(usize) + Sync> GraphInner<B> {
    /// Calls the body of the task, unless another task has panicked.
    #[inline(always)]
    fn call_body(&self, task: u32, worker: &Worker<'_>) {
        worker.count_task();
        match self.failed.load(Ordering::Relaxed) || worker.is_traced() {
            false => (self.body)(task as usize),
            true => self.call_body_slowly(task, worker),
        }
    }

    #[cold]
    fn call_body_slowly(&self, task: u32, worker: &Worker<'_>) {
        if self.failed.load(Ordering::Relaxed) {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let groups = self.jobs[task as usize].groups();
        worker.trace(u64::from(task), groups, || (self.body)(task as usize));
    }

    /// Records a panic. If the panic leaves the body's state inconsistent, the owner of the body
    /// must repair the state; the owner gets a report of the panic.
    #[cold]
    fn record_panic(&self, task: u32, panic: Box<dyn std::any::Any + Send>) {
        self.failed.store(true, Ordering::Relaxed);
        self.panicked.lock().push(Panicked {
            task: u64::from(task),
            message: message(panic),
        });
    }
}

/// Marks the end of a chain, in place of the next task.
const NONE: u32 = u32::MAX;

/// Resolves the dependencies on a task that has run. Returns the newly ready task to run next on
/// this worker, or [`NONE`].
///
/// # Safety
/// The graph lives. The task belongs to the graph and was not resolved in this run. `left` points
/// to the counters of the graph.
#[inline(always)]
unsafe fn resolve<B, C: Counter, const SINGLE_WORKER: bool>(
    graph: *const GraphInner<B>,
    left: *const C,
    task: u32,
    worker: &Worker<'_>,
) -> u32 {
    // SAFETY: guaranteed by the caller.
    let (inner, successors) = unsafe { (&*graph, (*graph).plan.successors(task)) };
    if successors.is_empty() {
        // SAFETY: guaranteed by the caller.
        unsafe { end(graph, task, worker) };
        return NONE;
    }
    let mut next = NONE;
    for &successor in successors {
        // SAFETY: successors are tasks, and each has a counter. The graph lives until all
        // successors are resolved.
        if unsafe { !(*left.add(successor as usize)).decrement::<SINGLE_WORKER>() } {
            continue;
        }
        // The successor is ready and held by this worker, so the graph lives until the worker
        // passes the successor on.
        if worker.may_redirect(inner.may_redirect) {
            let job = inner.job(successor);
            if !worker.may_run_next(&job) {
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

/// Ends a task without successors.
///
/// # Safety
/// The graph lives. The task belongs to the graph and has not ended in this run.
unsafe fn end<B>(graph: *const GraphInner<B>, task: u32, worker: &Worker<'_>) {
    // SAFETY: the caller guarantees that the graph lives. If this task was the last, the graph
    // lives until the latch opens.
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

/// As [`resolve`], for callers outside the code that catches panics: a panic aborts the process,
/// because it would be attributed to the task.
///
/// # Safety
/// As [`resolve`].
#[inline(always)]
unsafe fn resolve_or_abort<B, C: Counter, const SINGLE_WORKER: bool>(
    graph: *const GraphInner<B>,
    left: *const C,
    task: u32,
    worker: &Worker<'_>,
) -> u32 {
    let unwinding = AbortOnUnwind;
    // SAFETY: guaranteed by the caller.
    let next = unsafe { resolve::<B, C, SINGLE_WORKER>(graph, left, task, worker) };
    mem::forget(unwinding);
    next
}

/// Runs a task and the chain of tasks that follow it, until no task follows or other tasks are
/// overdue.
///
/// # Safety
/// The graph lives. The task is ready and belongs to this worker. `left` points to the counters of
/// the graph, and with `SINGLE_WORKER` no other thread uses them.
#[inline(always)]
unsafe fn chain<B: Fn(usize) + Sync, C: Counter, const SINGLE_WORKER: bool>(
    graph: *const GraphInner<B>,
    left: *const C,
    at: &Cell<u32>,
    worker: &Worker<'_>,
) {
    let mut task = at.get();
    while task != NONE {
        at.set(task);
        // SAFETY: the task has not run, so the graph lives. After the task has run, it is not yet
        // resolved.
        unsafe {
            (*graph).call_body(task, worker);
            task = resolve_or_abort::<B, C, SINGLE_WORKER>(graph, left, task, worker);
            if task != NONE && worker.chain_must_yield() {
                // The task still belongs to this worker, so the graph lives.
                return worker.push((*graph).job(task));
            }
        }
        if !SINGLE_WORKER {
            worker.share();
        }
    }
}

/// Resolves a task that has panicked, and returns the task that follows it.
///
/// # Safety
/// The graph lives, and the task was not resolved.
#[cold]
unsafe fn resume<B>(graph: *const GraphInner<B>, task: u32, worker: &Worker<'_>) -> u32 {
    // SAFETY: guaranteed by the caller. Counters do not move. Atomic access is also correct if no
    // other thread uses them.
    unsafe {
        match &(*graph).plan.pending {
            DependencyCounters::Narrow(counters) => {
                let left = counters.left.as_ptr();
                resolve_or_abort::<B, AtomicU8, false>(graph, left, task, worker)
            }
            DependencyCounters::Wide(counters) => {
                let left = counters.left.as_ptr();
                resolve_or_abort::<B, AtomicU32, false>(graph, left, task, worker)
            }
        }
    }
}

/// Runs the task of a job and the chain of tasks that follows it.
///
/// # Safety
/// The job belongs to a graph with this type of body.
pub(super) unsafe fn run<B: Fn(usize) + Sync>(job: JobRef, worker: &Worker<'_>) {
    // SAFETY: guaranteed by the caller. The job lives until it has run, and points to its graph.
    let (graph, at) = unsafe {
        let graph = job
            .as_ptr()
            .as_ref()
            .vtable()
            .cast::<GraphInner<B>>()
            .as_ptr();
        (graph.cast_const(), Cell::new((*graph).task(&job)))
    };
    while at.get() != NONE {
        // SAFETY: the task belongs to this worker and has not run. Counters do not move.
        let run_chain = || unsafe {
            match (&(*graph).plan.pending, worker.is_only_worker()) {
                (DependencyCounters::Narrow(counters), true) => {
                    let left = counters.left.as_ptr();
                    chain::<B, AtomicU8, true>(graph, left, &at, worker);
                }
                (DependencyCounters::Narrow(counters), false) => {
                    let left = counters.left.as_ptr();
                    chain::<B, AtomicU8, false>(graph, left, &at, worker);
                }
                (DependencyCounters::Wide(counters), _) => {
                    let left = counters.left.as_ptr();
                    chain::<B, AtomicU32, false>(graph, left, &at, worker);
                }
            }
        };
        match catch_unwind(AssertUnwindSafe(run_chain)) {
            Ok(()) => return,
            // SAFETY: the task was not resolved, so the graph lives.
            Err(panic) => unsafe {
                (*graph).record_panic(at.get(), panic);
                at.set(resume(graph, at.get(), worker));
            },
        }
    }
}
