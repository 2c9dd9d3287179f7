// SPDX-License-Identifier: GPL-2.0-only
//! The runtime directory, the one daemon in it, and its socket.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::client::Daemon;
use crate::runtime;

/// A socket that is listened on; taken away when dropped.
pub struct Listening {
    listener: UnixListener,
    path: PathBuf,
    /// Locked for as long as the daemon lives: the kernel lets go of it
    /// whatever way it dies.
    _lock: File,
}

impl Listening {
    /// Makes the directory, becomes the one daemon in it and listens.
    ///
    /// # Errors
    /// Another daemon is there, or the directory cannot be used.
    pub fn start(runtime_dir: &Path) -> anyhow::Result<Self> {
        runtime::make_dir(runtime_dir)?;
        let lock = lock(runtime_dir)?;
        let path = runtime_dir.join(runtime::SOCKET);
        // With the lock ours, a socket that lies there is a dead daemon's.
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
            .with_context(|| format!("listening at '{}'", path.display()))?;
        Ok(Self {
            listener,
            path,
            _lock: lock,
        })
    }

    /// Where.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the socket away: nobody else can connect. The place stays ours.
    pub fn hang_up(&self) {
        // Where it cannot be removed, the next daemon does.
        let _ = fs::remove_file(&self.path);
    }

    /// The listener, to accept on.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// Root serves all users; anybody else only themselves.
fn socket_mode() -> u32 {
    match rustix::process::geteuid().is_root() {
        true => 0o666,
        false => 0o600,
    }
}

/// Becomes the one daemon in this directory.
///
/// Whoever can open the file can lock it, with a shared lock even through a
/// descriptor that only reads. So nobody but the owner can open it.
fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("usher.lock");
    let doing = || format!("locking '{}'", path.display());
    let mut file = open_lock(&path).with_context(doing)?;
    let readable = file.metadata().with_context(doing)?.mode() & 0o077 != 0;
    if readable {
        file.set_permissions(Permissions::from_mode(0o600))
            .with_context(doing)?;
    }
    let mut locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    if readable && locked == Err(Errno::WOULDBLOCK) && !is_served(dir) {
        // An earlier version's file, which all users could open. No daemon
        // answers, so another user's process may hold the lock: a new file.
        fs::remove_file(&path).with_context(doing)?;
        file = open_lock(&path).with_context(doing)?;
        locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    }
    match locked {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            if let Some(reason) = Daemon::foreign(Some(dir)) {
                bail!(reason);
            }
            let mut pid = String::new();
            let _ = (&file).take(20).read_to_string(&mut pid);
            bail!(
                "a daemon is running already in '{}' (process {}); end it first, or name another directory with --runtime-dir",
                dir.display(),
                pid.trim()
            );
        }
        Err(error) => return Err(error).with_context(doing),
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .with_context(doing)?;
    Ok(file)
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

/// Whether a daemon listens there.
fn is_served(dir: &Path) -> bool {
    UnixStream::connect(dir.join(runtime::SOCKET)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("usher.lock");
        fs::write(&path, "1\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        // What a reader of the old file can do, and go on doing.
        let reader = File::open(&path).unwrap();
        rustix::fs::flock(&reader, FlockOperation::NonBlockingLockShared).unwrap();
        let lock = lock(dir.path()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let again = super::lock(dir.path()).unwrap_err().to_string();
        assert!(again.contains("running already"), "{again}");
        drop(lock);
        super::lock(dir.path()).unwrap();
    }
}
