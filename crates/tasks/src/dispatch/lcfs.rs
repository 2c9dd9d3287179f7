// SPDX-License-Identifier: MIT OR Apache-2.0
//! Last come, first served: kinder to caches than first come, first served, and
//! poorer in parallelism, as what others wait for may lie at the bottom (paper 5,
//! figure 4).

use super::{Dispatch, Dispatcher, Groups};

/// One stack; groups are passed over.
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
