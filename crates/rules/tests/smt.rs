// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests with threads that share a core while another core is idle, on the host build of the
//! scheduler. The idle core pulls one of these threads. The tick and the end of a slice move
//! threads that were not pulled.

mod common;

use common::rig::{Rig, Shape, State, set};
use common::{MS, SETTINGS};
use usher_rules::sched::{HostSettings, HostVariant};

fn rig(shape: Shape, smt: u32) -> Rig {
    let settings = HostSettings { smt, ..SETTINGS };
    Rig::with(shape, settings, HostVariant::default())
}

/// Number of threads on the core of a CPU.
fn on_core(rig: &Rig, cpu: usize) -> usize {
    rig.shape.core(cpu).filter(|&cpu| !rig.is_idle(cpu)).count()
}

/// Starts two pinned threads on each core except the core of CPU `sharing`. On that core, starts
/// two threads that may run on `cpus`, and returns them.
fn crowded(rig: &mut Rig, sharing: usize, cpus: &[usize]) -> [usize; 2] {
    let core: Vec<usize> = rig.shape.core(sharing).collect();
    for cpu in rig.all() {
        if !core.contains(&cpu) {
            rig.start(1, [cpu]);
        }
    }
    [core[0], core[1]].map(|cpu| {
        let thread = rig.start(2, [cpu]);
        assert_eq!(rig.state(thread), State::On(cpu));
        thread_may_run_on(rig, thread, cpus);
        thread
    })
}

/// Widens the mask of a running thread, and lets the thread sleep and wake, because the scheduler
/// reads the mask when the thread starts to run.
fn thread_may_run_on(rig: &mut Rig, thread: usize, cpus: &[usize]) {
    let cpus = set(cpus.iter().copied());
    rig.threads[thread].cpus = cpus;
    rig.sched.set_cpus(rig.threads[thread].id, &cpus);
    rig.stop(thread);
    rig.wake(thread);
}

/// Stops the pinned threads of a core.
fn empty_core(rig: &mut Rig, cpu: usize) {
    for cpu in rig.shape.core(cpu).collect::<Vec<_>>() {
        if let Some(thread) = rig.running[cpu] {
            rig.stop(thread);
        }
    }
}

#[test]
fn idle_core_pulls_a_thread_that_shares_a_core() {
    // The pull is within an LLC, between LLCs, and between CPUs in different words of a CPU set.
    for shape in [Shape(1, 1, 4, 2), Shape(1, 3, 2, 2), Shape(2, 2, 20, 2)] {
        let cpus = shape.cpus();
        for (sharing, empty) in [(0, cpus - 1), (cpus - 1, 0), (0, 2), (cpus / 2, 0)] {
            let mut rig = rig(shape, 1);
            let all: Vec<usize> = rig.all().collect();
            let pair = crowded(&mut rig, sharing, &all);
            assert_eq!(on_core(&rig, sharing), 2, "{shape:?}");
            let beside = rig.running[empty].unwrap_or_default();
            empty_core(&mut rig, empty);
            // A search examines 16 CPUs of the own LLC and 16 other CPUs. The next search continues
            // after these CPUs.
            for _ in 0..cpus / 16 {
                if on_core(&rig, sharing) == 2 {
                    rig.wake(beside);
                    rig.stop(beside);
                }
            }
            let on = pair.map(|thread| rig.state(thread));
            assert_eq!(
                on_core(&rig, sharing),
                1,
                "{shape:?} {sharing} {empty}: {on:?}"
            );
            assert_eq!(on_core(&rig, empty), 1, "{shape:?} {sharing} {empty}");
            assert_eq!(rig.tally().pulls, 1);
            assert_eq!(rig.tally().moved, 1);
        }
    }
}

#[test]
fn half_idle_core_pulls_no_thread() {
    let mut rig = rig(Shape(1, 1, 3, 2), 1);
    let all: Vec<usize> = rig.all().collect();
    crowded(&mut rig, 0, &all);
    let beside = rig.running[4].unwrap_or_default();
    rig.stop(beside);
    assert_eq!((on_core(&rig, 0), on_core(&rig, 4)), (2, 1));
    assert_eq!(rig.tally().pulls, 0);
    rig.tick(0);
    assert_eq!(on_core(&rig, 0), 2, "nor does the tick move one");
}

#[test]
fn no_thread_is_pulled_without_smt() {
    let mut rig = rig(Shape(1, 1, 3, 2), 0);
    let all: Vec<usize> = rig.all().collect();
    crowded(&mut rig, 0, &all);
    empty_core(&mut rig, 4);
    (0..6).for_each(|cpu| rig.tick(cpu));
    rig.pass(10 * MS);
    assert_eq!((on_core(&rig, 0), on_core(&rig, 4)), (2, 0));
    assert_eq!(rig.tally().pulls, 0);
}

/// A thread is pulled only if its mask contains a CPU of the idle core.
#[test]
fn threads_are_pulled_only_to_cpus_of_their_mask() {
    for (cpus, is_pulled) in [
        (&[0, 1][..], false),
        (&[0, 1, 2, 3], false),
        (&[0, 1, 4], true),
        (&[0, 1, 5], true),
    ] {
        let mut rig = rig(Shape(1, 1, 4, 2), 1);
        crowded(&mut rig, 0, cpus);
        empty_core(&mut rig, 4);
        (0..8).for_each(|cpu| rig.tick(cpu));
        rig.pass(10 * MS);
        let due = if is_pulled { (1, 1) } else { (2, 0) };
        assert_eq!((on_core(&rig, 0), on_core(&rig, 4)), due, "{cpus:?}");
        if !is_pulled {
            assert_eq!(rig.tally().pulls, 0, "{cpus:?}");
        }
    }
}

/// An idle core pulls a thread from a shared core in its own LLC first. Threads that do not share a
/// core are not pulled.
#[test]
fn pull_prefers_the_own_llc() {
    // Each of the two LLCs has four cores. In each LLC, two threads share a core, and three threads
    // run alone.
    let mut rig = rig(Shape(1, 2, 4, 2), 1);
    let all: Vec<usize> = rig.all().collect();
    let single: Vec<usize> = [2, 4, 10, 12].map(|cpu| rig.start(1, [cpu])).to_vec();
    let last: Vec<usize> = [6, 14].map(|cpu| rig.start(1, [cpu])).to_vec();
    for thread in [0, 1, 8, 9].map(|cpu| rig.start(2, [cpu])) {
        thread_may_run_on(&mut rig, thread, &all);
    }
    assert_eq!((on_core(&rig, 0), on_core(&rig, 8)), (2, 2));
    rig.stop(last[1]);
    assert_eq!((on_core(&rig, 0), on_core(&rig, 8)), (2, 1));
    rig.stop(last[0]);
    assert_eq!(on_core(&rig, 0), 1);
    for &thread in &single {
        assert!(matches!(rig.state(thread), State::On(_)));
    }
    assert_eq!(rig.tally().pulls, 2);
}

/// A pinned thread starts on the core of a thread that may migrate. No core becomes idle, so that
/// only the tick moves the thread.
#[test]
fn tick_moves_a_thread_from_a_shared_core() {
    for shape in [Shape(1, 1, 2, 2), Shape(1, 2, 1, 2), Shape(1, 1, 40, 2)] {
        for cpus in [vec![0, 2], vec![0, 3], (0..shape.cpus()).collect()] {
            let mut rig = rig(shape, 1);
            let thread = rig.start(1, cpus);
            assert_eq!(rig.state(thread), State::On(0));
            let pinned = rig.start(2, [1]);
            assert_eq!(rig.state(pinned), State::On(1));
            assert_eq!(rig.state(thread), State::On(0), "no core became idle");
            rig.tick(1);
            assert_eq!(rig.state(pinned), State::On(1));
            rig.tick(0);
            let core = rig.shape.core_of(1);
            let State::On(cpu) = rig.state(thread) else {
                panic!("it waits");
            };
            assert_ne!(rig.shape.core_of(cpu), core);
        }
    }
}

/// At the end of its slice, the thread gets no second slice on a shared core.
#[test]
fn end_of_a_slice_moves_a_thread_from_a_shared_core() {
    for (smt, moves) in [(1, true), (0, false)] {
        let mut rig = rig(Shape(1, 1, 2, 2), smt);
        let thread = rig.start(1, [0, 2]);
        rig.start(2, [1]);
        rig.pass(2 * SETTINGS.slice_ns);
        let due = if moves { 2 } else { 0 };
        assert_eq!(rig.state(thread), State::On(due), "smt = {smt}");
    }
}

/// A tick does not end the slice of a thread that may not run on an idle core. In FIFO order, a
/// tick ends no slice.
#[test]
fn tick_leaves_the_slices_of_other_threads() {
    for fifo in [0, 1] {
        let variant = HostVariant {
            fifo,
            ..HostVariant::default()
        };
        let mut rig = Rig::with(Shape(1, 1, 2, 2), SETTINGS, variant);
        let movable = rig.start(1, if fifo == 1 { vec![0, 2] } else { vec![0, 1] });
        let sibling = rig.start(2, if fifo == 1 { vec![1, 3] } else { vec![1] });
        assert_eq!(rig.state(movable), State::On(0));
        assert_eq!(rig.state(sibling), State::On(1));
        rig.pass(MS);
        rig.tick(0);
        rig.tick(1);
        let left_ns = rig.sched.slice_ns(rig.threads[movable].id);
        assert_eq!(left_ns, SETTINGS.slice_ns - MS, "fifo = {fifo}");
        assert_eq!(rig.state(movable), State::On(0));
    }
}
