// SPDX-License-Identifier: MIT OR Apache-2.0
//! A runtime: workers, and the order in which they run tasks.

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
use crate::guess::Together;
use crate::job::JobRef;
use crate::join;
use crate::levels::NoMemory;
use crate::places::{self, Places, Seats};
use crate::policy::Policy;
use crate::tokens::Tokens;
use crate::trace::{Trace, TraceError};
use crate::waits::{Circle, Wait};
use crate::worker::{Crew, Worker};

/// The most workers that a runtime can have.
pub const WORKERS_MAX: usize = 1024;
/// Bytes of a worker's stack where nobody says, as the standard library has it; the
/// fewest; and more than there can be.
const STACK_BYTES: usize = 2 << 20;
const STACK_BYTES_MIN: usize = 64 << 10;
const STACK_BYTES_MAX: usize = 1 << 46;

/// Workers that run tasks.
///
/// Dropped, it lets what is ready run to its end, and ends. Dropped by a task of another
/// runtime for which tasks of this one wait, it ends when it can, and is not waited for.
/// Dropped in a process that was forked from the one that made it, it does nothing.
pub struct Runtime {
    crew: Arc<Crew>,
    threads: Vec<JoinHandle<()>>,
    seats: Option<Seats>,
    /// The process whose threads its workers are.
    maker: u32,
}

/// How a runtime is to be.
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
    /// `None`: by this machine's topology.
    places: Option<Places>,
    policy: Policy,
    stack_bytes: usize,
}

impl RuntimeBuilder {
    /// That many workers, placed by this machine's topology: see [`Places`].
    pub fn new(workers: usize) -> Self {
        Self {
            workers,
            places: None,
            policy: Policy::default(),
            stack_bytes: 0,
        }
    }

    /// As many workers as there are places.
    pub fn on(places: Places) -> Self {
        Self {
            places: Some(places),
            ..Self::new(0)
        }
    }

    /// In which order ready tasks run; [`Policy::Usher`] if not said.
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Bytes of each worker's stack, 64 KiB at least; 0 or not said: 2 MiB. A task has
    /// what is left of it by those inside which it runs: a worker that waits (for a
    /// `join`, for a graph that a task runs) runs others meanwhile, which may wait in
    /// turn. Up to 16 such waits lie on one another, fewer where the stack has not 128
    /// KiB for each, before a worker runs nothing but what it waits for; of that, as many
    /// as the program has nested.
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
        let workers = self.places.as_ref().map_or(self.workers, Places::workers);
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
        let seated = match self.places {
            Some(places) => {
                let seats = Seats::of(&places);
                (places, seats)
            }
            None => places::here(workers),
        };
        Runtime::seated(seated, self.policy, stack_bytes)
    }
}

fn check(workers: usize) -> Result<(), RuntimeError> {
    match (1..=WORKERS_MAX).contains(&workers) {
        true => Ok(()),
        false => Err(RuntimeError::Workers {
            count: workers,
            most: WORKERS_MAX,
        }),
    }
}

thread_local! {
    /// The worker that this thread is, and its crew; null: it is none.
    static HERE: Cell<(*const Crew, *const Worker<'static>)> =
        const { Cell::new((ptr::null(), ptr::null())) };
}

/// Says which worker this thread is, for as long as it is one.
struct Here;

impl Here {
    fn enter(crew: &Arc<Crew>, worker: &Worker<'_>) -> Self {
        HERE.set((Arc::as_ptr(crew), ptr::from_ref(worker).cast()));
        Self
    }
}

impl Drop for Here {
    /// What a thread leaves behind may still call in when its worker is gone.
    fn drop(&mut self) {
        HERE.set((ptr::null(), ptr::null()));
    }
}

impl Runtime {
    /// That many workers under the policy `usher`.
    ///
    /// # Errors
    /// Where there can be no such number of workers or groups, or the system has no
    /// threads for them or no memory for the policy's queues.
    pub fn new(workers: usize) -> Result<Self, RuntimeError> {
        Self::with_policy(workers, Policy::Usher)
    }

    /// That many workers under that policy, placed by this machine's topology: see
    /// [`Places`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_policy(workers: usize, policy: Policy) -> Result<Self, RuntimeError> {
        RuntimeBuilder::new(workers).policy(policy).build()
    }

    /// As many workers as there are places, under that policy.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_places(places: Places, policy: Policy) -> Result<Self, RuntimeError> {
        RuntimeBuilder::on(places).policy(policy).build()
    }

    fn seated(
        (places, seats): (Places, Seats),
        policy: Policy,
        stack_bytes: Option<usize>,
    ) -> Result<Self, RuntimeError> {
        let workers = places.workers();
        let groups_below = policy.groups_below()?;
        let of_worker: Vec<_> = (0..workers).map(|one| places.cpus(one).cloned()).collect();
        let mut runtime = Self {
            crew: Arc::new(Crew::new(places, groups_below, policy.levels(workers)?)),
            threads: Vec::with_capacity(workers),
            seats: Some(seats),
            maker: process::id(),
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
        let crew = Arc::clone(&self.crew);
        let thread = thread::Builder::new().name(format!("usher-tasks-{index}"));
        let thread = match stack_bytes {
            Some(bytes) => thread.stack_size(bytes),
            None => thread,
        };
        let stack_bytes = stack_bytes.unwrap_or(STACK_BYTES);
        let outer = places::outer();
        let started = thread.spawn(move || {
            // A place is a wish: who may not have it works where it is.
            places::settle(cpus.as_ref(), outer);
            let worker = Worker::new(&crew, index, stack_bytes);
            let _here = Here::enter(&crew, &worker);
            worker.work();
        });
        started.map_err(|source| RuntimeError::Thread {
            worker: index,
            source,
        })
    }

    /// Writes down which worker runs which task from now on, the last
    /// `spans_per_worker` of each; what was written before is forgotten. They take 32
    /// bytes each, until the runtime ends; a later call with more makes room for twice
    /// as many as there were, at least, and the former room stays.
    ///
    /// # Errors
    /// Where there is no memory for so many. What was begun before goes on.
    pub fn start_trace(&self, spans_per_worker: usize) -> Result<(), TraceError> {
        self.crew.tracer.start(self.workers(), spans_per_worker)
    }

    /// Writes nothing down any more.
    pub fn stop_trace(&self) {
        self.crew.tracer.stop();
    }

    /// What has been written down since [`Self::start_trace`].
    ///
    /// # Panics
    /// Where there is no memory for it: see [`Self::try_trace`].
    pub fn trace(&self) -> Trace {
        match self.try_trace() {
            Ok(trace) => trace,
            Err(error) => panic!("{error}"),
        }
    }

    /// What has been written down since [`Self::start_trace`].
    ///
    /// # Errors
    /// Where there is no memory for it.
    pub fn try_trace(&self) -> Result<Trace, TraceError> {
        let tracer = &self.crew.tracer;
        tracer.try_read().ok_or_else(|| TraceError::Memory {
            spans_per_worker: tracer.most(),
            workers: self.workers(),
        })
    }

    /// What the workers have done.
    pub fn counters(&self) -> AllCounters {
        self.crew.counters()
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.crew.workers()
    }

    /// The process that made it. In one that was forked from that there are no workers,
    /// and nobody can wait for any.
    pub fn maker(&self) -> u32 {
        self.maker
    }

    /// Its maker, where that is not this process.
    fn foreign_maker(&self) -> Option<u32> {
        (self.maker != process::id()).then_some(self.maker)
    }

    /// Runs a graph, and returns when all of its tasks have run. A task may call
    /// this too, on its own runtime or on another. On its own, its worker works
    /// meanwhile, for this graph first; on another, it does nothing else.
    ///
    /// # Errors
    /// Where tasks panicked; those that had not begun by then are not run. Where
    /// groups are not those of the policy. Where tasks of this runtime wait for that of
    /// the calling task, so that each might wait for the other for ever; also where
    /// enough workers are left. Where a task calls, and there is no memory for queues
    /// one level deeper. In a process that was forked from the one that made the runtime.
    pub fn run<B: Fn(usize) + Sync>(&self, graph: &mut Graph<B>) -> Result<(), RunError> {
        if let Some(error) = graph.outside(self.crew.groups_below) {
            return Err(error);
        }
        if let Some(maker) = self.foreign_maker() {
            return Err(RunError::Forked { maker });
        }
        let _wait = self.wait_begins().map_err(|Circle| RunError::Deadlock)?;
        let here = match self.here() {
            Some(worker) => Some((worker, worker.nest().map_err(|NoMemory| RunError::Memory)?)),
            None => None,
        };
        let finds_groups = self.crew.finds_groups();
        match finds_groups {
            true => graph.find_order(self.workers()),
            false => graph.forget_order(),
        }
        let begun = Instant::now();
        match here {
            Some((worker, _nest)) => {
                let waiter = Some(worker.index());
                let done = graph.begin(waiter, worker.is_deep(), |job| worker.ready_inside(job));
                worker.work_until(|| done.is_open());
            }
            None => graph.begin(None, false, |job| self.crew.inject(job)).wait(),
        }
        let time = begun.elapsed();
        let outcome = graph.outcome();
        // A run that was broken off says nothing of its order.
        if finds_groups && outcome.is_ok() {
            graph.ran_for(time);
        }
        outcome
    }

    /// Runs both functions, the second one at the same time as the first if a
    /// worker has nothing else to do, and gives what they give. They may borrow from
    /// the caller, and may fork in turn. Called by a task of this runtime it runs on
    /// its worker, else as a task, for which the caller waits. Under other policies
    /// than [`Policy::Usher`] they run one after the other; and so they do, in the
    /// calling thread, where a task of another runtime calls for which tasks of this
    /// one wait, and in a process that was forked from the one that made the runtime.
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
    /// Where one of them does, when both have ended; the second one may not have
    /// begun where the first one panics.
    pub fn join<A, B, RA, RB>(&self, a: A, b: B) -> (RA, RB)
    where
        A: FnOnce() -> RA + Send,
        B: FnOnce() -> RB + Send,
        RA: Send,
        RB: Send,
    {
        match self.here() {
            Some(worker) => join::join(worker, a, b),
            None if self.foreign_maker().is_some() => (a(), b()),
            None => match self.wait_begins() {
                Ok(_wait) => join::run_inside(|job| self.crew.inject(job), || self.join(a, b)),
                Err(Circle) => (a(), b()),
            },
        }
    }

    /// This thread is about to wait for this runtime: as long as that lives, if it is a
    /// worker of another.
    fn wait_begins(&self) -> Result<Option<Wait>, Circle> {
        let (from, to) = (HERE.get().0, Arc::as_ptr(&self.crew));
        let is_other = !from.is_null() && from != to;
        is_other
            .then(|| Wait::begin(from.addr(), to.addr()))
            .transpose()
    }

    fn here(&self) -> Option<&Worker<'_>> {
        here(&self.crew)
    }

    /// Files a task that runs when it has been resolved `count` times (paper 5,
    /// section 3.2). Its token is its own until it has run.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use usher_tasks::{Groups, Runtime};
    ///
    /// let runtime = Runtime::new(2)?;
    /// let (tell, told) = mpsc::channel();
    /// let (handle, tell_first) = (runtime.handle(), tell.clone());
    /// runtime.register(2, 1, Groups::NONE, move || tell.send("second").unwrap())?;
    /// runtime.register(1, 0, Groups::NONE, move || {
    ///     tell_first.send("first").unwrap();
    ///     handle.resolve(2).unwrap();
    /// })?;
    /// runtime.wait()?;
    /// assert_eq!(told.iter().collect::<Vec<_>>(), ["first", "second"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Where the token is in use, was resolved more often than that, the groups are
    /// not those of the policy, or there is no memory for the task.
    pub fn register(
        &self,
        token: u64,
        count: u32,
        groups: Groups,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), TaskError> {
        let said = Said::Groups(groups);
        register(&self.crew, token, count, said, entry)
    }

    /// As [`Self::register`], without groups, for a task that works on the data at
    /// that address: where it helps, tasks on neighbouring data run close in time.
    ///
    /// # Errors
    /// As there.
    pub fn register_on(
        &self,
        token: u64,
        count: u32,
        data: usize,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), TaskError> {
        register(&self.crew, token, count, Said::Data(data), entry)
    }

    /// What registered tasks without groups are taken to have in common at present;
    /// `None`: the policy does not ask.
    pub fn together(&self) -> Option<Together> {
        (self.crew.finds_groups()).then(|| self.crew.guess.together())
    }

    /// Takes one off what a task waits for; it may be registered later.
    ///
    /// # Errors
    /// Where it waits for nothing any more.
    pub fn resolve(&self, token: u64) -> Result<(), TaskError> {
        resolve(&self.crew, token)
    }

    /// Waits until no registered task is ready or runs.
    ///
    /// **Each panic is told once**: where several threads wait, one of them gets it, and
    /// the others may get `Ok`. What is not resolved or not registered all of them get.
    ///
    /// # Errors
    /// Where tasks are left that wait to be resolved, tokens were resolved that
    /// nobody has registered, or tasks panicked. What is left stays: somebody may
    /// yet resolve it. A task cannot wait so for its own runtime, nor for another whose
    /// tasks wait for its own; nor can a process that was forked from the one that made
    /// the runtime. Where there is no memory to name what is left,
    /// [`WaitError::Memory`] says how many there are.
    pub fn wait(&self) -> Result<(), WaitError> {
        self.idle(|tokens| tokens.wait())
    }

    /// As [`Self::wait`], without asking what is left or has panicked: the next wait
    /// tells that. It takes no memory.
    ///
    /// # Errors
    /// [`WaitError::Inside`], [`WaitError::Deadlock`] and [`WaitError::Forked`], as there.
    pub fn wait_until_idle(&self) -> Result<(), WaitError> {
        self.idle(|tokens| {
            tokens.wait_until_idle();
            Ok(())
        })
    }

    fn idle(&self, wait: impl FnOnce(&Tokens) -> Result<(), WaitError>) -> Result<(), WaitError> {
        if let Some(maker) = self.foreign_maker() {
            return Err(WaitError::Forked { maker });
        }
        if self.here().is_some() {
            return Err(WaitError::Inside);
        }
        let _wait = self.wait_begins().map_err(|Circle| WaitError::Deadlock)?;
        wait(&self.crew.tokens)
    }

    /// Gives back what a wait has told of tasks that panicked, where that could not be
    /// passed on: the next one tells it again.
    pub fn tell_again(&self, panicked: Vec<Panicked>) {
        self.crew.tokens.tell_again(panicked);
    }

    /// Drops the registered tasks that have not begun, and all that are registered
    /// from now on when they become ready. Graphs are not touched. How many tokens
    /// waited, registered or not. One that panics when it is dropped is told by the next
    /// wait.
    pub fn cancel(&self) -> usize {
        self.crew.tokens.cancel()
    }

    /// For tasks to register and resolve others by.
    pub fn handle(&self) -> Handle {
        Handle {
            crew: Arc::downgrade(&self.crew),
        }
    }
}

/// A way to a runtime that does not keep it from ending.
///
/// What is registered or resolved by it while the runtime is being dropped, by others
/// than its tasks, may be too late: then it does not run, and is dropped.
#[derive(Clone)]
pub struct Handle {
    crew: Weak<Crew>,
}

impl Handle {
    /// As [`Runtime::register`].
    ///
    /// # Errors
    /// As there, and where the runtime has ended.
    pub fn register(
        &self,
        token: u64,
        count: u32,
        groups: Groups,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), TaskError> {
        let crew = self.crew.upgrade().ok_or(TaskError::Ended { token })?;
        register(&crew, token, count, Said::Groups(groups), entry)
    }

    /// As [`Runtime::register_on`].
    ///
    /// # Errors
    /// As there, and where the runtime has ended.
    pub fn register_on(
        &self,
        token: u64,
        count: u32,
        data: usize,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), TaskError> {
        let crew = self.crew.upgrade().ok_or(TaskError::Ended { token })?;
        register(&crew, token, count, Said::Data(data), entry)
    }

    /// As [`Runtime::resolve`].
    ///
    /// # Errors
    /// As there, and where the runtime has ended.
    pub fn resolve(&self, token: u64) -> Result<(), TaskError> {
        let crew = self.crew.upgrade().ok_or(TaskError::Ended { token })?;
        resolve(&crew, token)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

/// The worker of that runtime that calls, if it is one.
fn here(crew: &Arc<Crew>) -> Option<&Worker<'_>> {
    let (of, worker) = HERE.get();
    // SAFETY: a worker lives as long as its thread runs, which this is.
    (of == Arc::as_ptr(crew)).then(|| unsafe { &*worker })
}

/// What is said of a task that is registered.
#[derive(Debug, Clone, Copy)]
enum Said {
    Groups(Groups),
    /// None, but where its data are.
    Data(usize),
}

impl Said {
    /// The groups of such a task, and whether they are but a guess, by which to learn.
    fn groups(self, crew: &Crew) -> (Groups, bool) {
        let data = match self {
            Self::Groups(groups) if groups != Groups::NONE => return (groups, false),
            Self::Groups(_) => None,
            Self::Data(data) => Some(data),
        };
        match crew.finds_groups() {
            true => (crew.guess.groups(data), true),
            false => (Groups::NONE, false),
        }
    }
}

fn register(
    crew: &Arc<Crew>,
    token: u64,
    count: u32,
    said: Said,
    entry: impl FnOnce() + Send + 'static,
) -> Result<(), TaskError> {
    if crew.is_closing() && here(crew).is_none() {
        return Err(TaskError::Ended { token });
    }
    let (groups, is_guessed) = said.groups(crew);
    let (t_groups, s_groups) = crew.groups_below;
    if groups.t >= t_groups || groups.s >= s_groups {
        return Err(TaskError::Groups {
            token,
            groups,
            t_groups,
            s_groups,
        });
    }
    let entry = Closure::new(entry, is_guessed).ok_or(TaskError::Memory { token })?;
    start(crew, crew.tokens.register(token, count, groups, entry)?);
    Ok(())
}

fn resolve(crew: &Arc<Crew>, token: u64) -> Result<(), TaskError> {
    start(crew, crew.tokens.resolve(token)?);
    Ok(())
}

fn start(crew: &Arc<Crew>, job: Option<JobRef>) {
    let Some(job) = job else { return };
    match here(crew) {
        Some(worker) => worker.ready_beside(job),
        None => crew.inject(job),
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.foreign_maker().is_some() {
            // Its threads are none here, and whoever held a lock never gives it up.
            self.threads.drain(..).for_each(mem::forget);
            mem::forget(self.seats.take());
            // For ever.
            mem::forget(Arc::clone(&self.crew));
            return;
        }
        self.crew.close();
        // Dropped by one of its own tasks, or by what those may wait for: they end without
        // being waited for, as what they use is theirs, too.
        if self.here().is_some() {
            return;
        }
        let Ok(_wait) = self.wait_begins() else {
            return;
        };
        for thread in self.threads.drain(..) {
            // Tasks that panic are caught; there is nothing else to tell.
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
