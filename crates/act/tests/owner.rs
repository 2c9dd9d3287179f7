// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of an actuator that runs as root for another user: in a tree with a setuid program of
//! root, it may change only the user's own processes.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use common::*;
use usher_act::{Actuator, WorkClass};
use usher_model::{Action, CpuSet, Demotion, ProcessId, ProgramId};

const ONE: ProgramId = ProgramId(1);
const UNPRIVILEGED: u32 = 65_534;
const NAME: &str = "setuid-sleep";

/// A shell of an ordinary user, which runs a setuid program of root as its child.
struct Tree {
    shell: Child,
    setuid: i32,
    dir: tempfile::TempDir,
}

impl Tree {
    /// Starts the shell without the setuid program. Returns `None` if the test does not run as
    /// root.
    fn start() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            usher_skip::skip!("only root has a setuid program of another user");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let program = dir.path().join(NAME);
        common::copy_program("/bin/sleep", &program);
        fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
        let mut command = Command::new("/bin/sh");
        let script = "read line; \"$0\" 600 & wait";
        command
            .args(["-c", script])
            .arg(&program)
            .stdin(Stdio::piped());
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED).current_dir("/");
        // The shell gets a session of its own, with an autogroup that Usher could lower. SAFETY:
        // the closure calls only `setsid`, which is async-signal-safe.
        unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
        let shell = command.spawn().unwrap();
        let tree = Self {
            shell,
            setuid: 0,
            dir,
        };
        let comm = format!("/proc/{}/comm", tree.id().pid);
        wait_until("the shell to run", || {
            fs::read_to_string(&comm).is_ok_and(|comm| comm.trim() == "sh")
        });
        Some(tree)
    }

    /// Makes the shell run the setuid program. Returns `false` if the file system ignores the
    /// setuid bit.
    fn run_setuid(&mut self) -> bool {
        self.shell.stdin.take().unwrap().write_all(b"\n").unwrap();
        let pid = self.id().pid;
        let mut setuid = 0;
        wait_until("the setuid program to sleep", || {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            setuid = children.unwrap_or_default().trim().parse().unwrap_or(0);
            let comm = fs::read_to_string(format!("/proc/{setuid}/comm")).unwrap_or_default();
            comm.trim() == NAME && stat(setuid).is_some_and(|stat| stat.state == 'S')
        });
        self.setuid = setuid;
        let status = fs::read_to_string(format!("/proc/{setuid}/status")).unwrap();
        let is_root = status.contains(&format!("Uid:\t{UNPRIVILEGED}\t0\t0\t0"));
        if !is_root {
            usher_skip::skip!("{} ignores the setuid bit", self.dir.path().display());
        }
        is_root
    }

    fn id(&self) -> ProcessId {
        id_of(self.shell.id() as i32)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if self.setuid > 0 {
            // SAFETY: `kill` accesses no memory; it kills a process that this test has started.
            unsafe { libc::kill(self.setuid, libc::SIGKILL) };
        }
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// Returns the parts of a process's state that Usher may change: its masks, its scheduling values
/// and its state letter.
fn visible_state(pid: i32) -> impl PartialEq + std::fmt::Debug {
    (masks(pid), rank(pid), stat(pid).map(|stat| stat.state))
}

/// Checks that the shell is stopped, and that it continues when it is thawed.
fn is_stopped_then_continues(act: &mut Actuator, shell: ProcessId, launched: bool, what: &str) {
    // Queries the cgroup, because the state letter does not show that the freezer has stopped a
    // process.
    let frozen = || {
        let dir = act.home(ONE).and_then(|home| home.cgroup.clone());
        let events = dir.map(|dir| fs::read_to_string(dir.join("cgroup.events")));
        events.is_some_and(|events| events.unwrap_or_default().contains("frozen 1"))
    };
    let is_frozen = frozen();
    let stopped = || is_frozen || stat(shell.pid).is_some_and(|stat| stat.state == 'T');
    wait_until(&format!("the shell to stop: {what}"), stopped);
    assert!(
        !is_frozen || !launched,
        "{what}: the setuid program is frozen, too"
    );
    act.act(&Action::Thaw { program: ONE }).unwrap();
    let runs = || stat(shell.pid).is_some_and(|stat| stat.state != 'T');
    wait_until(&format!("the shell to go on: {what}"), runs);
}

fn acts_on_the_users_processes_alone(method: ActMethod, launched: bool) {
    let what = format!("{method:?}, launched: {launched}");
    let Some(mut tree) = Tree::start() else {
        return;
    };
    let runtime = tempfile::tempdir().unwrap();
    let mut act = Actuator::open(method.config(runtime.path())).unwrap();
    let shell = tree.id();
    let plain = rank(shell.pid);
    act.restrict_to(ONE, UNPRIVILEGED);
    // A launched program gets a cgroup of its own, and the setuid program is then created in this
    // cgroup.
    let runs = match launched {
        true => {
            act.prepare_held(ONE, shell, WorkClass::Background).unwrap();
            act.admit(ONE, shell, WorkClass::Background).unwrap();
            tree.run_setuid()
        }
        false => {
            let runs = tree.run_setuid();
            act.admit(ONE, shell, WorkClass::Background).unwrap();
            runs
        }
    };
    if !runs {
        return;
    }
    let before = visible_state(tree.setuid);
    let first: CpuSet = cpu_list().parse().unwrap();
    let cpus = CpuSet::single(first.iter().next().unwrap());
    let program = ONE;
    for action in [
        Action::Seat { program, cpus },
        Action::Demote {
            program,
            to: Demotion::Idle,
        },
        Action::Freeze { program },
    ] {
        act.act(&action).unwrap();
        act.refresh(ONE).unwrap();
        assert!(
            visible_state(tree.setuid) == before,
            "{what}, {action:?}: {:?}",
            visible_state(tree.setuid)
        );
    }
    assert_eq!(autogroup(tree.setuid).unwrap_or(0), 0, "{what}");
    is_stopped_then_continues(&mut act, shell, launched, &what);
    let left = act.undo_all();
    assert!(left.is_empty(), "{what}: {left:?}");
    assert!(
        visible_state(tree.setuid) == before,
        "{what}: {:?}",
        visible_state(tree.setuid)
    );
    assert_eq!(rank(shell.pid), plain, "{what}");
}

#[test]
fn a_setuid_program_in_a_users_tree_is_not_changed() {
    for method in methods() {
        acts_on_the_users_processes_alone(method, false);
        acts_on_the_users_processes_alone(method, true);
    }
}
