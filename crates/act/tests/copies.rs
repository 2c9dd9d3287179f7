// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of masks of single processes of a program: they are set within the seat, kept by later
//! scans, and undone with the program. `kill.rs` tests the undo after the death of the owner.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::collections::BTreeSet;

use common::*;
use usher_act::{Actuator, CopyPlacement, WorkClass};
use usher_model::{Action, CpuSet, ProgramId};

const ONE: ProgramId = ProgramId(1);

fn list(cpus: &str) -> BTreeSet<String> {
    BTreeSet::from([cpus.to_owned()])
}

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn has_two_cpus() -> bool {
    let enough = cpus("0-1").is_subset(&cpus(&cpu_list()));
    if !enough {
        usher_skip::skip!("needs CPUs 0 and 1");
    }
    enough
}

/// Places a process and requires that this succeeds.
fn place(act: &mut Actuator, pid: i32, to: Option<&str>) {
    let to = to.map(cpus);
    let placed = act.place_copy(ONE, id_of(pid), to.as_ref()).unwrap();
    assert_eq!(placed, CopyPlacement::Placed);
}

/// Starts a tree of a root with two children, and returns one of the children.
fn child_of(program: &Program) -> i32 {
    let mut pids = program.processes().into_iter();
    pids.find(|&pid| pid != program.pid()).unwrap()
}

#[test]
fn a_copy_is_confined_within_the_seat_and_restored() {
    if !has_two_cpus() {
        return;
    }
    for method in methods() {
        let runtime = tempfile::tempdir().unwrap();
        let mut act = Actuator::open(method.config(runtime.path())).unwrap();
        let program = Program::start(&["tree", "2", "2"]);
        let before = snapshot(&program);
        let (root, child) = (program.pid(), child_of(&program));
        act.admit(ONE, program.id, WorkClass::Foreground).unwrap();
        // Without a seat.
        place(&mut act, child, Some("0"));
        assert_eq!(masks(child), list("0"), "{method:?}");
        assert_eq!(masks(root), list(&cpu_list()), "{method:?}");
        assert_eq!(act.pins(ONE), None, "{method:?}");
        place(&mut act, child, None);
        assert_eq!(masks(child), list(&cpu_list()), "{method:?}");
        // Within a seat, which a later scan applies again.
        place(&mut act, child, Some("1"));
        let seat = |list: &str| Action::Seat {
            program: ONE,
            cpus: cpus(list),
        };
        act.act(&seat("0-1")).unwrap();
        assert_eq!(masks(child), list("1"), "{method:?}");
        assert_eq!(masks(root), list("0-1"), "{method:?}");
        act.refresh(ONE).unwrap();
        assert_eq!(masks(child), list("1"), "{method:?}");
        // A seat without the CPUs of the copy.
        act.act(&seat("0")).unwrap();
        assert_eq!(masks(child), list("0"), "{method:?}");
        place(&mut act, child, None);
        assert_eq!(masks(child), list("0"), "{method:?}");
        place(&mut act, child, Some("0"));
        act.depart(ONE).unwrap();
        assert_eq!(snapshot(&program), before, "{method:?}");
        close(act);
    }
}

#[test]
fn a_release_restores_copies_and_delays_new_places() {
    if !has_two_cpus() {
        return;
    }
    let (_runtime, mut act) = without_cgroups();
    let program = Program::start(&["tree", "2", "1"]);
    let child = child_of(&program);
    act.admit(ONE, program.id, WorkClass::Foreground).unwrap();
    place(&mut act, child, Some("1"));
    act.act(&Action::Release { program: ONE }).unwrap();
    let zero = cpus("0");
    if act.is_scanning() {
        let placed = act.place_copy(ONE, id_of(child), Some(&zero)).unwrap();
        assert_eq!(placed, CopyPlacement::Busy);
    }
    finish_scans(&mut act);
    assert_eq!(masks(child), list(&cpu_list()));
    place(&mut act, child, Some("0"));
    assert_eq!(masks(child), list("0"));
    close(act);
    assert_eq!(masks(child), list(&cpu_list()));
}

#[test]
fn processes_outside_the_program_are_left_alone() {
    let (_runtime, mut act) = without_cgroups();
    let program = Program::start(&["tree", "0", "0"]);
    let other = Program::start(&["tree", "0", "0"]);
    act.admit(ONE, program.id, WorkClass::Foreground).unwrap();
    let before = masks(other.pid());
    let first = CpuSet::single(cpus(&cpu_list()).first().unwrap());
    let placed = act.place_copy(ONE, other.id, Some(&first)).unwrap();
    assert_eq!(placed, CopyPlacement::LeftAlone);
    assert_eq!(masks(other.pid()), before);
    close(act);
}
