// SPDX-License-Identifier: MIT OR Apache-2.0
//! The heartbeat page mapped into the program that reports its progress.
//!
//! Other processes write to the mapping at the same time. Therefore only atomic operations access
//! it. Offsets are the constants of [`crate::layout`]; `word`, `half` and `byte` panic if an offset
//! is not aligned or not inside the page. The mapping has [`PAGE_BYTES`] bytes. If another process
//! truncates the file, an access raises SIGBUS.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::layout::PAGE_BYTES;

/// A shared, writable mapping of the page, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
}

// SAFETY: the mapping is accessed only through atomics, and outlives the references that `word`,
// `half` and `byte` return.
unsafe impl Send for Mapping {}
// SAFETY: the mapping is accessed only through atomics, which several threads may use at the same
// time.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file. The caller has checked that the file has [`PAGE_BYTES`] bytes.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: a new mapping at an address chosen by the kernel overlaps no other memory; the
        // result is checked before use.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(start) if base != libc::MAP_FAILED => Ok(Self { base: start }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset.is_multiple_of(bytes) && offset + bytes <= PAGE_BYTES);
        // SAFETY: the offset is inside the mapping, as checked above.
        unsafe { self.base.as_ptr().add(offset) }
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the word is inside the mapping, aligned, and only used atomically.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    pub(crate) fn half(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the half word is inside the mapping, aligned, and only used atomically.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    pub(crate) fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: the byte is inside the mapping, and only used atomically.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping of `PAGE_BYTES` bytes, and no reference into the
        // mapping outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), PAGE_BYTES) };
    }
}
