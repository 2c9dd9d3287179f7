// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading small kernel files, once or again and again.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::ProbeError;

/// Reads a whole text; bytes that are no UTF-8 are replaced.
pub(crate) fn read(path: &Path) -> Result<String, ProbeError> {
    let bytes = std::fs::read(path).map_err(|e| ProbeError::read(path, e))?;
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

/// A file that is kept open and read from its start each time: one system
/// call a reading.
#[derive(Debug)]
pub(crate) struct Reread {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
}

/// Longer files than this are not what `Reread` is for; the rest is cut off.
const AT_MOST_BYTES: usize = 4096;

impl Reread {
    pub(crate) fn open(path: PathBuf) -> Result<Self, ProbeError> {
        let file = File::open(&path).map_err(|e| ProbeError::read(&path, e))?;
        Ok(Self {
            file,
            path,
            buffer: vec![0; AT_MOST_BYTES],
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

impl AsFd for Reread {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
