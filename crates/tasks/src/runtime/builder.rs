// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of a runtime, and the start of its workers. The start takes time linear in the
//! number of workers.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::{io, mem, process};

use usher_model::CpuSet;

use super::{Runtime, WORKERS_MAX};
use crate::current_worker::{self, CurrentWorkerGuard};
use crate::error::RuntimeError;
use crate::follow;
use crate::places::{self, CpuClaim, WorkerPlaces};
use crate::policy::Policy;
use crate::progress::ProgressReport;
use crate::worker::{AbortOnUnwind, Registry, Worker};
use crate::worker_thread::{ThreadHooks, WorkerThread};

/// Default size of a worker's stack in bytes, equal to the default of the standard library. The
/// next two constants are the minimum size, and a limit that is larger than any size that can be
/// allocated.
const STACK_BYTES: usize = 2 << 20;
const STACK_BYTES_MIN: usize = 64 << 10;
const STACK_BYTES_MAX: usize = 1 << 46;

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
}
