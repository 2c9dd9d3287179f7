// SPDX-License-Identifier: MIT OR Apache-2.0
//! First come, first served: the baseline of paper 5 (section 3.2). All workers share one queue,
//! and the groups of tasks have no effect. Enqueuing and choosing a task take constant time.

use std::collections::VecDeque;

use super::{Dispatch, Dispatcher, Groups};

/// A single queue. Groups are ignored.
#[derive(Debug, Clone)]
pub struct Fcfs<I> {
    queue: VecDeque<(I, Groups)>,
}

impl<I> Default for Fcfs<I> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
        }
    }
}

impl<I> Dispatcher<I> for Fcfs<I> {
    fn ready(&mut self, item: I, groups: Groups) {
        self.queue.push_back((item, groups));
    }

    fn next(&mut self, _worker: usize) -> Option<Dispatch<I>> {
        let (item, groups) = self.queue.pop_front()?;
        Some(Dispatch {
            item,
            groups,
            group_moved: false,
        })
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
}
