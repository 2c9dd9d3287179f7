// SPDX-License-Identifier: MIT OR Apache-2.0
//! Public functions that run closures with borrowed data and return after the closures have ended:
//! join, scopes, broadcasts, and a function on any worker. The modules `join` and `scope` implement
//! them.
//!
//! A thread that is no worker of the runtime passes a function to the runtime as a task and waits.
//! A worker of another runtime runs tasks of its own runtime meanwhile, except in `join`, where it
//! sleeps. In a forked child, all functions run in the calling thread.

use std::iter;
use std::sync::{Arc, Mutex, PoisonError};

use crate::current_worker;
use crate::error::NotATask;
use crate::handle::Handle;
use crate::join;
#[cfg(doc)]
use crate::policy::Policy;
use crate::region::Region;
use crate::runtime::Runtime;
use crate::scope::{self, TaskScope};
use crate::waits::DeadlockCycle;
use crate::worker::Worker;

impl Runtime {
    /// Runs both functions as [`Self::join`] does, and passes to each function whether it runs on
    /// another thread than the caller. A function that divides work can divide it into more parts
    /// if it has moved to another thread, because then other workers are idle.
    ///
    /// # Panics
    /// If one of the functions panics, as [`Self::join`].
    pub fn join_context<A, B, RA, RB>(&self, a: A, b: B) -> (RA, RB)
    where
        A: FnOnce(bool) -> RA + Send,
        B: FnOnce(bool) -> RB + Send,
        RA: Send,
        RB: Send,
    {
        match self.current_worker() {
            Some(worker) => join::join(worker, a, b),
            None if self.foreign_creator().is_some() => (a(false), b(false)),
            None => match self.wait_begins() {
                Ok(_wait) => {
                    let join = || match self.current_worker() {
                        Some(worker) => join::join(worker, |_| a(true), |_| b(true)),
                        None => unreachable!("workers run injected tasks"),
                    };
                    join::run_inside(|job| self.registry().inject(job), join)
                }
                Err(DeadlockCycle) => (a(false), b(false)),
            },
        }
    }

    /// Runs a function on a worker of this runtime and returns its result. If the calling thread is
    /// a worker of this runtime, the function runs at once in the calling thread. If the calling
    /// thread is a worker of another runtime, it runs tasks of its own runtime during the wait. In
    /// a forked child, the function runs in the calling thread.
    ///
    /// The rule about locks of [`Self::join`] applies to callers that are workers. Tasks that a
    /// worker runs during such a wait may wait in the same way. The depth of these waits has no
    /// limit: a program that makes tens of thousands of tasks ready, each of which waits for
    /// another runtime, overflows the stack.
    ///
    /// # Panics
    /// If the function panics.
    pub fn run_on_worker<F, R>(&self, function: F) -> R
    where
        F: FnOnce() -> R + Send,
        R: Send,
    {
        if self.current_worker().is_some() || self.foreign_creator().is_some() {
            return function();
        }
        self.check_not_isolated();
        let inject = |job| self.registry().inject(job);
        let _wait = current_worker::record_wait_for(self.registry());
        current_worker::with(|worker| match worker {
            Some(other) => join::run_across(&other, inject, function),
            None => join::run_inside(inject, function),
        })
    }

    /// Calls a function in an *isolate region*. Nested waits in the region run only tasks that were
    /// created in it, so a task may hold a lock over a graph, a scope, a join or a loop that it runs.
    ///
    /// - In a region, graphs, scopes, joins, loops and broadcasts run on the worker of the calling
    ///   task alone, one function after the other.
    /// - A task with a future that is submitted in the region belongs to it. Other workers may run
    ///   it. A wait for a future from outside the region is an error
    ///   ([`TaskWaitError::Isolated`](crate::TaskWaitError::Isolated)) unless its task has ended.
    /// - Tasks that are submitted without futures or registered do not belong to the region.
    /// - Regions may be nested. Waits for other regions are waits for futures from outside.
    ///
    /// If no task of this runtime calls, the call has no effect except that it calls the function.
    ///
    /// ```
    /// use std::sync::Mutex;
    ///
    /// let runtime = usher_tasks::Runtime::new(2)?;
    /// let total = Mutex::new(0);
    /// runtime.for_each(0..100_u64, |number| {
    ///     let mut total = total.lock().unwrap();
    ///     // Without the region, the worker might run an item of the outer loop here, which would
    ///     // wait for the mutex forever.
    ///     let (one, other) = runtime.isolate(|| runtime.join(|| number, || number * 2));
    ///     *total += one + other;
    /// });
    /// assert_eq!(total.into_inner().unwrap(), 14_850);
    /// # Ok::<(), usher_tasks::RuntimeError>(())
    /// ```
    ///
    /// # Panics
    /// If the function panics. A scope or a function on a worker of another runtime, which would
    /// run tasks outside the region, panics in a region.
    pub fn isolate<R>(&self, function: impl FnOnce() -> R) -> R {
        let Some(worker) = self.current_worker() else {
            return function();
        };
        struct Leave<'w, 'a>(&'w Worker<'a>, Option<Arc<Region>>);
        impl Drop for Leave<'_, '_> {
            fn drop(&mut self) {
                self.0.enter_region(self.1.take());
            }
        }
        worker.publish_all();
        let outer = worker.enter_region(Some(Region::new(worker.region())));
        let _leave = Leave(worker, outer);
        function()
    }

    /// Opens a scope: calls `body` with the scope, waits until all tasks that were spawned in the
    /// scope have ended, and returns the result of the body. Tasks of the scope may borrow data
    /// that exist before the call.
    ///
    /// A task of this runtime that calls runs the body itself. For another thread, the body runs on
    /// a worker, and the thread waits. Scopes may be nested: a task of a scope may spawn tasks in
    /// the scope, and may open further scopes. Under policies other than [`Policy::Usher`] and in a
    /// forked child, the tasks run one after the other in the thread of the body.
    ///
    /// **Hold no lock over the end of a scope in a task**, and no borrow of a `RefCell` that other
    /// tasks use, because the worker runs other tasks while it waits ([`Self::join`]).
    ///
    /// ```
    /// use usher_tasks::Runtime;
    ///
    /// let runtime = Runtime::new(2)?;
    /// let mut squares = vec![0; 1_000];
    /// runtime.scope(|scope| {
    ///     for (number, square) in squares.iter_mut().enumerate() {
    ///         scope.spawn(move |_| *square = number * number);
    ///     }
    /// });
    /// assert_eq!(squares[999], 998_001);
    /// # Ok::<(), usher_tasks::RuntimeError>(())
    /// ```
    ///
    /// # Panics
    /// If the body or a task panics. The panic continues in the caller after all tasks have ended.
    pub fn scope<'scope, F, R>(&self, body: F) -> R
    where
        F: FnOnce(&TaskScope<'scope>) -> R + Send,
        R: Send,
    {
        match self.current_worker() {
            Some(worker) => scope::on_worker(worker, body),
            None if self.foreign_creator().is_some() => {
                scope::in_place(self.registry(), true, body)
            }
            None => self.run_on_worker(|| self.scope(body)),
        }
    }

    /// Opens a scope as [`Self::scope`] does, but always runs the body in the calling thread. The
    /// body therefore need not be `Send`.
    ///
    /// # Panics
    /// If the body or a task panics, as [`Self::scope`].
    pub fn scope_in_place<'scope, R>(&self, body: impl FnOnce(&TaskScope<'scope>) -> R) -> R {
        match self.current_worker() {
            Some(worker) => scope::on_worker(worker, body),
            None => {
                self.check_not_isolated();
                let is_serial = !self.registry().finds_groups() || self.foreign_creator().is_some();
                scope::in_place(self.registry(), is_serial, body)
            }
        }
    }

    /// Calls a function once on each worker, and returns the results in order of the workers'
    /// indexes. The argument of the function is the index. A worker calls the function when its
    /// queues are empty, or after some tasks. Under policies other than [`Policy::Usher`] and in a
    /// forked child, all calls are made in the calling thread.
    ///
    /// ```
    /// let runtime = usher_tasks::Runtime::new(3)?;
    /// let indexes = runtime.broadcast(|index| {
    ///     assert_eq!(runtime.worker_index(), Some(index));
    ///     index
    /// });
    /// assert_eq!(indexes, [0, 1, 2]);
    /// # Ok::<(), usher_tasks::RuntimeError>(())
    /// ```
    ///
    /// # Panics
    /// If a call panics. The panic continues in the caller after all calls have ended.
    pub fn broadcast<F, R>(&self, function: F) -> Vec<R>
    where
        F: Fn(usize) -> R + Sync,
        R: Send,
    {
        let results = results_of(self.workers());
        self.scope_in_place(|scope| spawn_calls(scope, &function, &results));
        all_of(results)
    }

    /// Returns whether the calling thread is in an isolate region of another runtime. A scope and
    /// [`Self::run_on_worker`] of this runtime then panic.
    pub fn is_in_foreign_region(&self) -> bool {
        let is_isolated =
            || current_worker::with(|this| this.is_some_and(|this| this.worker().is_isolated()));
        self.current_worker().is_none() && is_isolated()
    }

    /// Panics if the calling thread is in an isolate region of another runtime. Called before this
    /// runtime gets tasks whose data are on the stack of the caller.
    fn check_not_isolated(&self) {
        assert!(
            !self.is_in_foreign_region(),
            "an isolate region cannot wait for another runtime"
        );
    }
}

/// The result of the call of each worker, after the call.
type Results<R> = Vec<Mutex<Option<R>>>;

/// Creates places for the results of a broadcast to this number of workers.
pub(crate) fn results_of<R>(workers: usize) -> Results<R> {
    let places = iter::repeat_with(|| Mutex::new(None));
    places.take(workers).collect()
}

/// Spawns the calls of a broadcast in a scope.
pub(crate) fn spawn_calls<'scope, F, R>(
    scope: &TaskScope<'scope>,
    function: &'scope F,
    results: &'scope Results<R>,
) where
    F: Fn(usize) -> R + Sync,
    R: Send,
{
    scope.spawn_broadcast(|_, index| {
        let result = function(index);
        *results[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(result);
    });
}

/// Returns the results of a broadcast. The scope of the broadcast has not panicked, so each call
/// has stored its result.
pub(crate) fn all_of<R>(results: Results<R>) -> Vec<R> {
    let results = results.into_iter();
    results
        .filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}
impl Handle {
    /// Opens a scope in a task of the runtime, as [`Runtime::scope`] does.
    ///
    /// # Errors
    /// If the calling thread runs no task of the runtime.
    ///
    /// # Panics
    /// If the body or a task panics, as [`Runtime::scope`].
    pub fn scope<'scope, R>(
        &self,
        body: impl FnOnce(&TaskScope<'scope>) -> R,
    ) -> Result<R, NotATask> {
        let registry = self.registry().ok_or(NotATask)?;
        let worker = current_worker::current_worker(&registry).ok_or(NotATask)?;
        Ok(scope::on_worker(worker, body))
    }
}
