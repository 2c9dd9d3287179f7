// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the probes: files of `/proc`, `/sys` or a cgroup that are unreadable or malformed,
//! processes that have ended, and invalid heartbeat pages. [`ProbeError::is_gone`] distinguishes
//! ended processes and removed cgroups from other errors.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why a process, a cgroup or the machine could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The file or the process could not be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file was read, but has another format.
    #[error("the file {} has an unexpected format; expected {expected}", path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// The expected content.
        expected: &'static str,
    },
    /// The process has ended, or a later process has its number.
    #[error("process {pid} has ended")]
    Gone {
        /// The process.
        pid: i32,
    },
    /// The program's heartbeat page cannot be used.
    #[error(transparent)]
    Heartbeat(#[from] usher_heartbeat::PageError),
}

impl ProbeError {
    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        Self::Read {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn malformed(path: &Path, expected: &'static str) -> Self {
        Self::Malformed {
            path: path.to_owned(),
            expected,
        }
    }

    /// Returns whether the error means that the process or the cgroup no longer exists.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Gone { .. } => true,
            Self::Read { source, .. } => is_gone(source),
            Self::Malformed { .. } | Self::Heartbeat(_) => false,
        }
    }
}

/// Returns whether an error means that the file's process or cgroup is gone. Files of an ended
/// process return ENOENT or ESRCH, files of a removed cgroup ENODEV.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ESRCH | libc::ENODEV)
    )
}
