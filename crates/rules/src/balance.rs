// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a CPU of one LLC takes a thread from another.

use crate::c;

/// An LLC looks at one of the others so often.
pub const BALANCE_PERIOD_NS: u64 = 50_000_000;

/// `struct load`: how many wait in an LLC, and for how many CPUs.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Threads that wait.
    pub waiting: u32,
    /// The LLC's CPUs.
    pub cpus: u32,
}

/// `enum surplus`: how many more wait in another LLC than here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surplus {
    /// Nobody is taken.
    None,
    /// Whoever is one too many for equal numbers goes round, within a node.
    One,
    /// With one thread less as many wait there for each CPU as with one more here.
    Many,
}

/// What a CPU finds that has threads of its own, of which the last sleeps or does not, and
/// looks at another LLC, of its node or not.
pub fn surplus_of(there: Load, here: Load, last_sleeps: bool, in_node: bool) -> Surplus {
    match c::rules_surplus_of(there, here, last_sleeps, in_node) {
        1 => Surplus::One,
        2 => Surplus::Many,
        _ => Surplus::None,
    }
}

/// The LLC looked at, by a number that was drawn; the same, if there is no other.
pub fn other_llc(here: usize, llcs: usize, drawn: u32) -> usize {
    c::rules_other_llc(here as u32, llcs as u32, drawn) as usize
}

/// Whether a CPU looks at another LLC now, for all of its own, which looks again when
/// `look_at_ns` says.
pub fn begins_balance(now_ns: u64, balance_at_ns: &mut u64) -> bool {
    // SAFETY: the number is the caller's, and nobody else's meanwhile.
    unsafe { c::rules_begins_balance(now_ns, balance_at_ns) }
}

/// One was taken: when both LLCs look again.
pub fn end_balance(surplus: Surplus, now_ns: u64, here_at_ns: &mut u64, there_at_ns: &mut u64) {
    // SAFETY: the numbers are the caller's, and nobody else's meanwhile.
    unsafe { c::rules_end_balance(surplus as u32, now_ns, here_at_ns, there_at_ns) }
}
