// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types of the results of a run on the simulated chip: cycles by cause (work, waits for
//! memory, dispatching, lock, halt), cache counters, and the core and time of each task.

use serde::{Deserialize, Serialize};

use crate::memory::CacheCounts;

/// Totals of a run, as counted by the simulated chip. All times are in cycles and summed over the
/// cores, except for `cycles`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleTotals {
    /// Cycles from the start to the end of the run.
    pub cycles: u64,
    /// Number of tasks executed.
    pub tasks: u64,
    /// Cycles of work of the tasks.
    pub compute: u64,
    /// Cycles in which cores stalled for caches and memory.
    pub stalled: u64,
    /// Cycles of dispatching.
    pub scheduling: u64,
    /// Cycles in which cores waited for the dispatcher's lock.
    pub lock_wait: u64,
    /// Cycles in which cores were halted.
    pub idle: u64,
    /// Counters of caches and memory.
    pub counts: CacheCounts,
}

impl CycleTotals {
    /// Returns the mean cycles of a task from the start of its first access to the end of its last
    /// access.
    pub fn cycles_a_task(&self) -> f64 {
        (self.compute + self.stalled) as f64 / self.tasks.max(1) as f64
    }

    /// Returns the sum of the totals of this run and of a later run.
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
            counts: CacheCounts {
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

/// Core and time of the execution of a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TaskExecution {
    /// Number of the core, counted from 0.
    pub core: usize,
    /// Start time of the first access.
    pub from: u64,
    /// End time of the last access.
    pub to: u64,
    /// Number of times that the task was executed, which must be 1.
    pub times: u32,
}

/// Results of a run: totals and tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunResult {
    /// Totals of the run.
    pub tally: CycleTotals,
    /// Execution of each task.
    pub spans: Vec<TaskExecution>,
}
