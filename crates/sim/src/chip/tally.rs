// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run on the chip came to.

use serde::{Deserialize, Serialize};

use super::memory::Counts;

/// What a run came to. Times are cycles, summed over cores but for the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// From the beginning to the end.
    pub cycles: u64,
    /// Tasks run.
    pub tasks: u64,
    /// Their own work.
    pub compute: u64,
    /// Waits for caches and memory.
    pub stalled: u64,
    /// Dispatching.
    pub scheduling: u64,
    /// Waits for the dispatcher's lock.
    pub lock_wait: u64,
    /// Halted.
    pub idle: u64,
    /// Caches and memory.
    pub counts: Counts,
}

impl Tally {
    /// Mean cycles of a task, from its first access to its last.
    pub fn cycles_a_task(&self) -> f64 {
        (self.compute + self.stalled) as f64 / self.tasks.max(1) as f64
    }

    /// This and another run, one after the other.
    pub fn and(&self, other: &Self) -> Self {
        let (a, b) = (&self.counts, &other.counts);
        Self {
            cycles: self.cycles + other.cycles,
            tasks: self.tasks + other.tasks,
            compute: self.compute + other.compute,
            stalled: self.stalled + other.stalled,
            scheduling: self.scheduling + other.scheduling,
            lock_wait: self.lock_wait + other.lock_wait,
            idle: self.idle + other.idle,
            counts: Counts {
                fetched_words: a.fetched_words + b.fetched_words,
                data_words: a.data_words + b.data_words,
                l1_fetch_misses: a.l1_fetch_misses + b.l1_fetch_misses,
                l1_data_misses: a.l1_data_misses + b.l1_data_misses,
                l2_misses: a.l2_misses + b.l2_misses,
                written_back: a.written_back + b.written_back,
                bus_cycles: a.bus_cycles + b.bus_cycles,
            },
        }
    }
}

/// When and where a task ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Span {
    /// The core, from 0.
    pub core: usize,
    /// When its first access began.
    pub from: u64,
    /// When its last had ended.
    pub to: u64,
    /// How often it ran.
    pub times: u32,
}

/// A run: its sums, and each task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// The sums.
    pub tally: Tally,
    /// By task.
    pub spans: Vec<Span>,
}
