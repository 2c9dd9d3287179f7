// SPDX-License-Identifier: GPL-2.0-only
//! The runtime directory, the one daemon in it, and its socket.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

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
fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("usher.lock");
    let doing = || format!("locking '{}'", path.display());
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .open(&path)
        .with_context(doing)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
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
