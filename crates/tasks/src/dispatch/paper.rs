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

use std::collections::VecDeque;

use fixedbitset::FixedBitSet;

use super::{Dispatch, Dispatcher, Groups};

/// The matrix, and who owns what.
#[derive(Debug, Clone)]
pub struct Paper<I> {
    s_count: usize,
    /// Queue of (t, s) at `t * s_count + s`.
    queues: Vec<VecDeque<I>>,
    /// By t: which s have ready tasks.
    ready: Vec<FixedBitSet>,
    /// Which t have ready tasks.
    ready_t: FixedBitSet,
    /// T'; 0 before any was.
    active: usize,
    /// By worker: the spatial groups that belong to it.
    owned: Vec<FixedBitSet>,
    /// By spatial group: whose it is.
    owners: Vec<Option<usize>>,
    len: usize,
}

impl<I> Paper<I> {
    /// A matrix for temporal groups 0..`t_count` and spatial groups 0..`s_count`,
    /// one of each at least.
    pub fn new(workers: usize, t_count: usize, s_count: usize) -> Self {
        let (t_count, s_count) = (t_count.max(1), s_count.max(1));
        let queues = std::iter::repeat_with(VecDeque::new);
        Self {
            s_count,
            queues: queues.take(t_count * s_count).collect(),
            ready: vec![FixedBitSet::with_capacity(s_count); t_count],
            ready_t: FixedBitSet::with_capacity(t_count),
            active: 0,
            owned: vec![FixedBitSet::with_capacity(s_count); workers],
            owners: vec![None; s_count],
            len: 0,
        }
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
        let ready = &self.ready[t];
        let own = ready.intersection(&self.owned[worker]).next();
        let without = || ready.contains(0).then_some(0);
        match own.or_else(without) {
            Some(s) => Some((s, false)),
            None => ready.minimum().map(|s| (s, true)),
        }
    }

    /// Line 9: another temporal group with ready tasks.
    fn another(&self) -> Option<usize> {
        let mut others = self.ready_t.ones();
        others.find(|&t| t != 0 && t != self.active)
    }

    fn take_over(&mut self, s: usize, worker: usize) {
        if let Some(before) = self.owners[s].replace(worker) {
            self.owned[before].remove(s);
        }
        self.owned[worker].insert(s);
    }

    /// Line 22.
    fn dequeue(&mut self, t: usize, s: usize) -> Option<I> {
        let queue = &mut self.queues[t * self.s_count + s];
        let item = queue.pop_front()?;
        self.len -= 1;
        if queue.is_empty() {
            self.ready[t].remove(s);
        }
        if self.ready[t].is_clear() {
            self.ready_t.remove(t);
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
        self.ready[t].insert(s);
        self.ready_t.insert(t);
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
