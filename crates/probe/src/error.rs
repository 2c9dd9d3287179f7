// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes wrong while looking.

use std::io;
use std::path::{Path, PathBuf};

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The file or the process could not be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file was read and is not what it should be.
    #[error("{} does not look like {expected}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What was expected in it.
        expected: &'static str,
    },
    /// No process has that number, or a later one does.
    #[error("process {pid} has ended")]
    Gone {
        /// Which.
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

    /// Whether it says that the process or cgroup is no longer there.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Gone { .. } => true,
            Self::Read { source, .. } => is_gone(source),
            Self::Malformed { .. } | Self::Heartbeat(_) => false,
        }
    }
}

/// Files of a process that has ended give ENOENT or ESRCH, those of a removed
/// cgroup ENODEV.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ESRCH | libc::ENODEV)
    )
}
