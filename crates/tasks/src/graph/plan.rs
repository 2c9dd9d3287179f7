// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dependencies of a graph in a compact form for running the graph.
//!
//! An empty task takes about 20 ns. The runtime's data per task must therefore be small: reading
//! them takes time, and they displace data of the tasks from the cache. A dependency takes four
//! bytes. A counter of unresolved dependencies takes one byte, or four if a task of the graph has
//! more than 255 dependencies. Workers write the counters and only read the dependencies, so
//! counters are in an array of their own. The counters of 64 tasks declared in succession share a
//! cache line. All counters are reset together between runs.
//!
//! The successors of a task are sorted by increasing preference. Of the successors that become
//! ready, the last runs next on the same worker. The worker queues the other successors, and runs
//! the successor that it queued last first.
//!
//! The unfinished tasks without successors are counted by parts of 256 tasks, so that workers in
//! different parts do not write to the same cache line. The run ends when the last part is
//! finished.
//!
//! A reset takes time linear in the number of tasks, and sorting the successors O(d log d) for d
//! dependencies. Ending a task and resolving a dependency take constant time.

use super::successors::Successors;
use crate::sort;
use crate::sync::{AtomicU8, AtomicU32, Ordering, StoreMut};

/// Number of consecutive tasks in a part of a graph. All sinks of a part, which are its tasks
/// without successors, share one counter.
#[cfg(not(feature = "loom"))]
const PART: usize = 256;
#[cfg(feature = "loom")]
const PART: usize = 2;

/// The number of unresolved dependencies of a task.
pub(super) trait Counter: Sized {
    /// The type that stores a task's number of dependencies, with which the counter begins each
    /// run.
    type Full: Copy + TryFrom<u32>;

    fn new(full: Self::Full) -> Self;

    fn reset(&mut self, full: Self::Full);

    /// Resolves one dependency and returns whether it was the last unresolved dependency of the
    /// task. With `SINGLE_WORKER`, no other thread uses the counter, so a load and a store replace
    /// the atomic decrement.
    fn decrement<const SINGLE_WORKER: bool>(&self) -> bool;
}

macro_rules! counter {
    ($atomic:ty, $full:ty) => {
        impl Counter for $atomic {
            type Full = $full;

            fn new(full: $full) -> Self {
                Self::new(full)
            }

            #[inline(always)]
            fn reset(&mut self, full: $full) {
                self.store_mut(full);
            }

            #[inline(always)]
            fn decrement<const SINGLE_WORKER: bool>(&self) -> bool {
                if SINGLE_WORKER {
                    let left = self.load(Ordering::Relaxed).wrapping_sub(1);
                    self.store(left, Ordering::Relaxed);
                    return left == 0;
                }
                // A thread that reads 1 resolves the last dependency, because all other threads
                // have already decremented the counter. Such a thread needs no atomic write.
                self.load(Ordering::Acquire) == 1 || self.fetch_sub(1, Ordering::AcqRel) == 1
            }
        }
    };
}

counter!(AtomicU8, u8);
counter!(AtomicU32, u32);

/// The counters of all tasks.
#[derive(Debug)]
pub(super) struct Counters<C: Counter> {
    pub left: Box<[C]>,
    full: Box<[C::Full]>,
}

impl<C: Counter> Counters<C> {
    /// Returns `None` if a task has more dependencies than the type can count.
    fn new(waits: &[u32]) -> Option<Self> {
        let full = waits.iter().map(|&waits| C::Full::try_from(waits).ok());
        let full: Box<[C::Full]> = full.collect::<Option<_>>()?;
        let left = full.iter().map(|&full| C::new(full)).collect();
        Some(Self { left, full })
    }

    fn reset(&mut self) {
        for (left, &full) in self.left.iter_mut().zip(&self.full) {
            left.reset(full);
        }
    }
}

/// The counters of a graph, of the smallest type that is large enough.
#[derive(Debug)]
pub(super) enum DependencyCounters {
    Narrow(Counters<AtomicU8>),
    Wide(Counters<AtomicU32>),
}

/// The unfinished sinks (tasks without successors) of one part of the graph, on a cache line of its
/// own.
#[derive(Debug)]
#[repr(align(64))]
struct SinkCounter {
    left: AtomicU32,
    full: u32,
}

/// The dependencies, and the state of the current run.
#[derive(Debug)]
pub(super) struct Plan {
    /// The successors of task `i` are `successors[first[i]..first[i + 1]]`, all of which are valid
    /// task numbers.
    first: Box<[u32]>,
    successors: Box<[u32]>,
    pub pending: DependencyCounters,
    pub sources: Box<[u32]>,
    parts: Box<[SinkCounter]>,
    /// Whether the successors of each task are sorted by preference. If not, they are in declared
    /// order.
    is_sorted: bool,
    /// Number of parts with unfinished sinks.
    open: AtomicU32,
    open_full: u32,
}

impl Plan {
    /// Creates a plan with successors in declared order.
    pub fn new(after: &Successors) -> Self {
        let count = after.count();
        let pending = match Counters::new(&after.waits) {
            Some(counters) => DependencyCounters::Narrow(counters),
            None => match Counters::new(&after.waits) {
                Some(counters) => DependencyCounters::Wide(counters),
                None => unreachable!("a wide counter holds every number of waits"),
            },
        };
        let part = |tasks: std::ops::Range<usize>| {
            let full = tasks.filter(|&task| after.of(task).is_empty()).count() as u32;
            let left = AtomicU32::new(full);
            SinkCounter { left, full }
        };
        let starts = (0..count).step_by(PART);
        let parts: Box<[SinkCounter]> = starts.map(|at| part(at..count.min(at + PART))).collect();
        let is_source = |task: &u32| after.waits[*task as usize] == 0;
        let open_full = parts.iter().filter(|part| part.full > 0).count() as u32;
        Self {
            first: after.first.as_slice().into(),
            successors: after.tasks.as_slice().into(),
            pending,
            sources: (0..count as u32).filter(is_source).collect(),
            parts,
            is_sorted: false,
            open: AtomicU32::new(open_full),
            open_full,
        }
    }

    pub fn is_sorted(&self) -> bool {
        self.is_sorted
    }

    /// Restores the declared order of successors, for a policy with an order of its own.
    pub fn unsort(&mut self) {
        self.is_sorted = false;
        for ends in self.first.windows(2) {
            let successors = &mut self.successors[ends[0] as usize..ends[1] as usize];
            sort::by_key(successors, &u64::from);
        }
    }

    pub fn tasks(&self) -> usize {
        self.first.len() - 1
    }

    /// Returns the successors of a task.
    ///
    /// # Safety
    /// The task exists.
    #[inline(always)]
    pub unsafe fn successors(&self, task: u32) -> &[u32] {
        let task = task as usize;
        debug_assert!(task < self.tasks());
        // SAFETY: the task exists, as the caller guarantees, so `first` has entries for it. All
        // entries of `first` are indices of `successors` or its length.
        unsafe {
            let from = *self.first.get_unchecked(task) as usize;
            let to = *self.first.get_unchecked(task + 1) as usize;
            self.successors.get_unchecked(from..to)
        }
    }

    /// Sorts the successors of each task by increasing preference. Successors in the task's own
    /// spatial group come last, because they find their data or code in the cache. Among these, the
    /// last is the successor with the next higher rank than the task, or with the lowest rank if
    /// all have lower ranks.
    pub fn sort(&mut self, rank: &dyn Fn(usize) -> u32, s: &dyn Fn(usize) -> u32) {
        self.is_sorted = true;
        for (task, ends) in self.first.windows(2).enumerate() {
            let successors = &mut self.successors[ends[0] as usize..ends[1] as usize];
            let (own_rank, own_s) = (rank(task), s(task));
            sort::by_key(successors, &|next| {
                let next = next as usize;
                let later = rank(next).wrapping_sub(own_rank);
                // In descending order of the group, then of the distance.
                !(u64::from(s(next) != own_s) << 32 | u64::from(later))
            });
        }
    }

    /// Resets all counters before a run.
    pub fn reset(&mut self) {
        match &mut self.pending {
            DependencyCounters::Narrow(counters) => counters.reset(),
            DependencyCounters::Wide(counters) => counters.reset(),
        }
        for part in &mut self.parts {
            part.left.store_mut(part.full);
        }
        self.open.store_mut(self.open_full);
    }

    /// Ends a task without successors, and returns whether it was the last task of the run. If it
    /// was the last task, the effects of all other tasks are visible to the caller. If it was not
    /// the last task, another thread may free the plan as soon as this task is counted. The plan is
    /// therefore passed as a pointer instead of a reference.
    ///
    /// # Safety
    /// The plan exists. The task belongs to the plan, has no successors and has not ended in this
    /// run.
    pub unsafe fn ended(plan: *const Self, task: u32) -> bool {
        // SAFETY: the plan exists and the task belongs to it, as the caller guarantees.
        let (part, open) = unsafe { (&(&(*plan).parts)[task as usize / PART], &(*plan).open) };
        // The plan exists while a part of the graph has unfinished sinks, and this thread has not
        // counted its sink yet.
        part.left.fetch_sub(1, Ordering::AcqRel) == 1 && open.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn plan(count: usize, edges: &[(usize, usize)]) -> Plan {
        Plan::new(&Successors::new(count, edges))
    }

    fn of(plan: &Plan, task: u32) -> &[u32] {
        assert!((task as usize) < plan.tasks());
        // SAFETY: the task exists.
        unsafe { plan.successors(task) }
    }

    #[test]
    fn preferred_successors_are_sorted_last() {
        let edges = [(1, 0), (1, 2), (1, 3), (1, 4)];
        let mut plan = plan(5, &edges);
        assert_eq!(of(&plan, 1), [0, 2, 3, 4]);
        plan.sort(&|task| task as u32, &|_| 0);
        assert_eq!(of(&plan, 1), [0, 4, 3, 2], "0 comes round at the end");
        plan.sort(&|task| 9 - task as u32, &|_| 0);
        assert_eq!(of(&plan, 1), [2, 3, 4, 0]);
        plan.sort(&|task| task as u32, &|task| task as u32 % 2);
        assert_eq!(
            of(&plan, 1),
            [0, 4, 2, 3],
            "its own spatial group before all"
        );
        plan.unsort();
        assert_eq!(of(&plan, 1), [0, 2, 3, 4]);
    }

    #[test]
    fn the_last_dependency_makes_a_task_ready_also_after_a_reset() {
        for waits in [3, 255, 256, 1000] {
            let edges: Vec<_> = (0..waits).map(|from| (from, waits)).collect();
            let mut plan = plan(waits + 1, &edges);
            assert_eq!(plan.sources.len(), waits);
            let decrement = |plan: &Plan| match &plan.pending {
                DependencyCounters::Narrow(counters) => counters.left[waits].decrement::<false>(),
                DependencyCounters::Wide(counters) => counters.left[waits].decrement::<true>(),
            };
            for _ in 0..2 {
                assert!((1..waits).all(|_| !decrement(&plan)) && decrement(&plan));
                plan.reset();
            }
            assert_eq!(
                matches!(plan.pending, DependencyCounters::Narrow(_)),
                waits < 256
            );
        }
    }

    #[test]
    fn the_run_ends_with_the_last_sink() {
        let edges: Vec<_> = (0..2000).step_by(2).map(|from| (from, from + 1)).collect();
        let mut plan = plan(2000, &edges);
        for _ in 0..2 {
            let sinks = (1..2000).step_by(2);
            // SAFETY: the plan exists, and each of its sinks ends once.
            let ended: Vec<bool> = sinks
                .map(|sink| unsafe { Plan::ended(&raw const plan, sink) })
                .collect();
            assert_eq!(ended.iter().position(|&ended| ended), Some(999));
            plan.reset();
        }
    }
}

#[cfg(all(test, feature = "loom"))]
mod interleavings {
    use std::sync::Arc;

    use loom::cell::UnsafeCell;
    use loom::thread;

    use super::*;
    use crate::latch::Latch;

    /// Two workers run the sinks of a graph that has two parts. After the run has ended, the
    /// waiting thread has exclusive access to the graph.
    #[test]
    fn a_finished_run_leaves_the_graph_to_the_waiting_thread() {
        struct Run {
            plan: Plan,
            /// Represents the data that workers read and the waiting thread may change.
            graph: UnsafeCell<()>,
            done: Arc<Latch>,
        }
        loom::model(|| {
            let run = loom::sync::Arc::new(Run {
                plan: Plan::new(&Successors::new(3, &[])),
                graph: UnsafeCell::new(()),
                done: Arc::default(),
            });
            let worker = |tasks: &'static [u32]| {
                let run = loom::sync::Arc::clone(&run);
                move || {
                    for &task in tasks {
                        run.graph.with(|_| ());
                        // SAFETY: the plan exists, and each of its sinks ends once.
                        if unsafe { Plan::ended(&raw const run.plan, task) } {
                            let done = Arc::clone(&run.done);
                            done.open();
                        }
                    }
                }
            };
            let workers = [thread::spawn(worker(&[0, 2])), thread::spawn(worker(&[1]))];
            run.done.wait();
            run.graph.with_mut(|_| ());
            workers
                .into_iter()
                .for_each(|worker| worker.join().unwrap());
        });
    }

    /// Two workers resolve the dependencies of a task. Exactly one worker runs that task, and it
    /// sees the effects of both workers.
    #[test]
    fn exactly_one_thread_resolves_the_last_dependency() {
        fn explore<C: Counter + Send + Sync + 'static>(full: C::Full) {
            let counter =
                loom::sync::Arc::new((C::new(full), [UnsafeCell::new(()), UnsafeCell::new(())]));
            let resolve = |of: usize| {
                let counter = loom::sync::Arc::clone(&counter);
                move || {
                    counter.1[of].with_mut(|_| ());
                    let is_last = counter.0.decrement::<false>();
                    if is_last {
                        counter.1.iter().for_each(|data| data.with_mut(|_| ()));
                    }
                    is_last
                }
            };
            let other = thread::spawn(resolve(0));
            let own = resolve(1)();
            assert!(own != other.join().unwrap());
        }
        loom::model(|| explore::<AtomicU8>(2));
        loom::model(|| explore::<AtomicU32>(2));
    }
}
