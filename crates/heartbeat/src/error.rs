// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors of heartbeat pages. This file does not use `thiserror`: other programs link this
//! crate, which therefore depends only on `libc`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A page could not be created, opened or read.
#[derive(Debug)]
pub struct PageError {
    /// Path of the page's file.
    pub path: PathBuf,
    /// The cause of the error.
    pub fault: PageFault,
}

/// The cause of a [`PageError`].
#[derive(Debug)]
pub enum PageFault {
    /// The system returned an error.
    Io {
        /// The operation, such as "creating".
        doing: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The file does not start with the magic number.
    NotAPage,
    /// The page has another version.
    Version(u32),
    /// The file is shorter or longer than its version defines.
    Size(u64),
}

impl PageError {
    pub(crate) fn new(path: &Path, fault: PageFault) -> Self {
        Self {
            path: path.to_owned(),
            fault,
        }
    }

    pub(crate) fn io(path: &Path, doing: &'static str, source: io::Error) -> Self {
        Self::new(path, PageFault::Io { doing, source })
    }
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.fault {
            PageFault::Io { doing, source } => {
                write!(f, "{doing} the heartbeat page {path}: {source}")
            }
            PageFault::NotAPage => write!(f, "the file {path} is not a heartbeat page"),
            PageFault::Version(version) => write!(
                f,
                "the heartbeat page {path} has version {version}, but this program supports \
                 version {}: build both programs with the same version of Usher",
                crate::layout::VERSION
            ),
            PageFault::Size(bytes) => write!(
                f,
                "the heartbeat page {path} has {bytes} bytes, but must have {}",
                crate::layout::PAGE_BYTES
            ),
        }
    }
}

impl std::error::Error for PageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            PageFault::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
