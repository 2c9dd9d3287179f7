// SPDX-License-Identifier: MIT OR Apache-2.0
//! C functions for coloured blocks (`usher_coloring_*`, `usher_blocks_*`). Each function checks its
//! pointers, calls `usher_tasks::color`, which implements the algorithm, and converts the result
//! for C. All functions take constant time, except that `usher_blocks_take` may allocate a chunk of
//! blocks. The functions that compute an address return NULL or 0 for an invalid colouring. The
//! other functions return an error code. `usher_coloring_check` reports what is invalid.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use usher_tasks::color::{self, Blocks};

use crate::error::{Failure, boundary, boundary_or};
use crate::runtime::out;

/// `usher_coloring`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ColoringSpec {
    /// Bytes of a block, a power of two.
    pub block_bytes: usize,
    /// Bytes of a header.
    pub header_bytes: usize,
    /// Positions that a header can have.
    pub colors: usize,
}

/// Returns the colouring to which a pointer refers.
///
/// # Safety
/// `coloring` is null or readable.
unsafe fn read(coloring: *const ColoringSpec) -> Result<color::Coloring, Failure> {
    // SAFETY: `coloring` is null or readable, as the caller guarantees.
    let coloring = unsafe { coloring.as_ref() }.ok_or_else(|| Failure::null("coloring"))?;
    let ColoringSpec {
        block_bytes,
        header_bytes,
        colors,
    } = *coloring;
    Ok(color::Coloring::new(block_bytes, header_bytes, colors)?)
}

/// Computes a value by the function `compute` and a colouring; returns `or` if the colouring is
/// invalid.
///
/// # Safety
/// `coloring` is null or readable.
unsafe fn computed<T>(
    coloring: *const ColoringSpec,
    or: T,
    compute: impl FnOnce(color::Coloring) -> T,
) -> T {
    // SAFETY: `coloring` is null or readable, as the caller guarantees.
    let read = || unsafe { read(coloring) }.ok();
    match boundary_or(None, read) {
        Some(coloring) => compute(coloring),
        None => or,
    }
}

/// Checks a colouring.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_coloring_check(coloring: *const ColoringSpec) -> c_int {
    // SAFETY: `coloring` is null or readable, as the caller guarantees.
    boundary(|| unsafe { read(coloring) }.map(|_| ()))
}

/// Returns the base of the block that contains an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_coloring_base(
    coloring: *const ColoringSpec,
    inside: *const c_void,
) -> *mut c_void {
    let base = |coloring: color::Coloring| coloring.base(inside.addr());
    let at = |coloring| inside.with_addr(base(coloring)).cast_mut();
    // SAFETY: `coloring` is null or readable, as the caller guarantees.
    unsafe { computed(coloring, ptr::null_mut(), at) }
}

/// Returns the offset of the header of the block at `base`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_coloring_shift(
    coloring: *const ColoringSpec,
    base: *const c_void,
) -> usize {
    // SAFETY: `coloring` is null or readable, as the caller guarantees.
    unsafe { computed(coloring, 0, |coloring| coloring.shift(base.addr())) }
}

/// Returns the header of the block that contains an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_coloring_header(
    coloring: *const ColoringSpec,
    inside: *const c_void,
) -> *mut c_void {
    let header = |coloring: color::Coloring| coloring.header(inside.addr());
    let at = |coloring| inside.with_addr(header(coloring)).cast_mut();
    // SAFETY: `coloring` is null or readable, as the caller guarantees.
    unsafe { computed(coloring, ptr::null_mut(), at) }
}

/// Creates a source of blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_blocks_new(
    coloring: *const ColoringSpec,
    blocks: *mut *mut Blocks,
) -> c_int {
    boundary(|| {
        // SAFETY: `blocks` is null or writable, as the caller guarantees.
        let out = unsafe { out(blocks, "the pointer to the blocks") }?;
        // SAFETY: `coloring` is null or readable, as the caller guarantees.
        let coloring = unsafe { read(coloring) }?;
        *out = Box::into_raw(Box::new(Blocks::new(coloring)));
        Ok(())
    })
}

/// Returns the source of blocks to which a pointer refers.
///
/// # Safety
/// `blocks` is null or valid.
unsafe fn blocks_of<'a>(blocks: *mut Blocks) -> Result<&'a Blocks, Failure> {
    // SAFETY: `blocks` is null or valid, as the caller guarantees.
    unsafe { blocks.as_ref() }.ok_or_else(|| Failure::null("blocks"))
}

/// Takes a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_blocks_take(blocks: *mut Blocks, header: *mut *mut c_void) -> c_int {
    boundary(|| {
        // SAFETY: `header` is null or writable, as the caller guarantees.
        let out = unsafe { out(header, "the pointer to the header") }?;
        // SAFETY: `blocks` is null or valid, as the caller guarantees.
        let block = unsafe { blocks_of(blocks) }?.take()?;
        *out = block.as_ptr().cast();
        Ok(())
    })
}

/// Returns a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_blocks_give_back(blocks: *mut Blocks, inside: *mut c_void) -> c_int {
    boundary(|| {
        let Some(inside) = NonNull::new(inside.cast()) else {
            return Ok(());
        };
        // SAFETY: the caller guarantees that `blocks` is null or valid, and that the block of
        // `inside` came from `blocks` and is not used after this call.
        unsafe { blocks_of(blocks)?.give_back(inside) };
        Ok(())
    })
}

/// Frees all blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_blocks_destroy(blocks: *mut Blocks) {
    boundary_or((), || {
        if !blocks.is_null() {
            // SAFETY: this crate created the blocks from a box, and the caller no longer uses them.
            drop(unsafe { Box::from_raw(blocks) });
        }
    });
}
