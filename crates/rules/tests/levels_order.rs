// SPDX-License-Identifier: MIT OR Apache-2.0
//! The variant with the order of Linux 2.6, on the whole scheduler.

mod common;

use common::rig::{Rig, Shape, State};
use common::{MS, SETTINGS};
use usher_rules::sched::HostVariant;

fn rig(shape: Shape) -> Rig {
    let variant = HostVariant {
        o1: 1,
        ..HostVariant::default()
    };
    Rig::with(shape, SETTINGS, variant)
}

#[test]
fn threads_that_compute_rotate() {
    let mut rig = rig(Shape(1, 1, 1, 1));
    let threads: Vec<usize> = (0..4).map(|mm| rig.start(mm + 1, [0])).collect();
    rig.pass(20_000 * MS);
    for &thread in &threads {
        let share = rig.ran_ns(thread) / (200 * MS);
        assert!((20..=30).contains(&share), "{share} %");
    }
}

#[test]
fn thread_that_sleeps_preempts_threads_that_compute() {
    let mut rig = rig(Shape(1, 1, 1, 1));
    let long: Vec<usize> = (0..3).map(|mm| rig.start(mm + 1, [0])).collect();
    let short = rig.add(9, [0]);
    let mut late = 0;
    for round in 0..40 {
        rig.pass(400 * MS);
        rig.wake(short);
        let is_at_once = rig.state(short) == State::On(0);
        late += u32::from(!is_at_once && round > 10);
        while rig.state(short) == State::Waiting {
            rig.pass(MS);
        }
        rig.pass(MS);
        rig.stop(short);
    }
    assert_eq!(late, 0);
    assert!(long.iter().all(|&thread| rig.ran_ns(thread) > 3_000 * MS));
}

/// A thread that computes moves to an idle CPU when another thread takes its CPU.
#[test]
fn displaced_thread_moves_to_an_idle_cpu() {
    let mut rig = rig(Shape(1, 1, 2, 1));
    let first = rig.start(1, [0, 1]);
    assert_eq!(rig.state(first), State::On(0));
    let pinned = rig.start(2, [0]);
    rig.pass(1_000 * MS);
    assert_eq!(rig.state(first), State::On(1));
    assert_eq!(rig.state(pinned), State::On(0));
    // A woken thread waits, as no CPU is idle, and is on none twice.
    let third = rig.start(3, [0, 1]);
    rig.pass(2_000 * MS);
    assert!(rig.ran_ns(third) > 200 * MS);
    rig.check(false);
}
