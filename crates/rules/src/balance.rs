// SPDX-License-Identifier: MIT OR Apache-2.0
//! Load balancing between LLCs: when a CPU takes a waiting thread of another LLC although its own
//! LLC has threads. The functions call those of `balance.h`, which lists the steps. Each function
//! takes constant time. The load of an LLC is its number of waiting threads per CPU. A thread of
//! the own LLC that is about to run (`last_sleeps`) does not count. [`Surplus::One`] occurs only
//! between LLCs of a node. After [`Surplus::Many`], the own LLC may check again at once; otherwise,
//! the other LLC pauses for [`BALANCE_PERIOD_NS`]. Times are in nanoseconds and may overflow; only
//! differences matter. No function fails.

use crate::c;

/// Time between two checks of another LLC: 50 ms.
pub const BALANCE_PERIOD_NS: u64 = 50_000_000;

/// `struct load`: waiting threads and CPUs of an LLC.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Number of waiting threads.
    pub waiting: u32,
    /// Number of CPUs.
    pub cpus: u32,
}

/// `enum surplus`: comparison of the loads of two LLCs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surplus {
    /// No thread is taken.
    None,
    /// The other LLC has one waiting thread too many for equal load. That thread rotates between
    /// the LLCs of a node.
    One,
    /// Even after the migration of one thread, the other LLC has at least as many waiting threads
    /// per CPU as the own LLC.
    Many,
}

// The wrappers in `rules.c` keep no pointer, and write only through `*mut` pointers.
unsafe extern "C" {
    fn rules_begins_balance(now_ns: u64, balance_at_ns: *mut u64) -> bool;
    fn rules_end_balance(surplus: u32, now_ns: u64, here_at_ns: *mut u64, there_at_ns: *mut u64);
    safe fn rules_surplus_of(there: Load, here: Load, last_sleeps: bool, in_node: bool) -> u32;
}

/// Compares the load of another LLC (`there`) with the load of the CPU's own LLC (`here`).
/// `last_sleeps`: the thread that ran last on the CPU sleeps now. `in_node`: the two LLCs are in
/// the same node.
pub fn surplus_of(there: Load, here: Load, last_sleeps: bool, in_node: bool) -> Surplus {
    match rules_surplus_of(there, here, last_sleeps, in_node) {
        1 => Surplus::One,
        2 => Surplus::Many,
        _ => Surplus::None,
    }
}

/// Returns an LLC to compare with LLC `here`, selected by the random number `drawn`. Returns `here`
/// if the machine has only one LLC.
pub fn other_llc(here: usize, llcs: usize, drawn: u32) -> usize {
    c::rules_other_llc(here as u32, llcs as u32, drawn) as usize
}

/// Returns whether a CPU checks another LLC now. If it does, sets `balance_at_ns`, the time of the
/// next check by the CPU's LLC, to one period from now.
pub fn begins_balance(now_ns: u64, balance_at_ns: &mut u64) -> bool {
    // SAFETY: `balance_at_ns` is an exclusive reference, and the wrapper keeps no pointer.
    unsafe { rules_begins_balance(now_ns, balance_at_ns) }
}

/// Sets the times of the next checks of the two LLCs between which threads have migrated.
pub fn end_balance(surplus: Surplus, now_ns: u64, here_at_ns: &mut u64, there_at_ns: &mut u64) {
    // SAFETY: the two references are exclusive, and the wrapper keeps no pointer.
    unsafe { rules_end_balance(surplus as u32, now_ns, here_at_ns, there_at_ns) }
}
