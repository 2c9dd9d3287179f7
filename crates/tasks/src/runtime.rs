// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime: a set of worker threads, and the public functions that pass tasks to them.
//!
//! [`Runtime`] runs graphs, forks and tasks by token, waits for them, and starts traces.
//! [`RuntimeBuilder`] configures the policy, and the places and stacks of the workers. [`Handle`]
//! (module `handle`) is a reference to a runtime for use inside tasks. The modules `worker` (policy
//! `usher`) and `dispatch` (policies with a global queue) implement the scheduling.
//!
//! A runtime has 1 to 1024 workers ([`WORKERS_MAX`]). It works only in the process that created it.
//! In a forked child, waiting and running graphs return errors, and `join` runs its functions in
//! the calling thread. The stack of a worker has 2 MiB by default, and at least 64 KiB. Waits, and
//! the drop of a runtime, have no time limit. A wait that could deadlock is an error.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use std::{fmt, io, mem, process};

use usher_model::CpuSet;

use crate::counters::AllCounters;
use crate::current_worker::{self, CurrentWorkerGuard};
use crate::dispatch::Groups;
use crate::error::{Panicked, RunError, RuntimeError, SubmitError, TaskError, WaitError};
use crate::follow;
use crate::graph::Graph;
use crate::guess::Grouping;
use crate::handle::{self, Handle, TaskHint};
use crate::levels::NoMemory;
use crate::places::{self, CpuClaim, WorkerPlaces};
use crate::policy::Policy;
use crate::progress::ProgressReport;
use crate::task_node::Creator;
use crate::tokens::Tokens;
use crate::trace::{Trace, TraceError};
use crate::waits::{DeadlockCycle, RuntimeWait};
use crate::worker::{AbortOnUnwind, Registry, Worker};
use crate::worker_thread::{ThreadHooks, WorkerThread};

/// Upper limit of workers per runtime.
pub const WORKERS_MAX: usize = 1024;
/// Default size of a worker's stack in bytes, equal to the default of the standard library. The
/// next two constants are the minimum size, and a limit that is larger than any size that can be
/// allocated.
const STACK_BYTES: usize = 2 << 20;
const STACK_BYTES_MIN: usize = 64 << 10;
const STACK_BYTES_MAX: usize = 1 << 46;

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

/// Configuration of a [`Runtime`].
///
/// ```
/// use usher_tasks::{Policy, RuntimeBuilder};
///
/// let builder = RuntimeBuilder::new(2).policy(Policy::Lcfs);
/// let runtime = builder.stack_bytes(16 << 20).build()?;
/// assert_eq!(runtime.workers(), 2);
/// # Ok::<(), usher_tasks::RuntimeError>(())
/// ```
#[derive(Debug, Clone)]
pub struct RuntimeBuilder {
    workers: usize,
    /// The places of the workers. If it is `None`, the places are chosen from the topology of this
    /// machine.
    places: Option<WorkerPlaces>,
    policy: Policy,
    stack_bytes: usize,
    follow_cpus: bool,
    report_progress: bool,
    pub(crate) hooks: ThreadHooks,
    dense_tokens: Range<u64>,
}

/// Starts the thread of a worker. Returns `None` if the program joins the thread itself.
type SpawnThread<'a> = &'a mut dyn FnMut(WorkerThread) -> io::Result<Option<JoinHandle<()>>>;

impl RuntimeBuilder {
    /// Configures this number of workers, placed by the topology of this machine; see
    /// [`WorkerPlaces`].
    pub fn new(workers: usize) -> Self {
        Self {
            workers,
            places: None,
            policy: Policy::default(),
            stack_bytes: 0,
            follow_cpus: true,
            report_progress: true,
            hooks: ThreadHooks::default(),
            dense_tokens: 0..0,
        }
    }

    /// Configures one worker per entry of `places`.
    pub fn on(places: WorkerPlaces) -> Self {
        Self {
            places: Some(places),
            ..Self::new(0)
        }
    }

    /// Sets the order in which ready tasks run. The default is [`Policy::Usher`].
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Sets the number of bytes of each worker's stack, at least 64 KiB. 0 means the default, 2
    /// MiB.
    ///
    /// While a worker waits (for a `join`, or for a graph that a task runs), it runs other tasks on
    /// the same stack, and these tasks may wait, too. Such waits are nested up to a limit, which is
    /// 16 or the number of 128 KiB parts of the stack, whichever is lower. In a wait beyond the
    /// limit, the worker runs only tasks for which it waits. The depth of the stack then depends
    /// only on the nesting in the program.
    pub fn stack_bytes(self, stack_bytes: usize) -> Self {
        Self {
            stack_bytes,
            ..self
        }
    }

    /// Sets whether the number of running workers follows the CPUs that the process may use. This
    /// is the default. If it is off, all workers run whenever there are tasks.
    ///
    /// A runtime may have more workers than the process has CPUs, for example after its CPU
    /// affinity was reduced. Of these workers, as many run as there are CPUs, and the others sleep.
    /// A change of the affinity takes effect within 10 ms, but not during a task; a change of the
    /// CPU quota (cgroups) within 60 ms. Tasks that block do not hinder others: while ready tasks
    /// wait, each worker that is blocked permits one more. If tasks wait in a loop for tasks that
    /// have not begun, more workers run after 100 ms.
    ///
    /// A runtime with one worker does not follow the CPUs. Other runtimes have one additional
    /// thread, `usher-tasks-cpus`, which takes about 0.2 % of a CPU while workers run.
    pub fn follow_cpus(self, follow_cpus: bool) -> Self {
        Self {
            follow_cpus,
            ..self
        }
    }

    /// Sets whether the runtime reports its tasks on the heartbeat page of the program, which `usher
    /// run` creates. This is the default; it has no effect on other programs.
    ///
    /// Every 20 ms, the number of new tasks of graphs, tokens, submissions and scopes is added to
    /// the page, with the unit "tasks". The rate of progress is right if the tasks are similar.
    /// Parallel loops and `join` are not reported. If the program has named a unit of its own on
    /// the page, or has counted units before the first task, the runtime reports nothing. The
    /// report needs the additional thread of [`Self::follow_cpus`].
    pub fn report_progress(self, report_progress: bool) -> Self {
        Self {
            report_progress,
            ..self
        }
    }

    /// Declares a range of tokens for which the runtime keeps an array instead of hash tables. Tasks
    /// with these tokens are cheaper to register, resolve and run; all results are the same. The
    /// default is an empty range.
    ///
    /// A token of the range takes 64 bytes of address space. The system allocates the memory in
    /// pages of 4 KiB when tokens are used for the first time, and the drop of the runtime frees it.
    /// [`Runtime::wait`] and [`Runtime::cancel`] scan the range, at about 1 ms per million tokens.
    ///
    /// ```
    /// use usher_tasks::{Groups, RuntimeBuilder};
    ///
    /// let runtime = RuntimeBuilder::new(2).dense_tokens(0..1000).build()?;
    /// for token in 0..1000 {
    ///     runtime.register(token, 0, Groups::NONE, || ())?;
    /// }
    /// runtime.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dense_tokens(self, tokens: Range<u64>) -> Self {
        Self {
            dense_tokens: tokens,
            ..self
        }
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// In the cases in which [`Runtime::new`] returns an error, and if the range of dense tokens ends
    /// before it begins, has more than 2^32 tokens, or if there is no memory for it.
    pub fn build(self) -> Result<Runtime, RuntimeError> {
        self.build_on(&mut |worker| worker.spawn().map(Some))
    }

    pub(crate) fn build_on(mut self, spawn: SpawnThread<'_>) -> Result<Runtime, RuntimeError> {
        self.policy.check()?;
        let workers = self
            .places
            .as_ref()
            .map_or(self.workers, WorkerPlaces::workers);
        check(workers)?;
        let stack_bytes = match self.stack_bytes {
            0 => None,
            bytes if bytes > STACK_BYTES_MAX => {
                return Err(RuntimeError::Thread {
                    worker: 0,
                    source: io::ErrorKind::OutOfMemory.into(),
                });
            }
            bytes => Some(bytes.max(STACK_BYTES_MIN)),
        };
        let placed = match self.places.take() {
            Some(places) => {
                let claim = CpuClaim::of(&places);
                (places, claim)
            }
            None => places::on_this_machine(workers),
        };
        Runtime::start_workers(placed, stack_bytes, &self, spawn)
    }
}

fn check(workers: usize) -> Result<(), RuntimeError> {
    match (1..=WORKERS_MAX).contains(&workers) {
        true => Ok(()),
        false => Err(RuntimeError::Workers {
            count: workers,
            max: WORKERS_MAX,
        }),
    }
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

    fn start_workers(
        (places, claim): (WorkerPlaces, CpuClaim),
        stack_bytes: Option<usize>,
        builder: &RuntimeBuilder,
        spawn: SpawnThread<'_>,
    ) -> Result<Self, RuntimeError> {
        let workers = places.workers();
        let policy = &builder.policy;
        let groups_below = policy.groups_below()?;
        let of_worker: Vec<_> = (0..workers)
            .map(|worker| places.cpus(worker).cloned())
            .collect();
        let mut registry = Registry::new(places, groups_below, policy.levels(workers)?);
        registry.tokens.set_dense(builder.dense_tokens.clone())?;
        let mut runtime = Self {
            registry: Arc::new(registry),
            threads: Vec::with_capacity(workers),
            observer: None,
            claim: Some(claim),
            creator_pid: process::id(),
        };
        let follows = builder.follow_cpus && workers > 1;
        let report = builder.report_progress.then(ProgressReport::open).flatten();
        runtime.observer = follow::start(&runtime.registry, follows, report);
        let hooks = &builder.hooks;
        for (index, cpus) in of_worker.into_iter().enumerate() {
            let worker = WorkerThread {
                index,
                name: hooks.name(index),
                stack_bytes,
                run: runtime.thread_body(index, cpus, stack_bytes, hooks.clone()),
            };
            let thread = spawn(worker).map_err(|source| RuntimeError::Thread {
                worker: index,
                source,
            })?;
            runtime.threads.extend(thread);
        }
        Ok(runtime)
    }

    /// Returns the function that the thread of a worker calls.
    fn thread_body(
        &self,
        index: usize,
        cpus: Option<CpuSet>,
        stack_bytes: Option<usize>,
        hooks: ThreadHooks,
    ) -> Box<dyn FnOnce() + Send> {
        let registry = Arc::clone(&self.registry);
        let stack_bytes = stack_bytes.unwrap_or(STACK_BYTES);
        let unbound = places::unbound_cpus();
        Box::new(move || {
            assert!(
                current_worker::current_registry().is_null(),
                "a worker cannot run in the thread of another worker"
            );
            // Placement is best effort. If a worker is not allowed to run on its CPUs, it runs on
            // the CPUs that are allowed.
            places::bind_worker(cpus.as_ref(), unbound);
            let worker = Worker::new(&registry, index, stack_bytes);
            let _guard = CurrentWorkerGuard::enter(&registry, &worker);
            let unwinding = AbortOnUnwind;
            hooks.around(index, || worker.main_loop());
            mem::forget(unwinding);
        })
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
