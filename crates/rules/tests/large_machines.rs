// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of isolated CPUs, of cores of different capacity and of new threads on a machine with 512
//! CPUs in four LLCs, whose CPU sets have eight words. A search of the LLC and of four further words
//! does not find the CPUs of these tests.

mod common;

use common::rig::{Rig, Shape, State, set};
use common::{MS, SETTINGS};
use usher_rules::sched::{HostVariant, Task};
use usher_rules::select_cpu::{PLACE_ISOLATED, Place};

const SHAPE: Shape = Shape(1, 4, 128, 1);

fn rig(places: &[Place], classes: u32) -> Rig {
    let variant = HostVariant {
        classes,
        ..HostVariant::default()
    };
    Rig::with_places(SHAPE, places, SETTINGS, variant)
}

fn cpu_of(rig: &Rig, thread: usize) -> usize {
    match rig.state(thread) {
        State::On(cpu) => cpu,
        other => panic!("the thread is {other:?}"),
    }
}

fn is_isolated(cpu: usize) -> bool {
    (64..128).contains(&cpu) || cpu == 500
}

/// Isolates all CPUs of word 1, and CPU 500.
fn with_isolated_cpus() -> Rig {
    let mut places = SHAPE.places();
    for (cpu, place) in places.iter_mut().enumerate() {
        if is_isolated(cpu) {
            place.known = PLACE_ISOLATED;
        }
        for cpus in [&mut place.core, &mut place.near, &mut place.node] {
            for other in (0..SHAPE.cpus()).filter(|&other| other != cpu && is_isolated(other)) {
                cpus[other / 64] &= !(1 << (other % 64));
            }
        }
    }
    rig(&places, 1)
}

/// The other CPU of the mask is far away from the isolated CPU on which the thread was last.
#[test]
fn a_thread_with_one_other_cpu_is_not_bound() {
    for (isolated, other) in [(70, 400), (127, 511), (500, 3)] {
        let mut rig = with_isolated_cpus();
        let thread = rig.add(1, [isolated]);
        rig.wake(thread);
        assert_eq!(cpu_of(&rig, thread), isolated, "the thread is bound");
        rig.stop(thread);
        rig.sched
            .set_cpus(rig.threads[thread].id, &set([isolated, other]));
        rig.threads[thread].cpus = set([isolated, other]);
        rig.wake(thread);
        assert_eq!(cpu_of(&rig, thread), other);
    }
}

#[test]
fn bound_threads_stay_and_other_threads_do_not_come() {
    let mut rig = with_isolated_cpus();
    let bound = rig.start(1, [70, 90]);
    assert_eq!(cpu_of(&rig, bound), 70);
    let others: Vec<usize> = (0..520).map(|mm| rig.start(mm + 2, rig.all())).collect();
    rig.pass(10 * MS);
    assert_eq!(cpu_of(&rig, bound), 70);
    let began = rig.began.iter().filter(|(thread, _)| *thread != bound);
    assert!(began.clone().count() >= SHAPE.cpus() - 65);
    assert!(began.clone().all(|(_, cpu)| !is_isolated(*cpu)));
    rig.stop(others[0]);
    assert!((0..64).all(|cpu| !rig.is_idle(cpu)), "a thread waited");
}

/// The only fast cores are in the last word. A new thread of CPU 8 runs there.
#[test]
fn fast_core_of_a_far_word_is_selected() {
    let mut places = SHAPE.places();
    for (cpu, place) in places.iter_mut().enumerate() {
        let is_fast = cpu >= 508;
        place.capacity = if is_fast { 1024 } else { 600 };
        place.capacity_class = (!is_fast).into();
    }
    let mut rig = rig(&places, 2);
    let threads = (0..6).map(|mm| {
        let thread = rig.create(Task {
            mm: (mm + 1) << 12,
            cpu: 8,
            cpus: set(0..SHAPE.cpus()),
            ..Task::default()
        });
        rig.wake_new(thread);
        cpu_of(&rig, thread)
    });
    let mut cpus: Vec<usize> = threads.collect();
    cpus[..4].sort_unstable();
    assert_eq!(cpus[..4], [508, 509, 510, 511]);
    assert!(cpus[4..].iter().all(|&cpu| cpu < 508), "{cpus:?}");
}

/// The mask of the new thread permits CPUs of the first LLC, which has many threads, and of the last.
#[test]
fn new_thread_starts_in_an_allowed_llc_of_a_far_word() {
    for (mask, first) in [(450..460, 450), (400..500, 400)] {
        let mut rig = rig(&SHAPE.places(), 1);
        for cpu in 0..100 {
            rig.start(1, [cpu]);
        }
        let cpus = (0..120).chain(mask);
        let child = rig.create(Task {
            mm: 1 << 12,
            cpu: 0,
            is_forked: 1,
            parent: rig.threads[0].id.index() as u32,
            cpus: set(cpus),
            ..Task::default()
        });
        rig.wake_new(child);
        assert_eq!(cpu_of(&rig, child), first);
        assert_eq!(rig.task(child).placed_llc, 3);
    }
}
