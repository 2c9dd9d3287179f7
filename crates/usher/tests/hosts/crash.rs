// SPDX-License-Identifier: GPL-2.0-only
//! Kills daemon, keeper and launchers in all combinations under systemd, in a guest, and checks
//! that masks, priorities and frozen programs are restored within the documented times.

use crate::kills::{Killed, round};
use crate::shell::{Shell, root};
use crate::state::{Program, disjoint, everywhere, start_service, status, wait_for};

/// Kills the daemon. systemd or the keeper starts another daemon, which seats the programs again.
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

/// Kills daemon and keeper at once. The next start of the unit releases attached programs.
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

/// Kills daemon, keeper and launchers at once, without a restart of the unit: `ExecStopPost=`
/// undoes all changes. The programs are launched, attached, demoted and stopped programs.
pub fn the_unit_undoes_all_by_itself() {
    let (mut alice, mut bob) = (Shell::of("alice"), Shell::of("bob"));
    let took = round(Killed::All, &mut alice, &mut bob);
    println!("undone {} ms after the kills", took.as_millis());
}

/// Kills daemon, keeper and launcher, and runs `systemctl stop` right after the kill.
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
    let all = Some(everywhere());
    wait_for("everything to be undone", || {
        let wide = seated.iter().all(|one| one.mask() == all);
        wide.then_some(())
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
