// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disk load of the rig: direct reads of blocks, and buffered writes with immediate writeback. Each
//! function returns after a known number of bytes.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use crate::{ready, report, wait};

/// An aligned buffer for direct I/O.
#[repr(align(4096))]
struct Page([u8; 65536]);

/// Reads blocks with direct I/O.
pub fn direct(file: &str, count: u64, block: u64) -> io::Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(file)?;
    let mut page = Box::new(Page([0; 65536]));
    let room = &mut page.0[..block as usize];
    ready()?;
    let mut sectors = 0;
    for at in 0..count {
        sectors += file.read_at(room, at * block)? as u64 / 512;
    }
    report(&format!("{sectors}"))?;
    wait()
}

/// Writes into the page cache, and starts writeback.
pub fn buffered(file: &str, bytes: u64) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(file)?;
    ready()?;
    for _ in 0..bytes / 65536 {
        file.write_all(&[1; 65536])?;
    }
    // Starts writeback, as the kernel's flusher thread does, without waiting for its end. SAFETY:
    // `sync_file_range` takes the descriptor of an open file and numbers, and accesses no memory.
    let begun =
        unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    if begun != 0 {
        return Err(io::Error::last_os_error());
    }
    report(&format!("{}", bytes / 512))?;
    wait()
}
