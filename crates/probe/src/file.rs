// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads small files of the kernel, once or repeatedly. [`read`] returns the whole file, without a
//! limit of its size. An [`OpenFile`] stays open; each reading is one system call and returns at
//! most the first 4 KiB. An error names the file, and whether its process or cgroup is gone.
//! Invalid UTF-8 is replaced.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::ProbeError;

/// Reads a whole text file; invalid UTF-8 is replaced.
pub(crate) fn read(path: &Path) -> Result<String, ProbeError> {
    // The kernel reports a size of 0 for the files of `/proc`. Without this capacity, the first
    // reads would each get only a few bytes.
    let mut bytes = Vec::with_capacity(BYTES_MAX);
    // `take` without a limit: `File::read_to_end` would first query the size and the position of
    // the file by two more system calls.
    File::open(path)
        .and_then(|file| file.take(u64::MAX).read_to_end(&mut bytes))
        .map_err(|e| ProbeError::read(path, e))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads and parses a file.
pub(crate) fn parse<T>(
    path: &Path,
    expected: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, ProbeError> {
    parse(&read(path)?).ok_or_else(|| ProbeError::malformed(path, expected))
}

/// A file that stays open; each reading is one system call, from the start of the file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
}

/// Maximum number of bytes that an [`OpenFile`] reads; the rest of a longer file is ignored. Also
/// the size of the buffer with which [`read`] begins.
const BYTES_MAX: usize = 4096;

impl OpenFile {
    pub(crate) fn open(path: PathBuf) -> Result<Self, ProbeError> {
        let file = File::open(&path).map_err(|e| ProbeError::read(&path, e))?;
        Ok(Self {
            file,
            path,
            buffer: vec![0; BYTES_MAX],
        })
    }

    pub(crate) fn parse<T>(
        &mut self,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ProbeError> {
        let length = self
            .file
            .read_at(&mut self.buffer, 0)
            .map_err(|e| ProbeError::read(&self.path, e))?;
        let text = String::from_utf8_lossy(&self.buffer[..length]);
        parse(&text).ok_or_else(|| ProbeError::malformed(&self.path, expected))
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
