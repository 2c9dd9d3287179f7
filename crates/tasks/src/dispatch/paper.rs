// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dispatcher of paper 5, section 4.2.
//!
//! The dispatcher decides which ready task a worker runs next. Ready tasks are in a matrix of
//! queues, with a row for each temporal group and a column for each spatial group. T0 and S0 stand
//! for tasks without such a group. Each spatial group has at most one worker as its owner. At most
//! one temporal group is active, called T'. A worker gets a task
//!
//! 1. of T' and a spatial group that the worker owns; else
//! 2. of T' and S0; else
//! 3. of T' and any other spatial group, which the worker owns from then on;
//! 4. else another temporal group with ready tasks becomes active, and the worker starts again;
//!    else
//! 5. by steps 1 to 3 in T0 instead of T'; else
//! 6. no task.
//!
//! If the paper leaves a choice between groups, the dispatcher takes the group with the lowest
//! number. Within a queue, it takes the task that became ready first. A temporal group without
//! ready tasks stays active until another temporal group replaces it. The time of a choice is
//! proportional to the number of groups divided by 64. The matrix takes 32 bytes per queue.

use std::collections::{TryReserveError, VecDeque};

use super::bits::{BitSets, try_filled};
use super::{Dispatch, Dispatcher, Groups};

/// The matrix of queues, and the owners of the spatial groups.
#[derive(Debug, Clone)]
pub struct Paper<I> {
    s_count: usize,
    /// The queues of ready tasks. The queue of temporal group `t` and spatial group `s` has the
    /// index `t * s_count + s`.
    queues: Vec<VecDeque<I>>,
    /// For each temporal group, the spatial groups with ready tasks.
    ready: BitSets,
    /// The temporal groups with ready tasks.
    ready_t: BitSets,
    /// The active temporal group, T'. 0 before a temporal group has become active.
    active: usize,
    /// For each worker, the spatial groups that the worker owns.
    owned: BitSets,
    /// For each spatial group, the worker that owns the group.
    owners: Vec<Option<usize>>,
    len: usize,
}

impl<I> Paper<I> {
    /// Creates a matrix for temporal groups 0..`t_count` and spatial groups 0..`s_count`, at least
    /// one of each.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(workers: usize, t_count: usize, s_count: usize) -> Self {
        match Self::try_new(workers, t_count, s_count) {
            Ok(paper) => paper,
            Err(error) => panic!("cannot allocate {t_count} x {s_count} queues: {error}"),
        }
    }

    /// Creates the matrix as [`Self::new`] does, but reports lack of memory as an error.
    ///
    /// # Errors
    /// If there is no memory for the queues, which take little more than 32 bytes each.
    pub fn try_new(
        workers: usize,
        t_count: usize,
        s_count: usize,
    ) -> Result<Self, TryReserveError> {
        let (t_count, s_count) = (t_count.max(1), s_count.max(1));
        // If the product overflows, it saturates, and the allocation of that size fails.
        let count = t_count.saturating_mul(s_count);
        let mut queues = Vec::new();
        queues.try_reserve_exact(count)?;
        queues.resize_with(count, VecDeque::new);
        Ok(Self {
            s_count,
            queues,
            ready: BitSets::try_new(t_count, s_count)?,
            ready_t: BitSets::try_new(1, t_count)?,
            active: 0,
            owned: BitSets::try_new(workers, s_count)?,
            owners: try_filled(s_count, None)?,
            len: 0,
        })
    }

    /// Returns the owner of a spatial group.
    pub fn owner(&self, s: u32) -> Option<usize> {
        self.owners.get(s as usize).copied().flatten()
    }

    /// Returns the active temporal group; 0 before a temporal group has become active.
    pub fn active(&self) -> u32 {
        self.active as u32
    }

    /// Lines 2 to 8 and 12 to 18 of the paper's listing: selects a spatial group with ready tasks
    /// of `t`. Also returns whether the worker becomes the owner of that group.
    fn choose(&self, t: usize, worker: usize) -> Option<(usize, bool)> {
        let own = self.ready.least_common(t, &self.owned, worker);
        let without = || self.ready.contains(t, 0).then_some(0);
        match own.or_else(without) {
            Some(s) => Some((s, false)),
            None => self.ready.least(t).map(|s| (s, true)),
        }
    }

    /// Line 9 of the paper's listing: selects another temporal group with ready tasks.
    fn next_group(&self) -> Option<usize> {
        self.ready_t.least_except(0, [0, self.active])
    }

    fn set_owner(&mut self, s: usize, worker: usize) {
        if let Some(before) = self.owners[s].replace(worker) {
            self.owned.remove(before, s);
        }
        self.owned.insert(worker, s);
    }

    /// Line 22 of the paper's listing: removes a task.
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
    /// If a group is outside the matrix.
    fn ready(&mut self, item: I, groups: Groups) {
        let (t, s) = (groups.t as usize, groups.s as usize);
        assert!(
            s < self.s_count,
            "spatial group {s} is not less than {}",
            self.s_count
        );
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
            self.active = self.next_group()?;
            in_active(self)
        });
        let (t, (s, group_moved)) = match found {
            Some(found) => (self.active, found),
            None => (0, self.choose(0, worker)?),
        };
        if group_moved {
            self.set_owner(s, worker);
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
