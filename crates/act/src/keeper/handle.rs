// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts and replaces the keeper of an owner. The owner is the Usher process whose changes the
//! keeper undoes after the owner's death.
//!
//! 1. [`KeeperHandle::spawn`] starts a process with the keeper's subcommand. This process forks the
//!    keeper and ends.
//! 2. When the keeper watches its owner, it writes a line with its pid and start time to standard
//!    output. `spawn` waits up to 5 s for the beginning of this line; on a timeout it kills the
//!    started process and returns an error.
//! 3. `spawn` opens a pidfd of the keeper. When the keeper dies, [`KeeperHandle::pidfd`] becomes
//!    readable, and the owner calls [`KeeperHandle::replace`], which starts another keeper.
//!
//! A call makes one attempt; the owner decides whether and when to retry. There is at most one
//! keeper per handle.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use usher_model::ProcessId;

use super::KeeperTask;
use super::instance_files::parse_id;
use crate::error::ActError;
use crate::procs::{Procs, has_died};

/// Upper limit of the time from the start of a keeper until it reports that it watches its owner.
const START: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// The owner's handle of its keeper.
#[derive(Debug)]
pub struct KeeperHandle {
    exe: PathBuf,
    subcommand: Vec<OsString>,
    task: KeeperTask,
    id: ProcessId,
    pidfd: OwnedFd,
}

impl KeeperHandle {
    /// Starts the keeper by `exe subcommand… task…` and waits until the keeper watches its owner.
    /// Call this function before the first program is admitted.
    ///
    /// # Errors
    /// The keeper cannot be started, or is not ready within five seconds.
    pub fn spawn(exe: &Path, subcommand: &[OsString], task: KeeperTask) -> Result<Self, ActError> {
        let (id, pidfd) = start(exe, subcommand, &task).map_err(|error| ActError::Keeper {
            exe: exe.to_owned(),
            reason: error.to_string(),
        })?;
        Ok(Self {
            exe: exe.to_owned(),
            subcommand: subcommand.to_owned(),
            task,
            id,
            pidfd,
        })
    }

    /// Returns the pid and start time of the keeper.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Returns a descriptor that becomes readable when the keeper dies. The owner should then call
    /// [`Self::replace`].
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Returns whether the keeper lives.
    pub fn lives(&self) -> bool {
        !has_died(&self.pidfd)
    }

    /// Starts another keeper if the present keeper has died. Returns whether it started another
    /// keeper.
    ///
    /// # Errors
    /// The errors of [`Self::spawn`].
    pub fn replace(&mut self) -> Result<bool, ActError> {
        if self.lives() {
            return Ok(false);
        }
        *self = Self::spawn(&self.exe, &self.subcommand, self.task.clone())?;
        Ok(true)
    }
}

fn start(
    exe: &Path,
    subcommand: &[OsString],
    task: &KeeperTask,
) -> io::Result<(ProcessId, OwnedFd)> {
    let mut first = Command::new(exe)
        .args(subcommand)
        .args(task.to_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let line = first.stdout.take().map_or(Ok(String::new()), first_line);
    // The started process ends after it has forked the keeper. After a timeout, the started process
    // may hang and must be killed.
    if line.is_err() {
        first.kill()?;
    }
    let status = first.wait()?;
    let line = line?;
    let id = parse_id(&line).ok_or_else(|| {
        io::Error::other(format!(
            "the keeper ended before it reported that it is ready ({status})"
        ))
    })?;
    let pidfd = Procs::new(&task.config).open(id);
    pidfd
        .map(|pidfd| (id, pidfd))
        .ok_or_else(|| io::Error::other("the keeper died immediately after its start"))
}

/// Returns the first line that a child process writes. Fails if the child writes nothing within
/// [`START`].
fn first_line(out: ChildStdout) -> io::Result<String> {
    let mut fds = [PollFd::new(&out, PollFlags::IN)];
    let ready = loop {
        match poll(&mut fds, Some(&START)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => break ready?,
        }
    };
    if ready == 0 {
        return Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "the keeper did not report within {} s that it is ready",
                START.tv_sec
            ),
        ));
    }
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    Ok(line)
}
