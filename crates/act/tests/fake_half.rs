// SPDX-License-Identifier: MIT OR Apache-2.0
//! Test of a demotion that fails half-way. The cgroups are a tree of plain files, in which
//! `cpu.idle` cannot be written at first. This file contains only one test, because the name of the
//! instance must be known before its start.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::fs;

use common::*;
use usher_act::{ActConfig, Actuator, WorkClass};
use usher_model::{Action, Demotion, ProgramId};

const ONE: ProgramId = ProgramId(1);
const DEMOTE: Action = Action::Demote {
    program: ONE,
    to: Demotion::Idle,
};

#[test]
fn a_demotion_that_failed_half_way_is_followed_and_completed() {
    if !has_rights() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (proc, top) = (dir.path().join("proc"), dir.path().join("cgroup"));
    let program = Program::start(&["tree", "0", "2"]);
    let newcomers = [(); 2].map(|()| Program::start(&["tree", "0", "0"]));
    let all = [&program, &newcomers[0], &newcomers[1]].map(Program::pid);
    fake_proc(&proc, &top, &all);
    let own = id_of(std::process::id() as i32);
    let name = format!("usher-{}-{}", own.pid, own.start_ticks);
    let home = top.join(format!("{name}.1"));
    let controllers = ("cgroup.controllers", "cpu io\n");
    let control = ("cgroup.subtree_control", "cpu io\n");
    cgroup(&top, &[controllers, control, ("cgroup.procs", "")]);
    cgroup(&home, &[("cgroup.procs", ""), ("cgroup.freeze", "0")]);
    fs::create_dir(home.join("cpu.idle")).unwrap();
    let mut config = ActConfig::new(dir.path().join("run"));
    (config.proc_root, config.cgroup_root) = (proc, top);
    config.systemd_dir = "/nonexistent".into();
    let mut act = Actuator::open(config).unwrap();
    let comes = |pids: &[i32]| {
        let list: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
        fs::write(home.join("cgroup.procs"), list).unwrap();
    };
    act.prepare_held(ONE, program.id, WorkClass::Background)
        .unwrap();
    act.admit(ONE, program.id, WorkClass::Background).unwrap();

    let error = act.act(&DEMOTE).unwrap_err().to_string();
    assert!(error.contains("cpu.idle"), "{error}");
    assert!(all_have(&program, SchedValues::IDLE));
    comes(&all[..2]);
    act.refresh(ONE).unwrap();
    assert!(
        all_have(&newcomers[0], SchedValues::IDLE),
        "followed meanwhile"
    );

    fs::remove_dir(home.join("cpu.idle")).unwrap();
    fs::write(home.join("cpu.idle"), "0").unwrap();
    act.act(&DEMOTE).unwrap();
    assert_eq!(fs::read_to_string(home.join("cpu.idle")).unwrap(), "1");
    comes(&all);
    act.refresh(ONE).unwrap();
    assert!(
        all_have(&newcomers[1], SchedValues::IDLE),
        "followed afterwards"
    );

    let journal = fs::read_to_string(act.instance_dir().join("journal.jsonl")).unwrap();
    for tid in all.into_iter().flat_map(threads) {
        let noted =
            |line: &&str| line.contains("priority") && line.contains(&format!("\"tid\":{tid},"));
        let lines: Vec<&str> = journal.lines().filter(noted).collect();
        assert_eq!(lines.len(), 1, "{journal}");
        let nice = format!("\"nice\":{}", SchedValues::plain().nice);
        assert!(lines[0].contains(&nice), "{}", lines[0]);
    }
    // The removal fails, because a directory with plain files cannot be removed, unlike a cgroup
    // with the kernel's files.
    let left = fail_to_depart(&mut act, ONE);
    assert!(left.contains("removing cgroup"), "{left}");
    for program in [&program, &newcomers[0], &newcomers[1]] {
        assert!(all_have(program, SchedValues::plain()));
    }
}
