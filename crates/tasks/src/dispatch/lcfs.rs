// SPDX-License-Identifier: MIT OR Apache-2.0
//! Last come, first served: one stack for all workers. Tasks run soon after their data were
//! written, so this order uses caches better than first come, first served. It offers less
//! parallelism, because a task on which many other tasks depend may stay at the bottom of the stack
//! (paper 5, figure 4). Enqueuing and choosing a task take constant time.

use super::{Dispatch, Dispatcher, Groups};

/// A single stack. Groups are ignored.
#[derive(Debug, Clone)]
pub struct Lcfs<I> {
    stack: Vec<(I, Groups)>,
}

impl<I> Default for Lcfs<I> {
    fn default() -> Self {
        Self { stack: Vec::new() }
    }
}

impl<I> Dispatcher<I> for Lcfs<I> {
    fn ready(&mut self, item: I, groups: Groups) {
        self.stack.push((item, groups));
    }

    fn next(&mut self, _worker: usize) -> Option<Dispatch<I>> {
        let (item, groups) = self.stack.pop()?;
        Some(Dispatch {
            item,
            groups,
            group_moved: false,
        })
    }

    fn len(&self) -> usize {
        self.stack.len()
    }
}
