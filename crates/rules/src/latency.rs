// SPDX-License-Identifier: MIT OR Apache-2.0
//! Histograms of latencies in nanoseconds: 256 slots, four per power of two.
//!
//! The number of a slot consists of the binary logarithm of the latency and the two bits below its
//! leading bit (`numbers.h`), so that the slots cover all of `u64`. A percentile is the upper end
//! of the slot that contains it. For latencies of 4 ns or more, this value is too high by at most a
//! quarter.
//!
//! A histogram without counts has no percentile. A percentile takes linear time in the number of
//! slots.

use crate::c;

/// Number of slots.
pub const SLOTS: usize = 256;

/// Returns the slot of a latency in nanoseconds.
pub fn slot_of(latency_ns: u64) -> u32 {
    c::rules_slot_of(latency_ns)
}

/// Returns the exclusive upper end of a slot.
pub fn upper_end(slot: usize) -> u64 {
    let end = (slot as u128 % 4 + 5) << (slot / 4);
    u64::try_from(end.div_ceil(4)).unwrap_or(u64::MAX)
}

/// Returns the latency that the fraction `share` (0 to 1) of the counted latencies does not reach.
/// The result is the upper end of a slot; `None` if all counts are 0.
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

/// Returns the binary logarithm, rounded down; 0 for 0.
pub fn log2_of(value: u64) -> u32 {
    c::rules_log2_of(value)
}
