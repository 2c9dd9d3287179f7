// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guesses temporal groups for tasks that are registered without groups.
//!
//! The runtime knows the time at which a task was registered, and sometimes the address of the
//! task's data. Three groupings are possible:
//!
//! - by time: 512 tasks that a thread registers in succession form a group;
//! - by data: tasks with data in the same region of 64 KiB form a group;
//! - none: tasks have no group.
//!
//! `trials` compares the groupings by the run times of tasks, and selects the fastest. One task in
//! 64 ([`SAMPLE`]) is timed. The mean of 256 timed tasks ([`SAMPLES`]) is the result of one trial,
//! and then `trials` selects the grouping of the next trial. The baseline is the grouping by time.
//! A task that became ready under one grouping may run during the trial of the next grouping, and
//! is then counted there. Compared with the length of a trial, such tasks are few. The first choice
//! follows after 9 trials, which are about 150,000 tasks. A guess takes constant time and writes no
//! data that all threads share, except once per group by time. Groups share 255 numbers, in cyclic
//! order.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::dispatch::Groups;
use crate::pool::T_QUEUES;
use crate::sync::Mutex;
use crate::trials::AlternativeTrials;

/// Of this number of tasks, one task is timed.
pub(crate) const SAMPLE: u64 = 64;
/// Number of timed tasks per trial.
const SAMPLES: u32 = 256;
/// Number of tasks in a group by time. One thread registered these tasks in succession.
const TASKS: u32 = 512;
/// Size in bytes of the regions for groups by data.
const REGION_BYTES: usize = 1 << 16;

/// The rule by which the runtime groups tasks without declared groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// Tasks of a group have neighbouring times of registration.
    Time,
    /// Tasks of a group have data in the same region of memory.
    Data,
    /// The tasks have no groups.
    None,
}

const GROUPINGS: [Grouping; 3] = [Grouping::Time, Grouping::Data, Grouping::None];

/// Guesses groups, and selects the grouping with the shortest run times of tasks.
#[derive(Debug)]
pub(crate) struct GroupGuesser {
    grouping: AtomicUsize,
    /// A number that identifies this guesser in the process, and thus the thread-local groups that
    /// belong to it.
    number: u64,
    /// The number of groups by time that threads have begun.
    begun: AtomicU64,
    measured: Mutex<Measurements>,
}

thread_local! {
    /// The group by time to which this thread adds tasks: the number of the [`GroupGuesser`], the
    /// group, and the number of tasks that still fit into the group. The cell is thread-local, so
    /// that tasks that one thread registers in succession are in one group.
    static OPEN_GROUP: Cell<(u64, u32, u32)> = const { Cell::new((0, 0, 0)) };
}

#[derive(Debug)]
struct Measurements {
    trials: AlternativeTrials,
    samples: u32,
    ns: u64,
}

impl Default for GroupGuesser {
    fn default() -> Self {
        static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);
        // The times are means over many tasks.
        let trials = AlternativeTrials::new(GROUPINGS.len(), 0).without_short_runs();
        Self {
            grouping: AtomicUsize::new(trials.current()),
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            begun: AtomicU64::new(0),
            measured: Mutex::new(Measurements {
                trials,
                samples: 0,
                ns: 0,
            }),
        }
    }
}

/// Returns the group with this number in cyclic order.
fn group_of(number: usize) -> u32 {
    1 + (number % (T_QUEUES - 1)) as u32
}

impl GroupGuesser {
    /// Returns groups for a task that has none. `data` is the address of the task's data, if known.
    #[inline]
    pub fn groups(&self, data: Option<usize>) -> Groups {
        let t = match (GROUPINGS[self.grouping.load(Ordering::Relaxed)], data) {
            (Grouping::None, _) => return Groups::NONE,
            (Grouping::Data, Some(data)) => group_of(data / REGION_BYTES),
            (Grouping::Time, _) | (Grouping::Data, None) => self.by_time(),
        };
        Groups::new(t, 0)
    }

    #[inline]
    fn by_time(&self) -> u32 {
        // A destructor of a thread-local value may register tasks while its thread ends. This cell
        // has no destructor, so it can still be used at that time.
        let (guesser, group, more) = OPEN_GROUP.get();
        let (group, more) = match guesser == self.number && more > 0 {
            true => (group, more),
            false => (self.begin_group(), TASKS),
        };
        OPEN_GROUP.set((self.number, group, more - 1));
        group
    }

    #[cold]
    fn begin_group(&self) -> u32 {
        group_of(self.begun.fetch_add(1, Ordering::Relaxed) as usize)
    }

    /// Records the run time of a timed task.
    pub fn record(&self, ns: u64) {
        let mut measured = self.measured.lock();
        measured.samples += 1;
        measured.ns += ns;
        if measured.samples == SAMPLES {
            let mean_ns = measured.ns as f64 / f64::from(SAMPLES);
            (measured.samples, measured.ns) = (0, 0);
            measured.trials.record(mean_ns);
            self.grouping
                .store(measured.trials.current(), Ordering::Relaxed);
        }
    }

    /// Returns the grouping that is in use at present.
    pub fn current(&self) -> Grouping {
        GROUPINGS[self.grouping.load(Ordering::Relaxed)]
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// Simulates tasks whose run time depends on the grouping, and returns the grouping that is
    /// chosen after all trials.
    fn learn(ns: impl Fn(Grouping) -> u64) -> Grouping {
        let guess = GroupGuesser::default();
        for _ in 0..20 * SAMPLES {
            guess.record(ns(guess.current()));
        }
        guess.current()
    }

    #[test]
    fn the_grouping_with_the_fastest_tasks_is_chosen() {
        for best in GROUPINGS {
            let ns = |grouping| if grouping == best { 100 } else { 150 };
            assert_eq!(learn(ns), best);
        }
    }

    #[test]
    fn consecutive_tasks_of_a_thread_share_a_group() {
        let guess = GroupGuesser::default();
        let group = |_| guess.groups(None).t;
        let groups: Vec<u32> = (0..3 * TASKS).map(group).collect();
        assert!(groups.is_sorted() && groups.last() == Some(&3) && groups[0] == 1);
        let of_other = std::thread::scope(|scope| {
            let other = scope.spawn(|| (0..TASKS).map(group).collect::<Vec<u32>>());
            other.join().unwrap()
        });
        assert!(of_other.iter().all(|&group| group == 4));
        let another = GroupGuesser::default();
        assert_eq!(another.groups(None).t, 1);
        guess.grouping.store(1, Ordering::Relaxed);
        let at = |data| guess.groups(Some(data));
        assert_eq!(at(0x12_3456), at(0x12_ffff));
        assert_ne!(at(0x12_3456), at(0x13_3456));
        guess.grouping.store(2, Ordering::Relaxed);
        assert_eq!(at(0x12_3456), Groups::NONE);
    }
}
