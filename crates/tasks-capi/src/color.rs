// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coloured blocks.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use usher_tasks::color::{self, Blocks};

use crate::error::{Failure, boundary, boundary_or};
use crate::runtime::out;

/// `usher_coloring`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Coloring {
    /// A power of two.
    pub block_bytes: usize,
    /// Bytes of a header.
    pub header_bytes: usize,
    /// Places that a header can have.
    pub colors: usize,
}

/// The colouring behind a pointer.
///
/// # Safety
/// It is null, or can be read.
unsafe fn read(coloring: *const Coloring) -> Result<color::Coloring, Failure> {
    // SAFETY: the caller's promise.
    let coloring = unsafe { coloring.as_ref() }.ok_or_else(|| Failure::null("coloring"))?;
    let Coloring {
        block_bytes,
        header_bytes,
        colors,
    } = *coloring;
    Ok(color::Coloring::new(block_bytes, header_bytes, colors)?)
}

/// An address that is computed by a colouring; `or` where that cannot be.
///
/// # Safety
/// As [`read`].
unsafe fn computed<T>(
    coloring: *const Coloring,
    or: T,
    compute: impl FnOnce(color::Coloring) -> T,
) -> T {
    // SAFETY: the caller's promise.
    let read = || unsafe { read(coloring) }.ok();
    match boundary_or(None, read) {
        Some(coloring) => compute(coloring),
        None => or,
    }
}

/// Whether a colouring can be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_coloring_check(coloring: *const Coloring) -> c_int {
    // SAFETY: the caller promises one that can be read, or null.
    boundary(|| unsafe { read(coloring) }.map(|_| ()))
}

/// The block around an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_coloring_base(
    coloring: *const Coloring,
    inside: *const c_void,
) -> *mut c_void {
    let base = |coloring: color::Coloring| coloring.base(inside.addr());
    let at = |coloring| inside.with_addr(base(coloring)).cast_mut();
    // SAFETY: the caller promises one that can be read, or null.
    unsafe { computed(coloring, ptr::null_mut(), at) }
}

/// By how much the header is shifted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_coloring_shift(
    coloring: *const Coloring,
    base: *const c_void,
) -> usize {
    // SAFETY: the caller promises one that can be read, or null.
    unsafe { computed(coloring, 0, |coloring| coloring.shift(base.addr())) }
}

/// The header of the block around an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_coloring_header(
    coloring: *const Coloring,
    inside: *const c_void,
) -> *mut c_void {
    let header = |coloring: color::Coloring| coloring.header(inside.addr());
    let at = |coloring| inside.with_addr(header(coloring)).cast_mut();
    // SAFETY: the caller promises one that can be read, or null.
    unsafe { computed(coloring, ptr::null_mut(), at) }
}

/// Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_blocks_new(
    coloring: *const Coloring,
    blocks: *mut *mut Blocks,
) -> c_int {
    boundary(|| {
        // SAFETY: null, or the caller's to be written.
        let out = unsafe { out(blocks, "the place for the blocks") }?;
        // SAFETY: the caller promises one that can be read, or null.
        let coloring = unsafe { read(coloring) }?;
        *out = Box::into_raw(Box::new(Blocks::new(coloring)));
        Ok(())
    })
}

/// The blocks behind a pointer.
///
/// # Safety
/// It is null, or lives.
unsafe fn blocks_of<'a>(blocks: *mut Blocks) -> Result<&'a Blocks, Failure> {
    // SAFETY: the caller's promise.
    unsafe { blocks.as_ref() }.ok_or_else(|| Failure::null("blocks"))
}

/// Takes a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_blocks_take(blocks: *mut Blocks, header: *mut *mut c_void) -> c_int {
    boundary(|| {
        // SAFETY: null, or the caller's to be written.
        let out = unsafe { out(header, "the place for the header") }?;
        // SAFETY: the caller promises blocks that live, or null.
        let block = unsafe { blocks_of(blocks) }?.take()?;
        *out = block.as_ptr().cast();
        Ok(())
    })
}

/// Gives a block back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_blocks_give_back(blocks: *mut Blocks, inside: *mut c_void) -> c_int {
    boundary(|| {
        let Some(inside) = NonNull::new(inside.cast()) else {
            return Ok(());
        };
        // SAFETY: the caller promises blocks that live, or null, and that the block
        // is one of them and nobody's any more.
        unsafe { blocks_of(blocks)?.give_back(inside) };
        Ok(())
    })
}

/// Frees all blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_blocks_destroy(blocks: *mut Blocks) {
    boundary_or((), || {
        if !blocks.is_null() {
            // SAFETY: made by us from a box, and by the caller's promise used no more.
            drop(unsafe { Box::from_raw(blocks) });
        }
    });
}
