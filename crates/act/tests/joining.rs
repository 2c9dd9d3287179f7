// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of process trees that join an attached program.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use common::*;
use usher_act::{ActConfig, ActError, Actuator, WorkClass};
use usher_model::{Action, ProgramId};

const ONE: ProgramId = ProgramId(1);
const TWO: ProgramId = ProgramId(2);

/// Returns the CPUs that this test may use.
fn cpus() -> Vec<usize> {
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&cpu| all.is_set(cpu))
        .collect()
}

/// Starts a program whose threads may use only this CPU.
fn start_on(cpu: usize) -> Program {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(cpu.to_string()).arg(rig());
    command.args(["tree", "1", "2"]);
    Program::start_as(command)
}

fn seat(cpu: usize) -> Action {
    Action::Seat {
        program: ONE,
        cpus: cpu.to_string().parse().unwrap(),
    }
}

/// Returns the masks of all threads of all processes of a tree.
fn all_masks(program: &Program) -> BTreeSet<String> {
    program.processes().into_iter().flat_map(masks).collect()
}

fn masks_are(program: &Program, cpus: &str) {
    assert_eq!(all_masks(program), BTreeSet::from([cpus.to_owned()]));
}

#[test]
fn a_joined_tree_gets_the_seat_and_its_own_mask_back() {
    let cpus = cpus();
    if cpus.len() < 2 {
        usher_skip::skip!("needs two CPUs");
        return;
    }
    let runtime = tempfile::tempdir().unwrap();
    let mut act = Actuator::open(ActConfig::new(runtime.path())).unwrap();
    // The first tree may use one CPU, the second all.
    let (first, second) = (start_on(cpus[0]), Program::start(&["tree", "1", "2"]));
    let (one, all) = (cpus[0].to_string(), all_masks(&second));
    act.admit(ONE, first.id, WorkClass::Foreground).unwrap();
    act.act(&seat(cpus[0])).unwrap();
    let before = act.join(ONE, second.id).unwrap().unwrap();
    assert!(cpus.iter().all(|&cpu| before.contains(cpu as u32)));
    masks_are(&second, &one);
    assert_eq!(act.program_of(second.pid()), Some(ONE));
    assert_eq!(act.pins(ONE), None, "another mask is no pin");
    // Again, the process belongs to the program already.
    assert_eq!(act.join(ONE, second.id).unwrap(), None);
    // A seat without a CPU of the first tree does not change the first tree.
    act.act(&seat(cpus[1])).unwrap();
    masks_are(&first, &one);
    masks_are(&second, &cpus[1].to_string());
    act.act(&Action::Release { program: ONE }).unwrap();
    finish_scans(&mut act);
    masks_are(&first, &one);
    assert_eq!(all_masks(&second), all);
    // A later seat still distinguishes the masks.
    act.act(&seat(cpus[0])).unwrap();
    masks_are(&second, &one);
    assert!(act.undo_all().is_empty());
    assert_eq!(all_masks(&second), all);
}

#[test]
fn a_tree_joins_only_a_program_and_belongs_to_one() {
    let runtime = tempfile::tempdir().unwrap();
    let mut act = Actuator::open(ActConfig::new(runtime.path())).unwrap();
    let (first, second) = (
        Program::start(&["tree", "0", "0"]),
        Program::start(&["tree", "0", "0"]),
    );
    let unknown = act.join(ONE, first.id);
    assert!(
        matches!(unknown, Err(ActError::Unknown(ONE))),
        "{unknown:?}"
    );
    act.admit(ONE, first.id, WorkClass::Foreground).unwrap();
    act.admit(TWO, second.id, WorkClass::Foreground).unwrap();
    let managed = act.join(ONE, second.id);
    assert!(
        matches!(managed, Err(ActError::Managed { program: TWO, .. })),
        "{managed:?}"
    );
    act.depart(TWO).unwrap();
    let gone = usher_model::ProcessId {
        start_ticks: 1,
        ..second.id
    };
    assert!(matches!(act.join(ONE, gone), Err(ActError::Gone { .. })));
    act.join(ONE, second.id).unwrap();
    assert!(act.undo_all().is_empty());
}

#[test]
fn a_tree_whose_join_fails_is_released() {
    let cpus = cpus();
    if cpus.len() < 2 {
        usher_skip::skip!("needs two CPUs");
        return;
    }
    let runtime = tempfile::tempdir().unwrap();
    let mut act = Actuator::open(ActConfig::new(runtime.path())).unwrap();
    let (first, second) = (start_on(cpus[0]), start_on(cpus[1]));
    let own = cpus[1].to_string();
    act.admit(ONE, first.id, WorkClass::Background).unwrap();
    act.act(&seat(cpus[0])).unwrap();
    act.act(&Action::Freeze { program: ONE }).unwrap();
    // Without the first tree, no thread of the program may use a CPU of the seat.
    drop(first);
    let failed = act.join(ONE, second.id);
    assert!(matches!(failed, Err(ActError::NoCpus { .. })), "{failed:?}");
    assert_eq!(act.program_of(second.pid()), None);
    masks_are(&second, &own);
    for pid in second.processes() {
        wait_until("the process to continue", || {
            stat(pid).is_none_or(|one| one.state != 'T')
        });
    }
    // The tree may be admitted as another program, and keeps its mask after all releases.
    act.admit(TWO, second.id, WorkClass::Foreground).unwrap();
    act.depart(TWO).unwrap();
    assert!(act.undo_all().is_empty());
    masks_are(&second, &own);
}

#[test]
fn only_a_limited_number_of_living_trees_can_join() {
    let runtime = tempfile::tempdir().unwrap();
    let mut config = ActConfig::new(runtime.path());
    config.joined_trees_max = 2;
    let mut act = Actuator::open(config).unwrap();
    let trees = [(); 5].map(|()| Some(Program::start(&["tree", "0", "0"])));
    let id = |at: usize| trees[at].as_ref().unwrap().id;
    act.admit(ONE, id(0), WorkClass::Foreground).unwrap();
    act.join(ONE, id(1)).unwrap();
    act.join(ONE, id(2)).unwrap();
    let full = act.join(ONE, id(3));
    assert!(
        matches!(full, Err(ActError::TooManyTrees { trees: 2, .. })),
        "{full:?}"
    );
    // A tree that belongs to the program already needs no room.
    assert_eq!(act.join(ONE, id(2)).unwrap(), None);
    let mut trees = trees;
    drop(trees[1].take());
    act.join(ONE, trees[3].as_ref().unwrap().id).unwrap();
    assert!(act.join(ONE, trees[4].as_ref().unwrap().id).is_err());
    assert!(act.undo_all().is_empty());
}
