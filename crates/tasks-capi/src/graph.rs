// SPDX-License-Identifier: MIT OR Apache-2.0
//! C functions for graphs (`usher_tasks_builder_*`, `usher_tasks_graph_*`, `usher_tasks_run`). A
//! graph consists of tasks and their dependencies; it is declared once and run repeatedly by
//! `usher_tasks::Graph`.
//!
//! A graph handle has a flag for exclusive access, which running, explaining and destroying the
//! graph set. While it is set, running and destroying return an error, and explaining returns an
//! empty text. Because building a graph cannot report lack of memory, it first checks that 256
//! bytes per task and 64 bytes per dependency can be allocated. Building takes O(n + d log d) for n
//! tasks and d dependencies. A run waits for its tasks without a time limit. Running and destroying
//! wait while another thread explains the graph.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use usher_tasks::{CancelHandle, Graph, GraphBuilder, GraphError, Groups, RunError, Runtime};

use crate::current_task::{self, Entry, TaskCall};
use crate::error::{ErrorCode, Failure, boundary, boundary_or, no_memory, probe};
use crate::report::Report;
use crate::runtime::{RuntimeHandle, enter, out};
use crate::waits;

/// Estimated maximum of the memory for a task while a graph is built, in bytes. The next constant
/// is the memory for a dependency.
const TASK_BYTES: usize = 256;
const DEPENDENCY_BYTES: usize = 64;

/// The target of a `usher_tasks_builder *`.
#[derive(Debug, Default)]
pub struct Builder {
    calls: Vec<TaskCall>,
    groups: Vec<Groups>,
    /// Dependencies: pairs of a task and of a task that runs before it.
    dependencies: Vec<(usize, usize)>,
    keeps_order: bool,
}

/// The interface of graphs with bodies of any type, for trait objects.
trait RunGraph {
    fn run(&mut self, runtime: &Runtime) -> Result<(), RunError>;
    fn count(&self) -> usize;
    fn explain(&self) -> String;
    fn cancel_handle(&self) -> CancelHandle;
}

impl<B: Fn(usize) + Sync> RunGraph for Graph<B> {
    fn run(&mut self, runtime: &Runtime) -> Result<(), RunError> {
        runtime.run(self)
    }

    fn count(&self) -> usize {
        self.len()
    }

    fn explain(&self) -> String {
        self.explain().to_string()
    }

    fn cancel_handle(&self) -> CancelHandle {
        self.cancel_handle()
    }
}

/// The data that the body of a graph uses.
struct GraphCalls {
    calls: Box<[TaskCall]>,
    /// The runtime on which the graph is running; null if the graph is not running.
    runtime: AtomicPtr<RuntimeHandle>,
}

/// The target of a `usher_tasks_graph *`.
pub struct GraphHandle {
    calls: Arc<GraphCalls>,
    count: usize,
    /// Whether a call that runs, explains or destroys the graph has exclusive access to the graph.
    is_acquired: AtomicBool,
    /// This lock is held while the graph is explained. Another thread that runs or destroys the
    /// graph waits for the lock instead of returning an error.
    explain_lock: Mutex<()>,
    cancel: CancelHandle,
    graph: UnsafeCell<Box<dyn RunGraph>>,
}

impl Builder {
    fn build(&self) -> Result<GraphHandle, GraphError> {
        let mut builder = GraphBuilder::new();
        for (&groups, call) in self.groups.iter().zip(&self.calls) {
            let task = builder.task_in(groups);
            builder.on(task, call.arg.addr());
            builder.runs(task, (call.entry as *const ()).addr());
        }
        for &(task, before) in &self.dependencies {
            builder.after(task, before);
        }
        if self.keeps_order {
            builder.keep_order();
        }
        let calls = Arc::new(GraphCalls {
            calls: self.calls.as_slice().into(),
            runtime: AtomicPtr::default(),
        });
        let own = Arc::clone(&calls);
        let graph = builder.build(move |task: usize| {
            let runtime = own.runtime.load(Ordering::Relaxed);
            // SAFETY: the C code that declared the task guarantees that the function may be called
            // with its argument. The graph calls each task once per run, so only one thread calls
            // it.
            unsafe { current_task::run(runtime, own.calls[task]) };
        })?;
        let graph: Box<dyn RunGraph> = Box::new(graph);
        Ok(GraphHandle {
            calls,
            count: graph.count(),
            is_acquired: AtomicBool::new(false),
            explain_lock: Mutex::default(),
            cancel: graph.cancel_handle(),
            graph: UnsafeCell::new(graph),
        })
    }
}

impl GraphHandle {
    /// Acquires exclusive access until [`Self::release`] is called.
    fn acquire(&self) -> Result<(), Failure> {
        let _lock = self.explain_lock();
        self.acquire_unlocked()
    }

    fn explain_lock(&self) -> MutexGuard<'_, ()> {
        self.explain_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn acquire_unlocked(&self) -> Result<(), Failure> {
        match self.is_acquired.swap(true, Ordering::Acquire) {
            false => Ok(()),
            true => Err(Failure::new(
                ErrorCode::Busy,
                format!(
                    "the graph with {} tasks is running: wait for the end of its run",
                    self.count
                ),
            )),
        }
    }

    /// Returns a table of the orders that were tried for the graph and of their times; an empty
    /// string while the graph runs.
    pub fn explain(&self) -> String {
        let _lock = self.explain_lock();
        if self.acquire_unlocked().is_err() {
            return String::new();
        }
        // SAFETY: `acquire_unlocked` has succeeded, so this thread has exclusive access.
        let text = unsafe { &*self.graph.get() }.explain();
        self.release();
        text
    }

    fn release(&self) {
        self.is_acquired.store(false, Ordering::Release);
    }
}

/// Creates a builder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_builder_new(builder: *mut *mut Builder) -> c_int {
    boundary(|| {
        // SAFETY: `builder` is null or writable, as the caller guarantees.
        let out = unsafe { out(builder, "the pointer to the builder") }?;
        *out = Box::into_raw(Box::default());
        Ok(())
    })
}

/// Returns the builder to which a pointer refers.
///
/// # Safety
/// `builder` is null or valid, and no other thread uses the builder at the same time.
unsafe fn builder_of<'a>(builder: *mut Builder) -> Result<&'a mut Builder, Failure> {
    // SAFETY: `builder` is null or valid, and no other thread uses it, as the caller guarantees.
    unsafe { builder.as_mut() }.ok_or_else(|| Failure::null("builder"))
}

/// Declares a task.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_builder_task(
    builder: *mut Builder,
    entry: Option<Entry>,
    arg: *mut c_void,
    t: u32,
    s: u32,
    task: *mut usize,
) -> c_int {
    boundary(|| {
        // SAFETY: `builder` is null or valid, and no other thread uses it, as the caller
        // guarantees.
        let builder = unsafe { builder_of(builder) }?;
        let number = builder.calls.len();
        let what = || format!("task {number}");
        let entry =
            entry.ok_or_else(|| Failure::null(&format!("the function pointer of {}", what())))?;
        let reserved = (builder.calls.try_reserve(1)).and_then(|()| builder.groups.try_reserve(1));
        reserved.map_err(|_| no_memory(&what()))?;
        builder.calls.push(TaskCall { entry, arg });
        builder.groups.push(Groups::new(t, s));
        if !task.is_null() {
            // SAFETY: `task` is not null, so it is writable, as the caller guarantees.
            unsafe { task.write(number) };
        }
        Ok(())
    })
}

/// Declares a dependency.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_builder_after(
    builder: *mut Builder,
    task: usize,
    before: usize,
) -> c_int {
    boundary(|| {
        // SAFETY: `builder` is null or valid, and no other thread uses it, as the caller
        // guarantees.
        let builder = unsafe { builder_of(builder) }?;
        let reserved = builder.dependencies.try_reserve(1);
        reserved
            .map_err(|_| no_memory(&format!("the dependency of task {task} on task {before}")))?;
        builder.dependencies.push((task, before));
        Ok(())
    })
}

/// Makes graphs keep the declared order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_builder_keep_order(builder: *mut Builder) -> c_int {
    boundary(|| {
        // SAFETY: `builder` is null or valid, and no other thread uses it, as the caller
        // guarantees.
        unsafe { builder_of(builder) }?.keeps_order = true;
        Ok(())
    })
}

/// Builds a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_builder_build(
    builder: *const Builder,
    graph: *mut *mut GraphHandle,
    report: *mut *mut Report,
) -> c_int {
    boundary(|| {
        // SAFETY: `report` is null or writable, as the caller guarantees.
        unsafe { Report::clear(report) };
        // SAFETY: `graph` is null or writable, as the caller guarantees.
        let out = unsafe { out(graph, "the pointer to the graph") }?;
        // SAFETY: `builder` is null or valid, as the caller guarantees.
        let builder = unsafe { builder.as_ref() }.ok_or_else(|| Failure::null("builder"))?;
        let (tasks, dependencies) = (builder.calls.len(), builder.dependencies.len());
        let bytes = (tasks.saturating_mul(TASK_BYTES))
            .saturating_add(dependencies.saturating_mul(DEPENDENCY_BYTES));
        let what = format!("a graph with {tasks} tasks and {dependencies} dependencies");
        probe(bytes, &what)?;
        match builder.build() {
            Ok(graph) => {
                *out = Box::into_raw(Box::new(graph));
                Ok(())
            }
            Err(error) => {
                let failure = Failure::from(&error);
                if let GraphError::Cycle { tasks } = error {
                    // If there is no memory for a report, `report` stays null. SAFETY: `report` is
                    // null or writable, as the caller guarantees.
                    let _ = unsafe { Report::from_cycle(tasks).write_to(report) };
                }
                Err(failure)
            }
        }
    })
}

/// Frees a builder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_builder_destroy(builder: *mut Builder) {
    boundary_or((), || {
        if !builder.is_null() {
            // SAFETY: this crate created the builder from a box, and the caller no longer uses it.
            drop(unsafe { Box::from_raw(builder) });
        }
    });
}

/// Returns the number of tasks of a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_graph_tasks(graph: *const GraphHandle) -> usize {
    boundary_or(0, || {
        // SAFETY: `graph` is null or valid, as the caller guarantees.
        unsafe { graph.as_ref() }.map_or(0, |graph| graph.count)
    })
}

/// Runs a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_run(
    runtime: *mut RuntimeHandle,
    graph: *mut GraphHandle,
    report: *mut *mut Report,
) -> c_int {
    boundary(|| {
        // SAFETY: `report` is null or writable, as the caller guarantees.
        unsafe { Report::clear(report) };
        let run = |this: &Runtime| {
            // SAFETY: `graph` is null or valid, as the caller guarantees.
            let graph = unsafe { graph.as_ref() }.ok_or_else(|| Failure::null("graph"))?;
            let _waits = waits::begin(runtime)?;
            graph.acquire()?;
            graph.calls.runtime.store(runtime, Ordering::Relaxed);
            // SAFETY: this thread has acquired exclusive access. If this call panics, the graph
            // stays acquired forever, because tasks of the graph may still run.
            let ran = unsafe { &mut *graph.graph.get() }.run(this);
            graph
                .calls
                .runtime
                .store(ptr::null_mut(), Ordering::Relaxed);
            graph.release();
            ran.map_err(|error| {
                let failure = Failure::from(&error);
                let RunError::Panicked { panicked, skipped } = error else {
                    return failure;
                };
                let count = panicked.len();
                let failed_report = Report::from_failed(panicked, skipped);
                let text = failed_report.as_ref().and_then(Report::text);
                // If there is no memory for a report, `report` stays null.
                if let Some(failed_report) = failed_report {
                    // SAFETY: `report` is null or writable, as the caller guarantees.
                    let _ = unsafe { failed_report.write_to(report) };
                }
                match text {
                    Some(text) => Failure::new(ErrorCode::Failed, text),
                    None => Failure::failed(count),
                }
            })
        };
        // SAFETY: `runtime` is null or a valid handle, as the caller guarantees.
        unsafe { enter(runtime, run) }
    })
}

/// Cancels the run of a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_graph_cancel(graph: *mut GraphHandle) -> c_int {
    boundary(|| {
        // SAFETY: `graph` is null or valid, as the caller guarantees.
        let graph = unsafe { graph.as_ref() }.ok_or_else(|| Failure::null("graph"))?;
        let cancelled = graph.cancel.cancel();
        cancelled.map_err(|error| Failure::new(ErrorCode::TooLate, error.to_string()))
    })
}

/// Frees a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_graph_destroy(graph: *mut GraphHandle) -> c_int {
    boundary(|| {
        // SAFETY: `graph` is null or valid, as the caller guarantees.
        let Some(this) = (unsafe { graph.as_ref() }) else {
            return Ok(());
        };
        this.acquire()?;
        // SAFETY: this crate created the graph from a box. This thread has exclusive access, and
        // the caller does not use the graph after this call.
        drop(unsafe { Box::from_raw(graph) });
        Ok(())
    })
}
