// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shares of the CPU as virtual time, in nanoseconds that may overflow: CPU time over weight. Also
//! the condition under which a thread is urgent.

use crate::c;

/// Weight of nice 0 in sched_ext.
pub const WEIGHT_NORMAL: u64 = 100;
/// Limit of the average burst below which a thread may be urgent.
pub const SHORT_BURST_NS: u64 = 1_000_000;

/// Applies the weight of one cgroup, in per cent.
pub fn within_group(percent: u32, weight: u32) -> u32 {
    c::rules_within_group(percent, weight)
}

/// Applies the weight of the cgroups to that of the thread.
pub fn weight_in(weight: u64, percent: u32) -> u64 {
    c::rules_weight_in(weight, percent)
}

/// Converts CPU time to virtual time.
pub fn virtual_ns(ran_ns: u64, weight: u64) -> u64 {
    c::rules_virtual_ns(ran_ns, weight)
}

/// Wrap-safe comparison.
fn is_before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

/// Returns the later of two virtual times.
pub fn later(a: u64, b: u64) -> u64 {
    if is_before(a, b) { b } else { a }
}

/// Returns the earlier of two virtual times.
pub fn earlier(a: u64, b: u64) -> u64 {
    if is_before(a, b) { a } else { b }
}

/// Limits the credit of a thread that slept to one slice.
pub fn clamp_sleeper(vtime: u64, clock: u64, slice_ns: u64) -> u64 {
    c::rules_clamp_sleeper(vtime, clock, slice_ns)
}

/// Caps a virtual time at the clock, after a run that delayed no other thread.
pub fn clamp_to_clock(vtime: u64, clock: u64) -> u64 {
    c::rules_clamp_to_clock(vtime, clock)
}

/// Returns the largest lag of a thread of this weight.
pub fn max_lag(max_lag_ns: u64, slice_ns: u64, weight: u64) -> u64 {
    c::rules_max_lag(max_lag_ns, slice_ns, weight)
}

/// Returns whether a thread is urgent and does not wait for the end of a turn.
pub fn is_urgent(burst_ns: u64, vtime: u64, share: u64) -> bool {
    c::rules_is_urgent(burst_ns, vtime, share)
}

/// Returns the average burst length after one more burst.
pub fn burst_after(average_ns: u64, burst_ns: u64) -> u64 {
    c::rules_burst_after(average_ns, burst_ns)
}

/// Returns whether a CPU has served only urgent threads for too long.
pub fn is_overdue(served_ns: u64, now_ns: u64, max_lag_ns: u64) -> bool {
    c::rules_is_overdue(served_ns, now_ns, max_lag_ns)
}

/// `struct pace`: lower limit of the advance of virtual time on a CPU.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pace {
    pub(crate) least: u64,
    pub(crate) at_ns: u64,
}

impl Pace {
    /// Returns the virtual time, raised to the limit of a CPU with this clock.
    pub fn paced(&mut self, vtime: u64, clock: u64, now_ns: u64) -> u64 {
        // SAFETY: the layout is that of the header, and the reference is exclusive.
        unsafe {
            c::rules_keep_pace(self, clock, now_ns);
            c::rules_at_pace(self, clock, vtime)
        }
    }

    /// Restarts the limit, as no thread waits for the CPU.
    pub fn reset(&mut self) {
        // SAFETY: as above.
        unsafe { c::rules_reset_pace(self) };
    }
}
