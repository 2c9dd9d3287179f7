// SPDX-License-Identifier: MIT OR Apache-2.0
//! A runtime: workers, and the order in which they run tasks.

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::{fmt, ptr};

use crate::dispatch::{Dispatcher, Fcfs, Groups, Lcfs, Paper};
use crate::error::{RunError, RuntimeError, TaskError, WaitError};
use crate::graph::Graph;
use crate::job::JobRef;
use crate::join;
use crate::tokens::Entry;
use crate::worker::{Crew, Worker};

/// The most workers.
const WORKERS_MAX: usize = 1024;

/// In which order ready tasks run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// Ours: each worker goes through temporal groups in turn, and within one runs
    /// what its cache has seen last; spatial groups stay with a worker.
    #[default]
    Usher,
    /// The dispatcher of paper 5, section 4.2, for groups below these numbers.
    Paper {
        /// Temporal groups, 0 included.
        t_groups: u32,
        /// Spatial groups, 0 included.
        s_groups: u32,
    },
    /// First come, first served.
    Fcfs,
    /// Last come, first served.
    Lcfs,
}

/// Workers that run tasks.
///
/// Dropped, it lets what is ready run to its end, and ends.
pub struct Runtime {
    crew: Arc<Crew>,
    threads: Vec<JoinHandle<()>>,
}

thread_local! {
    /// The worker that this thread is, and its crew; null: it is none.
    static HERE: Cell<(*const Crew, *const Worker<'static>)> =
        const { Cell::new((ptr::null(), ptr::null())) };
}

impl Runtime {
    /// That many workers under the policy `usher`.
    ///
    /// # Errors
    /// Where there can be no such number of workers, or the system has no threads
    /// for them.
    pub fn new(workers: usize) -> Result<Self, RuntimeError> {
        Self::with_policy(workers, Policy::Usher)
    }

    /// That many workers under that policy.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_policy(workers: usize, policy: Policy) -> Result<Self, RuntimeError> {
        if !(1..=WORKERS_MAX).contains(&workers) {
            return Err(RuntimeError::Workers {
                count: workers,
                most: WORKERS_MAX,
            });
        }
        let mut groups_below = (u32::MAX, u32::MAX);
        let locked: Option<Box<dyn Dispatcher<JobRef> + Send>> = match policy {
            Policy::Usher => None,
            Policy::Paper { t_groups, s_groups } => {
                groups_below = (t_groups.max(1), s_groups.max(1));
                let (t_groups, s_groups) = (t_groups as usize, s_groups as usize);
                Some(Box::new(Paper::new(workers, t_groups, s_groups)))
            }
            Policy::Fcfs => Some(Box::new(Fcfs::default())),
            Policy::Lcfs => Some(Box::new(Lcfs::default())),
        };
        let others = |worker: usize| (1..workers).map(move |step| (worker + step) % workers);
        let near = (0..workers)
            .map(|worker| others(worker).collect())
            .collect();
        let mut runtime = Self {
            crew: Arc::new(Crew::new(near, groups_below, locked)),
            threads: Vec::with_capacity(workers),
        };
        for worker in 0..workers {
            runtime.threads.push(runtime.start(worker)?);
        }
        Ok(runtime)
    }

    fn start(&self, index: usize) -> Result<JoinHandle<()>, RuntimeError> {
        let crew = Arc::clone(&self.crew);
        let thread = thread::Builder::new().name(format!("usher-tasks-{index}"));
        let started = thread.spawn(move || {
            let worker = Worker::new(&crew, index);
            HERE.set((Arc::as_ptr(&crew), (&raw const worker).cast()));
            worker.work();
        });
        started.map_err(|source| RuntimeError::Thread {
            worker: index,
            source,
        })
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.crew.workers()
    }

    /// Runs a graph, and returns when all of its tasks have run. A task may call
    /// this too, on its own runtime or on another.
    ///
    /// # Errors
    /// Where tasks panicked; those that had not begun by then are not run. Where
    /// groups are not those of the policy.
    pub fn run<B: Fn(usize) + Sync>(&self, graph: &mut Graph<B>) -> Result<(), RunError> {
        if let Some(error) = graph.outside(self.crew.groups_below) {
            return Err(error);
        }
        match self.here() {
            Some(worker) => {
                let done = graph.begin(|job| worker.ready(job));
                while !done.is_open() {
                    worker.work_while(|| !done.is_open());
                    thread::yield_now();
                }
            }
            None => graph.begin(|job| self.crew.inject(job)).wait(),
        }
        graph.outcome()
    }

    /// Runs both functions, the second one at the same time as the first if a
    /// worker has nothing else to do, and gives what they give. They may borrow from
    /// the caller, and may fork in turn. Called by a task of this runtime it runs on
    /// its worker, else as a task, for which the caller waits. Under other policies
    /// than [`Policy::Usher`] they run one after the other.
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
            None => join::run_inside(|job| self.crew.inject(job), || self.join(a, b)),
        }
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
    /// Where the token is in use, was resolved more often than that, or the groups
    /// are not those of the policy.
    pub fn register(
        &self,
        token: u64,
        count: u32,
        groups: Groups,
        entry: impl FnOnce() + Send + 'static,
    ) -> Result<(), TaskError> {
        register(&self.crew, token, count, groups, Box::new(entry))
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
    /// # Errors
    /// Where tasks are left that wait to be resolved, tokens were resolved that
    /// nobody has registered, or tasks panicked. What is left stays: somebody may
    /// yet resolve it. A task cannot wait so.
    pub fn wait(&self) -> Result<(), WaitError> {
        match self.here() {
            Some(_) => Err(WaitError::Inside),
            None => self.crew.tokens.wait().map_err(WaitError::Left),
        }
    }

    /// Drops the registered tasks that have not begun, and all that are registered
    /// from now on; how many of them waited.
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
        register(&crew, token, count, groups, Box::new(entry))
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

fn register(
    crew: &Arc<Crew>,
    token: u64,
    count: u32,
    groups: Groups,
    entry: Entry,
) -> Result<(), TaskError> {
    if crew.is_closing() && here(crew).is_none() {
        return Err(TaskError::Ended { token });
    }
    let (t_groups, s_groups) = crew.groups_below;
    if groups.t >= t_groups || groups.s >= s_groups {
        return Err(TaskError::Groups {
            token,
            groups,
            t_groups,
            s_groups,
        });
    }
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
        Some(worker) => worker.ready(job),
        None => crew.inject(job),
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.crew.close();
        let own = thread::current().id();
        for thread in self.threads.drain(..) {
            // Dropped by its own worker: that one ends when the task has.
            if thread.thread().id() != own {
                // Tasks that panic are caught; there is nothing else to tell.
                let _ = thread.join();
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
