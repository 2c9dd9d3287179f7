// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dispatcher of paper 5, section 4.2.
//!
//! Ready tasks stand in a matrix of queues, T x S. Each spatial group belongs to
//! one worker at most, and one temporal group at most is active. With *S* the
//! groups that belong to the worker and *T'* the active group, a worker gets a task
//!
//! 1. of T' and a group in S; else
//! 2. of T' and S0, the tasks without a spatial group; else
//! 3. of T' and a group that is another's or nobody's, which is its from now on;
//! 4. else another temporal group that has ready tasks becomes active, and the
//!    worker starts again; else
//! 5. the same three steps in T0, the tasks without a temporal group; else
//! 6. none.
//!
//! Where the paper leaves open which of several groups or which other temporal
//! group is taken, it is the one with the least number, and within a queue the
//! task that became ready first. A temporal group stays active when it has run
//! out of ready tasks, until another one takes its place.

use std::collections::{TryReserveError, VecDeque};

use super::bits::{Sets, try_filled};
use super::{Dispatch, Dispatcher, Groups};

/// The matrix, and who owns what.
#[derive(Debug, Clone)]
pub struct Paper<I> {
    s_count: usize,
    /// Queue of (t, s) at `t * s_count + s`.
    queues: Vec<VecDeque<I>>,
    /// By t: which s have ready tasks.
    ready: Sets,
    /// Which t have ready tasks.
    ready_t: Sets,
    /// T'; 0 before any was.
    active: usize,
    /// By worker: the spatial groups that belong to it.
    owned: Sets,
    /// By spatial group: whose it is.
    owners: Vec<Option<usize>>,
    len: usize,
}

impl<I> Paper<I> {
    /// A matrix for temporal groups 0..`t_count` and spatial groups 0..`s_count`,
    /// one of each at least.
    ///
    /// # Panics
    /// Where there is no memory for it.
    pub fn new(workers: usize, t_count: usize, s_count: usize) -> Self {
        match Self::try_new(workers, t_count, s_count) {
            Ok(paper) => paper,
            Err(error) => panic!("{t_count} x {s_count} queues: {error}"),
        }
    }

    /// As [`Self::new`].
    ///
    /// # Errors
    /// Where there is no memory for it: 32 bytes a queue, and little more.
    pub fn try_new(
        workers: usize,
        t_count: usize,
        s_count: usize,
    ) -> Result<Self, TryReserveError> {
        let (t_count, s_count) = (t_count.max(1), s_count.max(1));
        // More than can be is more than there is memory for.
        let count = t_count.saturating_mul(s_count);
        let mut queues = Vec::new();
        queues.try_reserve_exact(count)?;
        queues.resize_with(count, VecDeque::new);
        Ok(Self {
            s_count,
            queues,
            ready: Sets::try_new(t_count, s_count)?,
            ready_t: Sets::try_new(1, t_count)?,
            active: 0,
            owned: Sets::try_new(workers, s_count)?,
            owners: try_filled(s_count, None)?,
            len: 0,
        })
    }

    /// Whom a spatial group belongs to.
    pub fn owner(&self, s: u32) -> Option<usize> {
        self.owners.get(s as usize).copied().flatten()
    }

    /// The active temporal group; 0: none yet.
    pub fn active(&self) -> u32 {
        self.active as u32
    }

    /// Lines 2 to 8 and 12 to 18: a spatial group with ready tasks of `t`, and
    /// whether the worker takes it over.
    fn choose(&self, t: usize, worker: usize) -> Option<(usize, bool)> {
        let own = self.ready.least_common(t, &self.owned, worker);
        let without = || self.ready.contains(t, 0).then_some(0);
        match own.or_else(without) {
            Some(s) => Some((s, false)),
            None => self.ready.least(t).map(|s| (s, true)),
        }
    }

    /// Line 9: another temporal group with ready tasks.
    fn another(&self) -> Option<usize> {
        self.ready_t.least_but(0, [0, self.active])
    }

    fn take_over(&mut self, s: usize, worker: usize) {
        if let Some(before) = self.owners[s].replace(worker) {
            self.owned.remove(before, s);
        }
        self.owned.insert(worker, s);
    }

    /// Line 22.
    fn dequeue(&mut self, t: usize, s: usize) -> Option<I> {
        let queue = &mut self.queues[t * self.s_count + s];
        let item = queue.pop_front()?;
        self.len -= 1;
        if queue.is_empty() {
            self.ready.remove(t, s);
        }
        if self.ready.is_empty(t) {
            self.ready_t.remove(0, t);
        }
        Some(item)
    }
}

impl<I> Dispatcher<I> for Paper<I> {
    /// # Panics
    /// Where a group is not in the matrix.
    fn ready(&mut self, item: I, groups: Groups) {
        let (t, s) = (groups.t as usize, groups.s as usize);
        assert!(s < self.s_count, "spatial group {s} of {}", self.s_count);
        self.ready.insert(t, s);
        self.ready_t.insert(0, t);
        self.queues[t * self.s_count + s].push_back(item);
        self.len += 1;
    }

    fn next(&mut self, worker: usize) -> Option<Dispatch<I>> {
        let in_active = |this: &Self| match this.active {
            0 => None,
            t => this.choose(t, worker),
        };
        let found = in_active(self).or_else(|| {
            self.active = self.another()?;
            in_active(self)
        });
        let (t, (s, group_moved)) = match found {
            Some(found) => (self.active, found),
            None => (0, self.choose(0, worker)?),
        };
        if group_moved {
            self.take_over(s, worker);
        }
        let item = self.dequeue(t, s)?;
        Some(Dispatch {
            item,
            groups: Groups::new(t as u32, s as u32),
            group_moved,
        })
    }

    fn len(&self) -> usize {
        self.len
    }
}
