// SPDX-License-Identifier: MIT OR Apache-2.0
//! What workers have done, counted as they go.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

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
    pub asleep_ns: Count,
}

/// A number that one thread raises.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// By the thread that it belongs to: no two raise it at once, so that it need not
    /// be done in one step.
    pub fn add(&self, more: u64) {
        self.0.store(self.get() + more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
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
            asleep_ns: self.asleep_ns.get(),
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
    /// Times that it fell asleep for want of tasks, and woke again.
    pub sleeps: u64,
    /// How long these were in all, in ns.
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
