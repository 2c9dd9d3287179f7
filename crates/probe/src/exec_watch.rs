// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notifies a caller when a process of the machine executes a program, so that the caller need not
//! poll for new processes at a high rate.
//!
//! **Idea.** When a process executes a dynamically linked program, the kernel opens the dynamic
//! loader of this program. inotify(7) reports the opening of a readable file to every user. The
//! file is the loader of the calling process, to which nearly all programs of a machine are linked.
//!
//! 1. [`ExecWatch::arm`] requests one notification ([`IN_ONESHOT`]). A busy machine therefore
//!    causes one notification per call.
//! 2. The descriptor becomes readable within `execve`, before the first instruction of the program.
//! 3. [`ExecWatch::disarm`] discards the notification.
//!
//! Limits: statically linked programs, programs of a container with a loader of its own, and forks
//! without `execve` cause no notification. A caller must therefore also poll, at a lower rate.
//! Other readers of the loader's file cause notifications, too. [`ExecWatch::open`] checks that the
//! file system reports the opening of the file.
//!
//! [`IN_ONESHOT`]: https://man7.org/linux/man-pages/man7/inotify.7.html

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::io::Errno;

use crate::file;

/// Size of the buffer for the two events of a watch: the opening, and the end of the watch.
const BUFFER_BYTES: usize = 512;

/// A watch of the dynamic loader.
#[derive(Debug)]
pub struct ExecWatch {
    inotify: OwnedFd,
    loader: PathBuf,
}

impl ExecWatch {
    /// Opens a watch, which is not armed. Returns `None` if this process is statically linked, or
    /// if inotify does not work for the loader's file.
    pub fn open(proc_root: &Path) -> Option<Self> {
        let maps = file::read(&proc_root.join("self/maps")).ok()?;
        let watch = Self {
            inotify: init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?,
            loader: loader(&maps)?,
        };
        let works = watch.arm() && File::open(&watch.loader).is_ok() && watch.disarm();
        works.then_some(watch)
    }

    /// Requests a notification of the next `execve`. Returns whether the kernel accepted the
    /// request.
    pub fn arm(&self) -> bool {
        let flags = WatchFlags::OPEN | WatchFlags::ONESHOT;
        add_watch(&self.inotify, &self.loader, flags).is_ok()
    }

    /// Discards a notification. Returns whether there was one.
    pub fn disarm(&self) -> bool {
        let mut buffer = [0; BUFFER_BYTES];
        loop {
            match rustix::io::read(&self.inotify, &mut buffer) {
                Err(Errno::INTR) => {}
                read => return read.is_ok_and(|bytes| bytes > 0),
            }
        }
    }
}

impl AsFd for ExecWatch {
    /// Returns the descriptor that is readable after a notification.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Returns the dynamic loader in the text of `/proc/PID/maps`.
fn loader(maps: &str) -> Option<PathBuf> {
    let paths = maps
        .lines()
        .filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    let is_loader = |path: &&Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("ld-") && name.contains(".so"))
    };
    let mut loaders = paths.filter(is_loader);
    loaders.next().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Waits for a notification for 60 s at most.
    fn is_notified(watch: &ExecWatch) -> bool {
        let mut fds = [PollFd::new(watch, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }

    #[test]
    fn an_executed_program_causes_a_notification() {
        let Some(watch) = ExecWatch::open(Path::new("/proc")) else {
            usher_skip::skip!("inotify does not report the opening of the dynamic loader");
            return;
        };
        for _ in 0..2 {
            assert!(watch.arm());
            assert!(Command::new("true").status().unwrap().success());
            assert!(is_notified(&watch));
            assert!(watch.disarm());
            assert!(!watch.disarm(), "one notification per request");
        }
    }

    #[test]
    fn the_loader_is_found_among_the_mappings() {
        let maps = "55 r--p 0 08:01 7   /usr/bin/ld-link\n\
            7f r--p 0 08:01 9   /usr/lib/x86_64-linux-gnu/libc.so.6\n\
            7f r-xp 0 08:01 8   /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2\n\
            7f rw-p 0 00:00 0\n";
        let expected = "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";
        assert_eq!(loader(maps), Some(expected.into()));
        assert_eq!(loader("7f rw-p 0 00:00 0   [stack]\n"), None);
    }
}
