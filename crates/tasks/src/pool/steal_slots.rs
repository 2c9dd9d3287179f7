// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steal slots: a worker publishes chains of its ready tasks in these slots, and other workers take
//! them.
//!
//! A worker accesses its own queues without atomic operations, so other workers cannot access these
//! queues. Instead:
//!
//! 1. Each worker has 4 slots ([`SLOTS`]). A slot is null or contains the head of a chain.
//! 2. When other workers need tasks, the owner of the slots stores chains in empty slots, by a
//!    release store. No other thread stores a chain.
//! 3. A thread that wants a chain (a thief, or the owner itself) swaps the slot with null. The
//!    thread whose swap returns the chain holds all tasks of the chain.
//!
//! Of several swaps, one returns the chain, so no two threads hold the same task. No thread waits
//! for another. Each operation takes constant time, except a removal of a single task.
//!
//! The *overflow slot* is a fifth slot, for the tasks that the owner's running task has made ready
//! by token. It contains any number of tasks. The owner empties it after the running task has
//! ended. Removing a single task takes time linear in the lengths of at most 4 chains.

use std::ptr::{self, NonNull};

use crate::job::{Chain, Job, JobRef};
use crate::sync::{AtomicPtr, Ordering};

/// Number of slots of a worker, without the overflow slot. With several slots, thieves find a chain
/// in one slot while another slot is empty.
#[cfg(not(feature = "loom"))]
pub(crate) const SLOTS: usize = 4;
#[cfg(feature = "loom")]
pub(crate) const SLOTS: usize = 2;

/// The steal slots of a worker. They have cache lines of their own, because idle workers poll them.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct StealSlots {
    slots: [AtomicPtr<Job>; SLOTS],
    overflow: AtomicPtr<Job>,
}

impl Default for StealSlots {
    fn default() -> Self {
        Self {
            slots: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            overflow: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

impl StealSlots {
    /// Returns whether the first slot is empty, because its chain was taken or no chain was
    /// published yet.
    #[inline]
    pub fn needs_refill(&self) -> bool {
        // The owner fills the first slot first, and thieves usually empty it first. Checking only
        // this slot is therefore sufficient.
        self.slots[0].load(Ordering::Relaxed).is_null()
    }

    /// Returns all slots, the overflow slot last.
    fn all(&self) -> impl Iterator<Item = &AtomicPtr<Job>> {
        self.slots.iter().chain([&self.overflow])
    }

    /// Returns whether all slots seem to be empty.
    pub fn is_empty(&self) -> bool {
        self.all()
            .all(|slot| slot.load(Ordering::Relaxed).is_null())
    }

    /// Returns the number of slots that seem to be filled.
    pub fn len(&self) -> usize {
        self.all()
            .filter(|slot| !slot.load(Ordering::Relaxed).is_null())
            .count()
    }

    /// Publishes a chain in a free slot, and returns whether a slot was free. `chain`, which
    /// creates the chain, is only called if a slot is free. Its argument states whether that slot
    /// is the only free slot.
    ///
    /// Only the owner may call this function. Otherwise two threads could find the same free slot,
    /// and one thread would overwrite the chain of the other thread.
    pub fn publish(&self, chain: impl FnOnce(bool) -> Chain) -> bool {
        let slots = self.slots.iter();
        // A relaxed load is sufficient, because a slot that a thief has emptied stays empty until
        // the owner fills it.
        let mut free = slots.filter(|slot| slot.load(Ordering::Relaxed).is_null());
        let Some(slot) = free.next() else {
            return false;
        };
        let is_last = free.next().is_none();
        slot.store(chain(is_last).into_raw(), Ordering::Release);
        true
    }

    /// Adds a task to the overflow slot. Only the owner may call this function.
    pub fn push_overflow(&self, job: JobRef) {
        let mut chain = self.take_overflow().unwrap_or(Chain::EMPTY);
        chain.push(job);
        republish(&self.overflow, chain);
    }

    /// Fills the overflow slot, which must be empty. Only the owner may call this function.
    pub fn fill_overflow(&self, chain: Chain) {
        debug_assert!(self.overflow.load(Ordering::Relaxed).is_null());
        republish(&self.overflow, chain);
    }

    /// Takes all tasks of the overflow slot. Any thread may call this function.
    pub fn take_overflow(&self) -> Option<Chain> {
        take(&self.overflow)
    }

    /// Takes a chain from a slot other than the overflow slot. Any thread may call this function.
    pub fn steal(&self) -> Option<Chain> {
        self.slots.iter().find_map(take)
    }

    /// Removes a job that was published by [`Self::publish`], and publishes the rest of its chain
    /// again. In between, other workers may find the slot empty and go to sleep. If the rest is not
    /// empty, the caller must therefore wake a worker. Only the owner may call this function.
    pub fn remove(&self, job: NonNull<Job>) -> TakenOut {
        let mut outcome = TakenOut::default();
        // The search starts at the last slot, because the job is usually in the slot that was
        // filled last.
        for slot in self.slots.iter().rev() {
            let Some(mut chain) = take(slot) else {
                continue;
            };
            outcome.found = chain.remove(job);
            if !chain.is_empty() {
                republish(slot, chain);
                outcome.republished = true;
            }
            if outcome.found {
                break;
            }
        }
        outcome
    }

    /// Takes a chain from the last slot that is not empty, except the overflow slot. The owner uses
    /// this function instead of [`Self::steal`], because it publishes the tasks last that it would
    /// run first.
    pub fn reclaim(&self) -> Option<Chain> {
        self.slots.iter().rev().find_map(take)
    }
}

/// Result of [`StealSlots::remove`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TakenOut {
    pub found: bool,
    /// Whether other jobs were removed from a slot for a moment and published again.
    pub republished: bool,
}

/// Publishes a chain in a slot that the owner has just emptied. A swap by a thief returns either
/// null or this chain.
fn republish(slot: &AtomicPtr<Job>, chain: Chain) {
    slot.swap(chain.into_raw(), Ordering::Release);
}

fn take(slot: &AtomicPtr<Job>) -> Option<Chain> {
    // The slot is loaded before the swap, because a swap of an empty slot would needlessly remove
    // the cache line from the owner's cache.
    if slot.load(Ordering::Relaxed).is_null() {
        return None;
    }
    let head = slot.swap(ptr::null_mut(), Ordering::Acquire);
    // SAFETY: the slot held a chain, and only this swap returned it.
    let chain = unsafe { Chain::from_raw(head) };
    (!chain.is_empty()).then_some(chain)
}
