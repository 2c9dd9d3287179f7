// SPDX-License-Identifier: MIT OR Apache-2.0
//! Load balancing between LLCs: when a CPU takes a waiting thread of another LLC although its own
//! LLC has threads. The functions are those of `balance.h`, which gives the steps. Each takes
//! constant time; the load of an LLC is its number of waiting threads per CPU.

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
    /// One thread too many for equal load; it rotates between the LLCs of a node.
    One,
    /// After the migration of one thread, the other LLC still has no fewer waiting threads per CPU.
    Many,
}

// Wrappers in `rules.c`. They keep no pointer and write only through `*mut` pointers.
unsafe extern "C" {
    fn rules_begins_balance(now_ns: u64, balance_at_ns: *mut u64) -> bool;
    fn rules_end_balance(surplus: u32, now_ns: u64, here_at_ns: *mut u64, there_at_ns: *mut u64);
    safe fn rules_surplus_of(there: Load, here: Load, last_sleeps: bool, in_node: bool) -> u32;
}

/// Compares the load of another LLC (`there`) with the own load (`here`). `last_sleeps`: the last
/// thread of the CPU sleeps. `in_node`: both LLCs are in one node.
pub fn surplus_of(there: Load, here: Load, last_sleeps: bool, in_node: bool) -> Surplus {
    match rules_surplus_of(there, here, last_sleeps, in_node) {
        1 => Surplus::One,
        2 => Surplus::Many,
        _ => Surplus::None,
    }
}

/// Returns the LLC to check, by a random number; `here` if there is no other.
pub fn other_llc(here: usize, llcs: usize, drawn: u32) -> usize {
    c::rules_other_llc(here as u32, llcs as u32, drawn) as usize
}

/// Returns whether a CPU checks another LLC now. If so, advances `balance_at_ns`, the time of its
/// LLC's next check.
pub fn begins_balance(now_ns: u64, balance_at_ns: &mut u64) -> bool {
    // SAFETY: the reference is exclusive.
    unsafe { rules_begins_balance(now_ns, balance_at_ns) }
}

/// Sets the next checks of both LLCs after a migration.
pub fn end_balance(surplus: Surplus, now_ns: u64, here_at_ns: &mut u64, there_at_ns: &mut u64) {
    // SAFETY: the references are exclusive.
    unsafe { rules_end_balance(surplus as u32, now_ns, here_at_ns, there_at_ns) }
}
