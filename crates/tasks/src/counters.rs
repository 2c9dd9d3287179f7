// SPDX-License-Identifier: MIT OR Apache-2.0
//! What workers have done, counted as they go.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::places::Distance;

/// What a worker counts: it alone writes, anybody may read. On cache lines of its
/// own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counts {
    pub tasks: Count,
    pub steals: [Count; Distance::ALL.len()],
    pub outside: Count,
    pub sent: Count,
    pub group_moves: Count,
    pub sleeps: Count,
    pub asleep: Asleep,
}

/// A number that one thread raises.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// By the thread that it belongs to: no two raise it at once, so that it need not
    /// be done in one step.
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

/// How long a thread has slept, told also while it sleeps.
///
/// In one word, so that whoever reads it reads what belongs together: twice the time
/// slept when it is awake; when it sleeps one more than twice the time slept before less
/// the time at which it fell asleep, both by the same clock, so that the time now is all
/// that is to be added.
#[derive(Debug, Default)]
pub(crate) struct Asleep(AtomicU64);

/// Nanoseconds since somebody asked for the first time.
fn now_ns() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

impl Asleep {
    /// The thread falls asleep.
    pub fn begin(&self) {
        self.begin_at(now_ns());
    }

    /// The thread has woken.
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
            // Seen asleep before the clock was read, and so not later than that.
            _ => word.wrapping_add(now() << 1) >> 1,
        }
    }
}

impl Counts {
    pub fn read(&self) -> Counters {
        Counters {
            tasks: self.tasks.get(),
            steals: std::array::from_fn(|distance| self.steals[distance].get()),
            outside: self.outside.get(),
            sent: self.sent.get(),
            group_moves: self.group_moves.get(),
            sleeps: self.sleeps.get(),
            asleep_ns: self.asleep.ns_at(now_ns),
        }
    }
}

/// What a worker has done since the runtime was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tasks that it ran.
    pub tasks: u64,
    /// Chains of tasks that it took from others, by [`Distance`], the nearest first.
    pub steals: [u64; Distance::ALL.len()],
    /// Times that it took what had come from outside.
    pub outside: u64,
    /// Tasks that it sent to the owners of their spatial groups.
    pub sent: u64,
    /// Spatial groups that were another's and became its own.
    pub group_moves: u64,
    /// Times that it fell asleep for want of tasks.
    pub sleeps: u64,
    /// How long it has slept in all, in ns, what it sleeps now included.
    pub asleep_ns: u64,
}

/// The counters of a runtime's workers; shown, they are a table.
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
    fn who_sleeps_is_seen_sleeping() {
        let asleep = Asleep::default();
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
