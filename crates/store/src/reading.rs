// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens an existing profile store for reading where the store cannot be opened normally: on a full
//! file system, on a read-only file system, and without permission to write.
//!
//! SQLite reads a file with a write-ahead log (WAL) through an index in shared memory, the
//! companion file `-shm`. On a full file system, SQLite cannot create this file. The steps below
//! write nothing. The first step that succeeds determines the connection:
//!
//! 1. Open the file read-only. This succeeds while another process has the file open, because the
//!    companion files then exist.
//! 2. Lock the file exclusively, so that SQLite keeps the index in its own memory. The log is not
//!    copied into the file when the connection is closed.
//! 3. Open the file as an immutable file, without its log. This succeeds on a read-only file system.
//!    Profiles that are only in the log are then missing.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::damaged::with_suffix;
use crate::error::StoreError;
use crate::schema::is_current;
use crate::space::check_absent;
use crate::store::Store;

/// A store that was opened for reading.
#[derive(Debug)]
pub struct ReadableStore {
    /// The store.
    pub store: Store,
    /// Why the store cannot be written; `None` if it can.
    pub unwritable: Option<StoreError>,
    /// Whether profiles may be missing, because the store was read without its log.
    pub lacks_log: bool,
}

impl Store {
    /// Opens a store as [`Store::open_to_read`] does, if it exists. Returns `None` if it does not
    /// exist, but can be created. No file is created.
    ///
    /// # Errors
    /// The reason for which the store cannot be used or created, as [`Store::open`] returns it.
    pub fn open_if_present(path: &Path) -> Result<Option<ReadableStore>, StoreError> {
        check_absent(path)?;
        match path.exists() {
            true => Self::open_to_read(path).map(Some),
            false => Ok(None),
        }
    }

    /// Opens a store as [`Store::open`] does or, if it cannot be written, for reading. The caller
    /// checks that the file exists.
    ///
    /// # Errors
    /// The file cannot be used, or was written by an older version of Usher and cannot be written
    /// now.
    pub fn open_to_read(path: &Path) -> Result<ReadableStore, StoreError> {
        let error = match Self::open(path) {
            Ok(store) => {
                return Ok(ReadableStore {
                    store,
                    unwritable: None,
                    lacks_log: false,
                });
            }
            Err(error) => error,
        };
        let may_be_readable = matches!(
            error,
            StoreError::Full { .. }
                | StoreError::ReadOnly { .. }
                | StoreError::Unreadable { .. }
                | StoreError::Io { .. }
        );
        if !may_be_readable {
            return Err(error);
        }
        match open_unwritten(path) {
            Ok((store, lacks_log)) if is_current(&store.connection) => {
                store.check_whole()?;
                Ok(ReadableStore {
                    store,
                    unwritable: Some(error),
                    lacks_log,
                })
            }
            _ => Err(error),
        }
    }
}

/// Opens a file without writing to it, and reads from it. The version of the file is not checked.
/// Returns also whether a log that is not empty was not read.
pub(crate) fn open_unwritten(path: &Path) -> Result<(Store, bool), StoreError> {
    let with_log = open_by_uri(path, "mode=ro").or_else(|_| open_exclusively(path));
    let lacks_log = with_log.is_err() && has_log(path);
    let connection = with_log
        .or_else(|_| open_by_uri(path, "immutable=1"))
        .map_err(|error| StoreError::from(path, error))?;
    let store = Store {
        connection,
        path: path.to_owned(),
    };
    Ok((store, lacks_log))
}

fn has_log(path: &Path) -> bool {
    std::fs::metadata(with_suffix(path, "-wal")).is_ok_and(|log| log.len() > 0)
}

fn open_by_uri(path: &Path, option: &str) -> rusqlite::Result<Connection> {
    let uri = format!("file:{}?{option}", escaped(path));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(uri, flags)?;
    read_once(&connection)?;
    Ok(connection)
}

fn open_exclusively(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // Other processes that read or write the store are not awaited.
    connection.busy_timeout(Duration::ZERO)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    read_once(&connection)?;
    Ok(connection)
}

/// Reads from a file, because opening alone reports no error.
fn read_once(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
}

/// Escapes a path for a `file:` URI.
fn escaped(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let byte = |&b: &u8| match b {
        b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
            char::from(b).to_string()
        }
        _ => format!("%{b:02x}"),
    };
    path.as_os_str().as_bytes().iter().map(byte).collect()
}
