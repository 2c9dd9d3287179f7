// SPDX-License-Identifier: GPL-2.0-only
//! Daemons that are killed.

use crate::shell::{Shell, root};
use crate::state::{Program, disjoint, start_service, status, wait_for};

/// systemd or the keeper starts another daemon, which seats the programs again.
pub fn a_killed_daemon_seats_again() {
    start_service();
    let mut alice = Shell::of("alice");
    let programs = [2, 3].map(|threads| Program::launch(&mut alice, "usher run", threads));
    disjoint(&[&programs[0], &programs[1]]);
    let before = status()["pid"].clone();
    root("systemctl kill --kill-whom=main -s KILL usher").ok();
    wait_for("another daemon", || {
        let state = status();
        let count = state["programs"].as_array()?.len();
        (state["pid"] != before && count == 2).then_some(())
    });
    disjoint(&[&programs[0], &programs[1]]);
}

/// Daemon and keeper together. The next start releases attached programs.
pub fn a_killed_unit_undoes_all() {
    start_service();
    let (mut alice, mut bob) = (Shell::of("alice"), Shell::of("bob"));
    let launched = Program::launch(&mut alice, "usher run", 2);
    let attached = Program::start(&mut bob, 2);
    bob.run(&format!("usher attach {}", attached.pid)).ok();
    disjoint(&[&launched, &attached]);
    let cgroup = attached.cgroup();
    let before = status()["pid"].clone();
    root("systemctl kill -s KILL usher").ok();
    wait_for("another daemon", || {
        (status()["pid"] != before).then_some(())
    });
    attached.roams();
    root("systemctl stop usher").ok();
    launched.roams();
    assert_eq!(attached.cgroup(), cgroup);
}
