// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replaces a damaged profile store: renames the file and creates a new store at its path.
//!
//! 1. Lock a lock file, which serialises processes that find the damage at the same time. The wait
//!    for the lock has no time limit.
//! 2. Open the store again. If the store is intact, another process has replaced it already. An
//!    error other than damage is returned.
//! 3. Rename the file and its companion files to the first unused name `STORE.damaged-N`, of at
//!    most 10,000 names. Without an unused name, or if a file cannot be renamed, an error is
//!    returned.
//! 4. Create a new store.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::error::StoreError;
use crate::store::Store;

/// Renames a damaged store and creates a new store. If another process has already replaced the
/// store, opens the new store and renames nothing.
pub(crate) fn replace_damaged(path: &Path) -> Result<(Store, Option<PathBuf>), StoreError> {
    let failed = |source| StoreError::Rename {
        path: path.to_owned(),
        source,
    };
    let mut lock = OpenOptions::new();
    let lock = lock.write(true).create(true).truncate(false).mode(0o600);
    let lock = lock.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let lock = lock.open(with_suffix(path, ".lock")).map_err(failed)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
    match Store::open(path) {
        Ok(store) => return Ok((store, None)),
        Err(StoreError::Corrupt { .. }) => {}
        Err(other) => return Err(other),
    }
    let free = (1..).map(|i| with_suffix(path, &format!(".damaged-{i}")));
    let aside = free
        .take(10_000)
        .find(|p| !p.exists())
        .ok_or_else(|| failed(std::io::ErrorKind::AlreadyExists.into()))?;
    for part in ["-wal", "-shm", ""] {
        match std::fs::rename(with_suffix(path, part), with_suffix(&aside, part)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
    }
    Ok((Store::open(path)?, Some(aside)))
}

/// Returns the path of a companion file.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
