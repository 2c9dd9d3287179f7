// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ready tasks of a policy with one queue for all workers, by nesting level.
//!
//! Registered tasks, and graphs run by threads outside the runtime, have level 0. A graph run by a
//! task has the level of that task plus one. A worker that waits for such a graph takes only tasks
//! of the graph's level or above, so levels rise from the bottom of the worker's stack to the top.
//! The stack then holds only the waits that the program nests, whatever else is ready. Everything
//! that a worker waits for is at a level at which it may help, so at least one worker always
//! proceeds.

use crate::dispatch::{Dispatch, Dispatcher};
use crate::job::JobRef;

/// A queue of ready tasks in the order of a policy.
pub(crate) type BoxedDispatcher = Box<dyn Dispatcher<JobRef> + Send>;

/// There is no memory for a queue.
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

    /// Creates the queues up to this level, before any task is ready at the level.
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

    /// Removes the next job for a worker, of level `min_level` or above, and returns it with its
    /// level. The highest level comes first, because a task waits for the jobs of that level.
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
