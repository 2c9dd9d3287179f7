// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of machines with cores of different capacity, on the host build of the scheduler: four
//! fast cores with two hardware threads each (CPUs 0 to 7), and eight slow cores (CPUs 8 to 15).

mod common;

use common::rig::{Rig, Shape, State, WHY_IDLE_CORE, WHY_IDLE_THREAD, set};
use common::{MS, SETTINGS};
use usher_rules::sched::{HostVariant, Task};
use usher_rules::select_cpu::Place;

/// Value of `enum why` in shared.h.
const WHY_FASTER_CORE: u32 = 11;

const CPUS: Shape = Shape(1, 1, 16, 1);

fn places(slow: u16) -> Vec<Place> {
    let place = |cpu: usize| {
        let is_fast = cpu < 8;
        let core = if is_fast {
            set([cpu / 2 * 2, cpu / 2 * 2 + 1])
        } else {
            set([cpu])
        };
        Place {
            known: 1,
            capacity: if is_fast { 1024 } else { slow },
            capacity_class: (!is_fast).into(),
            node_llcs: 1,
            core,
            near: set(0..16),
            node: set(0..16),
            ..Place::default()
        }
    };
    (0..16).map(place).collect()
}

fn hybrid() -> Rig {
    let variant = HostVariant {
        classes: 2,
        ..HostVariant::default()
    };
    Rig::with_places(CPUS, &places(600), SETTINGS, variant)
}

fn cpu_of(rig: &Rig, thread: usize) -> usize {
    match rig.state(thread) {
        State::On(cpu) => cpu,
        other => panic!("the thread is {other:?}"),
    }
}

fn new_thread(rig: &mut Rig) -> usize {
    let thread = rig.create(Task {
        mm: 1 << 12,
        cpu: 8,
        cpus: set(0..16),
        ..Task::default()
    });
    rig.wake_new(thread);
    thread
}

/// Creates a thread with bursts of this length, which last ran on `cpu` and sleeps.
fn with_bursts(rig: &mut Rig, cpu: usize, burst_ns: u64) -> usize {
    let thread = rig.add(1, [cpu]);
    for _ in 0..4 {
        rig.wake(thread);
        rig.pass(burst_ns);
        rig.stop(thread);
        rig.pass(MS);
    }
    rig.threads[thread].cpus = set(0..16);
    rig.sched.set_cpus(rig.threads[thread].id, &set(0..16));
    thread
}

#[test]
fn fast_cores_come_before_slow_cores_before_hardware_threads() {
    let mut rig = hybrid();
    let threads: Vec<usize> = (0..16).map(|_| new_thread(&mut rig)).collect();
    let cpus: Vec<usize> = threads.iter().map(|&thread| cpu_of(&rig, thread)).collect();
    let mut fast: Vec<usize> = cpus[..4].iter().map(|cpu| cpu / 2).collect();
    fast.sort_unstable();
    assert_eq!(fast, [0, 1, 2, 3], "{cpus:?}");
    let mut slow = cpus[4..12].to_vec();
    slow.sort_unstable();
    assert_eq!(slow, (8..16).collect::<Vec<_>>(), "{cpus:?}");
    assert!(cpus[12..].iter().all(|&cpu| cpu < 8), "{cpus:?}");
    let whys = |range: std::ops::Range<usize>| threads[range].iter().map(|&t| rig.task(t).why);
    assert!(whys(0..4).all(|why| why == WHY_FASTER_CORE));
    assert!(whys(4..12).all(|why| why == WHY_IDLE_CORE));
    assert!(whys(12..16).all(|why| [WHY_IDLE_THREAD, WHY_FASTER_CORE].contains(&why)));
    assert_eq!(rig.task(threads[0]).capacity, 1024);
    assert_eq!(rig.task(threads[4]).capacity, 600);
}

#[test]
fn light_threads_stay_and_demanding_threads_move_to_fast_cores() {
    let mut rig = hybrid();
    let light = with_bursts(&mut rig, 9, MS / 20);
    let demanding = with_bursts(&mut rig, 10, 4 * MS);
    rig.wake(light);
    assert_eq!(cpu_of(&rig, light), 9);
    rig.wake(demanding);
    assert!(cpu_of(&rig, demanding) < 8);
    assert_eq!(rig.task(demanding).why, WHY_FASTER_CORE);
    // A light thread whose CPU is busy goes to an idle fast core, too.
    rig.stop(light);
    rig.start(2, [9]);
    rig.wake(light);
    assert!(cpu_of(&rig, light) < 8);
}

/// Starts one thread on each fast core, which may run nowhere else.
fn busy_fast_cores(rig: &mut Rig) -> Vec<usize> {
    (0..4).map(|core| rig.start(9, [2 * core])).collect()
}

#[test]
fn an_idle_fast_core_pulls_a_demanding_thread() {
    for burst_ns in [4 * MS, MS / 20] {
        let mut rig = hybrid();
        let thread = with_bursts(&mut rig, 12, burst_ns);
        let busy = busy_fast_cores(&mut rig);
        rig.wake(thread);
        assert_eq!(cpu_of(&rig, thread), 12);
        rig.pass(MS / 20);
        rig.stop(busy[2]);
        let is_demanding = burst_ns > MS;
        let expected = if is_demanding { 4..6 } else { 12..13 };
        assert!(expected.contains(&cpu_of(&rig, thread)), "{burst_ns}");
        if is_demanding {
            assert_eq!(rig.task(thread).why, WHY_FASTER_CORE);
            assert_eq!(rig.task(thread).capacity, 1024);
        }
    }
}

/// The kick of a pull has no effect while a real-time thread has the CPU. The tick is the fallback.
#[test]
fn tick_moves_a_thread_that_became_demanding() {
    let mut rig = hybrid();
    let thread = with_bursts(&mut rig, 12, MS / 20);
    rig.wake(thread);
    assert_eq!(cpu_of(&rig, thread), 12);
    rig.tick(12);
    assert_eq!(cpu_of(&rig, thread), 12);
    rig.pass(2 * SETTINGS.slice_ns);
    rig.tick(12);
    assert!(cpu_of(&rig, thread) < 8);
}

#[test]
fn an_idle_slow_core_pulls_only_waiting_threads() {
    let mut rig = hybrid();
    let slow: Vec<usize> = (8..16).map(|cpu| rig.start(5, [cpu])).collect();
    let threads: Vec<usize> = (0..8).map(|_| rig.start(1, 0..16)).collect();
    assert!(threads.iter().all(|&thread| cpu_of(&rig, thread) < 8));
    rig.stop(slow[0]);
    rig.pass(4 * SETTINGS.slice_ns);
    rig.tick(0);
    rig.tick(1);
    assert!(rig.is_idle(8), "the slow core pulls no running thread");
    assert!(threads.iter().all(|&thread| cpu_of(&rig, thread) < 8));
    // With one more thread, no thread waits beside the idle slow core.
    let more = rig.start(2, 0..16);
    assert_eq!(cpu_of(&rig, more), 8);
    let waits = rig.start(3, 0..16);
    rig.pass(SETTINGS.slice_ns);
    rig.stop(slow[1]);
    rig.check(false);
    assert!(!rig.is_idle(9));
    assert!(rig.state(waits) != State::Asleep);
}

/// A thread that shares a fast core moves to an idle core of the same class.
#[test]
fn a_shared_fast_core_gives_a_thread_to_an_idle_fast_core() {
    let mut rig = hybrid();
    let busy = busy_fast_cores(&mut rig);
    for cpu in 8..16 {
        rig.start(5, [cpu]);
    }
    let thread = rig.start(1, 0..16);
    let before = cpu_of(&rig, thread);
    let other = (before / 2 + 1) % 4;
    rig.stop(busy[other]);
    assert_eq!(cpu_of(&rig, thread) / 2, other);
}

#[test]
fn seats_and_masks_win_over_capacity() {
    let mut rig = hybrid();
    let masked = rig.start(1, 10..12);
    assert!((10..12).contains(&cpu_of(&rig, masked)));
    rig.sched.set_seat(9, &set([13]));
    let seated = rig.create(Task {
        mm: 77 << 12,
        cgroup: 9,
        cpu: 8,
        cpus: set(0..16),
        ..Task::default()
    });
    rig.wake_new(seated);
    assert_eq!(cpu_of(&rig, seated), 13);
}

/// With one class, the decisions are those of a machine without capacities.
#[test]
fn equal_capacities_change_nothing() {
    let run = |places: &[Place], classes: u32| {
        let variant = HostVariant {
            classes,
            ..HostVariant::default()
        };
        let mut rig = Rig::with_places(CPUS, places, SETTINGS, variant);
        let threads: Vec<usize> = (0..20).map(|mm| rig.add(mm % 5 + 1, 0..16)).collect();
        for step in 0..400_usize {
            let thread = threads[step * 7 % 20];
            match rig.state(thread) {
                State::Asleep => rig.wake(thread),
                _ => rig.stop(thread),
            }
            rig.pass(MS / 3);
            rig.tick(step % 16);
        }
        rig.began.clone()
    };
    let mut without = places(0);
    for place in &mut without {
        (place.capacity, place.capacity_class) = (0, 0);
    }
    let began = run(&without, 0);
    assert!(began.len() > 200);
    assert_eq!(run(&places(1024), 1), began);
}
