// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker's shelf: what it has to do that others may take.
//!
//! A worker keeps its ready tasks to itself, where putting one in and taking one
//! out costs no atomic operation, and lays out a chain of them on its shelf
//! where others need one. A place is null or the head of a chain. Only the owner
//! turns null into a chain, by a store that releases; whoever wants the chain swaps
//! it for null, and whoever gets one by that has all of it. So there is no state in
//! which two hold the same task, and nobody waits for anybody.

use std::ptr;

use crate::job::{Chain, Job};
use crate::sync::{AtomicPtr, Ordering};

/// Places: one is being emptied while another is still full.
#[cfg(not(feature = "loom"))]
pub(crate) const PLACES: usize = 4;
#[cfg(feature = "loom")]
pub(crate) const PLACES: usize = 2;

/// A shelf; on cache lines of its own, as others look at it all the time when
/// they have nothing to do.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Shelf {
    places: [AtomicPtr<Job>; PLACES],
}

impl Default for Shelf {
    fn default() -> Self {
        Self {
            places: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
        }
    }
}

impl Shelf {
    /// Whether something was taken, or nothing laid out yet.
    #[inline]
    pub fn needs_more(&self) -> bool {
        // The first place is filled first, and emptied first.
        self.places[0].load(Ordering::Relaxed).is_null()
    }

    /// Whether there seems to be nothing on it.
    pub fn is_empty(&self) -> bool {
        let mut places = self.places.iter();
        places.all(|place| place.load(Ordering::Relaxed).is_null())
    }

    /// How many chains there seem to be on it.
    pub fn len(&self) -> usize {
        let places = self.places.iter();
        places
            .filter(|place| !place.load(Ordering::Relaxed).is_null())
            .count()
    }

    /// Whether there is no place left.
    pub fn is_full(&self) -> bool {
        self.len() == PLACES
    }

    /// Lays a chain out, which is only made if there is a place for it, and is told
    /// whether that is the last one; whether there was.
    ///
    /// By its owner alone: of two who see the same place empty, the second would
    /// lose the first one's chain.
    pub fn put(&self, chain: impl FnOnce(bool) -> Chain) -> bool {
        let places = self.places.iter();
        // What a thief has emptied is empty for good, so that a relaxed look will do.
        let mut free = places.filter(|place| place.load(Ordering::Relaxed).is_null());
        let Some(place) = free.next() else {
            return false;
        };
        let is_last = free.next().is_none();
        place.store(chain(is_last).into_raw(), Ordering::Release);
        true
    }

    /// Takes a chain, the owner or anybody.
    pub fn take(&self) -> Option<Chain> {
        self.places.iter().find_map(take)
    }

    /// As [`Self::take`], what was laid out last first: for the owner, who lays out first
    /// what it wants last.
    pub fn take_back(&self) -> Option<Chain> {
        self.places.iter().rev().find_map(take)
    }
}

fn take(place: &AtomicPtr<Job>) -> Option<Chain> {
    // A look first: a swap would take the line from the owner.
    if place.load(Ordering::Relaxed).is_null() {
        return None;
    }
    let head = place.swap(ptr::null_mut(), Ordering::Acquire);
    // SAFETY: a chain was laid out here, and the swap gives it to one.
    let chain = unsafe { Chain::from_raw(head) };
    (!chain.is_empty()).then_some(chain)
}
