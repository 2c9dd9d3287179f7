// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the arithmetic in `bpf/rules.h` and `bpf/levels.h`, compiled for this machine.

mod choice;
mod levels;
mod turns;

use crate::layout::{LATENCY_SLOTS, upper_end};

/// `struct cpu_set`.
type Set = [u64; 8];

/// `struct outlook`.
#[repr(C)]
struct Outlook {
    idle: Set,
    cores: Set,
    allowed: Set,
    home: Set,
    guests: Set,
    left: Set,
    unseen: u64,
}

/// `struct place`.
#[repr(C)]
struct Place {
    known: u32,
    llc: u32,
    node_number: u32,
    unused: u32,
    core: Set,
    near: Set,
    node: Set,
}

/// `struct space`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Space {
    mm: u64,
    least: u64,
    seat: u64,
    waiting: u32,
    unused: u32,
}

const SPACES: usize = 32;

/// `struct moment`.
#[repr(C)]
#[derive(Debug)]
struct Moment {
    began_ns: u64,
    turn_ns: u64,
    lead_ns: u64,
    now_ns: u64,
    has_prev: u32,
    aggregate: u32,
    prev_vtime: u64,
    own: u32,
    not: u32,
    hindmost: u32,
    unused: u32,
}

const NEXT_SAME: u32 = 0;

// Of rules.c, which build.rs compiles.
#[link(name = "usher_scx_rules", kind = "static")]
unsafe extern "C" {
    fn rules_choose_cpu(smt: bool, sees: *const Outlook, last: u32, here: *const Place) -> i32;
    fn rules_choose_best(smt: bool, sees: *const Outlook, last: u32, here: *const Place) -> i32;
    fn rules_find_home(home: *mut Set, allowed: *const Set, seat: *const Set) -> bool;
    fn rules_who_is_next(is: *mut Moment, spaces: *const Space, queue: *mut u32) -> u32;
    fn rules_space_of(spaces: *const Space, mm: u64) -> u32;
    fn rules_join_space(space: *mut Space, mm: u64, seat: u64, vtime: u64);
    fn rules_leave_space(space: *mut Space, vtime: u64);
    fn rules_within_group(percent: u32, weight: u32) -> u32;
    fn rules_weight_in(weight: u64, percent: u32) -> u64;
    fn rules_virtual_ns(ran_ns: u64, weight: u64) -> u64;
    fn rules_wake_at(vtime: u64, clock: u64, slice_ns: u64) -> u64;
    fn rules_join_at(vtime: u64, least: u64, ahead_ns: u64) -> u64;
    fn rules_first_of_seat(spaces: *const Space, seat: u64, least: *mut u64) -> bool;
    fn rules_is_urgent(burst_ns: u64, vtime: u64, share: u64) -> bool;
    fn rules_is_late(served_ns: u64, now_ns: u64, lead_ns: u64) -> bool;
    fn rules_alone_at(vtime: u64, clock: u64) -> u64;
    fn rules_ahead_at_most(lead_ns: u64, slice_ns: u64, weight: u64) -> u64;
    fn rules_average_of(spaces: *const Space, clock: u64) -> u64;
    fn rules_slot_of(value: u64) -> u32;
    fn rules_log2_of(value: u64) -> u32;
    fn levels_key_at(array: u64, level: u32, arrival: u64) -> u64;
    fn levels_key_expired(key: u64, active: u64, level: u32, arrival: u64) -> u64;
    fn levels_key_preempted(key: u64, active: u64) -> u64;
    fn levels_key_elsewhere(key: u64, active_there: u64, active_here: u64, arrival: u64) -> u64;
    fn levels_slice(nice_level: i32) -> u64;
    fn levels_level_of(nice_level: i32, sleep_average_ns: u64) -> u32;
    fn levels_is_interactive(nice_level: i32, sleep_average_ns: u64) -> bool;
    fn levels_after_sleep(average_ns: u64, slept_ns: u64, nice_level: i32) -> u64;
    fn levels_after_run(average_ns: u64, ran_ns: u64) -> u64;
    fn levels_of_child(average_ns: u64) -> u64;
    fn levels_is_starving(since_ns: u64, now_ns: u64, waiting: u32) -> bool;
    fn levels_has_better_level(key: u64, running: u64, same_space: bool, aggregate: bool) -> bool;
}

#[test]
fn logarithms_are_rounded_down() {
    let values = (0..64).flat_map(|bit| [1_u64 << bit, (1 << bit) + 1, u64::MAX >> bit]);
    for value in values {
        // SAFETY: numbers alone.
        assert_eq!(unsafe { rules_log2_of(value) }, value.ilog2(), "{value}");
    }
    // SAFETY: numbers alone.
    assert_eq!(unsafe { rules_log2_of(0) }, 0);
}

proptest::proptest! {
    #[test]
    fn a_latency_lies_in_its_slot(bits in 0..63_u32, any in proptest::num::u64::ANY) {
        let latency = any >> bits;
        // SAFETY: numbers alone.
        let slot = unsafe { rules_slot_of(latency) } as usize;
        proptest::prop_assert!(slot < LATENCY_SLOTS);
        proptest::prop_assert!(latency < upper_end(slot), "{latency} in {slot}");
        if slot > 0 && latency > 1 {
            proptest::prop_assert!(latency >= upper_end(slot - 1), "{latency} in {slot}");
        }
    }
}
