// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the histogram slots of latencies (numbers.h): logarithms are rounded down, and each
//! latency is at least the lower end of its slot and below the upper end.

use proptest::prelude::*;
use usher_rules::latency::{SLOTS, log2_of, slot_of, upper_end};

#[test]
fn logarithms_are_rounded_down() {
    let values = (0..64).flat_map(|bit| [1_u64 << bit, (1 << bit) + 1, u64::MAX >> bit]);
    for value in values {
        assert_eq!(log2_of(value), value.ilog2(), "{value}");
    }
    assert_eq!(log2_of(0), 0);
}

proptest! {
    #[test]
    fn latency_lies_within_its_slot(bits in 0..63_u32, any in proptest::num::u64::ANY) {
        let latency = any >> bits;
        let slot = slot_of(latency) as usize;
        prop_assert!(slot < SLOTS);
        prop_assert!(latency < upper_end(slot), "{latency} in {slot}");
        if slot > 0 && latency > 1 {
            prop_assert!(latency >= upper_end(slot - 1), "{latency} in {slot}");
        }
    }
}
