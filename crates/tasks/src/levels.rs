// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ready tasks of a policy with a global queue, in one queue for each nesting level.
//!
//! Registered tasks, and graphs run by threads outside the runtime, have level 0. The tasks of a
//! graph that a task runs have the level of that task plus 1. A worker that waits for such a graph
//! takes only tasks of the graph's level or above. The levels of the tasks on a worker's stack
//! therefore increase from the bottom to the top. Without this rule, a waiting worker could run any
//! ready task, and the depth of its stack would have no bound. With the rule, the depth is bounded
//! by the nesting of graphs in the program. A worker may run all tasks for which it waits, so at
//! least one worker always proceeds.
//!
//! Choosing a task takes time linear in the number of levels, plus the time of the policy's queue.

use crate::dispatch::{Dispatch, Dispatcher};
use crate::job::JobRef;

/// A queue of ready tasks in the order of a policy.
pub(crate) type BoxedDispatcher = Box<dyn Dispatcher<JobRef> + Send>;

/// The error that there is no memory for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoMemory;

/// One queue per level, all of the same policy.
pub(crate) struct LevelQueues {
    make: Box<dyn Fn() -> Option<BoxedDispatcher> + Send>,
    levels: Vec<BoxedDispatcher>,
}

impl LevelQueues {
    /// Creates level 0.
    ///
    /// # Errors
    /// If the queue cannot be allocated.
    pub fn new(
        make: impl Fn() -> Option<BoxedDispatcher> + Send + 'static,
    ) -> Result<Self, NoMemory> {
        let mut levels = Self {
            levels: Vec::new(),
            make: Box::new(make),
        };
        levels.ensure_level(0)?;
        Ok(levels)
    }

    /// Creates the missing queues of all levels up to this level. Must be called before a task of
    /// the level becomes ready.
    ///
    /// # Errors
    /// If a queue cannot be allocated.
    pub fn ensure_level(&mut self, level: usize) -> Result<(), NoMemory> {
        while self.levels.len() <= level {
            self.levels.try_reserve(1).map_err(|_| NoMemory)?;
            self.levels.push((self.make)().ok_or(NoMemory)?);
        }
        Ok(())
    }

    /// Enqueues a job at a level that exists.
    pub fn ready(&mut self, level: usize, job: JobRef) {
        let groups = job.groups();
        self.levels[level].ready(job, groups);
    }

    /// Removes the next job for a worker, of level `min_level` or above, and returns its level and
    /// the job. Higher levels come first, because tasks of lower levels wait for their jobs.
    pub fn next(&mut self, worker: usize, min_level: usize) -> Option<(usize, Dispatch<JobRef>)> {
        let mut levels = self.levels.iter_mut().enumerate().skip(min_level).rev();
        levels.find_map(|(level, order)| Some((level, order.next(worker)?)))
    }

    /// Returns the lowest level that has a job, among the levels from `min_level` on.
    pub fn filled_from(&self, min_level: usize) -> Option<usize> {
        let mut levels = self.levels.iter().enumerate().skip(min_level);
        levels.find_map(|(level, order)| (!order.is_empty()).then_some(level))
    }

    /// Returns whether there is a job of level `min_level` or above.
    pub fn has(&self, min_level: usize) -> bool {
        self.filled_from(min_level).is_some()
    }
}
