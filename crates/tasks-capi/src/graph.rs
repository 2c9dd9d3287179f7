// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs: tasks and who waits for whom, declared once and run again and again.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use usher_tasks::{Graph, GraphBuilder, GraphError, Groups, RunError, Runtime};

use crate::error::{Code, Failure, boundary, boundary_or, no_memory, probe};
use crate::here::{self, Call, Entry};
use crate::report::Report;
use crate::runtime::{RuntimeHandle, enter, out};
use crate::waits;

/// Bytes that a task and a dependency take at most while a graph is made; a guess
/// on the safe side.
const TASK_BYTES: usize = 256;
const DEPENDENCY_BYTES: usize = 64;

/// What a `usher_tasks_builder *` points to.
#[derive(Debug, Default)]
pub struct Builder {
    calls: Vec<Call>,
    groups: Vec<Groups>,
    /// Task, before.
    dependencies: Vec<(usize, usize)>,
}

/// A graph of any body.
trait Runs {
    fn run(&mut self, runtime: &Runtime) -> Result<(), RunError>;
    fn count(&self) -> usize;
    fn explain(&self) -> String;
}

impl<B: Fn(usize) + Sync> Runs for Graph<B> {
    fn run(&mut self, runtime: &Runtime) -> Result<(), RunError> {
        runtime.run(self)
    }

    fn count(&self) -> usize {
        self.len()
    }

    fn explain(&self) -> String {
        self.explain().to_string()
    }
}

/// What the body of a graph goes by.
struct Calls {
    calls: Box<[Call]>,
    /// Where the graph runs at present.
    runtime: AtomicPtr<RuntimeHandle>,
}

/// What a `usher_tasks_graph *` points to.
pub struct GraphHandle {
    calls: Arc<Calls>,
    count: usize,
    /// Somebody has the graph, and nobody else may touch it.
    is_taken: AtomicBool,
    /// Held while it is explained: who wants to run it waits for that.
    explained: Mutex<()>,
    graph: UnsafeCell<Box<dyn Runs>>,
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
        let calls = Arc::new(Calls {
            calls: self.calls.as_slice().into(),
            runtime: AtomicPtr::default(),
        });
        let own = Arc::clone(&calls);
        let graph = builder.build(move |task: usize| {
            let runtime = own.runtime.load(Ordering::Relaxed);
            // SAFETY: whoever declared the task promised that it may be called; the
            // graph runs, on that runtime, and calls each task once.
            unsafe { here::run(runtime, own.calls[task]) };
        })?;
        let graph: Box<dyn Runs> = Box::new(graph);
        Ok(GraphHandle {
            calls,
            count: graph.count(),
            is_taken: AtomicBool::new(false),
            explained: Mutex::default(),
            graph: UnsafeCell::new(graph),
        })
    }
}

impl GraphHandle {
    /// Takes the graph; it stays taken until given back.
    fn take(&self) -> Result<(), Failure> {
        let _explained = self.explained();
        self.take_unexplained()
    }

    fn explained(&self) -> MutexGuard<'_, ()> {
        self.explained
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn take_unexplained(&self) -> Result<(), Failure> {
        match self.is_taken.swap(true, Ordering::Acquire) {
            false => Ok(()),
            true => Err(Failure::new(
                Code::Busy,
                format!("the graph (tasks: {}) is being run", self.count),
            )),
        }
    }

    /// Why its tasks run in the order in which they do; nothing while it runs.
    pub fn explain(&self) -> String {
        let _explained = self.explained();
        if self.take_unexplained().is_err() {
            return String::new();
        }
        // SAFETY: taken, so nobody else's.
        let words = unsafe { &*self.graph.get() }.explain();
        self.give_back();
        words
    }

    fn give_back(&self) {
        self.is_taken.store(false, Ordering::Release);
    }
}

/// A builder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_builder_new(builder: *mut *mut Builder) -> c_int {
    boundary(|| {
        // SAFETY: null, or the caller's to be written.
        let out = unsafe { out(builder, "the place for the builder") }?;
        *out = Box::into_raw(Box::default());
        Ok(())
    })
}

/// The builder behind a pointer.
///
/// # Safety
/// It is null, or lives, and nobody else uses it at the same time.
unsafe fn builder_of<'a>(builder: *mut Builder) -> Result<&'a mut Builder, Failure> {
    // SAFETY: the caller's promise.
    unsafe { builder.as_mut() }.ok_or_else(|| Failure::null("builder"))
}

/// One more task.
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
        // SAFETY: the caller's promise.
        let builder = unsafe { builder_of(builder) }?;
        let number = builder.calls.len();
        let what = || format!("task {number}");
        let entry = entry.ok_or_else(|| Failure::null(&format!("the entry of {}", what())))?;
        let reserved = (builder.calls.try_reserve(1)).and_then(|()| builder.groups.try_reserve(1));
        reserved.map_err(|_| no_memory(&what()))?;
        builder.calls.push(Call { entry, arg });
        builder.groups.push(Groups::new(t, s));
        if !task.is_null() {
            // SAFETY: not null, so the caller's to be written.
            unsafe { task.write(number) };
        }
        Ok(())
    })
}

/// A dependency.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_builder_after(
    builder: *mut Builder,
    task: usize,
    before: usize,
) -> c_int {
    boundary(|| {
        // SAFETY: the caller's promise.
        let builder = unsafe { builder_of(builder) }?;
        let reserved = builder.dependencies.try_reserve(1);
        reserved.map_err(|_| no_memory(&format!("task {task} after {before}")))?;
        builder.dependencies.push((task, before));
        Ok(())
    })
}

/// Makes a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_builder_build(
    builder: *const Builder,
    graph: *mut *mut GraphHandle,
    report: *mut *mut Report,
) -> c_int {
    boundary(|| {
        // SAFETY: null, or the caller's to be written.
        unsafe { Report::clear(report) };
        // SAFETY: as above.
        let out = unsafe { out(graph, "the place for the graph") }?;
        // SAFETY: the caller promises one that lives, or null.
        let builder = unsafe { builder.as_ref() }.ok_or_else(|| Failure::null("builder"))?;
        let (tasks, dependencies) = (builder.calls.len(), builder.dependencies.len());
        let bytes = (tasks.saturating_mul(TASK_BYTES))
            .saturating_add(dependencies.saturating_mul(DEPENDENCY_BYTES));
        let what = format!("a graph (tasks: {tasks}, dependencies: {dependencies})");
        probe(bytes, &what)?;
        match builder.build() {
            Ok(graph) => {
                *out = Box::into_raw(Box::new(graph));
                Ok(())
            }
            Err(error) => {
                let failure = Failure::from(&error);
                if let GraphError::Cycle { tasks } = error {
                    // There is no report where there is no memory for it.
                    // SAFETY: null, or the caller's to be written.
                    let _ = unsafe { Report::of_circle(tasks).give(report) };
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
            // SAFETY: made by us from a box, and by the caller's promise used no more.
            drop(unsafe { Box::from_raw(builder) });
        }
    });
}

/// How many tasks a graph has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_graph_tasks(graph: *const GraphHandle) -> usize {
    boundary_or(0, || {
        // SAFETY: the caller promises one that lives, or null.
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
        // SAFETY: null, or the caller's to be written.
        unsafe { Report::clear(report) };
        let run = |this: &Runtime| {
            // SAFETY: the caller promises one that lives, or null.
            let graph = unsafe { graph.as_ref() }.ok_or_else(|| Failure::null("graph"))?;
            let _waits = waits::before(runtime)?;
            graph.take()?;
            graph.calls.runtime.store(runtime, Ordering::Relaxed);
            // SAFETY: taken, so nobody else's. Should this panic it stays taken, as
            // nobody knows then which tasks still run.
            let ran = unsafe { &mut *graph.graph.get() }.run(this);
            graph
                .calls
                .runtime
                .store(ptr::null_mut(), Ordering::Relaxed);
            graph.give_back();
            ran.map_err(|error| {
                let failure = Failure::from(&error);
                let RunError::Panicked { panicked, skipped } = error else {
                    return failure;
                };
                let count = panicked.len();
                let told = Report::of_failed(panicked, skipped);
                let words = told.as_ref().and_then(Report::words);
                // There is no report where there is no memory for it.
                if let Some(told) = told {
                    // SAFETY: null, or the caller's to be written.
                    let _ = unsafe { told.give(report) };
                }
                match words {
                    Some(words) => Failure::new(Code::Failed, words),
                    None => Failure::failed(count),
                }
            })
        };
        // SAFETY: the caller promises a runtime that lives, or null.
        unsafe { enter(runtime, run) }
    })
}

/// Frees a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_tasks_graph_destroy(graph: *mut GraphHandle) -> c_int {
    boundary(|| {
        // SAFETY: the caller promises one that lives, or null.
        let Some(this) = (unsafe { graph.as_ref() }) else {
            return Ok(());
        };
        this.take()?;
        // SAFETY: made by us from a box, taken, and by the caller's promise used no
        // more.
        drop(unsafe { Box::from_raw(graph) });
        Ok(())
    })
}
