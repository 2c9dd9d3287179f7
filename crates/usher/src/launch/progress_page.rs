// SPDX-License-Identifier: GPL-2.0-only
//! The heartbeat page that a launcher offers to its program: the file `/dev/shm/usher-UID-PID`,
//! which the launcher creates before the program's start and removes at its own end.
//!
//! If the user names a page in `USHER_HEARTBEAT`, this page is offered and not removed. A launcher
//! that was killed cannot remove its page; the next launch removes it, unless another process has
//! the same pid now. This cleanup reads the directory `/dev/shm` once per launch. If no page can be
//! created, the program runs without a page.

use std::path::{Path, PathBuf};

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
        if pid.is_some_and(is_dead) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The heartbeat page that is offered to a program; the launcher removes the page at its end.
pub struct PageFile {
    path: Option<PathBuf>,
    is_own: bool,
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
            };
        }
        let prefix = format!("usher-{}-", rustix::process::geteuid().as_raw());
        remove_stale_pages(&prefix);
        let path = Path::new(PAGES).join(format!("{prefix}{}", std::process::id()));
        let made = usher_heartbeat::Page::create(&path).is_ok();
        Self {
            path: made.then_some(path),
            is_own: made,
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
