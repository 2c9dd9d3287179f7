// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dispatchers: data structures that decide which ready task a worker runs next.
//!
//! A dispatcher holds the tasks without unresolved dependencies, and gives them to workers one at a
//! time. A dispatcher uses no threads, clocks or locks. The runtime calls the dispatchers of
//! policies with a global queue ([`Fcfs`], [`Lcfs`], [`Paper`]) under a lock; a simulated chip
//! calls the same code. The runtime's default policy has no global queue, so the runtime does not
//! call [`Usher`]. Instead, the runtime and [`Usher`] use the same queue type for the tasks of one
//! worker. The caller chooses the type `I` that represents a task, such as an index or a pointer.

mod bits;
mod fcfs;
mod lcfs;
mod paper;
mod usher;

pub use fcfs::Fcfs;
pub use lcfs::Lcfs;
pub use paper::Paper;
pub use usher::Usher;

/// Hints on which tasks belong together (paper 5, section 4.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Groups {
    /// Temporal group, or a priority. Tasks of the same temporal group run close in time, on any
    /// cores, and find one another's data in the cache that the cores share. 0 means no temporal
    /// group.
    pub t: u32,
    /// Spatial group. Tasks of the same spatial group run on the same core, and find their code and
    /// data in the cache of that core. 0 means no spatial group.
    pub s: u32,
}

impl Groups {
    /// No temporal and no spatial group.
    pub const NONE: Self = Self { t: 0, s: 0 };

    /// High priority instead of a temporal group: under the default policy, a worker runs the task
    /// before its tasks with temporal groups and without. A spatial group may be added. The policies
    /// first come first served and last come first served ignore priorities, and the policy of paper 5
    /// refuses them.
    ///
    /// ```
    /// use usher_tasks::{Groups, Runtime};
    ///
    /// let runtime = Runtime::new(2)?;
    /// runtime.submit(Groups::HIGH_PRIORITY, || println!("decode the next frame"))?;
    /// runtime.submit(Groups::LOW_PRIORITY, || println!("draw a preview"))?;
    /// runtime.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const HIGH_PRIORITY: Self = Self {
        t: u32::MAX - 1,
        s: 0,
    };
    /// Low priority instead of a temporal group: a worker runs the task when it finds no other task,
    /// at the latest when the task has waited longest ([`HIGH_PRIORITY`](Self::HIGH_PRIORITY)).
    pub const LOW_PRIORITY: Self = Self {
        t: u32::MAX - 2,
        s: 0,
    };

    /// Groups `t` and `s`.
    pub const fn new(t: u32, s: u32) -> Self {
        Self { t, s }
    }

    /// Returns whether `t` is a priority instead of a temporal group.
    pub(crate) const fn has_priority(self) -> bool {
        self.t == Self::HIGH_PRIORITY.t || self.t == Self::LOW_PRIORITY.t
    }

    /// Packs both groups into one word.
    pub(crate) fn packed(self) -> u64 {
        u64::from(self.t) << 32 | u64::from(self.s)
    }

    /// Unpacks groups that [`Self::packed`] has packed.
    pub(crate) const fn unpacked(word: u64) -> Self {
        Self::new((word >> 32) as u32, word as u32)
    }
}

/// A task that a dispatcher has given to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatch<I> {
    /// The task.
    pub item: I,
    /// Groups of the task.
    pub groups: Groups,
    /// Whether the worker has become the owner of the task's spatial group by taking this task.
    pub group_moved: bool,
}

/// A data structure of ready tasks that decides which task each worker runs next.
pub trait Dispatcher<I> {
    /// Enqueues a task that has become ready.
    fn ready(&mut self, item: I, groups: Groups);

    /// Removes and returns the task that worker `worker` (from 0) runs next; `None` if there is no
    /// task for this worker.
    fn next(&mut self, worker: usize) -> Option<Dispatch<I>>;

    /// Returns the number of ready tasks that no worker has taken.
    fn len(&self) -> usize;

    /// Returns whether there are no ready tasks.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
