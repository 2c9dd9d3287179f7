// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fine-grained tasks in a cache-friendly order.
//!
//! A task is a function. Tasks run to completion on the worker threads of a [`Runtime`]: the
//! runtime does not preempt them, and they should neither block nor hold locks. The runtime adds 10
//! to 20 ns to each task, so a task may be as small as a macroblock of a video frame.
//!
//! | | |
//! |---|---|
//! | [`Runtime`] | the workers and the ready tasks |
//! | [`GraphBuilder`], [`Graph`] | tasks and their dependencies: declared once, run for each frame |
//! | [`Runtime::submit`], [`Handle::submit`] | single tasks that are ready at once |
//! | [`Runtime::submit_future`], [`TaskRef::wait`] | waits for single tasks and sets of tasks, and their results |
//! | [`Runtime::register`], [`Runtime::resolve`] | single tasks, identified by tokens |
//! | [`Runtime::join`] | fork and join of two functions, also nested |
//! | [`Runtime::for_each`], [`Runtime::reduce`] | parallel loops over ranges, and reductions |
//! | [`Runtime::scope`], [`TaskScope::spawn`] | tasks that borrow data of the function that spawns them |
//! | [`Runtime::isolate`] | nested waits that run no tasks from outside, for example under a mutex |
//! | [`Runtime::broadcast`] | a function once on each worker |
//! | [`Graph::cancel_handle`] | cancellation of a graph by other threads |
//! | [`Groups`] | hints on which tasks belong together: on one core, or close in time |
//! | [`Graph::explain`] | the order found for tasks without groups, and the times of the other orders |
//! | [`RuntimeBuilder`] | configuration: policy, places, stacks of the workers |
//! | [`Runtime::worker_index`], [`PerWorker`] | the calling worker, and one value for each worker |
//! | [`CurrentWorker`] | the calling worker, for code that does not know the runtime |
//! | [`WorkerPlaces`] | the placement of workers by shared caches |
//! | [`Runtime::trace`], [`Runtime::counters`] | which worker ran which task when: for Perfetto, as a picture, as counters |
//! | [`color`] | blocks with headers spread over the cache sets |
//! | [`dispatch`] | the scheduling orders as single-threaded data structures |
//!
//! The task model and the policy `paper` follow Mori, Takeda and Matsuzaki, "A fine-grain thread
//! scheduling method considering efficiency of hierarchical cache on a symmetric multi-core
//! processor for media processing" (paper 5).

mod active_workers;
mod calling_worker;
mod closure;
pub mod color;
mod counters;
mod current_worker;
mod depend;
pub mod dispatch;
mod error;
mod follow;
mod fork;
mod future;
mod graph;
mod guess;
mod handle;
mod job;
mod join;
mod latch;
mod levels;
mod llc;
mod loops;
mod per_worker;
mod places;
mod policy;
mod pool;
mod progress;
mod region;
mod runtime;
mod scope;
mod slab;
mod sleep;
mod sort;
mod stack_pointer;
mod sync;
mod task_node;
mod tokens;
mod trace;
mod trials;
#[doc(hidden)]
pub mod waits;
mod worker;
mod worker_thread;

pub use calling_worker::CurrentWorker;
pub use counters::{AllCounters, Counters};
pub use depend::{Access, DataDependencies};
pub use dispatch::Groups;
pub use error::{
    GraphError, NotATask, Panicked, RunError, RuntimeError, SubmitError, TaskError,
    UnfinishedTasks, WaitError,
};
pub use future::{TaskFuture, TaskRef, TaskStatus, TaskWaitError};
pub use graph::{
    CancelHandle, Explanation, Graph, GraphBuilder, GraphFinished, TaskOrder, TriedOrder,
};
pub use guess::Grouping;
pub use handle::Handle;
pub use loops::LoopIndex;
pub use per_worker::PerWorker;
pub use places::{WorkerDistance, WorkerPlaces};
pub use policy::Policy;
pub use runtime::{Runtime, RuntimeBuilder, WORKERS_MAX};
pub use scope::{NoMemoryForTask, TaskScope};
#[cfg(feature = "trace-svg")]
pub use trace::ColorBy;
pub use trace::{TaskSpan, Trace, TraceError};
pub use worker_thread::WorkerThread;

#[cfg(all(test, feature = "loom"))]
mod interleavings;

/// The Rust programs of the guide are tested as examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tasks/start.md")]
struct FirstPrograms;
