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
