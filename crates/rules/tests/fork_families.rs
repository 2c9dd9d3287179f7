// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of young threads that wait for their family, on the host build of the scheduler.

mod common;

use common::rig::{Rig, Shape, State, set};
use common::{MS, SETTINGS};
use usher_rules::sched::{HostSettings, HostVariant, Task};

const SLICE: u64 = SETTINGS.slice_ns;

/// Creates a thread of a family on CPU 0, which a thread that has slept has forked.
fn fork(rig: &mut Rig, parent: usize, mm: u64) -> usize {
    rig.create(Task {
        mm: mm << 12,
        cpu: 0,
        parent: rig.threads[parent].id.index() as u32,
        is_forked: 1,
        cpus: set([0]),
        ..Task::default()
    })
}

/// A CPU with a computing thread, and young threads of a family that has used its share: each of
/// them waits at the vtime of the family.
/// With turns, the young threads have one address space.
fn crowd(young: u64, has_turns: bool) -> (Rig, usize, Vec<usize>) {
    let settings = HostSettings {
        aggregate: has_turns.into(),
        ..SETTINGS
    };
    let mut rig = Rig::with(Shape(1, 1, 1, 1), settings, HostVariant::default());
    let parent = rig.add(1, [0]);
    let young = (0..young).map(|at| fork(&mut rig, parent, if has_turns { 10 } else { 10 + at }));
    let mut young: Vec<usize> = young.collect();
    rig.start(2, [0]);
    for &thread in &young {
        rig.wake_new(thread);
    }
    // The young threads are urgent until the family has used its share. From then on, a thread that
    // begins its third slice has waited for the family.
    let waited = |rig: &Rig, at: usize| young.contains(&at) && rig.task(at).ran_ns >= 2 * SLICE;
    let running = loop {
        match rig.running[0].filter(|&at| waited(&rig, at)) {
            Some(running) => break running,
            None => rig.pass(MS),
        }
    };
    young.retain(|&thread| thread != running);
    (rig, running, young)
}

/// Creates a thread of short bursts, which sleeps.
fn urgent(rig: &mut Rig) -> usize {
    rig.create(Task {
        mm: 3 << 12,
        ran_ns: 1_000 * MS,
        cpus: set([0]),
        ..Task::default()
    })
}

/// A young thread that is preempted keeps its place among the threads of its family. Without turns,
/// the CPU does not return to the thread for its turn.
#[test]
fn preempted_young_thread_runs_before_its_family() {
    let (mut rig, running, young) = crowd(6, false);
    let urgent = urgent(&mut rig);
    rig.pass(MS / 5);
    rig.wake(urgent);
    assert_eq!(rig.state(urgent), State::On(0));
    let from = rig.began.len();
    rig.pass(MS / 5);
    rig.stop(urgent);
    while rig.state(running) == State::Waiting {
        rig.pass(SLICE);
    }
    let before = rig.began[from..].iter();
    let before = before.filter(|(thread, _)| young.contains(thread)).count();
    assert_eq!(before, 0, "threads of the family ran before it");
}

/// A child inherits the vtime of its parent without the wait of the parent for the family.
#[test]
fn child_does_not_inherit_the_wait_for_the_family() {
    let (mut rig, running, _) = crowd(6, true);
    let ahead_ns =
        |rig: &Rig, at: usize| rig.task(at).vtime.wrapping_sub(rig.sched.llc(0).clock) as i64;
    let parent_ns = ahead_ns(&rig, running);
    let child = fork(&mut rig, running, 99);
    let child_ns = ahead_ns(&rig, child);
    assert!(
        parent_ns > 0 && child_ns < parent_ns,
        "{child_ns}, {parent_ns}"
    );
}
