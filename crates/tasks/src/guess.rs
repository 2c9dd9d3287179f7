// SPDX-License-Identifier: MIT OR Apache-2.0
//! Temporal groups for tasks that are registered one by one and without any.
//!
//! Nothing is known of such a task but when it came, and maybe where its data lie.
//! So there are three ways: tasks that came one after the other belong together;
//! tasks whose data lie in the same region do; none do. They are tried in turn, and
//! judged by how long tasks run: one in [`SAMPLE`] is timed, and [`SAMPLES`] of them
//! make a trial. Tasks that became ready under one way and run under the next count
//! for the next; a trial is long enough for that not to matter.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::dispatch::Groups;
use crate::pool::LANES;
use crate::sync::Mutex;
use crate::trials::Trials;

/// One task in so many is timed.
pub(crate) const SAMPLE: u64 = 64;
/// Timed tasks of a trial.
const SAMPLES: u32 = 256;
/// Tasks that came one after the other from the same thread, of a group.
const TASKS: u32 = 512;
/// Bytes of a region of data, of a group.
const REGION_BYTES: usize = 1 << 16;

/// What tasks without groups have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Together {
    /// The time at which they were registered.
    Time,
    /// The region in which their data lie.
    Data,
    /// Nothing.
    Nothing,
}

const WAYS: [Together; 3] = [Together::Time, Together::Data, Together::Nothing];

/// Guesses groups, and learns.
#[derive(Debug)]
pub(crate) struct Guess {
    way: AtomicUsize,
    /// Which of this process' it is.
    number: u64,
    /// Groups by time that threads have begun.
    begun: AtomicU64,
    learnt: Mutex<Learnt>,
}

thread_local! {
    /// The group by time that this thread's tasks go into: whose it is, its number, and
    /// how many more it takes. Threads share nothing but the numbers of groups, and what
    /// one of them registers in a row stays together.
    static OPEN: Cell<(u64, u64, u32)> = const { Cell::new((0, 0, 0)) };
}

#[derive(Debug)]
struct Learnt {
    trials: Trials,
    samples: u32,
    ns: u64,
}

impl Default for Guess {
    fn default() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(1);
        let trials = Trials::new(WAYS.len());
        Self {
            way: AtomicUsize::new(trials.way()),
            number: MADE.fetch_add(1, Ordering::Relaxed),
            begun: AtomicU64::new(0),
            learnt: Mutex::new(Learnt {
                trials,
                samples: 0,
                ns: 0,
            }),
        }
    }
}

impl Guess {
    /// Groups for a task that has none, and works on data at that address.
    pub fn groups(&self, data: Option<usize>) -> Groups {
        let lanes = LANES - 1;
        let way = WAYS[self.way.load(Ordering::Relaxed)];
        let group = match (way, data) {
            (Together::Nothing, _) => return Groups::NONE,
            (Together::Data, Some(data)) => data / REGION_BYTES % lanes,
            (Together::Time, _) | (Together::Data, None) => self.by_time() as usize % lanes,
        };
        Groups::new(1 + group as u32, 0)
    }

    fn by_time(&self) -> u64 {
        // A thread that ends may still register from what it leaves behind; nothing here
        // needs to be dropped before that.
        let (of, group, more) = OPEN.get();
        let (group, more) = match of == self.number && more > 0 {
            true => (group, more),
            false => (self.begun.fetch_add(1, Ordering::Relaxed), TASKS),
        };
        OPEN.set((self.number, group, more - 1));
        group
    }

    /// A task that was timed ran so long.
    pub fn ran(&self, ns: u64) {
        let mut learnt = self.learnt.lock();
        learnt.samples += 1;
        learnt.ns += ns;
        if learnt.samples == SAMPLES {
            let mean_ns = learnt.ns as f64 / f64::from(SAMPLES);
            (learnt.samples, learnt.ns) = (0, 0);
            learnt.trials.ran(mean_ns);
            self.way.store(learnt.trials.way(), Ordering::Relaxed);
        }
    }

    /// What tasks without groups are taken to have in common at present.
    pub fn together(&self) -> Together {
        WAYS[self.way.load(Ordering::Relaxed)]
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// Runs tasks that take so long each way; what they are taken to have in common
    /// in the end.
    fn learn(ns: impl Fn(Together) -> u64) -> Together {
        let guess = Guess::default();
        for _ in 0..20 * SAMPLES {
            guess.ran(ns(guess.together()));
        }
        guess.together()
    }

    #[test]
    fn the_way_by_which_tasks_run_fastest_is_learnt() {
        for best in WAYS {
            let ns = |way| if way == best { 100 } else { 150 };
            assert_eq!(learn(ns), best);
        }
    }

    #[test]
    fn neighbours_are_of_one_group() {
        let guess = Guess::default();
        let group = |_| guess.groups(None).t;
        let groups: Vec<u32> = (0..3 * TASKS).map(group).collect();
        assert!(groups.is_sorted() && groups.last() == Some(&3) && groups[0] == 1);
        let of_other = std::thread::scope(|scope| {
            let other = scope.spawn(|| (0..TASKS).map(group).collect::<Vec<u32>>());
            other.join().unwrap()
        });
        assert!(of_other.iter().all(|&group| group == 4));
        let another = Guess::default();
        assert_eq!(another.groups(None).t, 1);
        guess.way.store(1, Ordering::Relaxed);
        let at = |data| guess.groups(Some(data));
        assert_eq!(at(0x12_3456), at(0x12_ffff));
        assert_ne!(at(0x12_3456), at(0x13_3456));
        guess.way.store(2, Ordering::Relaxed);
        assert_eq!(at(0x12_3456), Groups::NONE);
    }
}
