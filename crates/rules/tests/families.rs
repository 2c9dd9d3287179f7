// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the vtime that the young threads of a family share, on the host build of the scheduler.
//! All threads run on one CPU and may run on all possible CPUs, so that the clock of their LLC
//! places them.

mod common;

use common::rig::{Rig, Shape, State};
use common::{MS, SETTINGS};
use usher_rules::sched::Task;

/// CPU time after which a child yields. A thread with such a burst is not urgent.
const RUN_NS: u64 = 3 * MS / 2;
/// Simulated time before the first fork.
const WARM_UP_NS: u64 = 600 * MS;
/// Number of shared vtimes in an LLC (share.h).
const FAMILIES: usize = 128;

/// Returns a machine with one CPU and two threads that compute.
fn machine() -> Rig {
    let mut rig = Rig::new(Shape(1, 1, 1, 1));
    for mm in [10, 11] {
        let thread = rig.create(Task {
            mm: mm << 12,
            ran_ns: 1_000 * MS,
            ..Task::default()
        });
        rig.wake(thread);
    }
    rig
}

/// Adds a sleeping kernel thread, which is a process of its own. The number of the process is the
/// negative number of the thread.
fn add_forker(rig: &mut Rig) -> usize {
    rig.create(Task {
        mm: 0,
        is_kernel: 1,
        ran_ns: 1_000 * MS,
        ..Task::default()
    })
}

/// Forks a child, which waits.
fn fork(rig: &mut Rig, forker: usize) -> usize {
    let parent = rig.threads[forker].id.index() as u32;
    let child = rig.create(Task {
        mm: 100 << 12,
        parent,
        is_forked: 1,
        ..Task::default()
    });
    rig.wake_new(child);
    child
}

/// Lets a child run for [`RUN_NS`]. The child then yields.
fn run_once(rig: &mut Rig, child: usize) {
    while rig.state(child) != State::On(0) {
        rig.pass(MS / 2);
    }
    rig.pass(RUN_NS);
    rig.sched.yield_now(0);
    rig.settle();
}

/// Forks eight children, and lets each run once. Returns the last child, and the vtime of the
/// family.
fn storm(rig: &mut Rig, forker: usize) -> (usize, u64) {
    let clock = rig.sched.llc(0).clock;
    let children = [(); 8].map(|()| fork(rig, forker));
    for child in children {
        run_once(rig, child);
    }
    assert_eq!(rig.state(children[7]), State::Waiting);
    // A family begins with the credit of one slice.
    (children[7], clock - SETTINGS.slice_ns + 8 * RUN_NS)
}

/// Ends a waiting child. Returns its vtime without the wait for the family.
fn own_vtime(rig: &mut Rig, child: usize) -> u64 {
    rig.stop(child);
    rig.sched.end_task(rig.threads[child].id);
    rig.threads[child].state = State::Ended;
    rig.task(child).vtime
}

#[test]
fn young_thread_waits_for_its_family_and_keeps_its_own_vtime() {
    let mut rig = machine();
    let forker = add_forker(&mut rig);
    rig.pass(WARM_UP_NS);
    let clock = rig.sched.llc(0).clock;
    let (child, family) = storm(&mut rig, forker);
    assert_eq!(rig.task(child).vtime, family);
    assert_eq!(own_vtime(&mut rig, child), clock + RUN_NS);
}

/// Processes with numbers that are equal modulo [`FAMILIES`] share a vtime, and other processes do
/// not.
#[test]
fn families_of_one_slot_share_a_vtime() {
    let mut rig = machine();
    let forkers: Vec<usize> = (0..=FAMILIES).map(|_| add_forker(&mut rig)).collect();
    rig.pass(WARM_UP_NS);
    let (_, family) = storm(&mut rig, forkers[0]);
    for (forker, is_shared) in [(FAMILIES, true), (1, false)] {
        let clock = rig.sched.llc(0).clock;
        let child = fork(&mut rig, forkers[forker]);
        run_once(&mut rig, child);
        let vtime = rig.task(child).vtime;
        if is_shared {
            assert!(vtime >= family + RUN_NS, "{vtime} {family}");
        } else {
            assert_eq!(vtime, clock + RUN_NS);
        }
    }
}

/// A thread takes its part from the vtime of its family when it is no longer young.
#[test]
fn grown_thread_takes_its_part_from_the_family() {
    let mut rig = machine();
    let forker = add_forker(&mut rig);
    rig.pass(WARM_UP_NS);
    let grown = fork(&mut rig, forker);
    while rig.ran_ns(grown) < 30 * MS {
        rig.pass(MS);
    }
    let clock = rig.sched.llc(0).clock;
    let child = fork(&mut rig, forker);
    run_once(&mut rig, child);
    assert_eq!(rig.task(child).vtime, clock + RUN_NS);
}
