// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime: a set of worker threads, and the public functions that pass tasks to them.
//!
//! [`Runtime`] runs graphs, forks and tasks by token, waits for them, and starts traces.
//! [`RuntimeBuilder`] (module `builder`) configures the policy, and the places and stacks of the
//! workers. [`Handle`] (module `handle`) is a reference to a runtime for use inside tasks. The modules
//! `worker` (policy `usher`) and `dispatch` (policies with a global queue) implement the scheduling.
//!
//! A runtime has 1 to 1024 workers ([`WORKERS_MAX`]). It works only in the process that created it.
//! In a forked child, waiting and running graphs return errors, and `join` runs its functions in
//! the calling thread. The stack of a worker has 2 MiB by default, and at least 64 KiB. Waits, and
//! the drop of a runtime, have no time limit. A wait that could deadlock is an error.

mod builder;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use std::{fmt, mem, process};

pub use builder::RuntimeBuilder;

use crate::counters::AllCounters;
use crate::current_worker::{self};
use crate::dispatch::Groups;
use crate::error::{Panicked, RunError, RuntimeError, SubmitError, TaskError, WaitError};
use crate::graph::Graph;
use crate::guess::Grouping;
use crate::handle::{self, Handle, TaskHint};
use crate::levels::NoMemory;
use crate::places::{CpuClaim, WorkerPlaces};
use crate::policy::Policy;
use crate::task_node::Creator;
use crate::tokens::Tokens;
use crate::trace::{Trace, TraceError};
use crate::waits::{DeadlockCycle, RuntimeWait};
use crate::worker::{Registry, Worker};

/// Upper limit of workers per runtime.
pub const WORKERS_MAX: usize = 1024;

/// The worker threads that run tasks, and the tasks given to them.
///
/// Dropping a runtime runs all ready tasks to completion and ends the workers. The drop waits for
/// the end of the workers, except in three cases:
///
/// - A task of this runtime drops it. The workers end later.
/// - A task of another runtime drops it, while tasks of this runtime wait for that other runtime.
///   The workers end later.
/// - A forked child of the creator drops it. The drop has no effect.
pub struct Runtime {
    registry: Arc<Registry>,
    threads: Vec<JoinHandle<()>>,
    /// Makes the number of running workers follow the CPUs.
    observer: Option<JoinHandle<()>>,
    claim: Option<CpuClaim>,
    /// Number of the process that created the runtime, in which the worker threads run.
    creator_pid: u32,
}

impl Runtime {
    /// Starts this number of workers with the default policy.
    ///
    /// # Errors
    /// If the number of workers or groups is outside its limits, if the system cannot start the
    /// threads, or if there is no memory for the queues of the policy.
    pub fn new(workers: usize) -> Result<Self, RuntimeError> {
        Self::with_policy(workers, Policy::Usher)
    }

    /// Starts this number of workers with the given policy, placed by the topology of this machine;
    /// see [`WorkerPlaces`].
    ///
    /// # Errors
    /// In the cases in which [`Self::new`] returns an error.
    pub fn with_policy(workers: usize, policy: Policy) -> Result<Self, RuntimeError> {
        RuntimeBuilder::new(workers).policy(policy).build()
    }

    /// Starts one worker per entry of `places` with the given policy.
    ///
    /// # Errors
    /// In the cases in which [`Self::new`] returns an error.
    pub fn with_places(places: WorkerPlaces, policy: Policy) -> Result<Self, RuntimeError> {
        RuntimeBuilder::on(places).policy(policy).build()
    }

    /// Starts to record which worker runs which task when, and discards earlier records. The
    /// records of the last `spans_per_worker` tasks of each worker are kept. A record takes 32
    /// bytes, and the memory is freed when the runtime ends. A later call with a larger number
    /// allocates memory for at least twice the earlier number, in addition to the earlier memory.
    ///
    /// # Errors
    /// If there is no memory for the records. A trace in progress then continues.
    pub fn start_trace(&self, spans_per_worker: usize) -> Result<(), TraceError> {
        self.registry.tracer.start(self.workers(), spans_per_worker)
    }

    /// Stops recording.
    pub fn stop_trace(&self) {
        self.registry.tracer.stop();
    }

    /// Returns the tasks recorded since [`Self::start_trace`].
    ///
    /// # Panics
    /// If there is no memory for the records; [`Self::try_trace`] returns an error in this case.
    pub fn trace(&self) -> Trace {
        match self.try_trace() {
            Ok(trace) => trace,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the tasks recorded since [`Self::start_trace`].
    ///
    /// # Errors
    /// If there is no memory for the tasks.
    pub fn try_trace(&self) -> Result<Trace, TraceError> {
        let tracer = &self.registry.tracer;
        tracer.try_read().ok_or_else(|| TraceError::Memory {
            spans_per_worker: tracer.max_spans(),
            workers: self.workers(),
        })
    }

    /// Returns the counters of the workers.
    pub fn counters(&self) -> AllCounters {
        self.registry.counters()
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.registry.workers()
    }

    /// Returns the number of workers that do not sleep: they run tasks or search for tasks. The
    /// number follows the CPUs that the process may use; see [`RuntimeBuilder::follow_cpus`]. It
    /// may be outdated when the function returns.
    pub fn running_workers(&self) -> usize {
        self.registry.running().count()
    }

    /// Returns the index of the calling worker, from 0 to [`Self::workers`] - 1; `None` if the
    /// calling thread is no worker of this runtime.
    ///
    /// - A worker thread keeps its index for the life of the runtime. No two threads have the same
    ///   index.
    /// - A task runs on one thread from beginning to end, so its index does not change.
    /// - The runtime does not interrupt a task in order to run another task on the same worker.
    ///   Only [`Self::run`], [`Self::join`] and the end of a [`Self::scope`] run other tasks on the
    ///   worker of the calling task (nested waits), which then have the same index as the calling
    ///   task.
    /// - [`Self::cancel`] drops tasks on the calling thread. Their destructors may use the data of
    ///   the calling worker.
    ///
    /// [`PerWorker`](crate::PerWorker) stores one value for each index.
    pub fn worker_index(&self) -> Option<usize> {
        current_worker::index_in(Arc::as_ptr(&self.registry))
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Returns the number of the process that created the runtime. A forked child of that process
    /// has no worker threads, and waiting for tasks returns an error in it.
    pub fn creator_pid(&self) -> u32 {
        self.creator_pid
    }

    /// Returns the number of the process that created the runtime, if the current process is
    /// another process.
    pub(crate) fn foreign_creator(&self) -> Option<u32> {
        (self.creator_pid != process::id()).then_some(self.creator_pid)
    }

    /// Runs a graph and returns when all tasks of the graph have run. A task may call this function
    /// for its own runtime or for another runtime. If it is the task's own runtime, the task's
    /// worker runs other tasks during the wait, beginning with tasks of this graph. If it is
    /// another runtime, the worker of the calling task only waits.
    ///
    /// **Hold no lock over this call in a task**, and no borrow of a `RefCell` that other tasks
    /// use. The worker runs other tasks inside the call. If such a task locks a mutex that the
    /// calling task holds, the worker waits for itself forever.
    ///
    /// # Errors
    /// - A task panicked, or the run was cancelled ([`Graph::cancel_handle`]). Tasks that had not
    ///   begun by then are not run.
    /// - Groups are outside the limits of the policy.
    /// - Tasks of this runtime wait for the runtime of the calling task, so that both runtimes
    ///   might wait forever. This error is returned even if further workers could run the tasks.
    /// - The caller is a task, and there is no memory for queues of one more nesting level.
    /// - The caller is in a forked child of the process that created the runtime.
    pub fn run<B: Fn(usize) + Sync>(&self, graph: &mut Graph<B>) -> Result<(), RunError> {
        if let Some(error) = graph.check_groups(self.registry.groups_below) {
            return Err(error);
        }
        if let Some(creator_pid) = self.foreign_creator() {
            return Err(RunError::Forked { creator_pid });
        }
        let _wait = self
            .wait_begins()
            .map_err(|DeadlockCycle| RunError::Deadlock)?;
        let worker = match self.current_worker() {
            Some(worker) => Some((
                worker,
                worker
                    .begin_nested_wait()
                    .map_err(|NoMemory| RunError::Memory)?,
            )),
            None => None,
        };
        let finds_groups = self.registry.finds_groups();
        match finds_groups {
            true => graph.find_order(self.workers()),
            false => graph.forget_order(),
        }
        let creator = self.current_worker().map_or(Creator::NONE, Worker::creator);
        graph.set_creator(creator);
        let begun = Instant::now();
        match worker {
            Some((worker, _guard)) => {
                let waiter = Some(worker.index());
                let done = graph.begin(waiter, worker.is_deep(), |sources| {
                    sources.for_each(|job| worker.ready_nested_source(job));
                });
                worker.run_until(|| done.is_open());
            }
            None => graph
                .begin(None, false, |sources| {
                    self.registry.inject_all(sources.collect())
                })
                .wait(),
        }
        let time = begun.elapsed();
        let outcome = graph.outcome();
        // After a panic tasks are skipped, so the time of a failed run does not show how fast its
        // order is.
        if finds_groups && outcome.is_ok() {
            graph.record_time(time);
        }
        outcome
    }

    /// Runs both functions and returns their results. If a worker is idle, the second function runs
    /// at the same time as the first. The functions may borrow from the caller, and may themselves
    /// call `join`.
    ///
    /// If a task of this runtime calls, the first function runs on the task's worker. If another
    /// thread calls, the whole call runs as a task of the runtime, and the thread waits. The
    /// functions run one after the other in these cases:
    ///
    /// - under policies other than [`Policy::Usher`];
    /// - in a forked child of the process that created the runtime; the functions run in the
    ///   calling thread;
    /// - if a task of another runtime calls while tasks of this runtime wait for that other
    ///   runtime; the functions run in the calling thread.
    ///
    /// **Hold no lock over this call in a task**, and no borrow of a `RefCell` that other tasks
    /// use. The worker runs other tasks while it waits for the second function. If such a task
    /// locks a mutex that the calling task holds, the worker waits for itself forever.
    ///
    /// ```
    /// fn sum(runtime: &usher_tasks::Runtime, numbers: &[u64]) -> u64 {
    ///     if numbers.len() < 1_000 {
    ///         return numbers.iter().sum();
    ///     }
    ///     let (left, right) = numbers.split_at(numbers.len() / 2);
    ///     let (left, right) = runtime.join(|| sum(runtime, left), || sum(runtime, right));
    ///     left + right
    /// }
    /// let numbers: Vec<u64> = (0..100_000).collect();
    /// let runtime = usher_tasks::Runtime::new(2)?;
    /// assert_eq!(sum(&runtime, &numbers), 4_999_950_000);
    /// # Ok::<(), usher_tasks::RuntimeError>(())
    /// ```
    ///
    /// # Panics
    /// If one of the functions panics. The panic continues in the caller after both functions have
    /// ended. If the first function panics, the second function possibly does not run.
    pub fn join<A, B, RA, RB>(&self, a: A, b: B) -> (RA, RB)
    where
        A: FnOnce() -> RA + Send,
        B: FnOnce() -> RB + Send,
        RA: Send,
        RB: Send,
    {
        self.join_context(|_| a(), |_| b())
    }

    /// If the calling thread is a worker of another runtime, records that the other runtime waits
    /// for this runtime.
    pub(crate) fn wait_begins(&self) -> Result<Option<RuntimeWait>, DeadlockCycle> {
        let (from, to) = (
            current_worker::current_registry(),
            Arc::as_ptr(&self.registry),
        );
        let is_other = !from.is_null() && from != to;
        is_other
            .then(|| RuntimeWait::begin(from.addr(), to.addr()))
            .transpose()
    }

    pub(crate) fn current_worker(&self) -> Option<&Worker<'_>> {
        current_worker::current_worker(&self.registry)
    }

    /// Registers a task that runs after it has been resolved `count` times (paper 5, section 3.2).
    /// The token identifies the task until the task has run.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use usher_tasks::{Groups, Runtime};
    ///
    /// let runtime = Runtime::new(2)?;
    /// let (sender, receiver) = mpsc::channel();
    /// let (handle, first) = (runtime.handle(), sender.clone());
    /// runtime.register(2, 1, Groups::NONE, move || sender.send("second").unwrap())?;
    /// runtime.register(1, 0, Groups::NONE, move || {
    ///     first.send("first").unwrap();
    ///     handle.resolve(2).unwrap();
    /// })?;
    /// runtime.wait()?;
    /// assert_eq!(receiver.iter().collect::<Vec<_>>(), ["first", "second"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - The token is in use.
    /// - The token was already resolved more than `count` times.
    /// - The groups are outside the limits of the policy.
    /// - There is no memory for the task.
    pub fn register(
        &self,
        token: u64,
        count: u32,
        groups: Groups,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), TaskError> {
        let hint = TaskHint::Groups(groups);
        handle::register(&self.registry, token, count, hint, entry)
    }

    /// Registers a task without groups that works on the data at the address `data`. If
    /// measurements show that it makes tasks faster, the runtime runs tasks on neighbouring data
    /// close in time.
    ///
    /// # Errors
    /// In the cases in which [`Self::register`] returns an error.
    pub fn register_on(
        &self,
        token: u64,
        count: u32,
        data: usize,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), TaskError> {
        handle::register(&self.registry, token, count, TaskHint::Data(data), entry)
    }

    /// Submits a task that is ready at once and has no token. Any thread and any task may submit
    /// tasks; a task submits its successors by [`Handle::submit`]. Each submitted task runs exactly
    /// once, unless [`Self::cancel`] drops it. Submitting runs no other task. A successor may begin
    /// before the submitting task has ended.
    ///
    /// The rules for registered tasks apply: [`Self::wait`] waits for submitted tasks and reports
    /// their panics, and the drop of the runtime runs them. A submitted task sees all writes that
    /// the submitting thread made before.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use usher_tasks::{Groups, Runtime};
    ///
    /// let runtime = Runtime::new(2)?;
    /// let (sender, receiver) = mpsc::channel();
    /// let handle = runtime.handle();
    /// runtime.submit(Groups::NONE, move || {
    ///     sender.send("decode").unwrap();
    ///     handle.submit(Groups::NONE, move || sender.send("filter").unwrap()).unwrap();
    /// })?;
    /// runtime.wait()?;
    /// assert_eq!(receiver.iter().collect::<Vec<_>>(), ["decode", "filter"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - The groups are outside the limits of the policy.
    /// - There is no memory for the task.
    pub fn submit(
        &self,
        groups: Groups,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), SubmitError> {
        handle::submit(&self.registry, TaskHint::Groups(groups), entry)
    }

    /// Submits a task without groups that works on the data at the address `data`. The address is
    /// used as by [`Self::register_on`].
    ///
    /// # Errors
    /// In the cases in which [`Self::submit`] returns an error.
    pub fn submit_on(
        &self,
        data: usize,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), SubmitError> {
        handle::submit(&self.registry, TaskHint::Data(data), entry)
    }

    /// Returns how registered and submitted tasks without groups are grouped at present; `None`
    /// under policies that do not group such tasks.
    pub fn current_grouping(&self) -> Option<Grouping> {
        (self.registry.finds_groups()).then(|| self.registry.guess.current())
    }

    /// Resolves one dependency of a task, which may be registered later.
    ///
    /// # Errors
    /// If the task has no unresolved dependency.
    pub fn resolve(&self, token: u64) -> Result<(), TaskError> {
        handle::resolve(&self.registry, token)
    }

    /// Waits until no registered or submitted task is ready or running.
    ///
    /// **Each panic is reported once**: if several threads wait, one of the threads gets the report
    /// of the panic, and the other threads may get `Ok`. Unresolved and unregistered tokens are
    /// reported to all threads.
    ///
    /// # Errors
    /// - Tasks wait to be resolved, tokens were resolved and never registered, or tasks panicked.
    ///   Unresolved tasks stay registered and may still be resolved.
    /// - The caller is a task of this runtime, or a task of another runtime for which tasks of this
    ///   runtime wait.
    /// - The caller is in a forked child of the process that created the runtime.
    /// - There is no memory to list the tasks. [`WaitError::Memory`] contains how many tasks there
    ///   are of each kind.
    pub fn wait(&self) -> Result<(), WaitError> {
        self.wait_with(|tokens| tokens.wait())
    }

    /// Waits until no registered or submitted task is ready or running. Does not report unfinished
    /// tasks and panics; the next [`Self::wait`] reports them. Allocates no memory.
    ///
    /// # Errors
    /// [`WaitError::Inside`], [`WaitError::Deadlock`] and [`WaitError::Forked`], in the same cases
    /// as [`Self::wait`].
    pub fn wait_until_idle(&self) -> Result<(), WaitError> {
        self.wait_with(|tokens| {
            tokens.wait_until_idle();
            Ok(())
        })
    }

    fn wait_with(
        &self,
        wait: impl FnOnce(&Tokens) -> Result<(), WaitError>,
    ) -> Result<(), WaitError> {
        if let Some(creator_pid) = self.foreign_creator() {
            return Err(WaitError::Forked { creator_pid });
        }
        if self.current_worker().is_some() {
            return Err(WaitError::Inside);
        }
        let _wait = self
            .wait_begins()
            .map_err(|DeadlockCycle| WaitError::Deadlock)?;
        wait(&self.registry.tokens)
    }

    /// Restores panics that [`Self::wait`] has returned, for a caller that could not pass them on.
    /// The next wait returns them again.
    pub fn restore_panics(&self, panicked: Vec<Panicked>) {
        self.registry.tokens.restore_panics(panicked);
    }

    /// Drops the registered tasks that are not ready yet. Tasks that are ready or become ready
    /// later are dropped instead of run, and so are tasks that are registered or submitted later.
    /// Graphs are not affected.
    ///
    /// Returns how many tokens were waiting, including tokens that were resolved but not
    /// registered. If a task panics when it is dropped, the next wait reports the panic.
    pub fn cancel(&self) -> usize {
        self.registry.tokens.cancel()
    }

    /// Returns a handle by which tasks submit, register and resolve other tasks.
    pub fn handle(&self) -> Handle {
        Handle::new(&self.registry)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.foreign_creator().is_some() {
            // The worker threads do not exist in this process, so they cannot be joined. A lock
            // that a thread of the parent held at the fork is never released, so no lock is taken.
            self.threads.drain(..).for_each(mem::forget);
            mem::forget(self.observer.take());
            mem::forget(self.claim.take());
            // The registry is leaked, because dropping it would take locks that are perhaps never
            // released.
            mem::forget(Arc::clone(&self.registry));
            return;
        }
        self.registry.close();
        // The drop does not wait if the caller is a task of this runtime, or a task of a runtime
        // for which tasks of this runtime wait. The workers end later; each worker owns a reference
        // to the registry.
        if self.current_worker().is_some() {
            return;
        }
        let Ok(_wait) = self.wait_begins() else {
            return;
        };
        let is_all = self.threads.len() == self.workers();
        for thread in self.threads.drain(..) {
            // The result states whether the thread panicked, which is impossible because panics of
            // tasks are caught.
            let _ = thread.join();
        }
        if let Some(observer) = self.observer.take() {
            observer.thread().unpark();
            // The program may join the threads of workers itself. The observer ends after them.
            if is_all {
                let _ = observer.join();
            }
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers = self.workers();
        f.debug_struct("Runtime")
            .field("workers", &workers)
            .finish_non_exhaustive()
    }
}
