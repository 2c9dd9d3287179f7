// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of shares of the CPU as virtual time (share.h): weights, credit, urgency, the starvation
//! rule, and families of young threads.

use usher_rules::share::{self, Aging, OVERDUE_NS};

const MS: u64 = 1_000_000;

#[test]
fn uncontended_time_is_not_charged() {
    let alone = |vtime| share::clamp_to_clock(vtime, 100 * MS);
    assert_eq!(
        [alone(97 * MS), alone(100 * MS), alone(9000 * MS)],
        [97 * MS, 100 * MS, 100 * MS]
    );
}

#[test]
fn virtual_time_is_inverse_to_weight() {
    let virtual_ns = |weight| share::virtual_ns(6 * MS, weight);
    assert_eq!(
        [virtual_ns(100), virtual_ns(200), virtual_ns(50)],
        [6 * MS, 3 * MS, 12 * MS]
    );
    assert_eq!(virtual_ns(1), 600 * MS);
}

#[test]
fn credit_for_sleep_is_limited_to_a_slice() {
    let wake = |vtime| share::clamp_sleeper(vtime, 100 * MS, 3 * MS);
    assert_eq!(
        [wake(0), wake(98 * MS), wake(105 * MS)],
        [97 * MS, 98 * MS, 105 * MS]
    );
}

#[test]
fn short_bursts_within_the_share_are_urgent() {
    let urgent = |burst, vtime| share::is_urgent(burst, vtime, 100 * MS);
    assert!(urgent(MS / 10, 99 * MS));
    assert!(urgent(MS - 1, 99 * MS));
    assert!(!urgent(MS, 99 * MS));
    assert!(!urgent(MS / 10, 100 * MS));
}

#[test]
fn factors_of_cgroups_multiply_the_thread_weight() {
    let weight = |weight, factor| share::weight_in(weight, factor);
    assert_eq!(
        [weight(100, 1 << 16), weight(36, 1 << 15)],
        [100 << 16, 18 << 16]
    );
    assert_eq!(weight(1, 0), 1, "virtual time always advances");
}

#[test]
fn urgent_threads_yield_after_the_largest_lag() {
    let late = |now| share::is_overdue(10 * MS, now, 24 * MS);
    assert_eq!([late(34 * MS), late(35 * MS)], [false, true]);
}

/// Returns the virtual times, in milliseconds, at which threads with the virtual times 0 and 500 ms
/// are placed.
fn placed(aging: &Aging, clock: u64) -> [u64; 2] {
    [0, 500].map(|vtime| aging.behind_overdue(clock * MS, vtime * MS) / MS)
}

#[test]
fn waiter_is_overdue_after_one_to_two_periods() {
    let mut aging = Aging::default();
    let begun = 9_000 * MS;
    aging.follow_periods(100 * MS, begun);
    aging.note_waiter(200 * MS);
    aging.note_waiter(150 * MS);
    aging.follow_periods(100 * MS, begun + OVERDUE_NS - 1);
    aging.follow_periods(101 * MS, begun + OVERDUE_NS);
    assert_eq!(placed(&aging, 101), [0, 500], "within the first period");
    // Waiters of the second period are not overdue at its end.
    aging.note_waiter(300 * MS);
    aging.follow_periods(101 * MS, begun + 2 * OVERDUE_NS - 1);
    assert_eq!(placed(&aging, 101), [0, 500]);
    aging.follow_periods(101 * MS, begun + 2 * OVERDUE_NS);
    assert!(aging.has_overdue(200 * MS));
    assert_eq!(placed(&aging, 200), [200, 500]);
    // The clock has passed all waiters of the first period.
    assert!(!aging.has_overdue(201 * MS));
    assert_eq!(placed(&aging, 201), [0, 500]);
    // If no call has occurred for two periods, all waiters are overdue.
    aging.follow_periods(201 * MS, begun + 4 * OVERDUE_NS);
    assert_eq!(placed(&aging, 201), [300, 500]);
    aging.reset();
    assert_eq!(placed(&aging, 201), [0, 500]);
    aging.follow_periods(400 * MS, begun + 5 * OVERDUE_NS);
    assert_eq!(placed(&aging, 400), [0, 500], "waiters before the reset");
}

/// The clocks of different CPUs may differ: a time before the start of the period begins no new
/// period.
#[test]
fn earlier_time_of_another_cpu_begins_no_period() {
    let mut aging = Aging::default();
    let begun = 9_000 * MS;
    aging.follow_periods(100 * MS, begun);
    aging.note_waiter(200 * MS);
    let before = aging;
    aging.follow_periods(100 * MS, begun - 3 * OVERDUE_NS);
    assert_eq!(aging, before);
}

#[test]
fn family_of_young_threads_is_charged_up_to_a_lag() {
    assert!(share::is_young(0) && share::is_young(24 * MS - 1) && !share::is_young(24 * MS));
    let charge = |vtime, ran| share::family_charge(vtime * MS, 1_000 * MS, ran * MS) / MS;
    assert_eq!(
        [charge(900, 3), charge(1_199, 3), charge(1_200, 3)],
        [3, 3, 0]
    );
    // A slice of a thread with the lowest weight is charged by at most this limit.
    assert_eq!([charge(900, 99), charge(900, 300)], [99, 100]);
}
