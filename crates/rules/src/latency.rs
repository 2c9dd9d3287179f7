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

/// What that share of all stayed below, counted by slots: the upper end of one. `None`
/// without any.
pub fn below(slots: &[u64], share: f64) -> Option<u64> {
    let all: u64 = slots.iter().sum();
    let wanted = (all as f64 * share).ceil().max(1.0) as u64;
    let mut sum = 0;
    let slot = slots.iter().position(|count| {
        sum += count;
        sum >= wanted
    })?;
    Some(upper_end(slot))
}

/// The binary logarithm, rounded down; 0 of 0.
pub fn log2_of(value: u64) -> u32 {
    c::rules_log2_of(value)
}
