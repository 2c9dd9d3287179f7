// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets the real-time class for the control loop's thread. With this class, the thread runs as soon
//! as it wakes.
//!
//! The loop matters most when every CPU is busy. On such a machine, an ordinary thread would wait
//! for a CPU, and a program would get its lent cores back only after the loop has run. An iteration
//! of the loop takes well under a millisecond, which is short enough to preempt ordinary threads.

use rustix::io::Errno;

/// Gives the calling thread the real-time class SCHED_RR; its children have the ordinary class.
/// Without the privilege, the thread keeps its class.
///
/// # Errors
/// The kernel's error.
pub fn set_realtime_class() -> Result<(), Errno> {
    let lowest = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread, and the structure outlives the call.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const lowest) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::PERM)),
    }
}
