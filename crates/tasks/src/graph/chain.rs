// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a task of a graph, and then the chain of successors that it makes ready.
//!
//! 1. The worker calls the body of a task, and then decrements the dependency counter of each
//!    successor.
//! 2. Of the successors that become ready, the last becomes the next task of the chain. The worker
//!    queues the others, or sends them to the owners of their spatial groups. Tasks with priorities
//!    are always queued, and the chain ends before its next task if a task with high priority became ready.
//! 3. The chain ends if no successor became ready, or if other tasks of the worker are overdue,
//!    which the worker checks after every 64 tasks.
//!
//! A task costs time linear in the number of its successors. A worker enters this module once per
//! chain, and panics are caught around the whole chain, which is cheaper than around each task. A
//! cell contains the number of the running task. After a panic, the cell identifies the task that
//! panicked, and the chain continues with that task's successors.
//!
//! Another thread may free the graph as soon as all tasks without successors have ended. A worker
//! may therefore access the graph only while it holds a task of the graph that has not ended. The
//! last access of a worker is one of these:
//!
//! - the worker decrements the counter of the last successor of its task, and no successor becomes
//!   its next task;
//! - the worker counts a task without successors as ended.
//!
//! The functions of this module take the graph as a pointer. A reference would have to stay valid
//! until the function returns, but the graph may be freed before that.

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
    /// Calls the body of the task. If another task of the run has panicked, counts the task as
    /// skipped instead.
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

    /// Records a panic. The panic may leave the body's data inconsistent. The caller that ran the
    /// graph gets a report of the panic, and is responsible for repairing the data.
    #[cold]
    fn record_panic(&self, task: u32, panic: Box<dyn std::any::Any + Send>) {
        self.failed.store(true, Ordering::Relaxed);
        self.panicked.lock().push(Panicked {
            task: u64::from(task),
            is_submitted: false,
            message: message(panic),
        });
    }
}

/// The task number that stands for the end of a chain.
const NONE: u32 = u32::MAX;

/// Resolves the dependencies of the successors of a task that has run. Returns the newly ready task
/// to run next on this worker, or [`NONE`].
///
/// # Safety
/// The graph exists. The task belongs to the graph, has run, and its successors were not resolved
/// in this run. `left` points to the counters of the graph.
#[inline(always)]
unsafe fn resolve<B, C: Counter, const SINGLE_WORKER: bool>(
    graph: *const GraphInner<B>,
    left: *const C,
    task: u32,
    worker: &Worker<'_>,
) -> u32 {
    // SAFETY: the graph exists and `task` is one of its tasks, as the caller guarantees.
    let (inner, successors) = unsafe { (&*graph, (*graph).plan.successors(task)) };
    if successors.is_empty() {
        // SAFETY: the caller guarantees the conditions of `end`, too.
        unsafe { end(graph, task, worker) };
        return NONE;
    }
    let mut next = NONE;
    for &successor in successors {
        // SAFETY: successors are task numbers, and each task has a counter. The graph exists until
        // all successors have run, and this successor has not run, because this worker has not
        // resolved it.
        if unsafe { !(*left.add(successor as usize)).decrement::<SINGLE_WORKER>() } {
            continue;
        }
        // The successor is ready, and only this worker holds it. The graph therefore exists until
        // the worker passes the successor on.
        if inner.has_priorities && inner.jobs[successor as usize].groups().has_priority() {
            worker.ready_in_queue(inner.job(successor), inner.may_redirect);
            continue;
        }
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
    if next != NONE && inner.has_priorities && worker.has_high_priority() {
        // A task with high priority runs before the successor.
        worker.push(inner.job(next));
        return NONE;
    }
    next
}

/// Ends a task without successors.
///
/// # Safety
/// The graph lives. The task belongs to the graph and has not ended in this run.
unsafe fn end<B>(graph: *const GraphInner<B>, task: u32, worker: &Worker<'_>) {
    // SAFETY: the caller guarantees that the graph exists. If this task was the last task of the
    // run, the graph exists until the latch opens.
    let (done, waiter) = unsafe {
        if !Plan::ended(&raw const (*graph).plan, task) {
            return;
        }
        (Arc::clone(&(*graph).done), (*graph).waiter)
    };
    done.open();
    if let Some(waiter) = waiter {
        worker.registry().wake_worker(waiter);
    }
}

/// Calls [`resolve`], and aborts the process if `resolve` panics. The code that catches panics
/// would otherwise attribute the panic to the task.
///
/// # Safety
/// The conditions of [`resolve`].
#[inline(always)]
unsafe fn resolve_or_abort<B, C: Counter, const SINGLE_WORKER: bool>(
    graph: *const GraphInner<B>,
    left: *const C,
    task: u32,
    worker: &Worker<'_>,
) -> u32 {
    let unwinding = AbortOnUnwind;
    // SAFETY: the caller guarantees the conditions of `resolve`.
    let next = unsafe { resolve::<B, C, SINGLE_WORKER>(graph, left, task, worker) };
    mem::forget(unwinding);
    next
}

/// Runs a task and the chain of tasks that follow it, until no task follows or other tasks of the
/// worker are overdue.
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
        // SAFETY: the graph exists before the call of the body, because the task has not run. The
        // graph exists after the call, because the task's successors are not resolved yet.
        unsafe {
            (*graph).call_body(task, worker);
            task = resolve_or_abort::<B, C, SINGLE_WORKER>(graph, left, task, worker);
            if task != NONE && worker.chain_must_yield() {
                // This worker still holds the task, so the graph exists.
                return worker.push((*graph).job(task));
            }
        }
        if !SINGLE_WORKER {
            worker.share();
        }
    }
}

/// Resolves the successors of a task that has panicked, and returns the next task of the chain.
///
/// # Safety
/// The graph lives, and the task was not resolved.
#[cold]
unsafe fn resume<B>(graph: *const GraphInner<B>, task: u32, worker: &Worker<'_>) -> u32 {
    // SAFETY: the caller guarantees the conditions, and counters do not move. An atomic decrement
    // is also correct if no other thread uses the counters.
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
/// The job belongs to a graph whose body has type `B`.
pub(super) unsafe fn run<B: Fn(usize) + Sync>(job: JobRef, worker: &Worker<'_>) {
    // SAFETY: the caller guarantees a job of a graph with a body of type `B`. The vtable pointer of
    // such a job points to the graph, which exists because the job has not run.
    let (graph, at) = unsafe {
        let graph = job
            .as_ptr()
            .as_ref()
            .vtable()
            .cast::<GraphInner<B>>()
            .as_ptr();
        (graph.cast_const(), Cell::new((*graph).task(&job)))
    };
    // SAFETY: the graph exists, because the job has not run.
    let creator = worker.replace_creator(unsafe { (*graph).creator });
    while at.get() != NONE {
        // SAFETY: this worker holds the task, and the task has not run, so the graph exists.
        // Counters do not move.
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
            Ok(()) => break,
            // SAFETY: the successors of the task that panicked were not resolved, so the graph
            // exists.
            Err(panic) => unsafe {
                (*graph).record_panic(at.get(), panic);
                at.set(resume(graph, at.get(), worker));
            },
        }
    }
    worker.replace_creator(creator);
}
