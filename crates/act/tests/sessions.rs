// SPDX-License-Identifier: MIT OR Apache-2.0
//! Demotion where there is no cgroup to do it with: by the autogroups of
//! sessions, and without rights.

#![allow(clippy::unwrap_used)] // a test that finds otherwise is to fail

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use common::*;
use usher_act::Work;
use usher_model::{Action, Demotion, ProgramId};

const ONE: ProgramId = ProgramId(1);
const NOBODY: u32 = 65_534;

fn demote(to: Demotion) -> Action {
    Action::Demote { program: ONE, to }
}

/// Autogroups can be changed without rights, and given back.
fn in_a_session() -> Option<Program> {
    let program = Program::start_in_session(command(&["tree", "1", "0"]));
    if autogroup(program.pid()).is_none() {
        usher_skip::skip!("this kernel has no autogroups");
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
        act.leave(ONE);
        assert_eq!(autogroup(program.pid()), Some(0));
        act.admit(ONE, program.id, Work::Background).unwrap();
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

/// Somebody who has no rights: needs root, to become nobody.
struct Nobody {
    runtime: tempfile::TempDir,
}

impl Nobody {
    fn new() -> Option<Self> {
        if !has_rights() {
            return None;
        }
        let runtime = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(runtime.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        // The binary may lie where nobody else can execute it.
        common::copy_program(rig(), runtime.path().join("rig"));
        Some(Self { runtime })
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(program);
        command.args(args).uid(NOBODY).gid(NOBODY);
        command
    }

    fn rig(&self, args: &[&str]) -> Command {
        self.command(self.runtime.path().join("rig").to_str().unwrap(), args)
    }

    /// Demotes a program until its standard input ends; and what of that it
    /// has not done.
    fn demoter(&self, program: &Program) -> (Child, String) {
        let id = format!("{}-{}", program.id.pid, program.id.start_ticks);
        let runtime = self.runtime.path().to_str().unwrap();
        let mut demoter = self.rig(&["demoter", runtime, &id]);
        demoter.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut demoter = demoter.spawn().unwrap();
        let lines = BufReader::new(demoter.stdout.take().unwrap()).lines();
        let said: Vec<String> = lines
            .map(|line| line.unwrap())
            .take_while(|line| line != "ready")
            .collect();
        (demoter, said.join("\n"))
    }
}

/// What nobody could give back is not taken; the rest is.
#[test]
fn without_rights_what_can_be_undone_is_done() {
    let Some(nobody) = Nobody::new() else { return };
    let program = Program::start_in_session(nobody.rig(&["tree", "1", "1"]));
    let before = portrait(&program);
    let (mut demoter, said) = nobody.demoter(&program);
    let io_only = Rank {
        io: Rank::IDLE.io,
        ..Rank::plain()
    };
    assert!(all_have(&program, io_only), "{:?}", ranks(&program));
    let autogroup = autogroup(program.pid());
    assert!(autogroup.is_none_or(|nice| nice == 19), "{autogroup:?}");
    let limit = format!("ulimit -e {}", 20 - Rank::plain().nice);
    assert!(said.contains(&limit), "{said}");
    drop(demoter.stdin.take());
    assert!(demoter.wait().unwrap().success());
    assert_eq!(portrait(&program), before);
}

/// From all users together the kernel takes one autogroup in a tenth of a second, so
/// some of many may stay as they are; all that were lowered are given back.
#[test]
fn many_sessions_are_given_back_without_rights() {
    let Some(nobody) = Nobody::new().filter(|_| in_a_session().is_some()) else {
        return;
    };
    let script = "for i in 1 2 3 4; do setsid sleep 1000 & done; echo ready; read line";
    let shell = Program::start_in_session(nobody.command("sh", &["-c", script]));
    let sessions = || -> Vec<i32> {
        let children = format!("/proc/{0}/task/{0}/children", shell.pid());
        let children = std::fs::read_to_string(children).unwrap();
        let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
        children.chain([shell.pid()]).collect()
    };
    wait_until("five sessions", || {
        let sessions = sessions();
        sessions.len() == 5 && sessions.into_iter().all(leads)
    });
    let (mut demoter, _) = nobody.demoter(&shell);
    let lowered = sessions()
        .into_iter()
        .filter(|pid| autogroup(*pid) == Some(19));
    assert!(lowered.count() > 0);
    drop(demoter.stdin.take());
    assert!(demoter.wait().unwrap().success());
    for pid in sessions() {
        assert_eq!(autogroup(pid), Some(0));
        // SAFETY: kills processes that this test's shell has started.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}
