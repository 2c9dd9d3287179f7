// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each thread is due.

use usher_rules::share;

const MS: u64 = 1_000_000;

#[test]
fn time_alone_is_not_owed() {
    let alone = |vtime| share::clamp_to_clock(vtime, 100 * MS);
    assert_eq!(
        [alone(97 * MS), alone(100 * MS), alone(9000 * MS)],
        [97 * MS, 100 * MS, 100 * MS]
    );
}

#[test]
fn weight_slows_virtual_time() {
    let virtual_ns = |weight| share::virtual_ns(6 * MS, weight);
    assert_eq!(
        [virtual_ns(100), virtual_ns(200), virtual_ns(50)],
        [6 * MS, 3 * MS, 12 * MS]
    );
    assert_eq!(virtual_ns(0), 600 * MS);
}

#[test]
fn whoever_slept_is_owed_a_slice_and_no_more() {
    let wake = |vtime| share::clamp_sleeper(vtime, 100 * MS, 3 * MS);
    assert_eq!(
        [wake(0), wake(98 * MS), wake(105 * MS)],
        [97 * MS, 98 * MS, 105 * MS]
    );
}

#[test]
fn urgent_are_short_bursts_within_their_share() {
    let urgent = |burst, vtime| share::is_urgent(burst, vtime, 100 * MS);
    assert!(urgent(MS / 10, 99 * MS));
    assert!(urgent(MS - 1, 99 * MS));
    assert!(!urgent(MS, 99 * MS));
    assert!(!urgent(MS / 10, 100 * MS));
}

#[test]
fn weights_of_cgroups_multiply_that_of_a_thread() {
    let within = |percent, weight| share::within_group(percent, weight);
    assert_eq!(
        [within(100, 0), within(100, 100), within(100, 250)],
        [100, 100, 250]
    );
    assert_eq!(within(within(100, 50), 50), 25);
    assert_eq!([within(1, 1), within(1_000_000, 10_000)], [1, 1_000_000]);
    let weight = |weight, percent| share::weight_in(weight, percent);
    assert_eq!(
        [weight(100, 0), weight(100, 300), weight(36, 50)],
        [100, 300, 18]
    );
    assert_eq!(weight(1, 1), 1, "virtual time always advances");
}

#[test]
fn urgent_threads_do_not_come_first_for_ever() {
    let late = |now| share::is_late(10 * MS, now, 24 * MS);
    assert_eq!([late(34 * MS), late(35 * MS)], [false, true]);
}
