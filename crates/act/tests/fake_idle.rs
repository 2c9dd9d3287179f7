// SPDX-License-Identifier: MIT OR Apache-2.0
//! Test of `cpu.idle` by the cpu controller of cgroup v2, on a tree of plain files. Background work
//! must get a directory with `cpu.idle`. This file contains only one test, because the name of the
//! instance must be known before its start.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::fs;
use std::path::Path;

use common::*;
use usher_act::{ActConfig, Actuator, WorkClass};
use usher_model::{Action, Demotion, ProgramId};

const BACKGROUND: ProgramId = ProgramId(1);
const FOREGROUND: ProgramId = ProgramId(2);

fn demote(program: ProgramId) -> Action {
    let to = Demotion::Idle;
    Action::Demote { program, to }
}

fn text(dir: &Path, file: &str) -> String {
    fs::read_to_string(dir.join(file)).unwrap()
}

#[test]
fn background_work_gets_cpu_idle_in_a_directory_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (proc, top) = (dir.path().join("proc"), dir.path().join("cgroup"));
    let program = Program::start(&["tree", "0", "1"]);
    let other = Program::start(&["tree", "0", "0"]);
    fake_proc(&proc, &top, &[program.pid(), other.pid()]);
    let own = id_of(std::process::id() as i32);
    let name = format!("usher-{}-{}", own.pid, own.start_ticks);
    let beside = top.join(format!("{name}.1"));
    let home = top.join(format!("{name}.2"));
    let controllers = ("cgroup.controllers", "cpu io\n");
    let control = ("cgroup.subtree_control", "cpu io\n");
    cgroup(&top, &[controllers, control, ("cgroup.procs", "")]);
    let files = [("cgroup.procs", ""), ("cgroup.freeze", "0")];
    cgroup(&beside, &files);
    cgroup(&beside, &[("cpu.idle", "0")]);
    cgroup(&home, &files);
    let mut config = ActConfig::new(dir.path().join("run"));
    (config.proc_root, config.cgroup_root) = (proc, top.clone());
    config.systemd_dir = "/nonexistent".into();
    let mut act = Actuator::open(config).unwrap();

    act.prepare_held(BACKGROUND, program.id, WorkClass::Background)
        .unwrap();
    let admitted = act
        .admit(BACKGROUND, program.id, WorkClass::Background)
        .unwrap();
    assert_eq!(admitted.cgroup, Some(beside.clone()));
    assert_eq!(text(&beside, "cgroup.procs"), program.pid().to_string());
    act.act(&demote(BACKGROUND)).unwrap();
    assert_eq!(text(&beside, "cpu.idle"), "1");
    let mut why = act.demotion_gaps(BACKGROUND);
    // Ignores the reason that concerns sockets: no BPF program can be attached to a plain
    // directory.
    why.retain(|why| !why.contains("sockets"));
    if rustix::process::geteuid().is_root() {
        assert!(why.is_empty(), "{why:?}");
        assert!(
            sched_values(&program)
                .values()
                .all(|rank| *rank == SchedValues::IDLE)
        );
    }

    // A program in a directory without the file `cpu.idle` cannot yield by this file.
    act.prepare_held(FOREGROUND, other.id, WorkClass::Foreground)
        .unwrap();
    let admitted = act
        .admit(FOREGROUND, other.id, WorkClass::Foreground)
        .unwrap();
    assert_eq!(admitted.cgroup, Some(home));
    act.act(&demote(FOREGROUND)).unwrap();
    let why = act.demotion_gaps(FOREGROUND).join("\n");
    assert!(why.contains("cpu.idle is not used"), "{why}");

    // The removal fails and is reported, because a directory with plain files cannot be removed,
    // unlike a cgroup with the kernel's files.
    let left = fail_to_depart(&mut act, BACKGROUND);
    assert!(left.contains("removing cgroup"), "{left}");
    assert_eq!(text(&beside, "cpu.idle"), "0");
    assert_eq!(text(&top, "cgroup.procs"), program.pid().to_string());
    assert!(
        sched_values(&program)
            .values()
            .all(|rank| *rank == SchedValues::plain())
    );
}
