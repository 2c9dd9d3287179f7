// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of systemd scopes with a stand-in for systemd: a script in place of `busctl`, which
//! handles the same calls as systemd in the real cgroup v2.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::*;
use usher_act::{ActConfig, Actuator, CgroupPlacement, WorkClass};
use usher_model::{Action, Demotion, ProgramId};

const ONE: ProgramId = ProgramId(1);

/// The script of the stand-in, which records each call, answers queries of logind, makes a scope in
/// the given slice, and moves the process into the scope. Argument `$8` is the method, `${10}` the
/// unit.
const STAND_IN: &str = r#"#!/bin/sh
echo "$@" >> CALLS
case "$4 $8" in
"get-property KillUserProcesses") echo "b KILLS"; exit 0 ;;
"call SetUnitProperties") exit 0 ;;
"call StartTransientUnit") ;;
*) echo "Unknown method $8" >&2; exit 1 ;;
esac
unit=${10}
REFUSAL
while [ "$1 $2" != "Slice s" ]; do shift; done
slice=$3
while [ "$1 $2 $3" != "PIDs au 1" ]; do shift; done
mkdir TOP/$slice/$unit && echo $4 > TOP/$slice/$unit/cgroup.procs
"#;

/// A slice that contains a session, and the stand-in for systemd.
struct FakeSystemdHost {
    runtime: tempfile::TempDir,
    slice: PathBuf,
    kills: &'static str,
    refusal: &'static str,
}

impl FakeSystemdHost {
    /// Makes the slice and the stand-in. Returns `None` if this machine does not permit it.
    fn new(name: &str) -> Option<Self> {
        let Some(mount) = v2_mount().filter(|_| rustix::process::geteuid().is_root()) else {
            usher_skip::skip!("needs root and cgroup v2");
            return None;
        };
        let slice = mount.join(format!("act-{name}-{}.slice", std::process::id()));
        fs::create_dir(&slice).unwrap();
        Some(Self {
            runtime: tempfile::tempdir().unwrap(),
            slice,
            kills: "false",
            refusal: "",
        })
    }

    fn config(&self) -> ActConfig {
        let busctl = self.runtime.path().join("busctl");
        let script = STAND_IN
            .replace("CALLS", self.calls_file().to_str().unwrap())
            .replace("KILLS", self.kills)
            .replace("REFUSAL", self.refusal)
            .replace("TOP", self.slice.parent().unwrap().to_str().unwrap());
        fs::write(&busctl, script).unwrap();
        fs::set_permissions(&busctl, PermissionsExt::from_mode(0o700)).unwrap();
        let mut config = ActConfig::new(self.runtime.path().join("run"));
        config.systemd_dir = self.runtime.path().to_owned();
        config.busctl = busctl;
        config
    }

    fn calls_file(&self) -> PathBuf {
        self.runtime.path().join("calls")
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.calls_file()).unwrap_or_default()
    }

    /// Starts a program in a unit of the slice.
    fn program_in(&self, unit: &str, args: &[&str]) -> Program {
        let dir = self.slice.join(unit);
        fs::create_dir_all(&dir).unwrap();
        let program = Program::start(args);
        for pid in program.processes() {
            fs::write(dir.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        program
    }
}

impl Drop for FakeSystemdHost {
    fn drop(&mut self) {
        // Removes empty units, as systemd would.
        wait_until("the units to be empty", || {
            for dir in fs::read_dir(&self.slice).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(dir.path());
            }
            fs::remove_dir(&self.slice).is_ok()
        });
    }
}

fn seat(cpus: &str) -> Action {
    let cpus = cpus.parse().unwrap();
    Action::Seat { program: ONE, cpus }
}

fn members(dir: &Path) -> usize {
    let list = fs::read_to_string(dir.join("cgroup.procs")).unwrap();
    list.lines().count()
}

fn is_frozen(dir: &Path) -> bool {
    let events = fs::read_to_string(dir.join("cgroup.events")).unwrap();
    events.contains("frozen 1")
}

#[test]
fn a_launched_program_gets_a_scope_in_its_launchers_slice() {
    let Some(host) = FakeSystemdHost::new("scope") else {
        return;
    };
    let slice = &host.slice;
    let mut act = Actuator::open(host.config()).unwrap();
    assert_eq!(act.describe().placement, CgroupPlacement::SystemdScope);
    let program = host.program_in("session-1.scope", &["tree", "0", "1"]);
    let home = act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
    let instance = act.instance_dir().file_name().unwrap().to_str().unwrap();
    let scope = slice.join(format!("usher-{instance}-1.scope"));
    assert_eq!(home.cgroup.as_ref(), Some(&scope));
    assert_eq!(members(&scope), 1);
    let calls = host.calls();
    let slice_name = slice.file_name().unwrap().to_str().unwrap();
    for part in [
        &*format!("Slice s {slice_name}"),
        "DelegateControllers as 0",
    ] {
        assert!(calls.contains(part), "{part}: {calls}");
    }
    assert!(!calls.contains("CPUWeight"), "{calls}");
    for dir in [slice, &scope] {
        let control = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap();
        assert_eq!(control.trim(), "", "{}", dir.display());
    }
    act.act(&seat("0")).unwrap();
    act.act(&Action::Freeze { program: ONE }).unwrap();
    wait_until("the scope to freeze", || is_frozen(&scope));
    act.leave(ONE);
    wait_until("the scope to thaw", || !is_frozen(&scope));
    assert_eq!(members(&scope), 1, "it stays in the scope");
    assert_eq!(
        masks(program.pid()).into_iter().collect::<Vec<_>>(),
        [cpu_list()]
    );

    // The scope of the earlier program remains, but must not prevent the next attach.
    let again = act
        .admit(ProgramId(2), program.id, WorkClass::Foreground)
        .unwrap();
    assert_eq!(again.cgroup, Some(scope));
    close(act);
    drop(program);
}

#[test]
fn background_work_is_given_the_idle_weight() {
    let Some(mut host) = FakeSystemdHost::new("idle") else {
        return;
    };
    // Makes the stand-in reject the weight, as systemd before version 252 does.
    host.refusal = r#"case "$*" in *CPUWeight*) echo "Value specified in CPUWeight is out of range" >&2; exit 1 ;; esac"#;
    let mut act = Actuator::open(host.config()).unwrap();
    let program = host.program_in("session-1.scope", &["tree", "0", "0"]);
    let home = act.launch(ONE, program.id, WorkClass::Background).unwrap();
    assert!(home.cgroup.is_some(), "{:?}", act.no_cgroup_reason(ONE));
    assert!(host.calls().contains("CPUWeight t 0"), "{}", host.calls());
    let to = Demotion::Idle;
    act.act(&Action::Demote { program: ONE, to }).unwrap();
    let why = act.demotion_gaps(ONE).join("\n");
    assert!(why.contains("cpu.idle is not used"), "{why}");
    close(act);
    assert!(all_have(&program, SchedValues::plain()));
}

/// In each of these cases, a program that left the unit would escape a limit, or would not end when
/// the unit is stopped.
#[test]
fn a_program_stays_in_a_unit_that_it_must_not_leave() {
    let cases = [
        ("session-1.scope", "5", "false", "cgroup.max.depth"),
        ("web.service", "max", "false", "web.service"),
        ("session-1.scope", "max", "true", "logind kills"),
    ];
    for (unit, depth, kills, reason) in cases {
        let Some(mut host) = FakeSystemdHost::new("stay") else {
            return;
        };
        host.kills = kills;
        let mut act = Actuator::open(host.config()).unwrap();
        let program = host.program_in(unit, &["tree", "1", "0"]);
        fs::write(host.slice.join(unit).join("cgroup.max.depth"), depth).unwrap();
        let before = snapshot(&program);
        let home = act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
        assert_eq!(home.cgroup, None);
        let found = act.no_cgroup_reason(ONE).unwrap();
        assert!(found.reason.contains(reason) && !found.failed, "{found:?}");
        assert!(!host.calls().contains("StartTransientUnit"));
        act.act(&seat("0")).unwrap();
        for pid in program.processes() {
            assert_eq!(masks(pid).into_iter().collect::<Vec<_>>(), ["0"]);
        }
        close(act);
        assert_eq!(snapshot(&program), before);
    }
}

#[test]
fn without_a_scope_a_program_stays_where_it_was() {
    let Some(mut host) = FakeSystemdHost::new("refused") else {
        return;
    };
    host.refusal = r#"echo "Access denied" >&2; exit 1"#;
    let mut act = Actuator::open(host.config()).unwrap();
    let program = host.program_in("session-1.scope", &["tree", "1", "0"]);
    let before = snapshot(&program);
    let home = act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
    assert_eq!(home.cgroup, None);
    let found = act.no_cgroup_reason(ONE).unwrap();
    assert!(
        found.reason.contains("Access denied") && found.failed,
        "{found:?}"
    );
    act.act(&seat("0")).unwrap();
    act.act(&Action::Freeze { program: ONE }).unwrap();
    wait_until("the tree to stop", || {
        snapshot(&program).values().all(|(stopped, ..)| *stopped)
    });
    close(act);
    wait_until("the tree to be as before", || snapshot(&program) == before);
}

#[test]
fn without_a_bus_programs_are_followed() {
    let Some(host) = FakeSystemdHost::new("bus") else {
        return;
    };
    let mut config = host.config();
    config.busctl = "/nonexistent/busctl".into();
    let mut act = Actuator::open(config).unwrap();
    let program = host.program_in("session-1.scope", &["tree", "1", "0"]);
    let home = act.launch(ONE, program.id, WorkClass::Foreground).unwrap();
    assert_eq!(home.cgroup, None);
    let reasons = act.describe().reasons.join("; ");
    assert!(reasons.contains("/nonexistent/busctl"), "{reasons}");
    close(act);
}

/// The service manager must find the same processes in the unit before, during and after the
/// management by Usher.
#[test]
fn an_attached_unit_keeps_its_processes_and_is_frozen_as_a_whole() {
    let Some(host) = FakeSystemdHost::new("unit") else {
        return;
    };
    let mut act = Actuator::open(host.config()).unwrap();
    let program = host.program_in("web.service", &["tree", "2", "1"]);
    let unit = host.slice.join("web.service");
    let before = snapshot(&program);
    let home = act.admit(ONE, program.id, WorkClass::Background).unwrap();
    assert_eq!(home.cgroup.as_ref(), Some(&unit));
    assert_eq!(members(&unit), 3);
    act.act(&seat("0")).unwrap();
    act.act(&Action::Freeze { program: ONE }).unwrap();
    wait_until("the unit to freeze", || is_frozen(&unit));
    let journal = fs::read_to_string(act.instance_dir().join("journal.jsonl")).unwrap();
    assert!(journal.contains(r#""do":"freeze""#), "{journal}");
    act.leave(ONE);
    wait_until("the unit to thaw", || !is_frozen(&unit));
    assert_eq!(snapshot(&program), before);
    close(act);
}

#[test]
fn a_unit_that_was_frozen_before_stays_frozen() {
    let Some(host) = FakeSystemdHost::new("frozen") else {
        return;
    };
    let mut act = Actuator::open(host.config()).unwrap();
    let program = host.program_in("web.service", &["tree", "0", "0"]);
    let unit = host.slice.join("web.service");
    fs::write(unit.join("cgroup.freeze"), "1").unwrap();
    wait_until("the unit to freeze", || is_frozen(&unit));
    act.admit(ONE, program.id, WorkClass::Background).unwrap();
    act.act(&Action::Freeze { program: ONE }).unwrap();
    act.act(&Action::Thaw { program: ONE }).unwrap();
    assert!(is_frozen(&unit), "frozen by the administrator");
    close(act);
    assert!(is_frozen(&unit));
    fs::write(unit.join("cgroup.freeze"), "0").unwrap();
}

#[test]
fn a_program_beside_others_in_its_unit_is_followed() {
    let Some(host) = FakeSystemdHost::new("beside") else {
        return;
    };
    let mut act = Actuator::open(host.config()).unwrap();
    let program = host.program_in("session-1.scope", &["tree", "1", "0"]);
    let other = host.program_in("session-1.scope", &["tree", "0", "0"]);
    let before = snapshot(&other);
    let home = act.admit(ONE, program.id, WorkClass::Foreground).unwrap();
    assert_eq!(home.cgroup, None);
    act.act(&seat("0")).unwrap();
    assert_eq!(snapshot(&other), before);
    close(act);
}

/// A process that an administrator moves must stay a member of its program, and must stay in its
/// new cgroup.
#[test]
fn a_process_that_leaves_the_unit_is_still_seated() {
    let Some(host) = FakeSystemdHost::new("leaver") else {
        return;
    };
    let mut act = Actuator::open(host.config()).unwrap();
    let program = host.program_in("web.service", &["tree", "1", "0"]);
    act.admit(ONE, program.id, WorkClass::Foreground).unwrap();
    let pids = program.processes();
    let child = *pids.iter().find(|pid| **pid != program.pid()).unwrap();
    let elsewhere = host.slice.join("other.scope");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("cgroup.procs"), child.to_string()).unwrap();
    act.refresh(ONE).unwrap();
    act.act(&seat("0")).unwrap();
    act.act(&Action::Freeze { program: ONE }).unwrap();
    assert_eq!(masks(child).into_iter().collect::<Vec<_>>(), ["0"]);
    wait_until("the child to stop", || stat(child).unwrap().state == 'T');
    close(act);
    wait_until("the child to go on", || stat(child).unwrap().state != 'T');
    assert_eq!(members(&elsewhere), 1);
    assert_eq!(masks(child).into_iter().collect::<Vec<_>>(), [cpu_list()]);
}

/// The journal of the dead daemon contains a scope. After the undo, the program stays in this
/// scope.
#[test]
fn a_scope_whose_daemon_died_is_thawed_and_free_for_the_next() {
    let Some(host) = FakeSystemdHost::new("dead") else {
        return;
    };
    let mut dead = Program::start(&["tree", "0", "0"]);
    dead.kill();
    let name = format!("{}-{}", dead.id.pid, dead.id.start_ticks);
    let scope_name = format!("usher-{name}-1.scope");
    let program = host.program_in(&scope_name, &["tree", "0", "0"]);
    let scope = host.slice.join(&scope_name);
    fs::write(scope.join("cgroup.freeze"), "1").unwrap();
    wait_until("the scope to freeze", || is_frozen(&scope));
    let config = host.config();
    let dir = config.instances_dir().join(&name);
    fs::create_dir_all(&dir).unwrap();
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    let lines = [
        r#"{"do":"begin","program":1,"from":{}}"#.to_owned(),
        format!(
            r#"{{"do":"dir","program":1,"dir":"{}","kind":"scope","wide":""}}"#,
            scope.display()
        ),
    ];
    fs::write(dir.join("journal.jsonl"), lines.join("\n") + "\n").unwrap();
    undo_all_stale(&config, "a program in a scope");
    wait_until("the scope to thaw", || !is_frozen(&scope));
    assert_eq!(members(&scope), 1);
    let mut act = Actuator::open(config).unwrap();
    let home = act.admit(ONE, program.id, WorkClass::Foreground).unwrap();
    assert_eq!(home.cgroup, Some(scope));
    close(act);
}
