// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors of the profile store, and the warning that a substitute store is in use because the
//! file could not be opened. Errors of SQLite are mapped by their code; a code without a variant of
//! its own becomes [`StoreError::Other`].

use std::fmt;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use crate::space::{is_full, is_mounted_read_only};

/// Reason for which the store could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory or the file cannot be created.
    #[error(
        "the profile store {} cannot be created: {problem}: name another file by --store or \
         USHER_STORE",
        path.display()
    )]
    Creation {
        /// The store.
        path: PathBuf,
        /// The problem, without the number of a system error.
        problem: String,
    },
    /// A damaged file cannot be renamed.
    #[error(
        "the damaged profile store {} cannot be renamed: {}: check the permissions of its directory, \
         or name another file by --store or USHER_STORE",
        path.display(),
        usher_model::without_error_number(&source.to_string())
    )]
    Rename {
        /// The store.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is damaged or not a database.
    #[error("the profile store {} is damaged: {reason}", path.display())]
    Corrupt {
        /// The store.
        path: PathBuf,
        /// The damage found.
        reason: String,
    },
    /// The path names no regular file, or a file that is no SQLite database.
    #[error(
        "{} is not a profile store: name another file by --store or USHER_STORE",
        path.display()
    )]
    NotAStore {
        /// The path.
        path: PathBuf,
    },
    /// The file is the database of another program.
    #[error("the file {} is the database of another program, not a profile store: name another \
             file by --store or USHER_STORE", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file was written by a later version of Usher.
    #[error(
        "the profile store {} has format {found}, but this version of Usher reads only formats up \
         to {known}: use a newer version of Usher",
        path.display()
    )]
    Newer {
        /// The store.
        path: PathBuf,
        /// Format version of the file.
        found: u32,
        /// Newest format version that this version of Usher reads.
        known: u32,
    },
    /// The file system is full.
    #[error(
        "the profile store {} cannot be written, because its file system is full: free space on \
         the file system, or name another file by --store or USHER_STORE",
        path.display()
    )]
    Full {
        /// The store.
        path: PathBuf,
    },
    /// The file can be read but not written.
    #[error(
        "the profile store {} cannot be written: check the permissions of the file and its \
         directory, and whether the file system is mounted read-only",
        path.display()
    )]
    ReadOnly {
        /// The store.
        path: PathBuf,
    },
    /// Another process locked the store for too long.
    #[error(
        "the profile store {} is locked by another process: try again when that process has ended",
        path.display()
    )]
    Busy {
        /// The store.
        path: PathBuf,
    },
    /// The values to store are invalid.
    #[error("the profile cannot be stored: it needs {0}")]
    Invalid(String),
    /// The calibrated error of a source is invalid.
    #[error(
        "the calibration cannot be stored: the error of the source '{source_name}' must be a \
         finite number of at least 0, not {error}"
    )]
    Calibration {
        /// Name of the source.
        source_name: String,
        /// The error.
        error: f64,
    },
    /// This user may not open the file.
    #[error(
        "the profile store {} cannot be opened: check the permissions of the file and its \
         directory, or name another file by --store or USHER_STORE",
        path.display()
    )]
    Unreadable {
        /// The store.
        path: PathBuf,
    },
    /// The system failed to read or write the file.
    #[error(
        "the profile store {} cannot be read or written, because the system reports an \
         input/output error (SQLite code {code}): check the disk, and the user's quota",
        path.display()
    )]
    Io {
        /// The store.
        path: PathBuf,
        /// SQLite's extended code.
        code: i32,
    },
    /// Any other error.
    #[error("reading or writing the profile store {}: {source}", path.display())]
    Other {
        /// The store.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
}

impl StoreError {
    pub(crate) fn from(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Corrupt {
                path,
                reason: source.to_string(),
            },
            Some(ErrorCode::DiskFull) => Self::Full { path },
            // SQLite reports only some failures for want of space by a code of their own.
            Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure) if is_full(&path) => {
                Self::Full { path }
            }
            Some(ErrorCode::CannotOpen) if is_mounted_read_only(&path) => Self::ReadOnly { path },
            Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => Self::Unreadable { path },
            Some(ErrorCode::SystemIoFailure) => {
                let code = source.sqlite_error().map_or(0, |error| error.extended_code);
                Self::Io { path, code }
            }
            Some(ErrorCode::ReadOnly) => Self::ReadOnly { path },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy { path },
            _ => Self::Other { path, source },
        }
    }
}

/// Describes the substitute that [`crate::Store::open_or_memory`] opened because the file could not
/// be opened.
#[derive(Debug)]
pub struct Warning {
    /// Reason for which the file could not be used.
    pub error: StoreError,
    /// The path to which a damaged file was renamed.
    pub kept_at: Option<PathBuf>,
    /// Whether the substitute is in memory.
    pub in_memory: bool,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        if let Some(kept) = &self.kept_at {
            write!(f, "; the file was renamed to {}", kept.display())?;
        }
        f.write_str(match self.in_memory {
            true => "; new measurements are kept in memory until the store can be opened",
            false => "; Usher created a new profile store",
        })
    }
}
