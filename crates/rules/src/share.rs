// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each thread is due: CPU time over weight, as virtual time in nanoseconds, which may
//! overflow; and who is in a hurry.

use crate::c;

/// The weight of nice 0, as the kernel gives it to schedulers.
pub const WEIGHT_NORMAL: u64 = 100;
/// Threads that sleep after less than this on average are waited for by somebody.
pub const SHORT_BURST_NS: u64 = 1_000_000;

/// What a cgroup's weight makes of that of those in it, in per cent.
pub fn within_group(percent: u32, weight: u32) -> u32 {
    c::rules_within_group(percent, weight)
}

/// A thread's weight with that of its cgroups.
pub fn weight_in(weight: u64, percent: u32) -> u64 {
    c::rules_weight_in(weight, percent)
}

/// Virtual time that running so long takes.
pub fn virtual_ns(ran_ns: u64, weight: u64) -> u64 {
    c::rules_virtual_ns(ran_ns, weight)
}

/// In an order that survives overflow.
fn is_before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

/// The one that is ahead.
pub fn later(a: u64, b: u64) -> u64 {
    if is_before(a, b) { b } else { a }
}

/// The one that is behind.
pub fn earlier(a: u64, b: u64) -> u64 {
    if is_before(a, b) { a } else { b }
}

/// Where whoever slept goes on.
pub fn clamp_sleeper(vtime: u64, clock: u64, slice_ns: u64) -> u64 {
    c::rules_clamp_sleeper(vtime, clock, slice_ns)
}

/// Where a thread goes on that nobody had to wait for.
pub fn clamp_to_clock(vtime: u64, clock: u64) -> u64 {
    c::rules_clamp_to_clock(vtime, clock)
}

/// How far a thread of this weight gets ahead of whoever waits.
pub fn max_lag(max_lag_ns: u64, slice_ns: u64, weight: u64) -> u64 {
    c::rules_max_lag(max_lag_ns, slice_ns, weight)
}

/// Whether a thread with bursts like this is not made to wait for anybody's turn to end.
pub fn is_urgent(burst_ns: u64, vtime: u64, share: u64) -> bool {
    c::rules_is_urgent(burst_ns, vtime, share)
}

/// The average length of a burst after one more.
pub fn burst_after(average_ns: u64, burst_ns: u64) -> u64 {
    c::rules_burst_after(average_ns, burst_ns)
}

/// Whether a CPU has served nobody but urgent threads for too long.
pub fn is_late(served_ns: u64, now_ns: u64, max_lag_ns: u64) -> bool {
    c::rules_is_late(served_ns, now_ns, max_lag_ns)
}

/// `struct pace`: how slowly virtual time passes on a CPU at most.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pace {
    pub(crate) least: u64,
    pub(crate) at_ns: u64,
}

impl Pace {
    /// Where a thread at that virtual time counts as being, on a CPU whose clock is there: no
    /// further behind its pace than anybody gets ahead.
    pub fn paced(&mut self, vtime: u64, clock: u64, now_ns: u64) -> u64 {
        // SAFETY: laid out as the header has it, and nobody else's.
        unsafe {
            c::rules_keep_pace(self, clock, now_ns);
            c::rules_at_pace(self, clock, vtime)
        }
    }

    /// Nobody waits for the CPU, whose clock may stand still.
    pub fn reset(&mut self) {
        // SAFETY: as above.
        unsafe { c::rules_reset_pace(self) };
    }
}
