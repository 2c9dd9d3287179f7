// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scopes, with a stand-in for systemd: a script in `busctl`'s place that
//! does what systemd does with the calls, in the real cgroup v2.

#![allow(clippy::unwrap_used)] // a test that finds otherwise is to fail

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::*;
use usher_act::{ActConfig, Actuator, Backend, Tracking, Work};
use usher_model::{Action, ProgramId};

const ONE: ProgramId = ProgramId(1);

/// Makes a scope and moves the pids in, or moves one more into its
/// subdirectory; notes the call. `$8` is the method, `${10}` the unit.
const STAND_IN: &str = r#"#!/bin/sh
echo "$@" >> TOP/../calls-NUMBER
method=$8 unit=${10}
case $method in
StartTransientUnit)
  mkdir TOP/$unit || exit 1
  while [ "$1 $2" != "PIDs au" ]; do shift; done
  count=$3; shift 3
  while [ $count -gt 0 ]; do echo $1 > TOP/$unit/cgroup.procs; shift; count=$((count - 1)); done ;;
AttachProcessesToUnit) echo ${13} > TOP/$unit/${11}/cgroup.procs ;;
*) echo "Unknown method $method" >&2; exit 1 ;;
esac
"#;

fn v2_mount() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    line.split(' ').nth(1).map(PathBuf::from)
}

fn config(runtime: &Path, busctl: &Path) -> ActConfig {
    let mut config = ActConfig::new(runtime.join("run"));
    config.systemd_dir = runtime.to_owned();
    config.busctl = busctl.to_owned();
    config.prefer = Some(Backend::Affinity);
    config
}

#[test]
fn a_program_gets_a_scope_and_stays_in_it() {
    let Some(mount) = v2_mount().filter(|_| rustix::process::geteuid().is_root()) else {
        eprintln!("not tested here: needs root and cgroup v2");
        return;
    };
    let runtime = tempfile::tempdir().unwrap();
    let slice = mount.join(format!("act-test-{}.slice", std::process::id()));
    fs::create_dir(&slice).unwrap();
    let calls = runtime.path().join("calls");
    let script = STAND_IN
        .replace("TOP/../calls-NUMBER", &calls.display().to_string())
        .replace("TOP", &slice.display().to_string());
    let busctl = runtime.path().join("busctl");
    fs::write(&busctl, script).unwrap();
    fs::set_permissions(&busctl, PermissionsExt::from_mode(0o700)).unwrap();

    let mut act = Actuator::open(config(runtime.path(), &busctl)).unwrap();
    assert_eq!(act.describe().tracking, Tracking::SystemdScope);
    let program = Program::start(&["tree", "2", "1"]);
    let home = act.admit(ONE, program.id, Work::Foreground).unwrap();
    let home = home.cgroup.unwrap();
    let instance = act
        .instance_dir()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let scope = slice.join(format!("usher-{instance}-1.scope"));
    assert_eq!(home, scope.join("usher"));
    let members = |dir: &Path| {
        fs::read_to_string(dir.join("cgroup.procs"))
            .unwrap()
            .lines()
            .count()
    };
    assert_eq!((members(&scope), members(&home)), (0, 3));
    let said = fs::read_to_string(&calls).unwrap();
    assert!(
        said.contains("Delegate b true") && said.contains("PIDs au 3 "),
        "{said}"
    );

    let cpus = "0".parse().unwrap();
    act.act(&Action::Seat { program: ONE, cpus }).unwrap();
    act.act(&Action::Freeze { program: ONE }).unwrap();
    let frozen = || {
        fs::read_to_string(home.join("cgroup.events"))
            .unwrap()
            .contains("frozen 1")
    };
    wait_until("the scope to stand still", frozen);
    act.depart(ONE).unwrap();
    wait_until("the scope to go on", || !frozen());
    assert_eq!(
        (members(&scope), members(&home)),
        (0, 3),
        "they stay in the scope"
    );
    for pid in program.processes() {
        assert_eq!(masks(pid).into_iter().collect::<Vec<_>>(), [cpu_list()]);
    }
    assert!(act.undo_all().is_empty());
    drop(program);
    // As systemd does with a scope that is empty.
    for dir in [&home, &scope, &slice] {
        wait_until("the scope to be empty", || fs::remove_dir(dir).is_ok());
    }
}

#[test]
fn without_an_answer_from_systemd_a_program_is_followed_by_its_pids() {
    if v2_mount().is_none() {
        eprintln!("not tested here: needs cgroup v2");
        return;
    }
    let runtime = tempfile::tempdir().unwrap();
    let mut act = Actuator::open(config(runtime.path(), Path::new("/nonexistent/busctl"))).unwrap();
    let program = Program::start(&["tree", "1", "0"]);
    let before = portrait(&program);
    assert_eq!(
        act.admit(ONE, program.id, Work::Foreground).unwrap().cgroup,
        None
    );
    let reasons = act.describe().reasons.join("; ");
    assert!(reasons.contains("/nonexistent/busctl"), "{reasons}");
    let cpus = "0".parse().unwrap();
    act.act(&Action::Seat { program: ONE, cpus }).unwrap();
    act.act(&Action::Freeze { program: ONE }).unwrap();
    wait_until("the tree to stop", || {
        portrait(&program).values().all(|(stopped, ..)| *stopped)
    });
    assert!(act.undo_all().is_empty());
    wait_until("the tree to be as before", || portrait(&program) == before);
}
