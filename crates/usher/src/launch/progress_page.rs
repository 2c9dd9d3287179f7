// SPDX-License-Identifier: GPL-2.0-only
//! The heartbeat page that a launcher offers to its program: the file `/dev/shm/usher-UID-PID`,
//! which the launcher creates before the program's start and removes at its own end.
//!
//! If the user names a page in `USHER_HEARTBEAT`, this page is offered and not removed. A launcher
//! that was killed cannot remove its page; the next launch removes it, unless another process has
//! the same pid now. Containers may share `/dev/shm`, and the same pid belongs to another process
//! there. Therefore a launcher holds a lock (`flock`) on its page, and a locked page is never
//! removed. This cleanup reads the directory `/dev/shm` once per launch. If no page can be created,
//! the program runs without a page.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Directory of heartbeat pages, in memory.
const PAGES: &str = "/dev/shm";

/// Removes the pages of launchers that were killed, which could not remove them.
fn remove_stale_pages(prefix: &str) {
    let own = std::process::id();
    for entry in std::fs::read_dir(PAGES).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
        let is_dead = |pid: u32| pid == own || !Path::new("/proc").join(pid.to_string()).exists();
        if !pid.is_some_and(is_dead) {
            continue;
        }
        let path = entry.path();
        if lock(&path, FlockOperation::NonBlockingLockExclusive).is_some() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Locks a file. Returns `None` if the file cannot be opened, or if another process holds the lock.
fn lock(path: &Path, operation: FlockOperation) -> Option<File> {
    let file = File::open(path).ok()?;
    flock(&file, operation).ok()?;
    Some(file)
}

/// The heartbeat page that is offered to a program; the launcher removes the page at its end.
pub struct PageFile {
    path: Option<PathBuf>,
    is_own: bool,
    /// The locked page; other launchers do not remove it.
    _lock: Option<File>,
}

impl PageFile {
    /// Creates a page in memory, or uses the page that the user has named in `USHER_HEARTBEAT`. If
    /// no page can be created, the program runs without a page.
    pub fn offer() -> Self {
        if let Some(path) = std::env::var_os("USHER_HEARTBEAT") {
            let path = std::path::absolute(path).ok();
            return Self {
                path,
                is_own: false,
                _lock: None,
            };
        }
        let prefix = format!("usher-{}-", rustix::process::geteuid().as_raw());
        remove_stale_pages(&prefix);
        let path = Path::new(PAGES).join(format!("{prefix}{}", std::process::id()));
        let made = usher_heartbeat::Page::create(&path).is_ok();
        let own_lock = made.then(|| lock(&path, FlockOperation::NonBlockingLockShared));
        Self {
            path: made.then_some(path),
            is_own: made,
            _lock: own_lock.flatten(),
        }
    }

    /// Returns the path of the page, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if let Some(path) = self.path.as_ref().filter(|_| self.is_own) {
            let _ = std::fs::remove_file(path);
        }
    }
}
