// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs of tasks that are declared once and run again and again.
//!
//! A task counts what it waits for down to 0, and is ready. When it runs it sets
//! its counter back first, which nobody touches again before the next run: all
//! that it waits for have counted it down, and each does so once a run. So a graph
//! needs no preparation between two runs.
//!
//! The run has ended when all tasks without successors have run: every other task
//! has run before one of these. Whoever runs a task touches nothing of the graph
//! after its last dependency has been resolved, or, where it has none, after it has
//! counted itself off: the graph may be gone by then.

mod builder;
mod finder;
mod order;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use builder::GraphBuilder;
use builder::Successors;
use finder::Finder;
pub use finder::{Explanation, Tried};
pub use order::Order;

use crate::dispatch::Groups;
use crate::error::{Panicked, RunError, message};
use crate::job::{Job, JobRef};
use crate::latch::Latch;
use crate::worker::Worker;

/// A task of a graph.
#[repr(C)]
#[derive(Debug)]
struct Node {
    job: Job,
    /// The graph's `Inner<B>`; written once, before anything runs.
    graph: AtomicPtr<()>,
    /// What it still waits for in this run.
    pending: AtomicU32,
    /// What it waits for.
    waits: u32,
    /// Its successors, from and to.
    from: u32,
    to: u32,
    index: u32,
    /// Where it stands in the order that is wished for; written between runs.
    rank: AtomicU32,
}

// SAFETY: the link of a job is its holder's alone; all else is atomic or never
// written after the graph was made.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

struct Inner<B> {
    nodes: Box<[Node]>,
    successors: Box<[u32]>,
    sources: Box<[u32]>,
    sinks: u32,
    /// The largest numbers of groups, temporal and spatial.
    most: (u32, u32),
    body: B,
    /// Sinks that have not run.
    left: AtomicU32,
    done: Arc<Latch>,
    /// A task has panicked: no other is run.
    failed: AtomicBool,
    panicked: Mutex<Vec<Panicked>>,
    skipped: AtomicU64,
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
        let node = |index: usize| Node {
            job: Job::new(run::<B>, groups[index]),
            graph: AtomicPtr::default(),
            pending: AtomicU32::new(after.waits[index]),
            waits: after.waits[index],
            from: after.first[index],
            to: after.first[index + 1],
            index: index as u32,
            rank: AtomicU32::new(index as u32),
        };
        let tasks = 0..after.count();
        let is_source = |task: &u32| after.waits[*task as usize] == 0;
        let inner = Arc::new(Inner {
            nodes: tasks.clone().map(node).collect(),
            successors: after.tasks.clone().into(),
            sources: (0..after.count() as u32).filter(is_source).collect(),
            sinks: tasks.filter(|&task| after.of(task).is_empty()).count() as u32,
            most: groups
                .iter()
                .fold((0, 0), |(t, s), groups| (t.max(groups.t), s.max(groups.s))),
            body,
            left: AtomicU32::new(0),
            done: Arc::default(),
            failed: AtomicBool::new(false),
            panicked: Mutex::default(),
            skipped: AtomicU64::new(0),
        });
        let graph = Arc::as_ptr(&inner).cast_mut().cast();
        for node in &inner.nodes {
            node.graph.store(graph, Ordering::Relaxed);
        }
        Self {
            inner,
            finder: None,
        }
    }

    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.inner.nodes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.inner.nodes.is_empty()
    }

    /// The first task whose groups are not below these numbers.
    pub(crate) fn outside(&self, (t_groups, s_groups): (u32, u32)) -> Option<RunError> {
        let (most_t, most_s) = self.inner.most;
        if most_t < t_groups && most_s < s_groups {
            return None;
        }
        let is_outside = |groups: Groups| groups.t >= t_groups || groups.s >= s_groups;
        let mut all = self.inner.nodes.iter().map(|node| node.job.groups());
        let task = all.position(is_outside)?;
        Some(RunError::Groups {
            task,
            groups: self.inner.nodes[task].job.groups(),
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
    /// belong together.
    pub(crate) fn find_order(&mut self, workers: usize) {
        let Some(ranks) = self
            .finder
            .as_mut()
            .and_then(|finder| finder.prepare(workers))
        else {
            return;
        };
        for (node, &rank) in self.inner.nodes.iter().zip(&ranks) {
            node.rank.store(rank, Ordering::Relaxed);
            node.job.set_groups(finder::groups_of(rank, ranks.len()));
        }
    }

    /// Before a run by a policy that takes groups as they are given.
    pub(crate) fn forget_order(&mut self) {
        if !self.finder.as_mut().is_some_and(Finder::forget) {
            return;
        }
        for node in &self.inner.nodes {
            node.job.set_groups(Groups::NONE);
        }
    }

    /// A run for which an order was found took that long.
    pub(crate) fn ran_for(&mut self, time: Duration) {
        if let Some(finder) = &mut self.finder {
            finder.ran(time.as_nanos() as f64);
        }
    }

    /// Begins a run: gives each task that waits for nothing to `give`. The graph
    /// must stay where it is until the latch opens.
    pub(crate) fn begin(&mut self, mut give: impl FnMut(JobRef)) -> Arc<Latch> {
        let inner = &self.inner;
        let done = Arc::clone(&inner.done);
        if inner.nodes.is_empty() {
            done.open();
            return done;
        }
        done.close();
        inner.failed.store(false, Ordering::Relaxed);
        inner.skipped.store(0, Ordering::Relaxed);
        inner.left.store(inner.sinks, Ordering::Relaxed);
        for &source in &inner.sources {
            give(inner.nodes[source as usize].job());
        }
        done
    }

    /// How a run has ended.
    pub(crate) fn outcome(&mut self) -> Result<(), RunError> {
        let panicked = std::mem::take(&mut *self.inner.panicked());
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
        let tasks = self.inner.nodes.len();
        f.debug_struct("Graph")
            .field("tasks", &tasks)
            .finish_non_exhaustive()
    }
}

/// How far a successor is from the task that made it ready: whether it is in another
/// spatial group, so that it will not find its data or code where this one leaves
/// them; and how much later in the order it stands, round at the end.
type Distance = (bool, u32);

impl Node {
    fn distance(&self, successor: &Self) -> Distance {
        let rank = |node: &Self| node.rank.load(Ordering::Relaxed);
        let elsewhere = successor.job.groups().s != self.job.groups().s;
        (elsewhere, rank(successor).wrapping_sub(rank(self)))
    }

    /// The task, which is ready and nobody else's.
    fn job(&self) -> JobRef {
        // SAFETY: a node outlives the run, and becomes ready once in it. The pointer
        // is to the whole node, whose head the job is.
        unsafe { JobRef::new(NonNull::from(self).cast()) }
    }

    /// One thing that it waits for has been done; whether that was the last.
    fn resolve(&self, is_alone: bool) -> bool {
        if is_alone {
            let left = self.pending.load(Ordering::Relaxed) - 1;
            self.pending.store(left, Ordering::Relaxed);
            return left == 0;
        }
        // Who finds 1 is the last: the others have been here before.
        self.pending.load(Ordering::Acquire) == 1
            || self.pending.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl<B: Fn(usize) + Sync> Inner<B> {
    fn panicked(&self) -> MutexGuard<'_, Vec<Panicked>> {
        self.panicked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, index: u32) {
        if self.failed.load(Ordering::Relaxed) {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // What the body leaves behind when it panics is its owner's business, who
        // is told.
        let called = catch_unwind(AssertUnwindSafe(|| (self.body)(index as usize)));
        if let Err(panic) = called {
            self.failed.store(true, Ordering::Relaxed);
            self.panicked().push(Panicked {
                task: u64::from(index),
                message: message(panic),
            });
        }
    }

    /// Resolves what waited for that task; of those that are ready now, the one that
    /// is to run next here.
    fn resolve(&self, node: &Node, worker: &Worker<'_>) -> Option<JobRef> {
        let is_alone = worker.is_alone();
        let mut next: Option<(Distance, JobRef)> = None;
        for &successor in &self.successors[node.from as usize..node.to as usize] {
            let successor = &self.nodes[successor as usize];
            if !successor.resolve(is_alone) {
                continue;
            }
            let job = successor.job();
            let distance = node.distance(successor);
            let is_nearer = next.as_ref().is_none_or(|(nearest, _)| distance < *nearest);
            match is_nearer && worker.keeps(&job) {
                true => {
                    if let Some((_, before)) = next.replace((distance, job)) {
                        worker.ready(before);
                    }
                }
                false => worker.ready(job),
            }
        }
        next.map(|(_, job)| job)
    }
}

/// Runs the task of a node.
///
/// # Safety
/// The job is the head of a node of a graph with that kind of body.
unsafe fn run<B: Fn(usize) + Sync>(job: JobRef, worker: &Worker<'_>) -> Option<JobRef> {
    // SAFETY: the caller's promise; the node lives until the graph's run has ended,
    // which takes this very task.
    let node = unsafe { job.as_ptr().cast::<Node>().as_ref() };
    let graph = node.graph.load(Ordering::Relaxed).cast_const();
    // SAFETY: it was set when the graph was made, which stays where it is, and
    // lives as the node does.
    let graph = unsafe { &*graph.cast::<Inner<B>>() };
    worker.trace(u64::from(node.index), &node.job, || graph.call(node.index));
    node.pending.store(node.waits, Ordering::Relaxed);
    if node.from < node.to {
        return graph.resolve(node, worker);
    }
    // Every other sink's work is to be seen by whoever waits for the run.
    if graph.left.fetch_sub(1, Ordering::AcqRel) == 1 {
        let done = Arc::clone(&graph.done);
        done.open();
    }
    None
}
