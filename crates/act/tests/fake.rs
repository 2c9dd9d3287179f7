// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cpuset controller of cgroup v2, on a tree of plain files: what is
//! written where. One test, so that the instance's name is known beforehand.

#![allow(clippy::unwrap_used)] // a test that finds otherwise is to fail

mod common;

use std::fs;
use std::path::Path;

use common::*;
use usher_act::{ActConfig, ActError, Actuator, Backend, Freezing, Tracking, Work};
use usher_model::{Action, ProgramId};

const ONE: ProgramId = ProgramId(1);

/// The cgroup directories of a v2 hierarchy with the cpuset controller.
fn fake_cgroups(top: &Path, base: &Path, home: &Path) {
    cgroup(
        top,
        &[
            ("cgroup.controllers", "cpuset cpu io memory\n"),
            ("cgroup.subtree_control", "\n"),
            ("cgroup.procs", ""),
            ("cpuset.cpus.effective", "0-7\n"),
        ],
    );
    cgroup(
        base,
        &[
            ("cgroup.subtree_control", "\n"),
            ("cgroup.procs", ""),
            ("cpuset.cpus.effective", "0-7\n"),
        ],
    );
    cgroup(
        home,
        &[
            ("cgroup.procs", ""),
            ("cgroup.freeze", "0"),
            ("cpuset.cpus", "\n"),
        ],
    );
}

#[test]
fn the_v2_controller_is_enabled_and_written() {
    let dir = tempfile::tempdir().unwrap();
    let (proc, top) = (dir.path().join("proc"), dir.path().join("cgroup"));
    let program = Program::start(&["tree", "0", "0"]);
    fake_proc(&proc, &top, &[program.pid()]);
    let own = id_of(std::process::id() as i32);
    let base = top.join(format!("usher-{}-{}", own.pid, own.start_ticks));
    let home = base.join("1");
    fake_cgroups(&top, &base, &home);
    let mut config = ActConfig::new(dir.path().join("run"));
    (config.proc_root, config.cgroup_root) = (proc, top.clone());
    config.systemd_dir = "/nonexistent".into();
    let mut act = Actuator::open(config).unwrap();
    let description = act.describe().clone();
    if !rustix::process::geteuid().is_root() {
        eprintln!("tested as a user: its own cgroup is the top here as well");
    }
    assert_eq!(
        act.backend(),
        Backend::CpusetV2,
        "{:?}",
        description.reasons
    );
    assert_eq!(description.tracking, Tracking::CgroupV2(base.clone()));
    assert_eq!(description.freezing, Freezing::CgroupV2);
    let text = |dir: &Path, file: &str| fs::read_to_string(dir.join(file)).unwrap();
    for dir in [&top, &base] {
        assert_eq!(text(dir, "cgroup.subtree_control"), "+cpuset");
    }

    assert_eq!(
        act.admit(ONE, program.id, Work::Foreground).unwrap().cgroup,
        Some(home.clone())
    );
    assert_eq!(text(&home, "cgroup.procs"), program.pid().to_string());
    let seat = |cpus: &str| Action::Seat {
        program: ONE,
        cpus: cpus.parse().unwrap(),
    };
    act.act(&seat("2-3")).unwrap();
    assert_eq!(text(&home, "cpuset.cpus"), "2-3");
    // CPUs 4..7 go offline: what is left of the seat counts.
    fs::write(base.join("cpuset.cpus.effective"), "0-3\n").unwrap();
    act.act(&seat("1,5")).unwrap();
    assert!(text(&home, "cpuset.cpus").starts_with('1'));
    let error = act.act(&seat("5-6")).unwrap_err();
    assert!(matches!(error, ActError::NoCpus { .. }));
    assert!(
        error.to_string().contains("5-6") && error.to_string().contains("0-3"),
        "{error}"
    );
    act.act(&Action::Freeze { program: ONE }).unwrap();
    assert_eq!(text(&home, "cgroup.freeze"), "1");
    fs::write(home.join("cpuset.cpus"), "").unwrap();
    act.act(&Action::Release { program: ONE }).unwrap();
    assert_eq!(
        text(&home, "cpuset.cpus"),
        "\n",
        "it follows its parent again"
    );

    // Plain files do not go away as the kernel's do, so what is left is said.
    let left = act.depart(ONE).unwrap_err().to_string();
    assert!(left.contains("removing cgroup"), "{left}");
    assert_eq!(text(&home, "cgroup.freeze"), "0");
    assert_eq!(text(&top, "cgroup.procs"), program.pid().to_string());
}
