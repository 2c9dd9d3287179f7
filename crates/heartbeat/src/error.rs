// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a page could not be used. Written by hand: this crate goes into other
//! people's programs and brings nothing along but `libc`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A page that could not be made, opened or read.
#[derive(Debug)]
pub struct PageError {
    /// The page's file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: PageFault,
}

/// What is wrong with a page.
#[derive(Debug)]
pub enum PageFault {
    /// The system refused.
    Io {
        /// What was being done, as in "creating".
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// It does not start with the magic number.
    NotAPage,
    /// It is of another version.
    Version(u32),
    /// It is shorter or longer than its version says.
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
            PageFault::NotAPage => write!(f, "{path} is not a heartbeat page"),
            PageFault::Version(version) => write!(
                f,
                "the heartbeat page {path} is of version {version}, this program knows {}",
                crate::layout::VERSION
            ),
            PageFault::Size(bytes) => write!(
                f,
                "the heartbeat page {path} has {bytes} bytes instead of {}",
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
