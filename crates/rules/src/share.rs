// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shares of the CPU as virtual time, in nanoseconds that may overflow: CPU time over weight. Also
//! the condition under which a thread is urgent. The functions are those of `share.h`, which
//! explains the rules; each takes constant time.

use crate::c;

/// Weight of nice 0 in sched_ext.
pub const WEIGHT_NORMAL: u64 = 100;
/// Limit of the average burst below which a thread may be urgent.
pub const SHORT_BURST_NS: u64 = 1_000_000;

/// Length of a period of [`Aging`]: a waiter is overdue after one to two.
pub const OVERDUE_NS: u64 = 1_000_000_000;

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

/// Returns whether a thread with this CPU time since its creation is young.
pub fn is_young(ran_ns: u64) -> bool {
    c::rules_is_young(ran_ns)
}

/// Returns the virtual time that is added to that of a family of young threads.
pub fn family_charge(family_vtime: u64, clock: u64, ran: u64) -> u64 {
    c::rules_family_charge(family_vtime, clock, ran)
}

/// Returns whether a CPU has served only urgent threads for too long.
pub fn is_overdue(served_ns: u64, now_ns: u64, max_lag_ns: u64) -> bool {
    c::rules_is_overdue(served_ns, now_ns, max_lag_ns)
}

/// `struct aging`: starvation rule of a CPU.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Aging {
    highest: u64,
    recent: u64,
    overdue: u64,
    pub(crate) began_ns: u64,
}

// Wrappers in `rules.c`. They keep no pointer and write only through `*mut` pointers.
unsafe extern "C" {
    fn rules_reset_aging(aging: *mut Aging);
    fn rules_follow_periods(aging: *mut Aging, clock: u64, now_ns: u64);
    fn rules_has_overdue(aging: *const Aging, clock: u64) -> bool;
    fn rules_behind_overdue(aging: *const Aging, clock: u64, vtime: u64) -> u64;
}

impl Aging {
    /// Begins a new period if it is time.
    pub fn follow_periods(&mut self, clock: u64, now_ns: u64) {
        // SAFETY: the layout is that of the header, and the reference is exclusive.
        unsafe { rules_follow_periods(self, clock, now_ns) };
    }

    /// Records the virtual time of a waiter.
    pub fn note_waiter(&mut self, vtime: u64) {
        self.highest = later(self.highest, vtime);
    }

    /// Returns whether a thread may wait that is overdue.
    pub fn has_overdue(&self, clock: u64) -> bool {
        // SAFETY: the layout is that of the header; the value is only read.
        unsafe { rules_has_overdue(self, clock) }
    }

    /// Places a virtual time behind the overdue threads, if there may be any.
    pub fn behind_overdue(&self, clock: u64, vtime: u64) -> u64 {
        // SAFETY: the layout is that of the header; the value is only read.
        unsafe { rules_behind_overdue(self, clock, vtime) }
    }

    /// Forgets all waiters, as no thread waits for the CPU.
    pub fn reset(&mut self) {
        // SAFETY: the layout is that of the header, and the reference is exclusive.
        unsafe { rules_reset_aging(self) };
    }
}
