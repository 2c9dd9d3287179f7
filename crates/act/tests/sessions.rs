// SPDX-License-Identifier: MIT OR Apache-2.0
//! Demotion where there is no cgroup to do it with: by the autogroups of
//! sessions, and without rights.

#![allow(clippy::unwrap_used)] // a test that finds otherwise is to fail

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use common::*;
use usher_act::Work;
use usher_model::{Action, Demotion, ProgramId};

const ONE: ProgramId = ProgramId(1);
const PROMOTE: Action = Action::Promote { program: ONE };

fn demote(to: Demotion) -> Action {
    Action::Demote { program: ONE, to }
}

/// Autogroups can be changed without rights, and given back.
fn in_a_session() -> Option<Program> {
    let program = Program::start_in_session(command(&["tree", "1", "0"]));
    if autogroup(program.pid()).is_none() {
        eprintln!("not tested here: this kernel has no autogroups");
        return None;
    }
    Some(program)
}

#[test]
fn a_session_of_its_own_is_demoted() {
    let Some(program) = in_a_session() else {
        return;
    };
    let before = portrait(&program);
    for to in [Demotion::Nice, Demotion::Idle] {
        let (_runtime, mut act) = bare();
        act.admit(ONE, program.id, Work::Background).unwrap();
        act.act(&demote(to)).unwrap();
        wait_until("the kernel to take it", || {
            act.refresh(ONE).unwrap();
            autogroup(program.pid()) == Some(19)
        });
        act.act(&PROMOTE).unwrap();
        assert_eq!(autogroup(program.pid()), Some(0));
        act.act(&demote(to)).unwrap();
        close(act);
        assert_eq!(portrait(&program), before);
    }
}

#[test]
fn a_session_that_others_are_in_is_left() {
    let program = Program::start(&["tree", "1", "0"]);
    let before = autogroup(program.pid());
    let (_runtime, mut act) = bare();
    act.admit(ONE, program.id, Work::Background).unwrap();
    act.act(&demote(Demotion::Idle)).unwrap();
    assert_eq!(autogroup(program.pid()), before);
    let why = act.why_not_demoted(ONE).join("\n");
    assert!(why.contains("session") && why.contains("setsid"), "{why}");
    close(act);
    assert_eq!(autogroup(program.pid()), before);
}

#[test]
fn a_session_that_is_begun_meanwhile_is_demoted_too() {
    if in_a_session().is_none() {
        return;
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo ready; read line; setsid sleep 1000 & wait"]);
    let mut shell = Program::start_in_session(shell);
    let (_runtime, mut act) = bare();
    act.admit(ONE, shell.id, Work::Background).unwrap();
    act.act(&demote(Demotion::Idle)).unwrap();
    shell
        .child
        .stdin
        .take()
        .unwrap()
        .write_all(b"go\n")
        .unwrap();
    let mut other = None;
    wait_until("another session", || {
        act.refresh(ONE).unwrap();
        other = act
            .processes(ONE)
            .into_iter()
            .find(|pid| *pid != shell.pid());
        other.is_some_and(|pid| autogroup(pid) == Some(19) && leads(pid))
    });
    close(act);
    let other = other.unwrap();
    assert_eq!(autogroup(other), Some(0));
    // SAFETY: kills a process that this test's shell has started.
    unsafe { libc::kill(other, libc::SIGKILL) };
}

/// Whether a process leads a session.
fn leads(pid: i32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid);
    rustix::process::getsid(pid).ok() == pid
}

/// What nobody could give back is not taken; the rest is.
#[test]
fn without_rights_what_can_be_undone_is_done() {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    if !has_rights() {
        return; // as somebody who has no rights: needs root, to become nobody
    }
    let runtime = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(runtime.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    // The binary may lie where nobody else can execute it.
    let copy = runtime.path().join("rig");
    std::fs::copy(rig(), &copy).unwrap();
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(&copy);
        command.args(args).uid(NOBODY).gid(NOBODY);
        command
    };
    let program = Program::start_in_session(as_nobody(&["tree", "1", "1"]));
    let before = portrait(&program);
    let id = format!("{}-{}", program.id.pid, program.id.start_ticks);
    let mut demoter = as_nobody(&["demoter", runtime.path().to_str().unwrap(), &id])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(demoter.stdout.take().unwrap()).lines();
    let said: Vec<String> = lines
        .map(|line| line.unwrap())
        .take_while(|line| line != "ready")
        .collect();
    let io_only = Rank {
        io: Rank::IDLE.io,
        ..Rank::PLAIN
    };
    assert!(all_have(&program, io_only), "{:?}", ranks(&program));
    let autogroup = autogroup(program.pid());
    assert!(autogroup.is_none_or(|nice| nice == 19), "{autogroup:?}");
    let said = said.join("\n");
    assert!(said.contains("ulimit -e 20"), "{said}");
    drop(demoter.stdin.take());
    assert!(demoter.wait().unwrap().success());
    assert_eq!(portrait(&program), before);
}
