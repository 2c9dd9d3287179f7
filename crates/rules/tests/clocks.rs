// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPUs of an LLC with clocks far apart, as threads are pinned to some of them.

mod common;

use common::rig::{Rig, Shape, State};
use common::{MS, SETTINGS};

/// Lets a thread compute and sleep, so that its bursts are long.
fn make_computing(rig: &mut Rig, thread: usize) {
    for _ in 0..3 {
        rig.wake(thread);
        while rig.state(thread) == State::Waiting {
            rig.pass(SETTINGS.slice_ns);
        }
        rig.pass(2 * MS);
        rig.stop(thread);
    }
}

/// Time until a thread runs after its wake-up.
fn wait_ns(rig: &mut Rig, thread: usize) -> u64 {
    let begun_ns = rig.now_ns;
    rig.wake(thread);
    while rig.state(thread) == State::Waiting {
        assert!(rig.now_ns < begun_ns + 20_000 * MS, "it starves");
        rig.pass(MS);
    }
    rig.now_ns - begun_ns
}

/// CPUs 0 and 1 have a thread or two. The crowd is on two other CPUs, in any word of a CPU set.
#[test]
fn sleeper_is_placed_by_the_clock_of_its_cpus() {
    for (cpus, first) in [(4, 2), (80, 78), (140, 130)] {
        let mut rig = Rig::new(Shape(1, 1, cpus, 1));
        let own = [first, first + 1];
        for cpu in [0, 0, 1, 1] {
            rig.start(1, [cpu]);
        }
        for mm in 0..20 {
            rig.start(10 + mm, own);
        }
        let sleeper = rig.add(50, own);
        make_computing(&mut rig, sleeper);
        for _ in 0..3 {
            rig.pass(3_000 * MS);
            let waited_ns = wait_ns(&mut rig, sleeper);
            let bound_ns = 11 * (SETTINGS.max_lag_ns + 2 * SETTINGS.slice_ns);
            assert!(waited_ns <= bound_ns, "CPU {first} of {cpus}: {waited_ns}");
            rig.pass(2 * MS);
            rig.stop(sleeper);
        }
    }
}

/// Of two CPUs that a thread may run on, the crowded one is far behind. By that clock the thread
/// would be far behind the threads of the other CPU, and would keep that CPU for itself.
#[test]
fn sleeper_is_placed_by_the_most_advanced_of_its_cpus() {
    for (cpus, crowded, other) in [
        (3, 1, 2),
        (3, 2, 1),
        (80, 78, 79),
        (80, 79, 78),
        (140, 3, 131),
    ] {
        let mut rig = Rig::new(Shape(1, 1, cpus, 1));
        for mm in 0..16 {
            rig.start(10 + mm, [crowded]);
        }
        let pair = [rig.start(1, [other]), rig.start(2, [other])];
        let sleeper = rig.add(50, [crowded, other]);
        make_computing(&mut rig, sleeper);
        rig.pass(6_000 * MS);
        rig.wake(sleeper);
        let before = pair.map(|thread| rig.ran_ns(thread));
        rig.pass(600 * MS);
        for (thread, before) in pair.into_iter().zip(before) {
            let ran = rig.ran_ns(thread) - before;
            assert!(ran > 120 * MS, "CPU {other} of {cpus}: {ran}");
        }
    }
}

/// The clock of a crowded CPU decides whether a thread that is pinned to it is urgent.
#[test]
fn short_thread_is_urgent_on_a_crowded_cpu() {
    let mut rig = Rig::new(Shape(1, 1, 2, 1));
    rig.start(1, [0]);
    rig.start(2, [0]);
    for mm in 0..20 {
        rig.start(10 + mm, [1]);
    }
    let short = rig.add(50, [1]);
    let mut waited_ns = Vec::new();
    for _ in 0..40 {
        rig.pass(40 * MS);
        waited_ns.push(wait_ns(&mut rig, short));
        rig.pass(MS / 5);
        rig.stop(short);
    }
    let late = waited_ns
        .iter()
        .skip(10)
        .filter(|&&waited_ns| waited_ns > 5 * MS);
    assert_eq!(late.count(), 0, "{waited_ns:?}");
}

/// A thread with short bursts that uses more than its share is not urgent.
#[test]
fn short_bursts_get_no_more_than_a_share() {
    for others in [1, 3] {
        let mut rig = Rig::new(Shape(1, 1, 1, 1));
        let long: Vec<usize> = (0..others).map(|mm| rig.start(mm + 1, [0])).collect();
        rig.pass(100 * MS);
        let short = rig.add(50, [0]);
        let before: u64 = long.iter().map(|&thread| rig.ran_ns(thread)).sum();
        let begun_ns = rig.now_ns;
        rig.wake(short);
        while rig.now_ns < begun_ns + 3_000 * MS {
            rig.pass(MS / 2);
            if rig.state(short) == State::On(0) {
                rig.stop(short);
                rig.pass(MS / 20);
                rig.wake(short);
            }
        }
        let passed_ns = rig.now_ns - begun_ns;
        let ran: u64 = long.iter().map(|&thread| rig.ran_ns(thread)).sum::<u64>() - before;
        let due = passed_ns * others / (others + 1);
        assert!(ran > due * 7 / 10, "{others}: {ran} of {due}");
        assert!(
            ran < passed_ns * 97 / 100,
            "{others}: the thread gets its share"
        );
    }
}
