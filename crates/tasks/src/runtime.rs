// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime: a set of worker threads, and the public calls that give them tasks.
//!
//! [`Runtime`] runs graphs, forks and tasks by token, waits for them, and starts traces.
//! [`RuntimeBuilder`] configures policy, places and stacks; [`Handle`] is a reference for use
//! inside tasks. The scheduling itself is in `worker` (policy `usher`) and `dispatch` (policies
//! with a global queue). A runtime works only in the process that created it: after a fork, calls
//! return errors.

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Instant;
use std::{fmt, io, mem, process, ptr};

use usher_model::CpuSet;

use crate::closure::Closure;
use crate::counters::AllCounters;
use crate::dispatch::Groups;
use crate::error::{Panicked, RunError, RuntimeError, TaskError, WaitError};
use crate::graph::Graph;
use crate::guess::Grouping;
use crate::job::JobRef;
use crate::join;
use crate::levels::NoMemory;
use crate::places::{self, CpuClaim, WorkerPlaces};
use crate::policy::Policy;
use crate::tokens::Tokens;
use crate::trace::{Trace, TraceError};
use crate::waits::{DeadlockCycle, RuntimeWait};
use crate::worker::{Registry, Worker};

/// Upper limit of workers per runtime.
pub const WORKERS_MAX: usize = 1024;
/// Default number of bytes of a worker's stack, equal to that of the standard library. The next two
/// constants are the minimum, and a limit above any size that can be allocated.
const STACK_BYTES: usize = 2 << 20;
const STACK_BYTES_MIN: usize = 64 << 10;
const STACK_BYTES_MAX: usize = 1 << 46;

/// The worker threads that run tasks, and the tasks given to them.
///
/// Dropping a runtime runs all ready tasks to completion and ends the workers. If a task of another
/// runtime drops this runtime while tasks of this runtime wait for that other runtime, the workers
/// end later and the drop does not wait. In a process forked from the creator, the drop does
/// nothing.
pub struct Runtime {
    registry: Arc<Registry>,
    threads: Vec<JoinHandle<()>>,
    claim: Option<CpuClaim>,
    /// The process to which the worker threads belong.
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
    /// The places of the workers; `None`: chosen from the topology of this machine.
    places: Option<WorkerPlaces>,
    policy: Policy,
    stack_bytes: usize,
}

impl RuntimeBuilder {
    /// Configures this number of workers, placed by the topology of this machine; see
    /// [`WorkerPlaces`].
    pub fn new(workers: usize) -> Self {
        Self {
            workers,
            places: None,
            policy: Policy::default(),
            stack_bytes: 0,
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
    /// A task uses the part of the stack that the tasks below it have left. While a worker waits
    /// (for a `join`, or for a graph that a task runs), it runs other tasks, which may wait in
    /// turn. Up to 16 such waits are nested, fewer if the stack has less than 128 KiB for each.
    /// Deeper waits run only the tasks that they wait for, and nest as deeply as the program does.
    pub fn stack_bytes(self, stack_bytes: usize) -> Self {
        Self {
            stack_bytes,
            ..self
        }
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// As [`Runtime::new`].
    pub fn build(self) -> Result<Runtime, RuntimeError> {
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
        let placed = match self.places {
            Some(places) => {
                let claim = CpuClaim::of(&places);
                (places, claim)
            }
            None => places::on_this_machine(workers),
        };
        Runtime::start_workers(placed, self.policy, stack_bytes)
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

thread_local! {
    /// The registry and the worker of this thread; null if the thread is no worker.
    static CURRENT_WORKER: Cell<(*const Registry, *const Worker<'static>)> =
        const { Cell::new((ptr::null(), ptr::null())) };
}

/// Sets [`CURRENT_WORKER`] for the lifetime of a worker.
struct CurrentWorkerGuard;

impl CurrentWorkerGuard {
    fn enter(registry: &Arc<Registry>, worker: &Worker<'_>) -> Self {
        CURRENT_WORKER.set((Arc::as_ptr(registry), ptr::from_ref(worker).cast()));
        Self
    }
}

impl Drop for CurrentWorkerGuard {
    /// Clears [`CURRENT_WORKER`], because destructors of thread-local values may call the runtime
    /// after the worker has ended.
    fn drop(&mut self) {
        CURRENT_WORKER.set((ptr::null(), ptr::null()));
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
    /// As [`Self::new`].
    pub fn with_policy(workers: usize, policy: Policy) -> Result<Self, RuntimeError> {
        RuntimeBuilder::new(workers).policy(policy).build()
    }

    /// Starts one worker per entry of `places` with the given policy.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_places(places: WorkerPlaces, policy: Policy) -> Result<Self, RuntimeError> {
        RuntimeBuilder::on(places).policy(policy).build()
    }

    fn start_workers(
        (places, claim): (WorkerPlaces, CpuClaim),
        policy: Policy,
        stack_bytes: Option<usize>,
    ) -> Result<Self, RuntimeError> {
        let workers = places.workers();
        let groups_below = policy.groups_below()?;
        let of_worker: Vec<_> = (0..workers)
            .map(|worker| places.cpus(worker).cloned())
            .collect();
        let mut runtime = Self {
            registry: Arc::new(Registry::new(places, groups_below, policy.levels(workers)?)),
            threads: Vec::with_capacity(workers),
            claim: Some(claim),
            creator_pid: process::id(),
        };
        for (worker, cpus) in of_worker.into_iter().enumerate() {
            let thread = runtime.start(worker, cpus, stack_bytes)?;
            runtime.threads.push(thread);
        }
        Ok(runtime)
    }

    fn start(
        &self,
        index: usize,
        cpus: Option<CpuSet>,
        stack_bytes: Option<usize>,
    ) -> Result<JoinHandle<()>, RuntimeError> {
        let registry = Arc::clone(&self.registry);
        let thread = thread::Builder::new().name(format!("usher-tasks-{index}"));
        let thread = match stack_bytes {
            Some(bytes) => thread.stack_size(bytes),
            None => thread,
        };
        let stack_bytes = stack_bytes.unwrap_or(STACK_BYTES);
        let unbound = places::unbound_cpus();
        let started = thread.spawn(move || {
            // Placement is best effort: a worker that may not use its CPUs runs on the CPUs that it
            // may use.
            places::bind_worker(cpus.as_ref(), unbound);
            let worker = Worker::new(&registry, index, stack_bytes);
            let _guard = CurrentWorkerGuard::enter(&registry, &worker);
            worker.main_loop();
        });
        started.map_err(|source| RuntimeError::Thread {
            worker: index,
            source,
        })
    }

    /// Starts to record which worker runs which task, and discards earlier records. The last
    /// `spans_per_worker` tasks of each worker are kept, at 32 bytes each, until the runtime ends.
    /// A later call with a larger number allocates at least twice the earlier number, in addition
    /// to the earlier memory.
    ///
    /// # Errors
    /// If there is no memory. A trace in progress continues.
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
    /// If there is no memory for the tasks: see [`Self::try_trace`].
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

    /// Returns the process that created the runtime. A process forked from the creator has no
    /// workers and cannot wait for any.
    pub fn creator_pid(&self) -> u32 {
        self.creator_pid
    }

    /// Returns the process that created the runtime, if it is not this process.
    fn foreign_creator(&self) -> Option<u32> {
        (self.creator_pid != process::id()).then_some(self.creator_pid)
    }

    /// Runs a graph and returns when all tasks of the graph have run. A task may call this function
    /// on its own runtime or on another. On its own runtime, the task's worker runs other tasks
    /// during the wait, tasks of this graph first. On another runtime, the worker only waits.
    ///
    /// # Errors
    /// - A task panicked. Tasks that had not begun by then are not run.
    /// - Groups are outside the limits of the policy.
    /// - Tasks of this runtime wait for the runtime of the calling task, so that both might wait
    ///   forever. This is an error even if enough workers are left.
    /// - A task calls, and there is no memory for queues of one more nesting level.
    /// - The process was forked from the creator of the runtime.
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
        let begun = Instant::now();
        match worker {
            Some((worker, _guard)) => {
                let waiter = Some(worker.index());
                let done = graph.begin(waiter, worker.is_deep(), |job| {
                    worker.ready_nested_source(job)
                });
                worker.run_until(|| done.is_open());
            }
            None => graph
                .begin(None, false, |job| self.registry.inject(job))
                .wait(),
        }
        let time = begun.elapsed();
        let outcome = graph.outcome();
        // The time of an aborted run says nothing about its order.
        if finds_groups && outcome.is_ok() {
            graph.record_time(time);
        }
        outcome
    }

    /// Runs both functions and returns their results. If a worker is idle, the second function runs
    /// at the same time as the first. The functions may borrow from the caller, and may call `join`
    /// in turn.
    ///
    /// A call from a task of this runtime runs on the task's worker. A call from another thread
    /// runs as a task, and the thread waits. The functions run one after the other in these cases:
    ///
    /// - under policies other than [`Policy::Usher`];
    /// - in the calling thread, in a process forked from the creator of the runtime;
    /// - in the calling thread, if a task of another runtime calls while tasks of this runtime wait
    ///   for that runtime.
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
    /// If one of the functions panics, after both have ended. If the first function panics, the
    /// second may not have begun.
    pub fn join<A, B, RA, RB>(&self, a: A, b: B) -> (RA, RB)
    where
        A: FnOnce() -> RA + Send,
        B: FnOnce() -> RB + Send,
        RA: Send,
        RB: Send,
    {
        match self.current_worker() {
            Some(worker) => join::join(worker, a, b),
            None if self.foreign_creator().is_some() => (a(), b()),
            None => match self.wait_begins() {
                Ok(_wait) => join::run_inside(|job| self.registry.inject(job), || self.join(a, b)),
                Err(DeadlockCycle) => (a(), b()),
            },
        }
    }

    /// Enters a wait of this thread for this runtime, if the thread is a worker of another runtime.
    fn wait_begins(&self) -> Result<Option<RuntimeWait>, DeadlockCycle> {
        let (from, to) = (CURRENT_WORKER.get().0, Arc::as_ptr(&self.registry));
        let is_other = !from.is_null() && from != to;
        is_other
            .then(|| RuntimeWait::begin(from.addr(), to.addr()))
            .transpose()
    }

    fn current_worker(&self) -> Option<&Worker<'_>> {
        current_worker(&self.registry)
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
        register(&self.registry, token, count, hint, entry)
    }

    /// As [`Self::register`], without groups, for a task that works on the data at an address.
    /// Tasks on neighbouring data run close in time if measurements show that this makes tasks
    /// faster.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub fn register_on(
        &self,
        token: u64,
        count: u32,
        data: usize,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), TaskError> {
        register(&self.registry, token, count, TaskHint::Data(data), entry)
    }

    /// Returns how registered tasks without groups are grouped at present; `None` under policies
    /// that do not group such tasks.
    pub fn current_grouping(&self) -> Option<Grouping> {
        (self.registry.finds_groups()).then(|| self.registry.guess.current())
    }

    /// Resolves one dependency of a task, which may be registered later.
    ///
    /// # Errors
    /// If the task has no unresolved dependency.
    pub fn resolve(&self, token: u64) -> Result<(), TaskError> {
        resolve(&self.registry, token)
    }

    /// Waits until no registered task is ready or running.
    ///
    /// **Each panic is reported once**: if several threads wait, one thread gets the report and the
    /// others may get `Ok`. All threads get the unresolved and the unregistered tokens.
    ///
    /// # Errors
    /// - Tasks wait to be resolved, tokens were resolved and never registered, or tasks panicked.
    ///   Unresolved tasks stay registered and may still be resolved.
    /// - A task waits for its own runtime, or for a runtime with tasks that wait for its own.
    /// - The process was forked from the creator of the runtime.
    /// - There is no memory to list the tasks: [`WaitError::Memory`] has their numbers.
    pub fn wait(&self) -> Result<(), WaitError> {
        self.wait_with(|tokens| tokens.wait())
    }

    /// As [`Self::wait`], but does not report unfinished tasks or panics, which the next wait
    /// reports. Allocates no memory.
    ///
    /// # Errors
    /// [`WaitError::Inside`], [`WaitError::Deadlock`] and [`WaitError::Forked`], as [`Self::wait`].
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

    /// Records panics again that [`Self::wait`] has reported but the caller could not deliver. The
    /// next wait reports them again.
    pub fn restore_panics(&self, panicked: Vec<Panicked>) {
        self.registry.tokens.restore_panics(panicked);
    }

    /// Drops the registered tasks that have not begun, and drops tasks registered from now on when
    /// they become ready. Graphs are not affected. Returns how many tokens were waiting, registered
    /// or not. If a task panics when it is dropped, the next wait reports it.
    pub fn cancel(&self) -> usize {
        self.registry.tokens.cancel()
    }

    /// Returns a handle by which tasks register and resolve other tasks.
    pub fn handle(&self) -> Handle {
        Handle {
            registry: Arc::downgrade(&self.registry),
        }
    }
}

/// A reference to a runtime that does not keep the runtime alive.
///
/// If a thread other than a worker registers or resolves a task while the runtime is being dropped,
/// the call may be too late: the task is then dropped and does not run.
#[derive(Clone)]
pub struct Handle {
    registry: Weak<Registry>,
}

impl Handle {
    /// As [`Runtime::register`].
    ///
    /// # Errors
    /// As [`Runtime::register`], and if the runtime has ended.
    pub fn register(
        &self,
        token: u64,
        count: u32,
        groups: Groups,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), TaskError> {
        let registry = self.registry.upgrade().ok_or(TaskError::Ended { token })?;
        register(&registry, token, count, TaskHint::Groups(groups), entry)
    }

    /// As [`Runtime::register_on`].
    ///
    /// # Errors
    /// As [`Runtime::register_on`], and if the runtime has ended.
    pub fn register_on(
        &self,
        token: u64,
        count: u32,
        data: usize,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), TaskError> {
        let registry = self.registry.upgrade().ok_or(TaskError::Ended { token })?;
        register(&registry, token, count, TaskHint::Data(data), entry)
    }

    /// As [`Runtime::resolve`].
    ///
    /// # Errors
    /// As [`Runtime::resolve`], and if the runtime has ended.
    pub fn resolve(&self, token: u64) -> Result<(), TaskError> {
        let registry = self.registry.upgrade().ok_or(TaskError::Ended { token })?;
        resolve(&registry, token)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

/// Returns the worker of this runtime whose thread calls; `None` if the calling thread is no worker
/// of it.
fn current_worker(registry: &Arc<Registry>) -> Option<&Worker<'_>> {
    let (of, worker) = CURRENT_WORKER.get();
    // SAFETY: a worker lives as long as its thread runs, and the calling thread is that thread.
    (of == Arc::as_ptr(registry)).then(|| unsafe { &*worker })
}

/// What the caller has specified about a registered task.
#[derive(Debug, Clone, Copy)]
enum TaskHint {
    Groups(Groups),
    /// No groups, but the address of the task's data.
    Data(usize),
}

impl TaskHint {
    /// Returns the groups of the task, and whether they are guessed.
    fn groups(self, registry: &Registry) -> (Groups, bool) {
        let data = match self {
            Self::Groups(groups) if groups != Groups::NONE => return (groups, false),
            Self::Groups(_) => None,
            Self::Data(data) => Some(data),
        };
        match registry.finds_groups() {
            true => (registry.guess.groups(data), true),
            false => (Groups::NONE, false),
        }
    }
}

fn register(
    registry: &Arc<Registry>,
    token: u64,
    count: u32,
    hint: TaskHint,
    entry: impl FnOnce() + Send + 'static,
) -> Result<(), TaskError> {
    if registry.is_closing() && current_worker(registry).is_none() {
        return Err(TaskError::Ended { token });
    }
    let (groups, is_guessed) = hint.groups(registry);
    let (t_groups, s_groups) = registry.groups_below;
    if groups.t >= t_groups || groups.s >= s_groups {
        return Err(TaskError::Groups {
            token,
            groups,
            t_groups,
            s_groups,
        });
    }
    let entry = Closure::new(entry, is_guessed).ok_or(TaskError::Memory { token })?;
    make_ready(
        registry,
        registry.tokens.register(token, count, groups, entry)?,
    );
    Ok(())
}

fn resolve(registry: &Arc<Registry>, token: u64) -> Result<(), TaskError> {
    make_ready(registry, registry.tokens.resolve(token)?);
    Ok(())
}

fn make_ready(registry: &Arc<Registry>, job: Option<JobRef>) {
    let Some(job) = job else { return };
    match current_worker(registry) {
        Some(worker) => worker.publish_ready(job),
        None => registry.inject(job),
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.foreign_creator().is_some() {
            // The worker threads do not exist in this process, and a lock held at the fork is never
            // released.
            self.threads.drain(..).for_each(mem::forget);
            mem::forget(self.claim.take());
            // The registry is leaked, because its locks may be held by threads that do not exist in
            // this process.
            mem::forget(Arc::clone(&self.registry));
            return;
        }
        self.registry.close();
        // Case: the runtime is dropped by one of its own tasks, or by a task that its tasks may
        // wait for. The workers end later, because each worker co-owns the registry.
        if self.current_worker().is_some() {
            return;
        }
        let Ok(_wait) = self.wait_begins() else {
            return;
        };
        for thread in self.threads.drain(..) {
            // Panics of tasks are caught, so the result carries no information.
            let _ = thread.join();
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
