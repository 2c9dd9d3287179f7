// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker's shelf: what it has to do that others may take.
//!
//! A worker keeps its ready tasks to itself, where putting one in and taking one
//! out costs no atomic operation, and lays out a chain of them on its shelf
//! where others need one. A place is null or the head of a chain. Only the owner
//! turns null into a chain, by a store that releases; whoever wants the chain swaps
//! it for null, and whoever gets one by that has all of it. So there is no state in
//! which two hold the same task, and nobody waits for anybody.
//!
//! One more place is for what the owner's running task has made ready by token, however
//! many that are: they lie there until it has ended.

use std::ptr::{self, NonNull};

use crate::job::{Chain, Job, JobRef};
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
    beside: AtomicPtr<Job>,
}

impl Default for Shelf {
    fn default() -> Self {
        Self {
            places: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            beside: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

impl Shelf {
    /// Whether something was taken, or nothing laid out yet.
    #[inline]
    pub fn needs_more(&self) -> bool {
        // The first place is filled first, and as a rule emptied first.
        self.places[0].load(Ordering::Relaxed).is_null()
    }

    /// All places, the extra one last.
    fn all(&self) -> impl Iterator<Item = &AtomicPtr<Job>> {
        self.places.iter().chain([&self.beside])
    }

    /// Whether there seems to be nothing on it.
    pub fn is_empty(&self) -> bool {
        self.all()
            .all(|place| place.load(Ordering::Relaxed).is_null())
    }

    /// How many chains there seem to be on it.
    pub fn len(&self) -> usize {
        self.all()
            .filter(|place| !place.load(Ordering::Relaxed).is_null())
            .count()
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

    /// Lays one more out in the extra place. By its owner alone.
    pub fn add(&self, job: JobRef) {
        let mut chain = self.take_added().unwrap_or(Chain::EMPTY);
        chain.push(job);
        put_back(&self.beside, chain);
    }

    /// Lays several out there, where nothing is. By its owner alone.
    pub fn add_all(&self, chain: Chain) {
        debug_assert!(self.beside.load(Ordering::Relaxed).is_null());
        put_back(&self.beside, chain);
    }

    /// Takes all that is in the extra place, the owner or anybody.
    pub fn take_added(&self) -> Option<Chain> {
        take(&self.beside)
    }

    /// Takes a chain, the owner or anybody; not from the extra place.
    pub fn take(&self) -> Option<Chain> {
        self.places.iter().find_map(take)
    }

    /// Takes a job back that was laid out by [`Self::put`], and leaves what else there is
    /// where it is. For a moment others do not see that, so that
    /// they have to be woken where something is left. By its owner alone.
    pub fn take_out(&self, job: NonNull<Job>) -> TakenOut {
        let mut taken = TakenOut::default();
        // Last of all it was laid out, as a rule behind the others.
        for place in self.places.iter().rev() {
            let Some(mut chain) = take(place) else {
                continue;
            };
            taken.was_there = chain.take_out(job);
            if !chain.is_empty() {
                put_back(place, chain);
                taken.has_left = true;
            }
            if taken.was_there {
                break;
            }
        }
        taken
    }

    /// As [`Self::take`], what was laid out last first: for the owner, who lays out first
    /// what it wants last.
    pub fn take_back(&self) -> Option<Chain> {
        self.places.iter().rev().find_map(take)
    }
}

/// What has come of a look for a job.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TakenOut {
    pub was_there: bool,
    /// Other jobs were taken for a moment, and lie there again.
    pub has_left: bool,
}

/// Lays out where the owner has taken something before: a thief may be about to swap what it
/// has seen there, and finds either nothing or this.
fn put_back(place: &AtomicPtr<Job>, chain: Chain) {
    place.swap(chain.into_raw(), Ordering::Release);
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
