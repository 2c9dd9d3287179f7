// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steal slots: the tasks of a worker that other workers may take.
//!
//! A worker's own queues need no atomic operations. When other workers need tasks, the worker
//! publishes chains of its tasks in slots. A slot is null or holds the head of a chain. Only the
//! publishes chains of its tasks in slots. A slot is null or holds the head of a chain. Only the
//! owner replaces null by a chain, with a release store. A thread that wants the chain swaps the
//! slot with null; the swap that returns the chain owns all of it. No two threads ever hold the
//! same task, and no thread waits for another.
//!
//! The overflow slot holds the tasks, any number of them, that the owner's running task has made
//! ready by token. It is emptied after that task has ended.

use std::ptr::{self, NonNull};

use crate::job::{Chain, Job, JobRef};
use crate::sync::{AtomicPtr, Ordering};

/// Number of slots. With several slots, one may be emptied while another is still full.
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
    /// Returns whether the first slot is empty: its chain was taken, or none was published yet.
    #[inline]
    pub fn needs_refill(&self) -> bool {
        // The first slot is filled first and usually emptied first, so it stands for all slots.
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

    /// Publishes a chain and returns whether a slot was free. `chain` is only called if a slot was
    /// free; its argument is whether that slot is the last free slot.
    ///
    /// Only the owner may call this function: two threads that see the same free slot would
    /// overwrite each other's chain.
    pub fn publish(&self, chain: impl FnOnce(bool) -> Chain) -> bool {
        let slots = self.slots.iter();
        // A relaxed load is enough, because a slot emptied by a thief stays empty until the owner
        // fills it.
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

    /// Removes a job published by [`Self::publish`] and publishes the rest of its chain again.
    /// Other workers miss the rest in between, so they must be woken if the rest is not empty. Only
    /// the owner may call this function.
    pub fn remove(&self, job: NonNull<Job>) -> TakenOut {
        let mut outcome = TakenOut::default();
        // The search starts at the last slot: the job was published last, usually in the last
        // filled slot.
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

    /// As [`Self::steal`], but starts with the slot filled last. The owner uses it, because it
    /// publishes last what it needs first.
    pub fn reclaim(&self) -> Option<Chain> {
        self.slots.iter().rev().find_map(take)
    }
}

/// Result of [`StealSlots::remove`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TakenOut {
    pub found: bool,
    /// Whether other jobs were removed briefly and published again.
    pub republished: bool,
}

/// Publishes a chain in a slot that the owner has emptied itself. A thief that is about to swap
/// finds either null or this chain.
fn republish(slot: &AtomicPtr<Job>, chain: Chain) {
    slot.swap(chain.into_raw(), Ordering::Release);
}

fn take(slot: &AtomicPtr<Job>) -> Option<Chain> {
    // The slot is loaded first, because a swap would take the cache line from the owner.
    if slot.load(Ordering::Relaxed).is_null() {
        return None;
    }
    let head = slot.swap(ptr::null_mut(), Ordering::Acquire);
    // SAFETY: the slot held a chain, and only this swap returned it.
    let chain = unsafe { Chain::from_raw(head) };
    (!chain.is_empty()).then_some(chain)
}
