// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory of an instance, which contains its journal: name, checks, lock and removal.
//!
//! An *instance* is one opened actuator. Its directory is named `PID-START` after its owner, the
//! process that has opened it. Before another process undoes the journal:
//!
//! 1. [`check_owner`] checks that no other user could have written to the directory.
//! 2. [`lock`] takes the lock `undo.lock`, with which only one process undoes the journal at a
//!    time. The wait is at most 2 s, after which the lock is an error. If the lock holder is
//!    stopped, the lock counts as taken, because every step of an undo may be repeated.
//! 3. [`read_checked`] reads the journal, drops its invalid paths, and checks that its pids belong
//!    to this PID namespace.
//! 4. After a complete undo, [`remove_instance`] removes the directory, the journal first, in at
//!    most 8 attempts.
//!
//! All functions take constant time, apart from the wait for the lock and the size of the journal,
//! which `journal` limits.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use usher_model::ProcessId;

use crate::config::ActConfig;
use crate::error::{ActError, file_error};
use crate::journal::{self, JournalState};
use crate::procs::Procs;

/// Upper limit of attempts to remove a directory in which new files appear.
const REMOVALS: usize = 8;

/// Upper limit of the wait for another process that is undoing the same journal.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Pause between two attempts to lock a journal.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Returns `PID-START`, the name of an instance's directory; for the second and later instances of
/// one process, a number is appended.
pub(crate) fn name_of(owner: ProcessId) -> String {
    static OPENED: AtomicU32 = AtomicU32::new(0);
    let name = format!("{}-{}", owner.pid, owner.start_ticks);
    match OPENED.fetch_add(1, Ordering::Relaxed) {
        0 => name,
        again => format!("{name}-{again}"),
    }
}

pub(crate) fn owner_in_name(dir: &Path) -> Option<ProcessId> {
    let mut parts = dir.file_name()?.to_str()?.split('-');
    Some(ProcessId {
        pid: parts.next()?.parse().ok()?,
        start_ticks: parts.next()?.parse().ok()?,
    })
}

/// Takes the lock that prevents other processes from undoing the same journal. Returns `None` if
/// the instance is gone.
///
/// The undo does not wait for a stopped lock holder, which may stay stopped for ever. Every step of
/// an undo may be repeated.
pub(crate) fn lock(procs: &Procs, dir: &Path) -> Result<Option<File>, ActError> {
    let path = dir.join("undo.lock");
    // An open of a FIFO without `NONBLOCK` would wait for a reader.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    let options = options.create(true).append(true);
    let file = match options.custom_flags(flags.bits() as i32).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(file_error("opening", path)(error)),
    };
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) if holder_is_stopped(procs, &file) => {
                return Ok(Some(file));
            }
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(errno) => return Err(file_error("locking", path)(errno.into())),
        }
    }
}

/// Returns whether the process that holds a lock on this file is stopped.
fn holder_is_stopped(procs: &Procs, file: &File) -> bool {
    let Ok(meta) = file.metadata() else {
        return false;
    };
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let of_file = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    procs.lock_holders(&of_file).into_iter().any(|pid| {
        let holder = procs.get(pid);
        holder.is_some_and(|holder| holder.is_stopped())
    })
}

/// Checks that no user except the present user can have written to a directory. Otherwise the
/// journal in the directory is not used.
pub(crate) fn check_owner(dir: &Path) -> Result<(), ActError> {
    let data = match fs::symlink_metadata(dir) {
        Ok(data) => data,
        // The directory is gone, because another process has just completed the undo.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(file_error("reading", dir)(error)),
    };
    let reason = if !data.is_dir() {
        "the path is not a directory"
    } else if data.uid() != rustix::process::geteuid().as_raw() {
        "another user owns the directory; only that user or root can undo these changes"
    } else if data.mode() & 0o022 != 0 {
        "other users may write to the directory"
    } else {
        return Ok(());
    };
    Err(foreign(dir, reason))
}

/// Checks that the journal was written in this PID namespace, because its pids refer to other
/// processes in another namespace.
pub(crate) fn check_namespace(
    procs: &Procs,
    dir: &Path,
    state: &JournalState,
) -> Result<(), ActError> {
    match &state.head {
        Some(head) if head.pid_namespace != procs.pid_namespace() => Err(foreign(
            dir,
            "the journal was written in another PID namespace",
        )),
        _ => Ok(()),
    }
}

pub(crate) fn foreign(dir: &Path, reason: &'static str) -> ActError {
    file_error("refusing to undo the journal in", dir)(io::Error::other(reason))
}

/// Reads the journal of an instance and leaves out what the undo must not change. Returns the
/// remaining state, and an error for each part that was left out.
///
/// # Errors
/// The journal cannot be undone at all.
pub(crate) fn read_checked(
    config: &ActConfig,
    procs: &Procs,
    dir: &Path,
) -> Result<(JournalState, Vec<ActError>), ActError> {
    let (mut state, mut errors) = journal::read(dir)?.unwrap_or_default();
    errors.extend(journal::validate(&mut state, config, dir));
    check_namespace(procs, dir, &state)?;
    Ok((state, errors))
}

/// Removes an instance's directory. The journal is removed first, because a directory without a
/// journal means that the undo is complete. The removal is repeated, because a keeper that is just
/// starting may write its pid to the directory.
pub(crate) fn remove_instance(dir: &Path) -> Result<(), ActError> {
    journal::remove(dir)?;
    let mut attempts = 0;
    loop {
        attempts += 1;
        match fs::remove_dir_all(dir) {
            Err(error)
                if error.kind() == io::ErrorKind::DirectoryNotEmpty && attempts < REMOVALS => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => return removed.map_err(file_error("removing", dir)),
        }
    }
}
