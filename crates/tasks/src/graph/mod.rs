// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs of tasks, declared once and run repeatedly.
//!
//! 1. [`GraphBuilder`] declares the tasks and dependencies (`builder`), and packs them for running
//!    (`plan`).
//! 2. Before each run, the counter of each task is set to the number of its dependencies. For
//!    graphs without groups, `finder` also chooses an order.
//! 3. The tasks without dependencies are passed to the workers. A worker that has run a task
//!    decrements the counters of the task's successors. A task becomes ready when its counter is 0
//!    (`chain`).
//! 4. The run ends when all tasks without successors have run. By then all other tasks have run,
//!    because each of them precedes a task without successors.
//!
//! Without a search for an order, a run takes time linear in tasks and dependencies. If a task
//! panics, tasks that have not begun are skipped, and the run returns all panics as an error. A
//! graph has at most 2^32 - 1 tasks, and is run by one caller at a time.

mod builder;
mod cancel;
mod chain;
mod finder;
mod order;
mod plan;
mod successors;

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use builder::GraphBuilder;
use cancel::OwnControl;
pub use cancel::{CancelHandle, GraphFinished};
use finder::OrderFinder;
pub use finder::{Explanation, TriedOrder};
pub use order::TaskOrder;
use plan::Plan;
use successors::Successors;

use crate::dispatch::Groups;
use crate::error::{Panicked, RunError};
use crate::job::{Job, JobRef};
use crate::latch::Latch;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, StoreMut};
use crate::task_node::Creator;
use crate::worker::JobVtable;

#[repr(C)]
struct GraphInner<B> {
    /// The vtable of the graph's jobs. It is the first field, so the vtable pointer of a job also
    /// points to the whole structure.
    vtable: JobVtable,
    /// The job of each task, by task number.
    jobs: Box<[Job]>,
    plan: Plan,
    /// The largest temporal and the largest spatial group number of the tasks.
    max_groups: (u32, u32),
    /// Whether a task of this run may have to be sent to the owner of its spatial group.
    may_redirect: bool,
    /// Whether a task of the graph has a priority.
    has_priorities: bool,
    body: B,
    done: Arc<Latch>,
    /// Index of the worker that waits for the run, if a worker waits.
    waiter: Option<usize>,
    /// The task with a future that runs the graph on its own runtime.
    creator: Creator,
    /// Set when a task panics or the run is cancelled: no further task is run.
    failed: AtomicBool,
    panicked: Mutex<Vec<Panicked>>,
    skipped: AtomicU64,
}

// SAFETY: the link of a job belongs to the holder of the job, and points to other jobs only while
// they are ready. The vtable of a job is only read. The body is `Send`, and so are all other
// fields.
unsafe impl<B: Send> Send for GraphInner<B> {}
// SAFETY: only the holder of a job accesses the job's link. Several threads may call the body,
// because it is `Sync`.
unsafe impl<B: Sync> Sync for GraphInner<B> {}

impl<B> GraphInner<B> {
    /// Returns the job of a task that is ready and has no other holder.
    fn job(&self, task: u32) -> JobRef {
        // SAFETY: a job exists until the run has ended. It becomes ready once per run, so it has
        // one holder.
        unsafe { JobRef::new(NonNull::from(&self.jobs[task as usize])) }
    }

    /// Returns the task of a job of this graph.
    fn task(&self, job: &JobRef) -> u32 {
        let offset = job.as_ptr().as_ptr().addr() - self.jobs.as_ptr().addr();
        (offset / size_of::<Job>()) as u32
    }
}

/// Tasks that can be run any number of times.
pub struct Graph<B> {
    /// The graph's data. It is in an `Arc`, because the jobs of the graph also point to the data,
    /// and the pointer of a `Box` must be unique.
    inner: Arc<GraphInner<B>>,
    /// By which other threads cancel runs.
    control: OwnControl,
    /// Searches for an order; `None` if the tasks have declared groups.
    finder: Option<OrderFinder>,
}

impl<B: Fn(usize) + Sync> Graph<B> {
    fn new(groups: &[Groups], after: &Successors, body: B) -> Self {
        let max_groups = groups
            .iter()
            .fold((0, 0), |(t, s), groups| (t.max(groups.t), s.max(groups.s)));
        let inner = Arc::new_cyclic(|inner: &Weak<GraphInner<B>>| {
            // SAFETY: the pointer to the allocated memory is not null. The memory does not move,
            // and is initialised before jobs run.
            let vtable = unsafe { NonNull::new_unchecked(inner.as_ptr().cast_mut()) }.cast();
            GraphInner {
                vtable: JobVtable {
                    run: chain::run::<B>,
                },
                jobs: groups
                    .iter()
                    .map(|&groups| Job::new(vtable, groups))
                    .collect(),
                plan: Plan::new(after),
                max_groups,
                may_redirect: false,
                has_priorities: groups.iter().any(|groups| groups.has_priority()),
                body,
                done: Arc::default(),
                waiter: None,
                creator: Creator::NONE,
                failed: AtomicBool::new(false),
                panicked: Mutex::default(),
                skipped: AtomicU64::new(0),
            }
        });
        Self {
            inner,
            control: OwnControl::new(),
            finder: None,
        }
    }

    /// Returns exclusive access to the graph's data. This is possible between two runs, when no
    /// worker holds the data.
    fn inner_mut(&mut self) -> &mut GraphInner<B> {
        match Arc::get_mut(&mut self.inner) {
            Some(inner) => inner,
            None => unreachable!("a graph has one owner, and its tasks are reached by pointers"),
        }
    }

    /// Returns the number of tasks.
    pub fn len(&self) -> usize {
        self.inner.jobs.len()
    }

    /// Returns whether the graph has no tasks.
    pub fn is_empty(&self) -> bool {
        self.inner.jobs.is_empty()
    }

    /// Returns an error for the first task with groups beyond these limits.
    pub(crate) fn check_groups(&self, (t_groups, s_groups): (u32, u32)) -> Option<RunError> {
        let (most_t, most_s) = self.inner.max_groups;
        if most_t < t_groups && most_s < s_groups {
            return None;
        }
        let is_outside = |groups: Groups| groups.t >= t_groups || groups.s >= s_groups;
        let mut all = self.inner.jobs.iter().map(Job::groups);
        let task = all.position(is_outside)?;
        Some(RunError::Groups {
            task,
            groups: self.inner.jobs[task].groups(),
            t_groups,
            s_groups,
        })
    }

    /// Returns a handle by which other threads and tasks cancel runs of this graph.
    ///
    /// ```
    /// use usher_tasks::{GraphBuilder, RunError, Runtime};
    ///
    /// let runtime = Runtime::new(2)?;
    /// let mut builder = GraphBuilder::new();
    /// builder.task();
    /// let mut graph = builder.build(|_| unreachable!("it is cancelled"))?;
    /// let handle = graph.cancel_handle();
    /// handle.cancel()?;
    /// assert_eq!(runtime.run(&mut graph), Err(RunError::Cancelled { skipped: 1 }));
    /// assert!(handle.cancel().is_err(), "it has finished");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_handle(&self) -> CancelHandle {
        self.control.handle()
    }

    /// Returns in which order ready tasks run by preference, and the measured times of the orders
    /// that were tried.
    pub fn explain(&self) -> Explanation {
        match &self.finder {
            Some(finder) => finder.explain(),
            None => Explanation {
                hinted: true,
                orders: Vec::new(),
                chosen: None,
            },
        }
    }

    /// Prepares a run by this number of workers, under a policy that lets this module choose the
    /// groups of the tasks and the order of successors.
    pub(crate) fn find_order(&mut self, workers: usize) {
        let Some(finder) = &mut self.finder else {
            let GraphInner { plan, jobs, .. } = self.inner_mut();
            if !plan.is_sorted() {
                plan.sort(&|task| task as u32, &|task| jobs[task].groups().s);
            }
            return;
        };
        if let Some(ranks) = finder.prepare(workers) {
            let inner = self.inner_mut();
            for (job, &rank) in inner.jobs.iter().zip(&ranks) {
                job.set_groups(finder::groups_of(rank, ranks.len()));
            }
            inner.plan.sort(&|task| ranks[task], &|_| 0);
        }
    }

    /// Prepares a run under a policy that uses the declared groups only.
    pub(crate) fn forget_order(&mut self) {
        if self.finder.as_mut().is_some_and(OrderFinder::forget) {
            for job in &self.inner.jobs {
                job.set_groups(Groups::NONE);
            }
        }
        if self.inner.plan.is_sorted() {
            self.inner_mut().plan.unsort();
        }
    }

    /// Sets the task with a future that runs the graph next.
    pub(crate) fn set_creator(&mut self, creator: Creator) {
        self.inner_mut().creator = creator;
    }

    /// Records the time of a run in the found order.
    pub(crate) fn record_time(&mut self, time: Duration) {
        if let Some(finder) = &mut self.finder {
            finder.record(time.as_nanos() as f64);
        }
    }

    /// Begins a run and passes the tasks without dependencies to `give`. `waiter` is the worker
    /// that waits for the run, if a worker waits. If `is_deep`, tasks stay with the worker that
    /// made them ready, because a waiting worker with many nested waits searches only its own
    /// queues.
    ///
    /// The graph must not move or be freed before the latch opens.
    pub(crate) fn begin(
        &mut self,
        waiter: Option<usize>,
        is_deep: bool,
        give: impl FnOnce(&mut dyn Iterator<Item = JobRef>),
    ) -> Arc<Latch> {
        let done = Arc::clone(&self.inner.done);
        // SAFETY: the graph and its flag exist until the run has ended: `outcome` or the drop of the
        // graph ends it for the handles.
        unsafe { self.control.begin(&self.inner.failed) };
        let inner = self.inner_mut();
        if inner.jobs.is_empty() {
            done.open();
            return done;
        }
        done.close();
        inner.waiter = waiter;
        inner.may_redirect = inner.max_groups.1 > 0 && !is_deep;
        inner.skipped.store_mut(0);
        inner.plan.reset();
        // The run may end while the last task is passed on. After that, the graph may be accessed
        // again only when the latch is open.
        let inner = &self.inner;
        give(&mut inner.plan.sources.iter().map(|&source| inner.job(source)));
        done
    }

    /// Returns the result of the run.
    pub(crate) fn outcome(&mut self) -> Result<(), RunError> {
        let is_cancelled = self.control.end();
        let panicked = std::mem::take(&mut *self.inner.panicked.lock());
        let skipped = self.inner.skipped.load(Ordering::Relaxed);
        match panicked.is_empty() {
            true if is_cancelled => Err(RunError::Cancelled { skipped }),
            true => Ok(()),
            false => Err(RunError::Panicked { panicked, skipped }),
        }
    }
}

impl<B> fmt::Debug for Graph<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = self.inner.jobs.len();
        f.debug_struct("Graph")
            .field("tasks", &tasks)
            .finish_non_exhaustive()
    }
}
