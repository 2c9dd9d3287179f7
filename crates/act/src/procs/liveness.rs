// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a process lives, stays alive or can run, and signals to processes.
//!
//! A pid may be reused between two system calls. A *pidfd* refers to one process for its whole
//! life:
//!
//! 1. Open a pidfd by the pid.
//! 2. Compare the start time of the process with this pid. While the process of the pidfd exists,
//!    the kernel does not reuse the pid, so that equal start times mean the same process.
//! 3. Poll the pidfd, which becomes readable when the process has died, or send a signal by it.
//!
//! Only [`Procs::stays_alive`] waits: it checks every 2 ms, until a deadline, whether a process
//! whose main thread has ended is gone. All other functions take constant time.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use usher_model::ProcessId;

use super::Procs;
use crate::error::ActError;

/// Pause between two checks of a process that is ending.
const EXIT_PAUSE: Duration = Duration::from_millis(2);

impl Procs {
    /// Returns a pidfd of the process with this pid and start time; `None` if it is gone.
    pub(crate) fn open(&self, id: ProcessId) -> Option<OwnedFd> {
        let pid = Pid::from_raw(id.pid)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The pid may have been reused before the pidfd was opened. Therefore the start time is
        // compared after the open: while the pidfd's process exists, the kernel does not reuse the
        // pid.
        self.same(id).map(|_| pidfd)
    }

    /// Returns whether the process lives. A process that has ended but is not yet reaped does not
    /// live.
    pub(crate) fn lives(&self, id: ProcessId) -> bool {
        self.open(id).is_some_and(|pidfd| !has_died(&pidfd))
    }

    /// Returns whether the process lives and goes on to live. If the main thread has ended, as
    /// after `kill -9`, the other threads of the process may still be closing files: the call waits
    /// for their end until `deadline`.
    pub(crate) fn stays_alive(&self, id: ProcessId, deadline: Instant) -> bool {
        let Some(pidfd) = self.open(id) else {
            return false;
        };
        let is_ending = || {
            let process = self.same(id);
            process.is_none_or(|process| matches!(process.state, 'Z' | 'X'))
        };
        while !has_died(&pidfd) {
            if !is_ending() || Instant::now() >= deadline {
                return true;
            }
            std::thread::sleep(EXIT_PAUSE);
        }
        false
    }

    /// Returns whether a process can run: it lives, and neither a signal nor a tracer has stopped
    /// it.
    pub(crate) fn can_run(&self, id: ProcessId) -> bool {
        let process = self.same(id);
        process.is_some_and(|process| !process.is_stopped()) && self.lives(id)
    }

    /// Sends a signal to the process with this pid and start time.
    pub(crate) fn signal(&self, id: ProcessId, signal: Signal) -> Result<(), ActError> {
        let Some(pidfd) = self.open(id) else {
            return Ok(());
        };
        match pidfd_send_signal(&pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(ActError::Process {
                doing: "signalling",
                pid: id.pid,
                source: errno.into(),
            }),
        }
    }
}

/// Returns whether the process of a pidfd has died.
pub(crate) fn has_died(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}
