// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coloured blocks: blocks with headers that are spread over the cache sets.
//!
//! Problem: if the size of a block is a power of two, and the block is aligned to its size, masking
//! any pointer into the block gives the base of the block, and thus its header. Linux 2.4 finds the
//! task structure below a kernel stack in this way. But a given field then has the same low address
//! bits in all headers. These bits select the cache set, so the copies of the field in all blocks
//! compete for few cache sets. A walk of a run queue of 8 KiB blocks misses the cache in 90 % of
//! its steps (paper 3a), where 1 % is usual. A larger cache does not help.
//!
//! Idea: *colouring* shifts each header by a number of whole cache lines, the *colour* of the
//! block. The colour is a hash of the upper bits of the block's address. All pointers into the
//! block have the same upper bits, so base, colour and header can be computed from any of them, in
//! constant time and without access to memory.
//!
//! Half of the headers stand at the start of their blocks and half at the end:
//!
//! ```text
//! base        header            room                                   base + bytes
//! |  colour   |----------------|------------------------- ... ---------------|
//! |------------------------- ... ---------------|----------------|  colour   |
//! ```
//!
//! The header of a block of several pages is in the first or in the last page of the block, so
//! headers are also spread over the sets of the translation look-aside buffers. If all headers were
//! at the start, all headers of blocks of two pages would be in even pages, and half of the sets of
//! these buffers would be unused. With two positions, the colours also need only half of the bytes.
//!
//! Bounds: A block has a power of two of bytes, at least 64. A header has at least 1 byte, and its
//! last position must be inside the block. Blocks are allocated in chunks of 1 MiB, or of one block
//! if a block is larger; chunks are freed only with their [`Blocks`]. Taking and returning a block
//! needs a lock and constant time, except when a chunk is allocated. Lack of memory is an error.

use std::alloc::{self, Layout};
use std::ops::Range;
use std::ptr::NonNull;

use crate::sync::{Mutex, MutexGuard};

/// Bytes of a cache line, the unit by which headers are shifted.
pub const LINE_BYTES: usize = 64;
/// Bytes allocated from the system at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The reason for which blocks cannot be laid out or allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ColorError {
    /// The block size is no power of two or is below [`LINE_BYTES`], so masking a pointer would not
    /// give the base of a block.
    #[error(
        "a block cannot have {bytes} bytes: the size must be a power of two and at least \
         {LINE_BYTES} bytes"
    )]
    Block {
        /// Bytes of a block.
        bytes: usize,
    },
    /// The number of colours is 0, so there is no position for a header.
    #[error("the number of colours cannot be 0: it must be at least 1, which means no colouring")]
    Colors,
    /// The header size is 0. A header of 0 bytes at the end of a block would have an address in the
    /// next block.
    #[error("a header cannot have 0 bytes: the size must be at least 1 byte")]
    NoHeader,
    /// The headers of some colours would extend beyond the end of their blocks.
    #[error(
        "blocks of {block_bytes} bytes have no room for headers of {header_bytes} bytes in \
         {colors} colours"
    )]
    Header {
        /// Bytes of a header.
        header_bytes: usize,
        /// Positions that a header can have.
        colors: usize,
        /// Bytes of a block.
        block_bytes: usize,
    },
    /// The system has no memory left.
    #[error("out of memory: the system cannot allocate {bytes} bytes for blocks")]
    Memory {
        /// Bytes requested.
        bytes: usize,
    },
}

/// The position of headers in blocks, computed without access to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coloring {
    block_bytes: usize,
    header_bytes: usize,
    colors: usize,
}

impl Coloring {
    /// Lays out headers of `header_bytes` bytes in blocks of `block_bytes` bytes, with `colors`
    /// colours. One colour means no colouring.
    ///
    /// # Errors
    /// If masking cannot work, if a header would extend beyond its block, or if the number of
    /// colours or the header size is 0.
    pub fn new(block_bytes: usize, header_bytes: usize, colors: usize) -> Result<Self, ColorError> {
        if !block_bytes.is_power_of_two() || block_bytes < LINE_BYTES {
            return Err(ColorError::Block { bytes: block_bytes });
        }
        let Some(most) = colors.checked_sub(1) else {
            return Err(ColorError::Colors);
        };
        if header_bytes == 0 {
            return Err(ColorError::NoHeader);
        }
        let shift = most.checked_mul(LINE_BYTES);
        let end = shift.and_then(|shift| shift.checked_add(header_bytes));
        match end.is_some_and(|end| end <= block_bytes) {
            true => Ok(Self {
                block_bytes,
                header_bytes,
                colors,
            }),
            false => Err(ColorError::Header {
                header_bytes,
                colors,
                block_bytes,
            }),
        }
    }

    /// Returns the base of the block that contains an address.
    pub fn base(&self, inside: usize) -> usize {
        inside & !(self.block_bytes - 1)
    }

    /// Returns the offset of the header of the block at `base`, in bytes.
    pub fn shift(&self, base: usize) -> usize {
        let number = base / self.block_bytes;
        // The hash includes upper bits of the number, because the distances of blocks are often
        // powers of two, which have equal lower bits.
        let folded = number ^ (number >> 6) ^ (number >> 12) ^ (number >> 18);
        let color = folded % self.colors;
        let inset = color / 2 * LINE_BYTES;
        match color % 2 {
            0 => inset,
            _ => (self.block_bytes - self.header_bytes) / LINE_BYTES * LINE_BYTES - inset,
        }
    }

    /// Returns the address of the header of the block that contains an address.
    pub fn header(&self, inside: usize) -> usize {
        let base = self.base(inside);
        base + self.shift(base)
    }

    /// Returns the larger of the two contiguous ranges of a block, before and after its header.
    /// `inside` is any address in the block.
    pub fn room(&self, inside: usize) -> Range<usize> {
        let (base, header) = (self.base(inside), self.header(inside));
        let (before, behind) = (
            base..header,
            header + self.header_bytes..base + self.block_bytes,
        );
        match before.len() > behind.len() {
            true => before,
            false => behind,
        }
    }
}

/// Blocks with coloured headers, allocated in chunks that are kept until this value is dropped.
#[derive(Debug)]
pub struct Blocks {
    coloring: Coloring,
    pool: Mutex<BlockPool>,
}

#[derive(Debug, Default)]
struct BlockPool {
    /// Free blocks. The capacity is enough for all blocks, so returning a block allocates nothing.
    free: Vec<NonNull<u8>>,
    chunks: Vec<(NonNull<u8>, Layout)>,
    /// Number of blocks in all chunks.
    blocks: usize,
}

// SAFETY: the pointers refer to memory that only this value accesses and frees.
unsafe impl Send for BlockPool {}

impl Blocks {
    /// Creates a source of blocks that has not allocated any block.
    pub fn new(coloring: Coloring) -> Self {
        Self {
            coloring,
            pool: Mutex::default(),
        }
    }

    /// Returns the layout of the blocks.
    pub fn coloring(&self) -> Coloring {
        self.coloring
    }

    /// Takes a free block and returns a pointer to its header. The block is not cleared: it is
    /// uninitialised, or has the content of its last use.
    ///
    /// # Errors
    /// If the system has no memory.
    pub fn take(&self) -> Result<NonNull<u8>, ColorError> {
        let mut pool = self.pool();
        if pool.free.is_empty() {
            self.more(&mut pool)?;
        }
        let block = pool.free.pop();
        let base = block.ok_or(ColorError::Memory {
            bytes: self.coloring.block_bytes,
        })?;
        let shift = self.coloring.shift(base.as_ptr().addr());
        // SAFETY: the header is inside the block, as `Coloring::new` has checked.
        Ok(unsafe { base.add(shift) })
    }

    /// Gives a block back to this source. `inside` is any pointer into the block.
    ///
    /// # Safety
    /// The block came from [`Self::take`] of this value and is not used after this call.
    pub unsafe fn give_back(&self, inside: NonNull<u8>) {
        let offset = inside.as_ptr().addr() & (self.coloring.block_bytes - 1);
        // SAFETY: the base is in the same block.
        let base = unsafe { inside.sub(offset) };
        self.pool().free.push(base);
    }

    /// Returns the number of free blocks.
    pub fn free(&self) -> usize {
        self.pool().free.len()
    }

    fn pool(&self) -> MutexGuard<'_, BlockPool> {
        self.pool.lock()
    }

    fn more(&self, pool: &mut BlockPool) -> Result<(), ColorError> {
        let block_bytes = self.coloring.block_bytes;
        let count = (CHUNK_BYTES / block_bytes).max(1);
        let bytes = count * block_bytes;
        let none = ColorError::Memory { bytes };
        let layout = Layout::from_size_align(bytes, block_bytes).map_err(|_| none)?;
        let more = pool.blocks + count - pool.free.len();
        pool.free.try_reserve(more).map_err(|_| none)?;
        pool.chunks.try_reserve(1).map_err(|_| none)?;
        // SAFETY: the size is not 0, as a block has at least one byte.
        let chunk = NonNull::new(unsafe { alloc::alloc(layout) }).ok_or(none)?;
        pool.chunks.push((chunk, layout));
        pool.blocks += count;
        // SAFETY: these blocks are inside the chunk.
        let blocks = (0..count)
            .rev()
            .map(|at| unsafe { chunk.add(at * block_bytes) });
        pool.free.extend(blocks);
        Ok(())
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for (chunk, layout) in self.pool().chunks.drain(..) {
            // SAFETY: the chunk was allocated with this layout. Callers have blocks as raw
            // pointers, which must not be used after this drop.
            unsafe { alloc::dealloc(chunk.as_ptr(), layout) };
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_layouts_are_rejected() {
        let refused = |block, header, colors| Coloring::new(block, header, colors).is_err();
        assert!(refused(8000, 64, 4) && refused(32, 8, 1) && refused(8192, 64, 0));
        assert!(refused(4096, 0, 1) && refused(4096, 0, 2));
        assert!(refused(8192, 64, 129) && refused(usize::MAX / 2 + 1, 1, usize::MAX));
        assert!(!refused(8192, 64, 128) && !refused(64, 64, 1));
    }

    #[test]
    fn neighbours_use_all_colours_evenly() {
        let coloring = Coloring::new(8192, 64, 64).unwrap();
        for stride in [1, 2, 4, 64, 128] {
            let mut uses = [0; 64];
            for block in 0..64 * 64 {
                uses[coloring.shift(block * stride * 8192) / LINE_BYTES % 64] += 1;
            }
            assert!(
                uses.iter().all(|count| (32..=128).contains(count)),
                "{stride}: {uses:?}"
            );
        }
    }

    #[test]
    fn headers_use_even_and_odd_pages_and_leave_contiguous_room() {
        let coloring = Coloring::new(8192, 128, 64).unwrap();
        let blocks = 0..4096_usize;
        // Counts headers by the two lowest bits of the page number, which select one of four sets.
        let mut pages = [0; 4];
        for base in blocks.map(|block| block * 8192) {
            pages[coloring.header(base) / 4096 % 4] += 1;
            let room = coloring.room(base);
            assert!(room.len() >= 8192 - 128 - 32 * LINE_BYTES);
            let header = coloring.header(base)..coloring.header(base) + 128;
            assert!(room.end <= header.start || header.end <= room.start);
        }
        assert_eq!(pages, [1024; 4]);
    }

    #[test]
    fn blocks_are_distinct_and_reused() {
        let blocks = Blocks::new(Coloring::new(4096, 128, 16).unwrap());
        let coloring = blocks.coloring();
        let taken: Vec<NonNull<u8>> = (0..1000).map(|_| blocks.take().unwrap()).collect();
        let bases: BTreeSet<usize> = taken
            .iter()
            .map(|header| coloring.base(header.addr().get()))
            .collect();
        assert_eq!(bases.len(), taken.len());
        for header in &taken {
            assert_eq!(coloring.header(header.addr().get()), header.addr().get());
        }
        let first = taken[0];
        // SAFETY: the block was taken above, and is not used after this call.
        unsafe { blocks.give_back(first) };
        assert_eq!(blocks.take().unwrap(), first);
    }

    #[test]
    fn releasing_blocks_allocates_nothing() {
        // With this block size, a chunk contains four blocks.
        let blocks = Blocks::new(Coloring::new(CHUNK_BYTES / 4, 64, 4).unwrap());
        let taken: Vec<NonNull<u8>> = (0..41).map(|_| blocks.take().unwrap()).collect();
        let room = blocks.pool().free.capacity();
        assert!(room >= 44, "{room}");
        for block in taken {
            // SAFETY: the block was taken above, and is not used after this call.
            unsafe { blocks.give_back(block) };
        }
        assert_eq!((blocks.free(), blocks.pool().free.capacity()), (44, room));
    }

    proptest! {
        #[test]
        fn any_address_inside_leads_to_the_header(
            block_log in 6..20_u32, number in 0..1_usize << 30, inside: usize, colors in 1..64_usize,
            header_bytes in 0..200_usize,
        ) {
            let block = 1_usize << block_log;
            let Ok(coloring) = Coloring::new(block, header_bytes, colors) else { return Ok(()) };
            let base = number * block;
            let at = base + inside % block;
            let header = coloring.header(at);
            prop_assert_eq!(header, coloring.header(base));
            prop_assert!(header >= base && header.is_multiple_of(LINE_BYTES.min(block)));
            prop_assert!(header < base + block && header + header_bytes <= base + block);
            let room = coloring.room(at);
            prop_assert!(room.start >= base && room.end <= base + block);
            prop_assert!(room.end <= header || room.start >= header + header_bytes);
        }
    }
}
