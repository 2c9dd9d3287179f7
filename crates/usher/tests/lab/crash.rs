// SPDX-License-Identifier: GPL-2.0-only
//! Kills the daemon, alone or with its keeper, in a guest, and checks that keeper or launchers undo
//! its actions and that no cgroup controller is enabled meanwhile.

use std::fs;

use crate::common::{World, signal, wait_for};
use crate::seats::{Programs, cleared, machine, seated};

const CONTROL: &str = "/sys/fs/cgroup/cgroup.subtree_control";

/// Kills the daemon. The keeper undoes the daemon's actions and starts another daemon, which seats
/// all programs again.
pub fn a_killed_daemon_is_replaced() {
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    let machine = machine();
    let programs = Programs::run(&world, 3);
    seated(&programs, &machine);
    signal(daemon, libc::SIGKILL);
    world.reap(daemon);
    let next = wait_for("the keeper to start another daemon", || {
        let status = world.json(&["status"])?;
        let all_managed = status["programs"].as_array()?.len() == 3;
        all_managed.then(|| status["pid"].as_i64())?
    });
    assert_ne!(next, i64::from(daemon));
    seated(&programs, &machine);
    signal(next as i32, libc::SIGTERM);
    programs.roam(&machine.all_cpus());
    cleared();
}

/// Kills daemon and keeper, so that neither is left. No cgroup controller is enabled meanwhile.
pub fn without_a_keeper_launchers_undo() {
    let enabled = || fs::read_to_string(CONTROL).unwrap();
    let before = enabled();
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    let machine = machine();
    let programs = Programs::run(&world, 3);
    seated(&programs, &machine);
    assert_eq!(enabled(), before);
    world.kill_with_keeper(daemon);
    programs.roam(&machine.all_cpus());
    // The launchers have restored the masks; the next instance removes the cgroups.
    let daemon = world.daemon(&["--policy", "equal"]);
    seated(&programs, &machine);
    assert_eq!(world.end(daemon), Some(0));
    programs.roam(&machine.all_cpus());
    cleared();
    assert_eq!(enabled(), before);
}
