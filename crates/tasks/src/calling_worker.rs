// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`CurrentWorker`]: the worker of the calling thread, for code that does not know the runtime of
//! its task, such as a library with a global function `join`. Each function takes constant time
//! apart from the tasks that it runs.

use std::fmt;
use std::sync::Arc;

use crate::current_worker::{self, ThisWorker};
use crate::dispatch::Groups;
use crate::error::SubmitError;
use crate::fork;
use crate::handle::{self, Handle, TaskHint};
use crate::join;
use crate::runtime::Runtime;
use crate::scope::{self, TaskScope};

/// The worker that runs the calling task, for code that does not know the runtime of the task.
///
/// ```
/// use usher_tasks::{CurrentWorker, Runtime};
///
/// let runtime = Runtime::new(2)?;
/// let workers = || CurrentWorker::with(|worker| worker.map(|worker| worker.workers()));
/// assert_eq!(workers(), None, "the main thread is no worker");
/// assert_eq!(runtime.run_on_worker(workers), Some(2));
/// # Ok::<(), usher_tasks::RuntimeError>(())
/// ```
pub struct CurrentWorker<'a>(ThisWorker<'a>);

impl CurrentWorker<'_> {
    /// Calls a function with the worker of the calling thread; with `None` if the thread is no
    /// worker of any runtime. Takes constant time.
    #[inline]
    pub fn with<R>(function: impl FnOnce(Option<CurrentWorker<'_>>) -> R) -> R {
        current_worker::with(|this| function(this.map(CurrentWorker)))
    }

    /// Returns the index of the worker, as [`Runtime::worker_index`] does.
    pub fn index(&self) -> usize {
        self.0.worker().index()
    }

    /// Returns the number of workers of the runtime.
    pub fn workers(&self) -> usize {
        self.0.worker().registry().workers()
    }

    /// Returns whether this is a worker of `runtime`.
    pub fn is_in(&self, runtime: &Runtime) -> bool {
        Arc::ptr_eq(&self.0.registry(), runtime.registry())
    }

    /// Returns a handle of the runtime.
    pub fn handle(&self) -> Handle {
        Handle::new(&self.0.registry())
    }

    /// Submits a ready task as [`Runtime::submit`] does.
    ///
    /// # Errors
    /// In the cases in which [`Runtime::submit`] returns an error.
    pub fn submit(
        &self,
        groups: Groups,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), SubmitError> {
        handle::submit(&self.0.registry(), TaskHint::Groups(groups), entry)
    }

    /// Runs both functions as [`Runtime::join_context`] does.
    ///
    /// # Panics
    /// If one of the functions panics.
    #[inline]
    pub fn join_context<A, B, RA, RB>(&self, a: A, b: B) -> (RA, RB)
    where
        A: FnOnce(bool) -> RA,
        B: FnOnce(bool) -> RB + Send,
        RB: Send,
    {
        join::join(self.0.worker(), a, b)
    }

    /// Opens a scope as [`Runtime::scope`] does.
    ///
    /// # Panics
    /// If the body or a task of the scope panics.
    pub fn scope<'scope, R>(&self, body: impl FnOnce(&TaskScope<'scope>) -> R) -> R {
        scope::on_worker(self.0.worker(), body)
    }

    /// Calls a function once on each worker, as [`Runtime::broadcast`] does.
    ///
    /// # Panics
    /// If a call panics.
    pub fn broadcast<F, R>(&self, function: F) -> Vec<R>
    where
        F: Fn(usize) -> R + Sync,
        R: Send,
    {
        let results = fork::results_of(self.workers());
        self.scope(|scope| fork::spawn_calls(scope, &function, &results));
        fork::all_of(results)
    }

    /// Runs one ready task on this worker, and returns whether a task was found. If `is_local` is
    /// set, runs only tasks in the queues of this worker. Runs no task if the waits on the stack of
    /// this worker are nested too deeply.
    pub fn run_one(&self, is_local: bool) -> bool {
        self.0.worker().run_one(is_local)
    }

    /// Returns whether this worker has queued or published tasks.
    pub fn has_tasks(&self) -> bool {
        self.0.worker().has_tasks()
    }
}

impl fmt::Debug for CurrentWorker<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentWorker")
            .field("index", &self.index())
            .finish_non_exhaustive()
    }
}
