// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of the work of each worker: tasks, steals, sleeps and time asleep. Only the worker
//! itself writes its counters. Any thread may read the counters at any time, without stopping the
//! worker. An update is a relaxed load and store, so it costs about as much as an update of an
//! ordinary variable. Reading the counters of all workers takes time linear in the number of
//! workers. The counts of different fields may be from slightly different times.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::places::WorkerDistance;

/// The counters of a worker. Only this worker writes them; any thread may read them. The counters
/// of a worker share no cache line with other data.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct AtomicWorkerCounters {
    /// Tasks run, except stolen functions of `join`.
    pub tasks: RelaxedCounter,
    /// Functions of `join` that were run as tasks. Their number depends on the workers.
    pub forks: RelaxedCounter,
    pub steals: [RelaxedCounter; WorkerDistance::ALL.len()],
    pub outside: RelaxedCounter,
    pub sent: RelaxedCounter,
    pub group_moves: RelaxedCounter,
    pub sleeps: RelaxedCounter,
    pub asleep: SleepTime,
}

/// A counter that a single thread writes and any thread reads.
#[derive(Debug, Default)]
pub(crate) struct RelaxedCounter(AtomicU64);

impl RelaxedCounter {
    /// Adds to the counter. Only the counter's worker calls this function, so load and store need
    /// not be one atomic operation.
    #[inline]
    pub fn add(&self, more: u64) {
        let more = self.get().wrapping_add(more);
        self.0.store(more, Ordering::Relaxed);
    }

    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The total time for which a thread has slept, including a sleep in progress.
///
/// The time is stored in one word, so that a reader gets a consistent value with one load. The
/// lowest bit of the word is set while the thread sleeps.
///
/// - Awake, the word is twice the total time slept.
/// - Asleep, the word is 2 * (time slept before - time at which the current sleep began) + 1.
///   Adding twice the current time therefore gives 2 * total time slept + 1.
#[derive(Debug, Default)]
pub(crate) struct SleepTime(AtomicU64);

/// Returns nanoseconds since the first call in this process.
fn now_ns() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

impl SleepTime {
    /// Records that the thread begins to sleep.
    pub fn begin(&self) {
        self.begin_at(now_ns());
    }

    /// Records that the thread has woken.
    pub fn end(&self) {
        self.end_at(now_ns());
    }

    fn begin_at(&self, now: u64) {
        let before = self.0.load(Ordering::Relaxed);
        self.0
            .store(before.wrapping_sub(now << 1) | 1, Ordering::Relaxed);
    }

    fn end_at(&self, now: u64) {
        let before = self.0.load(Ordering::Relaxed);
        self.0
            .store(before.wrapping_add(now << 1) & !1, Ordering::Relaxed);
    }

    fn ns_at(&self, now: impl FnOnce() -> u64) -> u64 {
        let word = self.0.load(Ordering::Relaxed);
        match word & 1 {
            0 => word >> 1,
            // The word was read before the clock, so the current sleep began no later than `now()`.
            _ => word.wrapping_add(now() << 1) >> 1,
        }
    }
}

impl AtomicWorkerCounters {
    pub fn tasks_and_forks(&self) -> u64 {
        self.tasks.get() + self.forks.get()
    }

    pub fn read(&self) -> Counters {
        Counters {
            tasks: self.tasks_and_forks(),
            steals: std::array::from_fn(|distance| self.steals[distance].get()),
            outside: self.outside.get(),
            sent: self.sent.get(),
            group_moves: self.group_moves.get(),
            sleeps: self.sleeps.get(),
            asleep_ns: self.asleep.ns_at(now_ns),
        }
    }
}

/// What a worker has done since the runtime was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tasks run.
    pub tasks: u64,
    /// Chains of tasks stolen from other workers: one number for each [`WorkerDistance`] between
    /// thief and victim, the nearest first.
    pub steals: [u64; WorkerDistance::ALL.len()],
    /// How often the worker took injected tasks, which are tasks made ready by threads outside the
    /// runtime.
    pub outside: u64,
    /// Tasks sent to the owners of their spatial groups.
    pub sent: u64,
    /// How often the worker became the owner of a spatial group that another worker owned.
    pub group_moves: u64,
    /// How often the worker went to sleep for lack of tasks.
    pub sleeps: u64,
    /// Total time asleep in ns, including a sleep in progress.
    pub asleep_ns: u64,
}

/// The counters of all workers of a runtime. `Display` formats them as a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllCounters(pub Vec<Counters>);

impl fmt::Display for AllCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>6} {:>12} {:>24} {:>8} {:>10} {:>8} {:>8} {:>10}",
            "worker",
            "tasks",
            "steals LLC/package/far",
            "outside",
            "sent",
            "moves",
            "sleeps",
            "asleep ms"
        )?;
        for (worker, counted) in self.0.iter().enumerate() {
            let [llc, package, machine] = counted.steals;
            writeln!(
                f,
                "{worker:>6} {:>12} {:>24} {:>8} {:>10} {:>8} {:>8} {:>10.1}",
                counted.tasks,
                format!("{llc}/{package}/{machine}"),
                counted.outside,
                counted.sent,
                counted.group_moves,
                counted.sleeps,
                counted.asleep_ns as f64 / 1e6,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_in_progress_is_counted() {
        let asleep = SleepTime::default();
        assert_eq!(asleep.ns_at(|| 50), 0);
        asleep.begin_at(100);
        assert_eq!((asleep.ns_at(|| 100), asleep.ns_at(|| 130)), (0, 30));
        asleep.end_at(150);
        assert_eq!(asleep.ns_at(|| 500), 50);
        asleep.begin_at(1000);
        assert_eq!(asleep.ns_at(|| 1001), 51);
        asleep.end_at(1002);
        assert_eq!(asleep.ns_at(|| 0), 52);
    }
}
