// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page mapped into the program that beats.
//!
//! Only atomic operations touch the mapping, since other processes write to
//! it at the same time. Offsets are the constants of [`crate::layout`], all
//! inside the page and aligned; `word` and `half` check that as they go.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::layout::PAGE_BYTES;

/// A shared, writable mapping of the page; taken down when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
}

// SAFETY: the mapping is only reached through atomics and outlives every
// reference that `word`, `half` and `byte` hand out.
unsafe impl Send for Mapping {}
// SAFETY: as above; atomics may be shared between threads.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file that is known to have [`PAGE_BYTES`] bytes.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches
        // no memory of ours; the result is checked before use.
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
        // SAFETY: the offset lies inside the mapping, as just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside the mapping, aligned, and only used atomically.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    pub(crate) fn half(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping, aligned, and only used atomically.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    pub(crate) fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: inside the mapping, and only used atomically.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this size, and no reference into it
        // outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), PAGE_BYTES) };
    }
}
