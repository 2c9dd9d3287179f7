// SPDX-License-Identifier: GPL-2.0-only
//! The daemon's runtime directory and socket: creation, permissions, and the lock that permits only
//! one daemon per directory.
//!
//! 1. Check that the path of the socket has at most 107 bytes. Create the directory, and check that
//!    no other user can write to it.
//! 2. Lock the lock file; an error names the process that holds the lock. A daemon that a command
//!    starts waits for up to 5 s if the holder does not listen, because the holder may be ending.
//!    Other daemons do not wait. The kernel releases the lock when the daemon dies.
//! 3. Remove a socket of a dead daemon: while this daemon holds the lock, no other daemon can
//!    listen.
//! 4. Listen on a new socket. Root's socket serves all users (mode 0666); another user's socket
//!    serves only that user (mode 0600). `usher sched start --foreground` uses a separate socket
//!    and a separate lock in the same directory.
//!
//! A failed step ends the start with an error; only the lock of a file of an earlier version is
//! tried a second time. Dropping [`DaemonSocket`] removes the socket and releases the lock.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::client::{Daemon, ListeningProcess, WaitLimits};
use crate::runtime;

/// Pause between two attempts to take the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// The names of a socket and of the lock of its only process, in the runtime directory.
#[derive(Debug, Clone, Copy)]
pub struct SocketNames {
    socket: &'static str,
    lock: &'static str,
    /// The process that listens on the socket, as a noun for messages.
    process: &'static str,
    /// How a user ends this process, for messages.
    remedy: &'static str,
}

impl SocketNames {
    /// The names of a daemon's socket and lock.
    pub const DAEMON: Self = Self {
        socket: runtime::SOCKET,
        lock: "usher.lock",
        process: "a daemon",
        remedy: "end it with 'usher daemon stop'",
    };
    /// The names of the socket and lock of `usher sched start --foreground`.
    pub const FOREGROUND_SCHEDULER: Self = Self {
        socket: runtime::FOREGROUND_SOCKET,
        lock: "sched.lock",
        process: "'usher sched start --foreground'",
        remedy: "end it with 'usher sched stop'",
    };
}

/// A listening socket; removed on drop.
pub struct DaemonSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Locked while the daemon lives; the kernel releases the lock at any kind of death of the
    /// daemon.
    _lock: File,
}

impl DaemonSocket {
    /// Creates the directory, takes the lock and listens. Waits for up to `lock_wait` if another
    /// process has the lock but does not listen, because this process may be ending.
    ///
    /// # Errors
    /// Another process has the lock, or the directory cannot be used.
    pub fn start(
        runtime_dir: &Path,
        names: SocketNames,
        lock_wait: Duration,
    ) -> anyhow::Result<Self> {
        let path = runtime_dir.join(names.socket);
        runtime::check_socket_path(&path, runtime::SHORTER_DIR)
            .with_context(|| format!("listening on the socket '{}'", path.display()))?;
        runtime::make_dir(runtime_dir)?;
        let lock = lock(runtime_dir, names, lock_wait)?;
        // This daemon has the lock, so an existing socket belongs to a dead daemon.
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                return Err(e)
                    .with_context(|| format!("removing the old socket '{}'", path.display()));
            }
        }
        let listener = UnixListener::bind(&path)
            .and_then(|listener| {
                fs::set_permissions(&path, Permissions::from_mode(socket_mode()))?;
                Ok(listener)
            })
            .map_err(|error| {
                let (path, remedy) = (path.display(), runtime::other_dir_remedy());
                anyhow!("listening on the socket '{path}': {error}; {remedy}")
            })?;
        Ok(Self {
            listener,
            path,
            _lock: lock,
        })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the socket, so that no more clients can connect. The lock stays.
    pub fn remove_socket(&self) {
        // An error is ignored, because the next daemon removes the socket.
        let _ = fs::remove_file(&self.path);
    }

    /// Returns the listener, to accept on.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for DaemonSocket {
    fn drop(&mut self) {
        self.remove_socket();
    }
}

/// Returns the mode of the socket: all users may connect to root's daemon, but only the owner to a
/// user's daemon.
fn socket_mode() -> u32 {
    match rustix::process::geteuid().is_root() {
        true => 0o666,
        false => 0o600,
    }
}

/// Takes the lock of this directory for the only daemon, or for the only `usher sched start
/// --foreground`.
///
/// A process that can open the lock file can lock it, and a read-only descriptor suffices for a
/// shared lock. The file is therefore accessible only to its owner.
fn lock(dir: &Path, names: SocketNames, wait: Duration) -> anyhow::Result<File> {
    let path = dir.join(names.lock);
    let doing = || format!("locking '{}'", path.display());
    let opened = open_lock(&path);
    let mut file = opened.map_err(|error| {
        let remedy = runtime::other_dir_remedy();
        anyhow!("{}: {error}; {remedy}", doing())
    })?;
    let readable = file.metadata().with_context(doing)?.mode() & 0o077 != 0;
    if readable {
        file.set_permissions(Permissions::from_mode(0o600))
            .with_context(doing)?;
    }
    let mut locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    if readable && locked == Err(Errno::WOULDBLOCK) && !is_served(&dir.join(names.socket)) {
        // The lock file is that of an earlier version, which all users could open. Because no
        // daemon answers, a process of another user may hold the lock: a new file replaces the lock
        // file.
        fs::remove_file(&path).with_context(doing)?;
        file = open_lock(&path).with_context(doing)?;
        locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    }
    let deadline = Instant::now() + wait;
    while locked == Err(Errno::WOULDBLOCK)
        && Instant::now() < deadline
        && !is_served(&dir.join(names.socket))
    {
        std::thread::sleep(LOCK_PAUSE);
        locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    }
    match locked {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            if let Some(reason) = Daemon::foreign(Some(dir), &WaitLimits::default()) {
                bail!(reason);
            }
            bail!(already_runs(dir, names, &file));
        }
        Err(error) => return Err(error).with_context(doing),
    }
    // A full file system keeps the daemon from writing its number, which only serves messages.
    let _ = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

/// Describes the process that holds the lock. A process that is just starting has not written its
/// number yet.
fn already_runs(dir: &Path, names: SocketNames, lock: &File) -> String {
    let mut pid = String::new();
    let _ = lock.take(20).read_to_string(&mut pid);
    let holder = pid.trim().parse().ok().map(|pid| ListeningProcess {
        pid,
        uid: lock.metadata().map_or(0, |meta| meta.uid()),
    });
    let process = holder.map_or_else(String::new, |one| format!(" (process {})", one.pid));
    let state = holder.and_then(ListeningProcess::stopped);
    format!(
        "{} already runs in '{}'{process}; {}{}, or name another directory with \
         --runtime-dir",
        names.process,
        dir.display(),
        state.map_or_else(String::new, |state| format!("{state}, or ")),
        names.remedy
    )
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
}

/// Returns whether a process listens on the socket.
fn is_served(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_can_take_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("usher.lock");
        fs::write(&path, "1\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        // A process that has opened the old lock file for reading can still lock this file.
        let reader = File::open(&path).unwrap();
        rustix::fs::flock(&reader, FlockOperation::NonBlockingLockShared).unwrap();
        let names = SocketNames::DAEMON;
        let lock = lock(dir.path(), names, Duration::ZERO).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let again = super::lock(dir.path(), names, Duration::ZERO)
            .unwrap_err()
            .to_string();
        assert!(again.contains("already runs"), "{again}");
        // A holder that does not listen may be ending.
        let waiting = std::thread::scope(|threads| {
            let waiting = threads.spawn(|| super::lock(dir.path(), names, Duration::from_secs(60)));
            drop(lock);
            waiting.join().unwrap()
        });
        waiting.unwrap();
    }
}
