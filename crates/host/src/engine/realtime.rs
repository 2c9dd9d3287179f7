// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loop's thread runs as soon as it wakes.
//!
//! The loop matters most when every CPU is busy, and then an ordinary thread
//! waits its turn: an owner would wait for its core as long as the loop waits
//! for one. A turn of the loop takes well under a millisecond, so it may go
//! before everybody else.

use rustix::io::Errno;

/// Puts the calling thread before all ordinary ones; its children are ordinary
/// again. An ordinary user may not do that; the thread then stays as
/// it is.
///
/// # Errors
/// What the kernel said.
pub fn run_promptly() -> Result<(), Errno> {
    let lowest = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is this thread and the structure outlives the call.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const lowest) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::PERM)),
    }
}
