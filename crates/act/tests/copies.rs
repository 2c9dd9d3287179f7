// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of masks of single processes of a program: they are set within the seat, kept by later
//! scans, and undone with the program. `kill.rs` tests the undo after the death of the owner.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

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

/// Sets the masks of all threads of a process, as `taskset` inside the program would.
fn choose(pid: i32, list: &str) {
    let status = Command::new("taskset")
        .args(["-apc", list, &pid.to_string()])
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

/// The copies choose the mask that Usher gives to the other copy: one copy before Usher confines it,
/// one afterwards.
#[test]
fn a_copy_that_chooses_the_part_of_another_copy_is_left_alone() {
    if !has_two_cpus() {
        return;
    }
    for method in methods() {
        let runtime = tempfile::tempdir().unwrap();
        let mut act = Actuator::open(method.config(runtime.path())).unwrap();
        let program = Program::start(&["tree", "2", "2"]);
        let children = program.processes().into_iter();
        let children: Vec<i32> = children.filter(|&pid| pid != program.pid()).collect();
        let (first, second) = (children[0], children[1]);
        act.admit(ONE, program.id, WorkClass::Foreground).unwrap();
        place(&mut act, first, Some("0"));
        choose(second, "0");
        let part = cpus("1");
        let placed = act.place_copy(ONE, id_of(second), Some(&part)).unwrap();
        assert_eq!(placed, CopyPlacement::LeftAlone, "{method:?}");
        assert!(!act.has_chosen_mask(ONE, id_of(first)), "{method:?}");
        choose(first, "1");
        assert!(act.has_chosen_mask(ONE, id_of(first)), "{method:?}");
        let part = cpus("0");
        let placed = act.place_copy(ONE, id_of(first), Some(&part)).unwrap();
        assert_eq!(placed, CopyPlacement::LeftAlone, "{method:?}");
        act.refresh(ONE).unwrap();
        act.depart(ONE).unwrap();
        assert_eq!(masks(first), list("1"), "{method:?}");
        assert_eq!(masks(second), list("0"), "{method:?}");
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

/// A shell in the process group of this test, and the child that the shell starts on request. Both
/// are killed at the end.
struct ShellWithChild {
    shell: Child,
    child: i32,
}

impl ShellWithChild {
    /// Starts a shell that waits before it starts the child.
    fn start() -> Self {
        let mut command = Command::new("sh");
        // The output of the child is not the pipe, whose end therefore shows the end of the shell.
        command.args(["-c", "read go; sleep 1000 >&2 & echo $!; read end"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self {
            shell: command.spawn().unwrap(),
            child: 0,
        }
    }

    fn start_child(&mut self) {
        self.shell
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"go\n")
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(self.shell.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        self.child = line.trim().parse().unwrap();
    }

    /// Ends the shell only. The child becomes an orphan.
    fn end_shell(&mut self) {
        drop(self.shell.stdin.take());
        self.shell.wait().unwrap();
    }
}

impl Drop for ShellWithChild {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        if self.child > 0 {
            // SAFETY: `kill` accesses no memory; the pid belongs to a process of this test.
            unsafe { libc::kill(self.child, libc::SIGKILL) };
        }
    }
}

/// An orphan in the process group of this test is known only by its record.
#[test]
fn a_recorded_descendant_is_restored_after_its_parent_has_ended() {
    if !has_two_cpus() {
        return;
    }
    let (_runtime, mut act) = without_cgroups();
    let mut program = ShellWithChild::start();
    let root = id_of(program.shell.id() as i32);
    act.admit(ONE, root, WorkClass::Foreground).unwrap();
    let seat = Action::Seat {
        program: ONE,
        cpus: cpus("0"),
    };
    act.act(&seat).unwrap();
    program.start_child();
    act.record_descendants(ONE, [id_of(program.child)]).unwrap();
    program.end_shell();
    assert_eq!(masks(program.child), list("0"), "an inherited mask");
    act.leave(ONE);
    assert_eq!(masks(program.child), list(&cpu_list()));
    close(act);
}

/// The record of a descendant must not claim a process that another program manages.
#[test]
fn a_process_of_another_program_is_not_recorded() {
    let (_runtime, mut act) = without_cgroups();
    let first = Program::start(&["tree", "0", "0"]);
    let second = Program::start(&["tree", "0", "0"]);
    let two = ProgramId(2);
    act.admit(ONE, first.id, WorkClass::Foreground).unwrap();
    act.admit(two, second.id, WorkClass::Foreground).unwrap();
    act.record_descendants(ONE, [second.id]).unwrap();
    assert_eq!(act.processes(ONE), [first.pid()]);
    act.leave(ONE);
    assert_eq!(act.program_of(second.pid()), Some(two));
    close(act);
}
