// SPDX-License-Identifier: MIT OR Apache-2.0
//! A graph as it is run: who waits for whom, packed.
//!
//! An empty task is some twenty nanoseconds, so that what is looked at for each
//! decides what it costs, also in lines that its caches hold for nobody else: four
//! bytes a dependency, and a counter of one byte where none waits for more than 255
//! others. Counters stand in a row of their own, as they are what workers write: 64
//! tasks that were declared one after the other share a line. They are set back all at
//! once between runs.
//!
//! A task's successors stand in the order in which they are wanted least: of those that
//! are ready by it the last one runs next on the same worker, and those before it wait
//! in its lanes, from which the last is taken first.

use std::cmp::Reverse;

use super::builder::Successors;
use crate::sync::{AtomicU8, AtomicU32, Ordering, Put};

/// Tasks whose last ones are counted together.
#[cfg(not(feature = "loom"))]
const PART: usize = 256;
#[cfg(feature = "loom")]
const PART: usize = 2;

/// What a task still waits for.
pub(super) trait Counter: Sized {
    /// What it waits for before a run.
    type Full: Copy + TryFrom<u32>;

    fn new(full: Self::Full) -> Self;

    fn reset(&mut self, full: Self::Full);

    /// One thing that it waits for has been done; whether that was the last. `ALONE`:
    /// by the only thread that there is for it.
    fn down<const ALONE: bool>(&self) -> bool;
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
                self.put(full);
            }

            #[inline(always)]
            fn down<const ALONE: bool>(&self) -> bool {
                if ALONE {
                    let left = self.load(Ordering::Relaxed).wrapping_sub(1);
                    self.store(left, Ordering::Relaxed);
                    return left == 0;
                }
                // Who finds 1 is the last: the others have been here before.
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
    /// `None`: some task waits for more than can be counted so.
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

/// Counters as small as will do.
#[derive(Debug)]
pub(super) enum Pending {
    Narrow(Counters<AtomicU8>),
    Wide(Counters<AtomicU32>),
}

/// Tasks without successors that have not run, of a part of the graph; on a line of its
/// own.
#[derive(Debug)]
#[repr(align(64))]
struct Part {
    left: AtomicU32,
    full: u32,
}

/// Who waits for whom, and who still waits in this run.
#[derive(Debug)]
pub(super) struct Plan {
    /// Task `i`'s successors are those from `first[i]` to `first[i + 1]`, all of which
    /// are tasks.
    first: Box<[u32]>,
    successors: Box<[u32]>,
    pub pending: Pending,
    pub sources: Box<[u32]>,
    parts: Box<[Part]>,
    /// Whether successors stand as they are wanted; else as they were declared.
    is_sorted: bool,
    /// Parts with tasks of which some have not run.
    open: AtomicU32,
    open_full: u32,
}

impl Plan {
    /// Successors stand as they were declared.
    pub fn new(after: &Successors) -> Self {
        let count = after.count();
        let pending = match Counters::new(&after.waits) {
            Some(counters) => Pending::Narrow(counters),
            None => match Counters::new(&after.waits) {
                Some(counters) => Pending::Wide(counters),
                None => unreachable!("what waits are counted in"),
            },
        };
        let part = |tasks: std::ops::Range<usize>| {
            let full = tasks.filter(|&task| after.of(task).is_empty()).count() as u32;
            let left = AtomicU32::new(full);
            Part { left, full }
        };
        let starts = (0..count).step_by(PART);
        let parts: Box<[Part]> = starts.map(|at| part(at..count.min(at + PART))).collect();
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

    /// Puts the successors of each task as they were declared, for a policy that has an
    /// order of its own.
    pub fn unsort(&mut self) {
        self.is_sorted = false;
        for ends in self.first.windows(2) {
            self.successors[ends[0] as usize..ends[1] as usize].sort_unstable();
        }
    }

    pub fn tasks(&self) -> usize {
        self.first.len() - 1
    }

    /// The task's successors.
    ///
    /// # Safety
    /// There is such a task.
    #[inline(always)]
    pub unsafe fn successors(&self, task: u32) -> &[u32] {
        let task = task as usize;
        debug_assert!(task < self.tasks());
        // SAFETY: the caller's promise, and that of the fields.
        unsafe {
            let from = *self.first.get_unchecked(task) as usize;
            let to = *self.first.get_unchecked(task + 1) as usize;
            self.successors.get_unchecked(from..to)
        }
    }

    /// Puts the successors of each task in order: those last that are in its own
    /// spatial group, and so find their data or code where it leaves them, and of these
    /// that one last whose rank is the next after its own, round at the end.
    pub fn sort(&mut self, rank: &dyn Fn(usize) -> u32, s: &dyn Fn(usize) -> u32) {
        self.is_sorted = true;
        for (task, ends) in self.first.windows(2).enumerate() {
            let successors = &mut self.successors[ends[0] as usize..ends[1] as usize];
            let (own_rank, own_s) = (rank(task), s(task));
            successors.sort_unstable_by_key(|&next| {
                let next = next as usize;
                let later = rank(next).wrapping_sub(own_rank);
                Reverse((s(next) != own_s, later))
            });
        }
    }

    /// Before a run.
    pub fn reset(&mut self) {
        match &mut self.pending {
            Pending::Narrow(counters) => counters.reset(),
            Pending::Wide(counters) => counters.reset(),
        }
        for part in &mut self.parts {
            part.left.put(part.full);
        }
        self.open.put(self.open_full);
    }

    /// A task without successors has run; whether that was the last of all. What the
    /// others have done has been seen then. Else the plan may be gone as soon as it has
    /// been counted, which is why none is borrowed.
    ///
    /// # Safety
    /// The plan lives, and the task is one of it that has not ended in this run.
    pub unsafe fn ended(plan: *const Self, task: u32) -> bool {
        // SAFETY: the caller's promise.
        let (part, open) = unsafe { (&(&(*plan).parts)[task as usize / PART], &(*plan).open) };
        // While a part is open the plan lives.
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
        // SAFETY: there is such a task.
        unsafe { plan.successors(task) }
    }

    #[test]
    fn what_is_wanted_next_stands_last() {
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
    fn a_task_is_ready_by_the_last_and_again_after_a_reset() {
        for waits in [3, 255, 256, 1000] {
            let edges: Vec<_> = (0..waits).map(|from| (from, waits)).collect();
            let mut plan = plan(waits + 1, &edges);
            assert_eq!(plan.sources.len(), waits);
            let down = |plan: &Plan| match &plan.pending {
                Pending::Narrow(counters) => counters.left[waits].down::<false>(),
                Pending::Wide(counters) => counters.left[waits].down::<true>(),
            };
            for _ in 0..2 {
                assert!((1..waits).all(|_| !down(&plan)) && down(&plan));
                plan.reset();
            }
            assert_eq!(matches!(plan.pending, Pending::Narrow(_)), waits < 256);
        }
    }

    #[test]
    fn the_run_ends_with_the_last_of_those_without_successors() {
        let edges: Vec<_> = (0..2000).step_by(2).map(|from| (from, from + 1)).collect();
        let mut plan = plan(2000, &edges);
        for _ in 0..2 {
            let sinks = (1..2000).step_by(2);
            // SAFETY: it lives, and each of its tasks ends once.
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

    /// Two workers run what nobody waits for, in two parts of the graph. Whoever waits
    /// for the run has the graph to himself when it has ended, and it ends.
    #[test]
    fn who_has_waited_for_a_run_has_the_graph_to_himself() {
        struct Run {
            plan: Plan,
            /// Stands for all that workers look at and whoever waits may change.
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
                        // SAFETY: it lives, and each of its tasks ends once.
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

    /// Two workers resolve what a task waits for: one of them has it then, and has seen
    /// what both did before.
    #[test]
    fn the_last_of_those_that_a_task_waits_for_has_it() {
        fn explore<C: Counter + Send + Sync + 'static>(full: C::Full) {
            let counter =
                loom::sync::Arc::new((C::new(full), [UnsafeCell::new(()), UnsafeCell::new(())]));
            let resolve = |of: usize| {
                let counter = loom::sync::Arc::clone(&counter);
                move || {
                    counter.1[of].with_mut(|_| ());
                    let is_last = counter.0.down::<false>();
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
