// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gives the lowest priority to background work that Usher cannot manage.
//!
//! Without a journal, no change may need an undo. A program that has not executed its file yet can
//! nevertheless get a lower priority, as from `nice`, `chrt` and `ionice`: it keeps this priority
//! until it ends.
//!
//! 1. If the process starts a session, wait until the session exists, and give its autogroup nice
//!    19. The process still has the priority of its launcher: on a busy machine, a process of the
//!    lowest priority would start its session too late.
//! 2. Lower the process's nice value, scheduling policy and I/O class. A value that cannot be
//!    lowered does not prevent the others.
//!
//! Step 1 retries every 1 ms for at most 2 s. Both steps are tried; a failure of step 2 has
//! priority.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use usher_model::Demotion;

use crate::autogroup::Autogroup;
use crate::config::ActConfig;
use crate::error::ActError;
use crate::files;
use crate::journal::Priority;
use crate::priority::{self, NICE_MAX, PriorityRights};
use crate::procs::Procs;

/// Upper limit of the wait for the process to start its session, and for the kernel to accept the
/// nice value of an autogroup: from users, one per 100 ms for the whole machine.
const SESSION_WAIT: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(1);

/// Lowers the priority of a launched process that waits before its `exec`: nice 19, `SCHED_IDLE`
/// and the idle class for disks. If the process starts a session of its own, the autogroup of this
/// session also gets nice 19, unless the procfs belongs to another PID namespace. Nothing undoes
/// these changes.
///
/// # Errors
/// The first value of the process that could not be lowered, or else the autogroup. The other values
/// are lowered nevertheless.
pub fn lower_launched(config: &ActConfig, pid: i32, starts_session: bool) -> Result<(), ActError> {
    let procs = Procs::new(config);
    // In the procfs of another PID namespace, the pid would name another process.
    let session = match starts_session && procs.check_namespace().is_ok() {
        true => lower_session(&procs, pid),
        false => Ok(()),
    };
    let lowered = lower_process(pid);
    lowered.and(session).map_err(|source| ActError::Process {
        doing: "lowering the priority of",
        pid,
        source,
    })
}

fn lower_process(pid: i32) -> io::Result<()> {
    let now = Priority::of(pid)?;
    let what = priority::to_lower(&now, &now, Demotion::Idle, &PriorityRights::ALL);
    priority::lower_each(pid, &now, &what)
}

fn lower_session(procs: &Procs, pid: i32) -> io::Result<()> {
    let deadline = Instant::now() + SESSION_WAIT;
    loop {
        let process = procs.get(pid);
        // Before that, the process is in the session of its launcher.
        let has_session = process.is_some_and(|process| process.session == pid);
        let error = match has_session {
            true => match set_autogroup(procs, pid) {
                Err(error) if files::is(&error, Errno::AGAIN) => error,
                result => return result,
            },
            false => io::ErrorKind::TimedOut.into(),
        };
        if Instant::now() >= deadline {
            return Err(error);
        }
        std::thread::sleep(PAUSE);
    }
}

fn set_autogroup(procs: &Procs, pid: i32) -> io::Result<()> {
    match Autogroup::of(procs, pid)? {
        Some(mut autogroup) => autogroup.set(NICE_MAX),
        // The kernel has no autogroups.
        None => Ok(()),
    }
}
