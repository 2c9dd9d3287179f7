// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which ready task a worker runs next.
//!
//! A dispatcher holds the tasks whose dependencies are all resolved and hands them
//! to workers, one at a time, each until it has run to completion. It knows no
//! threads, clocks or locks: the runtime puts a lock around it, and a model of a
//! chip calls the very same code. What it holds for a task is the caller's
//! business (`I`): an index, a pointer.

mod bits;
mod fcfs;
mod lcfs;
mod paper;
mod usher;

pub use fcfs::Fcfs;
pub use lcfs::Lcfs;
pub use paper::Paper;
pub use usher::Usher;

/// The hints of paper 5, section 4.1: which tasks belong together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Groups {
    /// Temporal group: its tasks run close in time, on whatever cores, so that
    /// they find one another's data in the cache that cores share. 0: none.
    pub t: u32,
    /// Spatial group: its tasks run on the same core, and find code and data in
    /// that core's own cache. 0: none.
    pub s: u32,
}

impl Groups {
    /// No group of either kind.
    pub const NONE: Self = Self { t: 0, s: 0 };

    /// Groups `t` and `s`.
    pub const fn new(t: u32, s: u32) -> Self {
        Self { t, s }
    }

    /// Both in one word.
    pub(crate) fn packed(self) -> u64 {
        u64::from(self.t) << 32 | u64::from(self.s)
    }

    /// From [`Self::packed`].
    pub(crate) const fn unpacked(word: u64) -> Self {
        Self::new((word >> 32) as u32, word as u32)
    }
}

/// A task on its way to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatch<I> {
    /// The task.
    pub item: I,
    /// Its groups.
    pub groups: Groups,
    /// Its spatial group belongs to the worker from now on, and did not before.
    pub group_moved: bool,
}

/// An order of ready tasks.
pub trait Dispatcher<I> {
    /// A task has become ready.
    fn ready(&mut self, item: I, groups: Groups);

    /// The task that worker `worker` (from 0) runs next; `None`: there is none.
    fn next(&mut self, worker: usize) -> Option<Dispatch<I>>;

    /// Ready tasks that no worker has got.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
