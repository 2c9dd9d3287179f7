// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shares of the CPU as virtual time, in nanoseconds that may overflow: CPU time over weight. The
//! file also has the condition under which a thread is urgent. The functions call those of
//! `share.h`, which explains the rules. Each function takes constant time.

use crate::c;

/// Weight of nice 0 in sched_ext.
pub const WEIGHT_NORMAL: u64 = 100;
/// A thread with an average burst below this limit may be urgent.
pub const SHORT_BURST_NS: u64 = 1_000_000;

/// Length of a period of [`Aging`]. A waiter is overdue after one to two periods.
pub const OVERDUE_NS: u64 = 1_000_000_000;

/// Returns the product of the weight of a thread and the factor of its cgroup; 65536: 1.
pub fn weight_in(weight: u64, factor: u32) -> u64 {
    c::rules_weight_in(weight, factor)
}

/// Converts CPU time of a thread of this weight to virtual time.
pub fn virtual_ns(ran_ns: u64, weight: u64) -> u64 {
    c::rules_virtual_ns(ran_ns, weight)
}

/// Returns whether `a` is before `b`, also across an overflow.
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

/// Limits the credit of a thread to one slice, after the thread has slept.
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

/// Returns the virtual time that a run of length `ran` adds to the shared virtual time of a family
/// of young threads.
pub fn family_charge(family_vtime: u64, clock: u64, ran: u64) -> u64 {
    c::rules_family_charge(family_vtime, clock, ran)
}

/// Returns whether a CPU has run only urgent threads for more than `max_lag_ns`. `served_ns` is the
/// time at which a thread that is not urgent last ran.
pub fn is_overdue(served_ns: u64, now_ns: u64, max_lag_ns: u64) -> bool {
    c::rules_is_overdue(served_ns, now_ns, max_lag_ns)
}

/// `struct aging`: a CPU's record of waiting threads for the starvation rule.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Aging {
    highest: u64,
    recent: u64,
    overdue: u64,
    pub(crate) began_ns: u64,
}

// The wrappers in `rules.c` keep no pointer, and write only through `*mut` pointers.
unsafe extern "C" {
    fn rules_reset_aging(aging: *mut Aging);
    fn rules_follow_periods(aging: *mut Aging, clock: u64, now_ns: u64);
    fn rules_has_overdue(aging: *const Aging, clock: u64) -> bool;
    fn rules_behind_overdue(aging: *const Aging, clock: u64, vtime: u64) -> u64;
}

impl Aging {
    /// Begins a new period if the current period has lasted [`OVERDUE_NS`].
    pub fn follow_periods(&mut self, clock: u64, now_ns: u64) {
        // SAFETY: the struct has the layout of `struct aging`, and the reference is exclusive.
        unsafe { rules_follow_periods(self, clock, now_ns) };
    }

    /// Records the virtual time of a waiter.
    pub fn note_waiter(&mut self, vtime: u64) {
        self.highest = later(self.highest, vtime);
    }

    /// Returns whether a waiting thread may be overdue.
    pub fn has_overdue(&self, clock: u64) -> bool {
        // SAFETY: the struct has the layout of `struct aging`, and is only read.
        unsafe { rules_has_overdue(self, clock) }
    }

    /// Returns a virtual time behind those of all overdue threads; `vtime` itself if no thread is
    /// overdue.
    pub fn behind_overdue(&self, clock: u64, vtime: u64) -> u64 {
        // SAFETY: the struct has the layout of `struct aging`, and is only read.
        unsafe { rules_behind_overdue(self, clock, vtime) }
    }

    /// Discards the record of waiters; called when no thread waits for the CPU.
    pub fn reset(&mut self) {
        // SAFETY: the struct has the layout of `struct aging`, and the reference is exclusive.
        unsafe { rules_reset_aging(self) };
    }
}
