// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ready tasks of a policy that has one order for all workers, by how deep they are.
//!
//! Tasks that were registered, and graphs that a thread from outside runs, are of level
//! 0; a graph that a task runs is one level above that task. A worker that waits for
//! such a graph takes what is of its level or above, so that levels rise from the bottom
//! of its stack to the top: as many waits lie on one another there as the program has
//! nested, and no more, whatever else is ready. All of what a worker waits for is at
//! levels at which it may help, so that somebody always goes on.

use crate::dispatch::{Dispatch, Dispatcher};
use crate::job::JobRef;

/// An order of ready tasks.
pub(crate) type Ordered = Box<dyn Dispatcher<JobRef> + Send>;

/// No memory for an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoMemory;

/// An order for each level, all of one kind.
pub(crate) struct Levels {
    make: Box<dyn Fn() -> Option<Ordered> + Send>,
    levels: Vec<Ordered>,
}

impl Levels {
    /// Of level 0.
    ///
    /// # Errors
    /// Where an order cannot be made.
    pub fn new(make: impl Fn() -> Option<Ordered> + Send + 'static) -> Result<Self, NoMemory> {
        let mut levels = Self {
            levels: Vec::new(),
            make: Box::new(make),
        };
        levels.reach(0)?;
        Ok(levels)
    }

    /// Makes orders up to that level, before anything is ready there.
    ///
    /// # Errors
    /// Where one cannot be made.
    pub fn reach(&mut self, level: usize) -> Result<(), NoMemory> {
        while self.levels.len() <= level {
            self.levels.try_reserve(1).map_err(|_| NoMemory)?;
            self.levels.push((self.make)().ok_or(NoMemory)?);
        }
        Ok(())
    }

    /// Of a level that has been reached.
    pub fn ready(&mut self, level: usize, job: JobRef) {
        let groups = job.groups();
        self.levels[level].ready(job, groups);
    }

    /// The next for a worker, of that level or above, and its level; the uppermost
    /// first, as somebody waits for it.
    pub fn next(&mut self, worker: usize, least: usize) -> Option<(usize, Dispatch<JobRef>)> {
        let mut levels = self.levels.iter_mut().enumerate().skip(least).rev();
        levels.find_map(|(level, order)| Some((level, order.next(worker)?)))
    }

    /// The first level, from that one up, at which there is anything.
    pub fn filled_from(&self, least: usize) -> Option<usize> {
        let mut levels = self.levels.iter().enumerate().skip(least);
        levels.find_map(|(level, order)| (!order.is_empty()).then_some(level))
    }

    /// Whether there is anything of that level or above.
    pub fn has(&self, least: usize) -> bool {
        self.filled_from(least).is_some()
    }
}
