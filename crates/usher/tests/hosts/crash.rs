// SPDX-License-Identifier: GPL-2.0-only
//! Daemons that are killed.

use crate::shell::{Shell, root};
use crate::state::{Program, disjoint, start_service, start_service_with, status, wait_for};

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

/// Daemon, keeper and launchers at once, without a restart: what undoes then is
/// `ExecStopPost=`. Programs are launched, attached, demoted and stopped.
pub fn the_unit_undoes_all_by_itself() {
    start_service_with("Restart=no\n");
    let (mut alice, mut bob) = (Shell::of("alice"), Shell::of("bob"));
    let seated = [
        Program::launch(&mut alice, "usher run", 2),
        Program::start(&mut bob, 2),
    ];
    bob.run(&format!("usher attach {}", seated[1].pid)).ok();
    let yielding = [
        Program::launch(&mut alice, "usher bg", 2),
        Program::start(&mut bob, 1),
    ];
    bob.run(&format!("usher bg --attach {}", yielding[1].pid))
        .ok();
    disjoint(&[&seated[0], &seated[1]]);
    // More threads than CPUs, which compute without a pause: background work is stopped.
    let busy = bob.start("exec bash -c 'for i in {1..9}; do while :; do :; done & done; wait'");
    wait_for("background work to be stopped", || {
        let stopped = yielding.iter().all(Program::is_stopped);
        stopped.then_some(())
    });
    let launchers = format!("{} {}", seated[0].launcher(), yielding[0].launcher());
    // In an emulated machine the busy threads would slow down the undo, too.
    root(&format!(
        "kill -9 {launchers}; systemctl kill -s KILL usher; \
         kill -9 $(cat /proc/{busy}/task/*/children) {busy}"
    ))
    .ok();
    all_undone(&seated, &yielding);
}

/// The same, where `systemctl stop` comes right after the kill.
pub fn a_killed_unit_that_is_stopped_undoes_all() {
    start_service();
    let (mut alice, mut bob) = (Shell::of("alice"), Shell::of("bob"));
    let seated = [
        Program::launch(&mut alice, "usher run", 2),
        Program::start(&mut bob, 2),
    ];
    bob.run(&format!("usher attach {}", seated[1].pid)).ok();
    disjoint(&[&seated[0], &seated[1]]);
    let launcher = seated[0].launcher();
    root(&format!(
        "kill -9 {launcher}; systemctl kill -s KILL usher; systemctl stop usher"
    ))
    .ok();
    all_undone(&seated, &[]);
}

/// Waits until programs run where and as they did before, and prints how long after the
/// daemon's end that was.
fn all_undone(seated: &[Program], yielding: &[Program]) {
    let all = Some(crate::state::everywhere());
    wait_for("everything to be undone", || {
        let wide = seated.iter().all(|one| one.mask() == all);
        let stopped = yielding.iter().any(Program::is_stopped);
        let lowered = yielding.iter().any(|one| one.priority() != (0, 0));
        (wide && !stopped && !lowered).then_some(())
    });
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_ms = now.tv_sec * 1000 + now.tv_nsec / 1_000_000;
    let ended = root("systemctl show -P ExecMainExitTimestampMonotonic usher").ok();
    let ended_us: i64 = ended.trim().parse().unwrap();
    println!(
        "undone {} ms after the daemon's end",
        now_ms - ended_us / 1000
    );
    let state = root("systemctl show -P ActiveState usher").ok();
    assert_ne!(state, "active\n");
}
