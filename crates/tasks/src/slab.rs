// SPDX-License-Identifier: MIT OR Apache-2.0
//! A slab: an allocator for values of one type. A block of 8 KiB contains a header and slots for
//! values, and colouring determines the position of the header (see [`color`](crate::color)).
//!
//! The header of a block contains the list of the block's free slots. The address of the header is
//! computed from the address of any slot, so a slot contains no pointer to its block. Each
//! insertion and removal accesses a header, so colouring spreads the headers over the cache sets.
//!
//! 1. Blocks with free slots are in a doubly linked list. An insertion uses a free slot of the
//!    first block of the list, or a new block if the list is empty.
//! 2. A block without free slots is removed from the list. It is added again when one of its slots
//!    is freed.
//! 3. A block without values is returned to the source of blocks, unless it is the only block in
//!    the list: the next insertion would need a block again.
//!
//! Insertion and removal take constant time, unless the source must allocate a chunk. Taking a
//! block from the source and returning a block also need a lock. Values have 8 to 1023 bytes. Lack
//! of memory is an error.

use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};

use crate::color::{Blocks, ColorError, Coloring};

/// Size of a block in bytes. The next two constants are the size of a header in bytes and the
/// number of positions of headers.
const BLOCK_BYTES: usize = 8192;
const HEADER_BYTES: usize = 64;
const COLORS: usize = 16;

/// Creates a source of blocks for slabs.
pub(crate) fn blocks() -> Result<Blocks, ColorError> {
    Coloring::new(BLOCK_BYTES, HEADER_BYTES, COLORS).map(Blocks::new)
}

/// The header of a block.
#[repr(C)]
struct Header {
    /// Linked list of the free slots that have contained a value before.
    free: *mut Slot,
    /// The first slot that has never contained a value. The next field is the end of the slots.
    fresh: *mut u8,
    end: *mut u8,
    /// Number of values in this block.
    live: usize,
    /// The previous and the next block in the list of blocks with free slots.
    previous: *mut Header,
    next: *mut Header,
}

/// A free slot, which contains a pointer to the next free slot.
struct Slot {
    next: *mut Slot,
}

/// Values of one type, of 8 to 1023 bytes and an alignment of 8 to 64 bytes. All values must be
/// removed before the slab is dropped; the drop of a slab drops no values. The source of the blocks
/// frees their memory.
pub(crate) struct Slab<T> {
    /// List of blocks with free slots.
    partial: *mut Header,
    of: PhantomData<T>,
}

// SAFETY: only this slab accesses the blocks to which its pointers refer.
unsafe impl<T: Send> Send for Slab<T> {}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            partial: ptr::null_mut(),
            of: PhantomData,
        }
    }
}

impl<T> Slab<T> {
    const SLOT_BYTES: usize = {
        assert!(size_of::<Header>() <= HEADER_BYTES);
        assert!(align_of::<T>() <= HEADER_BYTES && align_of::<T>() >= align_of::<Slot>());
        assert!(size_of::<T>() >= size_of::<Slot>() && size_of::<T>() < BLOCK_BYTES / 8);
        size_of::<T>()
    };

    /// Inserts a value and returns its address.
    ///
    /// # Errors
    /// If the system has no memory.
    pub fn insert(&mut self, blocks: &Blocks, value: T) -> Result<NonNull<T>, ColorError> {
        if self.partial.is_null() {
            let header = Self::make(blocks)?;
            // SAFETY: the block was created above and is not in the list.
            unsafe { self.link(header) };
        }
        let header = self.partial;
        // SAFETY: each block in the list has a free slot, and only this slab accesses it. A slot
        // has at least the size of a value and is inside its block.
        unsafe {
            let slot = match (*header).free {
                free if free.is_null() => {
                    let fresh = (*header).fresh;
                    (*header).fresh = fresh.add(Self::SLOT_BYTES);
                    fresh
                }
                free => {
                    (*header).free = (*free).next;
                    free.cast()
                }
            };
            (*header).live += 1;
            if Self::is_full(header) {
                self.unlink(header);
            }
            let slot = slot.cast::<T>();
            slot.write(value);
            Ok(NonNull::new_unchecked(slot))
        }
    }

    /// Removes a value.
    ///
    /// # Safety
    /// The value was inserted into this slab with the same `blocks`, and is not used after this
    /// call.
    pub unsafe fn remove(&mut self, blocks: &Blocks, at: NonNull<T>) -> T {
        let coloring = blocks.coloring();
        let inside = at.as_ptr().cast::<u8>();
        let header_at = coloring.header(inside.addr());
        // SAFETY: the caller guarantees that `at` is a slot of this slab. The block of the slot
        // belongs to this slab, and `coloring` computes the address of the block's header.
        unsafe {
            let header = inside.with_addr(header_at).cast::<Header>();
            let value = at.as_ptr().read();
            if Self::is_full(header) {
                self.link(header);
            }
            let slot = inside.cast::<Slot>();
            slot.write(Slot {
                next: (*header).free,
            });
            (*header).free = slot;
            (*header).live -= 1;
            let is_only = self.partial == header && (*header).next.is_null();
            if (*header).live == 0 && !is_only {
                self.unlink(header);
                blocks.give_back(NonNull::new_unchecked(header.cast()));
            }
            value
        }
    }

    fn make(blocks: &Blocks) -> Result<*mut Header, ColorError> {
        let block = blocks.take()?;
        let base = block.as_ptr();
        let room = blocks.coloring().room(base.addr());
        let slots = room.len() / Self::SLOT_BYTES;
        let header = base.cast::<MaybeUninit<Header>>();
        // SAFETY: only this slab accesses the new block. A `Header` fits into the block's header,
        // and the slots do not overlap the header.
        unsafe {
            let fresh = base.with_addr(room.start);
            (*header).write(Header {
                free: ptr::null_mut(),
                fresh,
                end: fresh.add(slots * Self::SLOT_BYTES),
                live: 0,
                previous: ptr::null_mut(),
                next: ptr::null_mut(),
            });
        }
        Ok(header.cast())
    }

    /// # Safety
    /// `header` is a header of a block of this slab.
    unsafe fn is_full(header: *mut Header) -> bool {
        // SAFETY: `header` is the header of a block of this slab, as the caller guarantees.
        unsafe { (*header).free.is_null() && (*header).fresh == (*header).end }
    }

    /// # Safety
    /// `header` is a header of a block of this slab that is not in the list.
    unsafe fn link(&mut self, header: *mut Header) {
        // SAFETY: the caller guarantees that `header` belongs to this slab, and so do all headers
        // in the list.
        unsafe {
            (*header).previous = ptr::null_mut();
            (*header).next = mem::replace(&mut self.partial, header);
            if !(*header).next.is_null() {
                (*(*header).next).previous = header;
            }
        }
    }

    /// # Safety
    /// `header` is a header of a block of this slab that is in the list.
    unsafe fn unlink(&mut self, header: *mut Header) {
        // SAFETY: the caller guarantees that the header is in the list. Its neighbours are also in
        // the list and thus belong to this slab.
        unsafe {
            let (previous, next) = ((*header).previous, (*header).next);
            match previous.is_null() {
                true => self.partial = next,
                false => (*previous).next = next,
            }
            if !next.is_null() {
                (*next).previous = previous;
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Value = [u64; 9];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

        /// A value is unchanged while other values are inserted and removed.
        #[test]
        fn values_do_not_overlap(steps in prop::collection::vec((any::<bool>(), any::<usize>()), 0..3000)) {
            let blocks = blocks().unwrap();
            let mut slab = Slab::<Value>::default();
            let mut held: Vec<(NonNull<Value>, u64)> = Vec::new();
            for (number, (is_in, which)) in steps.into_iter().enumerate() {
                // Most of the first steps are insertions, and most of the last steps are removals.
                if is_in || held.is_empty() {
                    let at = slab.insert(&blocks, [number as u64; 9]).unwrap();
                    prop_assert_eq!(at.addr().get() % align_of::<Value>(), 0);
                    held.push((at, number as u64));
                } else {
                    let (at, number) = held.swap_remove(which % held.len());
                    // SAFETY: the value was inserted above, and is not used after this call.
                    prop_assert_eq!(unsafe { slab.remove(&blocks, at) }, [number; 9]);
                }
            }
            for (at, number) in held {
                // SAFETY: the value was inserted above, and is not used after this call.
                prop_assert_eq!(unsafe { slab.remove(&blocks, at) }, [number; 9]);
            }
        }
    }

    #[test]
    fn empty_blocks_are_returned() {
        let blocks = blocks().unwrap();
        let mut slab = Slab::<Value>::default();
        let room = 8192 / size_of::<Value>();
        for _ in 0..3 {
            let values: Vec<_> = (0..100 * room)
                .map(|_| slab.insert(&blocks, [7; 9]).unwrap())
                .collect();
            let mut in_use: Vec<usize> = values.iter().map(|at| at.addr().get() / 8192).collect();
            in_use.dedup();
            in_use.sort_unstable();
            in_use.dedup();
            assert!(
                in_use.len() <= 112,
                "{} blocks, by colour fuller or not",
                in_use.len()
            );
            for at in values {
                // SAFETY: the value was inserted above, and is not used after this call.
                unsafe { slab.remove(&blocks, at) };
            }
        }
        assert!(blocks.free() >= 100);
    }
}
