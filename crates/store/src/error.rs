// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes wrong with the store.

use std::fmt;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Why the store could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be made.
    #[error("making the directory of the profile store {}: {source}", path.display())]
    Directory {
        /// The store.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no database, or a damaged one.
    #[error("the profile store {} is damaged: {reason}", path.display())]
    Corrupt {
        /// The store.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// It is another program's database.
    #[error("{} is another program's database, not a profile store", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It was written by a later version of Usher.
    #[error(
        "the profile store {} has format {found}, this Usher knows {known}: use a newer one",
        path.display()
    )]
    Newer {
        /// The store.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// Its file system is full.
    #[error("the profile store {} cannot grow: the disk is full", path.display())]
    Full {
        /// The store.
        path: PathBuf,
    },
    /// It may be read but not written.
    #[error("the profile store {} cannot be written", path.display())]
    ReadOnly {
        /// The store.
        path: PathBuf,
    },
    /// Another process held it too long.
    #[error("the profile store {} is held by another process", path.display())]
    Busy {
        /// The store.
        path: PathBuf,
    },
    /// What was to be stored is nonsense.
    #[error("a profile needs {0}")]
    Nonsense(String),
    /// Anything else.
    #[error("the profile store {}: {source}", path.display())]
    Other {
        /// The store.
        path: PathBuf,
        /// What SQLite says.
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
            Some(ErrorCode::ReadOnly) => Self::ReadOnly { path },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy { path },
            _ => Self::Other { path, source },
        }
    }
}

/// What [`crate::Store::open_or_memory`] had to do instead of opening the file.
#[derive(Debug)]
pub struct Warning {
    /// Why the file could not be used as it was.
    pub error: StoreError,
    /// Where a damaged file was put.
    pub kept_at: Option<PathBuf>,
    /// Whether profiles of this run will be forgotten.
    pub in_memory: bool,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        if let Some(kept) = &self.kept_at {
            write!(f, "; it is kept as {}", kept.display())?;
        }
        f.write_str(match self.in_memory {
            true => "; what this run learns will not be remembered",
            false => "; a new one was begun",
        })
    }
}
