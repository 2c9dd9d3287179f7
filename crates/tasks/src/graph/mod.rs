// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs of tasks that are declared once and run again and again.
//!
//! A task counts what it waits for down to 0, and is ready. Counters are set back before
//! each run, all at once (`plan`). The run has ended when all tasks without successors
//! have run: every other task has run before one of these. What a worker does with a
//! task that is ready stands in `chain`.

mod builder;
mod chain;
mod finder;
mod order;
mod plan;

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use builder::GraphBuilder;
use builder::Successors;
use finder::Finder;
pub use finder::{Explanation, Tried};
pub use order::Order;
use plan::Plan;

use crate::dispatch::Groups;
use crate::error::{Panicked, RunError};
use crate::job::{Job, JobRef, Kind};
use crate::latch::Latch;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, Put};

#[repr(C)]
struct Inner<B> {
    /// What its jobs point to, and by that to all of this.
    kind: Kind,
    /// By task.
    jobs: Box<[Job]>,
    plan: Plan,
    /// The largest numbers of groups, temporal and spatial.
    most: (u32, u32),
    /// Tasks may have to be sent elsewhere by their spatial groups.
    sends: bool,
    body: B,
    done: Arc<Latch>,
    /// The worker that waits for the run, if one does.
    waiter: Option<usize>,
    /// A task has panicked: no other is run.
    failed: AtomicBool,
    panicked: Mutex<Vec<Panicked>>,
    skipped: AtomicU64,
}

// SAFETY: the link of a job is its holder's alone, and points to other jobs only while
// they are ready; all else may be sent where the body may.
unsafe impl<B: Send> Send for Inner<B> {}
// SAFETY: as above; bodies are called by many threads at once only where they may be.
unsafe impl<B: Sync> Sync for Inner<B> {}

impl<B> Inner<B> {
    /// The job of a task, which is ready and nobody else's.
    fn job(&self, task: u32) -> JobRef {
        // SAFETY: a job outlives the run, and becomes ready once in it.
        unsafe { JobRef::new(NonNull::from(&self.jobs[task as usize])) }
    }

    /// The task of one of its jobs.
    fn task(&self, job: &JobRef) -> u32 {
        let offset = job.as_ptr().as_ptr().addr() - self.jobs.as_ptr().addr();
        (offset / size_of::<Job>()) as u32
    }
}

/// Tasks that can be run, as often as wanted.
pub struct Graph<B> {
    /// Pointed to by its own nodes, so not in a box, which may have but one pointer.
    inner: Arc<Inner<B>>,
    /// Where tasks have no groups.
    finder: Option<Finder>,
}

impl<B: Fn(usize) + Sync> Graph<B> {
    fn new(groups: &[Groups], after: &Successors, body: B) -> Self {
        let most = groups
            .iter()
            .fold((0, 0), |(t, s), groups| (t.max(groups.t), s.max(groups.s)));
        let inner = Arc::new_cyclic(|inner: &Weak<Inner<B>>| {
            // SAFETY: to a place that is there already. What is to be there is there
            // when jobs are run, and does not move.
            let kind = unsafe { NonNull::new_unchecked(inner.as_ptr().cast_mut()) }.cast();
            Inner {
                kind: Kind {
                    run: chain::run::<B>,
                },
                jobs: groups
                    .iter()
                    .map(|&groups| Job::new(kind, groups))
                    .collect(),
                plan: Plan::new(after),
                most,
                sends: false,
                body,
                done: Arc::default(),
                waiter: None,
                failed: AtomicBool::new(false),
                panicked: Mutex::default(),
                skipped: AtomicU64::new(0),
            }
        });
        Self {
            inner,
            finder: None,
        }
    }

    /// All of it, for whoever has the graph to itself, between two runs.
    fn inner_mut(&mut self) -> &mut Inner<B> {
        match Arc::get_mut(&mut self.inner) {
            Some(inner) => inner,
            None => unreachable!("a graph has one owner, and tasks know it by pointers"),
        }
    }

    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.inner.jobs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.inner.jobs.is_empty()
    }

    /// The first task whose groups are not below these numbers.
    pub(crate) fn outside(&self, (t_groups, s_groups): (u32, u32)) -> Option<RunError> {
        let (most_t, most_s) = self.inner.most;
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

    /// Why tasks are run in the order in which they are, as far as their
    /// dependencies leave a choice.
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

    /// Before a run by so many workers whose policy leaves it to us which tasks
    /// belong together, and in which order they are gone through.
    pub(crate) fn find_order(&mut self, workers: usize) {
        let Some(finder) = &mut self.finder else {
            let Inner { plan, jobs, .. } = self.inner_mut();
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

    /// Before a run by a policy that takes groups as they are given.
    pub(crate) fn forget_order(&mut self) {
        if self.finder.as_mut().is_some_and(Finder::forget) {
            for job in &self.inner.jobs {
                job.set_groups(Groups::NONE);
            }
        }
        if self.inner.plan.is_sorted() {
            self.inner_mut().plan.unsort();
        }
    }

    /// A run for which an order was found took that long.
    pub(crate) fn ran_for(&mut self, time: Duration) {
        if let Some(finder) = &mut self.finder {
            finder.ran(time.as_nanos() as f64);
        }
    }

    /// Begins a run, for which that worker waits, if any does: gives each task that
    /// waits for nothing to `give`. Tasks stay with who made them ready if the waiter
    /// `is_deep`, and so would not look for them where they are sent. The graph must
    /// stay where it is until the latch opens.
    pub(crate) fn begin(
        &mut self,
        waiter: Option<usize>,
        is_deep: bool,
        give: impl Fn(JobRef),
    ) -> Arc<Latch> {
        let inner = self.inner_mut();
        let done = Arc::clone(&inner.done);
        if inner.jobs.is_empty() {
            done.open();
            return done;
        }
        done.close();
        inner.waiter = waiter;
        inner.sends = inner.most.1 > 0 && !is_deep;
        inner.failed.store(false, Ordering::Relaxed);
        inner.skipped.put(0);
        inner.plan.reset();
        // The last of these may be the last there is, after which the graph is only
        // ours again when the latch is open.
        let inner = &self.inner;
        for &source in &inner.plan.sources {
            give(inner.job(source));
        }
        done
    }

    /// How a run has ended.
    pub(crate) fn outcome(&mut self) -> Result<(), RunError> {
        let panicked = std::mem::take(&mut *self.inner.panicked.lock());
        match panicked.is_empty() {
            true => Ok(()),
            false => Err(RunError::Panicked {
                panicked,
                skipped: self.inner.skipped.load(Ordering::Relaxed),
            }),
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
