// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of isolated CPUs, on the host build of the scheduler: two LLCs with four CPUs each, of which
//! the CPUs 2, 3 and 7 are isolated.

mod common;

use common::rig::{Rig, Shape, State, set};
use common::{MS, SETTINGS};
use usher_rules::sched::{HostVariant, Task};
use usher_rules::select_cpu::{PLACE_ISOLATED, Place};

/// Value of `enum why` in shared.h.
const WHY_ISOLATED: u32 = 12;

const SHAPE: Shape = Shape(1, 2, 4, 1);
const ISOLATED: [usize; 3] = [2, 3, 7];

/// Returns the places as user space writes them: an isolated CPU is in no set except its own.
fn places(shape: Shape) -> Vec<Place> {
    let mut places = shape.places();
    for (cpu, place) in places.iter_mut().enumerate() {
        if ISOLATED.contains(&cpu) {
            place.known = PLACE_ISOLATED;
        }
        for cpus in [&mut place.core, &mut place.near, &mut place.node] {
            for other in ISOLATED.into_iter().filter(|&other| other != cpu) {
                cpus[0] &= !(1 << other);
            }
        }
    }
    places
}

fn rig(shape: Shape) -> Rig {
    Rig::with_places(shape, &places(shape), SETTINGS, HostVariant::default())
}

fn on_isolated(rig: &Rig) -> Vec<(usize, usize)> {
    let began = rig.began.iter().copied();
    began.filter(|(_, cpu)| ISOLATED.contains(cpu)).collect()
}

/// Threads wake, sleep, compute and fork. None of them ever runs on an isolated CPU.
#[test]
fn no_thread_is_placed_on_an_isolated_cpu() {
    for shape in [SHAPE, Shape(1, 1, 4, 2), Shape(2, 1, 2, 2)] {
        let mut rig = rig(shape);
        let mut threads: Vec<usize> = (0..14).map(|mm| rig.add(mm % 4 + 1, rig.all())).collect();
        // Masks that contain isolated CPUs and other CPUs.
        threads.push(rig.add(6, [1, 2]));
        threads.push(rig.add(6, [3, 4, 7]));
        for step in 0..600_usize {
            let thread = threads[step * 7 % threads.len()];
            match rig.state(thread) {
                State::Asleep => rig.wake(thread),
                _ => rig.stop(thread),
            }
            if step % 50 == 0 {
                let child = rig.create(Task {
                    mm: 9 << 12,
                    ..Task::default()
                });
                rig.wake_new(child);
                threads.push(child);
            }
            rig.pass(MS / 2);
            rig.tick(step % 8);
        }
        assert!(rig.began.len() > 300);
        assert_eq!(on_isolated(&rig), [], "{shape:?}");
        assert_eq!(rig.sched.llc(0).threads > 0, shape != Shape(1, 1, 4, 2));
    }
}

/// Threads wait for the CPUs that are not isolated, and an idle isolated CPU takes none of them.
#[test]
fn an_isolated_cpu_takes_no_waiting_thread() {
    let mut rig = rig(SHAPE);
    let bound = rig.start(1, [2]);
    for mm in 0..20 {
        rig.start(mm + 2, rig.all());
    }
    rig.pass(10 * MS);
    rig.stop(bound);
    rig.pass(20 * MS);
    for cpu in ISOLATED {
        rig.schedule(cpu);
        rig.tick(cpu);
        assert!(rig.is_idle(cpu));
    }
    assert_eq!(on_isolated(&rig), [(bound, 2)]);
}

#[test]
fn bound_threads_run_and_stay() {
    let mut rig = rig(SHAPE);
    let bound = rig.start(1, [2, 3]);
    assert_eq!(rig.state(bound), State::On(2));
    assert_eq!(rig.task(bound).why, WHY_ISOLATED);
    for _ in 0..5 {
        rig.pass(20 * MS);
        rig.stop(bound);
        rig.wake_by(bound, 6);
        assert_eq!(rig.state(bound), State::On(2));
    }
    // The wake-ups and sleeps of other threads neither interrupt nor move a bound thread.
    let began = rig.began.len();
    for mm in 0..6 {
        let other = rig.start(mm + 2, rig.all());
        rig.pass(MS);
        rig.stop(other);
    }
    let again = rig.began[began..]
        .iter()
        .filter(|(thread, _)| *thread == bound);
    assert_eq!(again.count(), 0);
    assert_eq!(rig.state(bound), State::On(2));
}

/// A thread that is alone on an isolated CPU has an unlimited slice, until another thread is bound
/// there. Then both get the CPU in turn.
#[test]
fn bound_threads_share_their_cpu() {
    let mut rig = rig(SHAPE);
    let first = rig.start(1, [3]);
    rig.pass(2 * SETTINGS.slice_ns);
    assert_eq!(rig.sched.slice_ns(rig.threads[first].id), u64::MAX);
    rig.pass(100 * MS);
    let second = rig.start(2, [3]);
    assert_eq!(
        rig.state(second),
        State::On(3),
        "the first thread is preempted"
    );
    let before = [rig.ran_ns(first), rig.ran_ns(second)];
    rig.pass(60 * SETTINGS.slice_ns);
    for (thread, before) in [first, second].into_iter().zip(before) {
        let ran = rig.ran_ns(thread) - before;
        assert!(ran >= 28 * SETTINGS.slice_ns, "{thread} ran {ran} ns");
    }
    rig.stop(second);
    rig.pass(2 * SETTINGS.slice_ns);
    assert_eq!(rig.sched.slice_ns(rig.threads[first].id), u64::MAX);
}

/// A thread leaves an isolated CPU at its next decision when its mask allows other CPUs.
#[test]
fn a_thread_leaves_when_it_is_not_bound_any_more() {
    let mut rig = rig(SHAPE);
    let thread = rig.start(1, [7]);
    rig.pass(MS);
    rig.threads[thread].cpus = set(0..8);
    rig.sched.set_cpus(rig.threads[thread].id, &set(0..8));
    rig.stop(thread);
    rig.wake(thread);
    let State::On(cpu) = rig.state(thread) else {
        panic!("the thread does not run");
    };
    assert!(!ISOLATED.contains(&cpu));
    // A running thread, which has an unlimited slice, leaves at the end of a new slice.
    let running = rig.start(2, [7]);
    rig.pass(2 * SETTINGS.slice_ns);
    assert_eq!(rig.sched.slice_ns(rig.threads[running].id), u64::MAX);
    rig.threads[running].cpus = set(0..8);
    rig.sched.set_cpus(rig.threads[running].id, &set(0..8));
    let slice_ns = rig.sched.slice_ns(rig.threads[running].id);
    assert_eq!(slice_ns, SETTINGS.slice_ns);
    rig.set_now(rig.now_ns + slice_ns);
    rig.schedule(7);
    rig.settle();
    assert!(matches!(rig.state(running), State::On(cpu) if !ISOLATED.contains(&cpu)));
    assert!(rig.is_idle(7));
}
