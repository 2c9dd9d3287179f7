// SPDX-License-Identifier: MIT OR Apache-2.0
//! Latencies are counted in slots, four to a power of two.

use crate::c;

/// How many there are.
pub const SLOTS: usize = 256;

/// The slot of a latency in nanoseconds.
pub fn slot_of(latency_ns: u64) -> u32 {
    c::rules_slot_of(latency_ns)
}

/// Latencies of a slot are below this: a quarter of the way, or further, from a power of
/// two to the next.
pub fn upper_end(slot: usize) -> u64 {
    let end = (slot as u128 % 4 + 5) << (slot / 4);
    u64::try_from(end.div_ceil(4)).unwrap_or(u64::MAX)
}

/// The binary logarithm, rounded down; 0 of 0.
pub fn log2_of(value: u64) -> u32 {
    c::rules_log2_of(value)
}
