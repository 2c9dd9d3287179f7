// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of demotion without a usable cgroup: by the autogroups of sessions, as root and as an
//! unprivileged user.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use common::*;
use usher_act::WorkClass;
use usher_model::{Action, Demotion, ProgramId};

const ONE: ProgramId = ProgramId(1);
const UNPRIVILEGED: u32 = 65_534;

fn demote(to: Demotion) -> Action {
    Action::Demote { program: ONE, to }
}

/// Starts a program in a session with an autogroup that can be changed and restored without
/// privileges.
fn in_a_session() -> Option<Program> {
    let program = Program::start_in_session(command(&["tree", "1", "0"]));
    if autogroup(program.pid()).is_none() {
        usher_skip::skip!("this kernel has no autogroups");
        return None;
    }
    Some(program)
}

#[test]
fn the_autogroup_of_a_programs_own_session_is_lowered() {
    let Some(program) = in_a_session() else {
        return;
    };
    let before = snapshot(&program);
    for to in [Demotion::Nice, Demotion::Idle] {
        let (_runtime, mut act) = without_cgroups();
        act.admit(ONE, program.id, WorkClass::Background).unwrap();
        act.act(&demote(to)).unwrap();
        wait_until("the kernel to take it", || {
            act.refresh(ONE).unwrap();
            autogroup(program.pid()) == Some(19)
        });
        act.leave(ONE);
        assert_eq!(autogroup(program.pid()), Some(0));
        act.admit(ONE, program.id, WorkClass::Background).unwrap();
        act.act(&demote(to)).unwrap();
        close(act);
        assert_eq!(snapshot(&program), before);
    }
}

#[test]
fn the_autogroup_of_a_shared_session_is_not_lowered() {
    let program = Program::start(&["tree", "1", "0"]);
    let before = autogroup(program.pid());
    let (_runtime, mut act) = without_cgroups();
    act.admit(ONE, program.id, WorkClass::Background).unwrap();
    act.act(&demote(Demotion::Idle)).unwrap();
    assert_eq!(autogroup(program.pid()), before);
    let why = act.demotion_gaps(ONE).join("\n");
    assert!(why.contains("session") && why.contains("setsid"), "{why}");
    close(act);
    assert_eq!(autogroup(program.pid()), before);
}

#[test]
fn the_autogroup_of_a_session_begun_meanwhile_is_lowered_too() {
    if in_a_session().is_none() {
        return;
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo ready; read line; setsid sleep 1000 & wait"]);
    let mut shell = Program::start_in_session(shell);
    let (_runtime, mut act) = without_cgroups();
    act.admit(ONE, shell.id, WorkClass::Background).unwrap();
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
        other.is_some_and(|pid| autogroup(pid) == Some(19) && is_session_leader(pid))
    });
    close(act);
    let other = other.unwrap();
    assert_eq!(autogroup(other), Some(0));
    // SAFETY: `kill` accesses no memory; it kills a process that this test's shell has started.
    unsafe { libc::kill(other, libc::SIGKILL) };
}

/// Returns whether a process leads a session.
fn is_session_leader(pid: i32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid);
    rustix::process::getsid(pid).ok() == pid
}

/// An unprivileged user. The test needs root to start processes as this user.
struct UnprivilegedUser {
    runtime: tempfile::TempDir,
}

impl UnprivilegedUser {
    fn new() -> Option<Self> {
        if !has_rights() {
            return None;
        }
        let runtime = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(runtime.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
        // The binary is copied, because other users may be unable to execute it at its original
        // path.
        common::copy_program(rig(), runtime.path().join("rig"));
        Some(Self { runtime })
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(program);
        command.args(args).uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        command
    }

    fn rig(&self, args: &[&str]) -> Command {
        self.command(self.runtime.path().join("rig").to_str().unwrap(), args)
    }

    /// Starts a process that demotes a program until the standard input of this process ends.
    /// Returns the process and the gaps of the demotion.
    fn demoter(&self, program: &Program) -> (Child, String) {
        let id = format!("{}-{}", program.id.pid, program.id.start_ticks);
        let runtime = self.runtime.path().to_str().unwrap();
        let mut demoter = self.rig(&["demoter", runtime, &id]);
        demoter.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut demoter = demoter.spawn().unwrap();
        let lines = BufReader::new(demoter.stdout.take().unwrap()).lines();
        let output: Vec<String> = lines
            .map(|line| line.unwrap())
            .take_while(|line| line != "ready")
            .collect();
        (demoter, output.join("\n"))
    }
}

/// Usher changes only the values that this user can restore.
#[test]
fn demotion_without_privileges_does_what_can_be_undone() {
    let Some(user) = UnprivilegedUser::new() else {
        return;
    };
    let program = Program::start_in_session(user.rig(&["tree", "1", "1"]));
    let before = snapshot(&program);
    let (mut demoter, output) = user.demoter(&program);
    let io_only = SchedValues {
        io: SchedValues::IDLE.io,
        ..SchedValues::plain()
    };
    assert!(all_have(&program, io_only), "{:?}", sched_values(&program));
    let autogroup = autogroup(program.pid());
    assert!(autogroup.is_none_or(|nice| nice == 19), "{autogroup:?}");
    let limit = format!("ulimit -e {}", 20 - SchedValues::plain().nice);
    assert!(output.contains(&limit), "{output}");
    drop(demoter.stdin.take());
    assert!(demoter.wait().unwrap().success());
    assert_eq!(snapshot(&program), before);
}

/// The kernel accepts one autogroup change per 100 ms from all unprivileged users together.
/// Therefore some of many autogroups may stay unchanged, but all lowered autogroups must be
/// restored.
#[test]
fn autogroups_of_many_sessions_are_restored_without_privileges() {
    let Some(user) = UnprivilegedUser::new().filter(|_| in_a_session().is_some()) else {
        return;
    };
    let script = "for i in 1 2 3 4; do setsid sleep 1000 & done; echo ready; read line";
    let shell = Program::start_in_session(user.command("sh", &["-c", script]));
    let sessions = || -> Vec<i32> {
        let children = format!("/proc/{0}/task/{0}/children", shell.pid());
        let children = std::fs::read_to_string(children).unwrap();
        let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
        children.chain([shell.pid()]).collect()
    };
    wait_until("five sessions", || {
        let sessions = sessions();
        sessions.len() == 5 && sessions.into_iter().all(is_session_leader)
    });
    let (mut demoter, _) = user.demoter(&shell);
    let lowered = sessions()
        .into_iter()
        .filter(|pid| autogroup(*pid) == Some(19));
    assert!(lowered.count() > 0);
    drop(demoter.stdin.take());
    assert!(demoter.wait().unwrap().success());
    for pid in sessions() {
        assert_eq!(autogroup(pid), Some(0));
        // SAFETY: `kill` accesses no memory; it kills processes that this test's shell has started.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}
