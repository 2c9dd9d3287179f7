// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks, without writing, whether the file system of a store has space, and whether a store that
//! does not exist can be created.

use std::io;
use std::path::Path;

use rustix::fs::{Access, CWD, Mode, OFlags, StatVfs, StatVfsMountFlags, statvfs};
use rustix::io::Errno;

use crate::error::StoreError;

/// The free space in bytes below which a failed access counts as a lack of space: twice the size of
/// the shared memory that SQLite creates beside a store.
const FREE_BYTES_MIN: u64 = 64 << 10;

/// Returns whether the file system of a store has no space or no inodes for the user.
pub(crate) fn is_full(store: &Path) -> bool {
    state(store).is_ok_and(|state| has_no_space(&state))
}

/// Returns whether the file system of a store is mounted read-only.
pub(crate) fn is_mounted_read_only(store: &Path) -> bool {
    state(store).is_ok_and(|state| state.f_flag.contains(StatVfsMountFlags::RDONLY))
}

fn state(store: &Path) -> rustix::io::Result<StatVfs> {
    let dir = store.parent().filter(|dir| !dir.as_os_str().is_empty());
    statvfs(store).or_else(|_| statvfs(dir.unwrap_or(Path::new("."))))
}

fn has_no_space(state: &StatVfs) -> bool {
    // Root may also use the reserved part of a file system. A size of 0 means no limit.
    let (blocks, inodes) = match rustix::process::geteuid().is_root() {
        true => (state.f_bfree, state.f_ffree),
        false => (state.f_bavail, state.f_favail),
    };
    let lacks_blocks = state.f_blocks > 0 && blocks.saturating_mul(state.f_frsize) < FREE_BYTES_MIN;
    lacks_blocks || (state.f_files > 0 && inodes == 0)
}

/// Checks a store that does not exist: whether it can be created, including missing directories
/// above it. Nothing is written. A store that exists passes the check.
///
/// # Errors
/// The reason for which the store cannot be created, or for which its directory cannot be searched.
pub(crate) fn check_absent(store: &Path) -> Result<(), StoreError> {
    match store.try_exists() {
        Ok(true) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(StoreError::Unreadable {
                path: store.to_owned(),
            });
        }
        // Other errors, such as a file in place of a directory, prevent the creation.
        Ok(false) | Err(_) => {}
    }
    check_creation(store).map_err(|problem| match problem {
        Problem::Full => StoreError::Full {
            path: store.to_owned(),
        },
        Problem::Other(problem) => StoreError::Creation {
            path: store.to_owned(),
            problem,
        },
    })
}

/// Why a file cannot be created.
enum Problem {
    /// Its file system is full.
    Full,
    /// Another reason, with the path concerned.
    Other(String),
}

fn check_creation(path: &Path) -> Result<(), Problem> {
    let path = std::path::absolute(path).map_err(|e| Problem::Other(without_number(e)))?;
    let above = path.ancestors().skip(1);
    let dir = above.into_iter().find(|dir| dir.symlink_metadata().is_ok());
    let dir = dir.unwrap_or(Path::new("/"));
    let about = |reason: String| Problem::Other(format!("{}: {reason}", dir.display()));
    let meta = dir
        .metadata()
        .map_err(|error| about(without_number(error)))?;
    if !meta.is_dir() {
        return Err(about("it is not a directory".to_owned()));
    }
    let accessed = rustix::fs::access(dir, Access::WRITE_OK | Access::EXEC_OK);
    accessed.map_err(|errno| about(without_number(errno.into())))?;
    let state = statvfs(dir).map_err(|errno| about(without_number(errno.into())))?;
    if has_no_space(&state) {
        return Err(Problem::Full);
    }
    // File systems of the kernel, such as /proc, have no blocks and support no unnamed files.
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let unnamed = rustix::fs::openat(CWD, dir, flags, Mode::RUSR | Mode::WUSR);
    match unnamed {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) if state.f_blocks == 0 => {
            Err(about("its file system stores no files".to_owned()))
        }
        _ => Ok(()),
    }
}

fn without_number(error: io::Error) -> String {
    usher_model::without_error_number(&error.to_string())
}
