// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clocks of the control loop: the monotonic clock and the CPU time of the calling thread, in
//! nanoseconds.

use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// CPU time of this thread in nanoseconds.
pub(super) fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
