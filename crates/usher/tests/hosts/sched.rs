// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest that root can start and stop the sched_ext scheduler beside the service, and
//! that a user's attempt is refused in one line.

use std::fs;

use serde_json::Value;

use crate::shell::{Shell, root};
use crate::state::{Program, start_service, status, wait_for};

/// Checks that the system unit's daemon can hold the scheduler, with the rights that its sandbox
/// leaves, and that a user is refused in one line.
pub fn the_service_holds_it() {
    start_service();
    let service = status()["pid"].clone();
    let (mut alice, mut system) = (Shell::of("alice"), Shell::of("root"));
    for command in ["start", "set --smt off", "stop"] {
        alice.run(&format!("usher sched {command} 2>&1")).refused();
    }
    assert_eq!(loaded(), "disabled");
    let pids = system.run("pgrep -x usher").ok();
    system.run("usher sched start").ok();
    assert_eq!(loaded(), "enabled");
    assert_eq!(sched_status(&mut alice)["last"]["pid"], service);
    let first = Program::launch(&mut alice, "usher run", 2);
    let second = Program::launch(&mut alice, "usher run", 2);
    wait_for("soft seats", || {
        let stats = system.run("usher sched stats --json");
        let stats: Value = serde_json::from_str(&stats.text).ok()?;
        (stats["seats"].as_array()?.len() == 2).then_some(())
    });
    let set = system.run("usher sched set --smt off --json").ok();
    let set: Value = serde_json::from_str(&set).unwrap();
    assert_eq!(set["settings"]["smt"], false, "{set}");
    alice.run("usher sched stop 2>&1").refused();
    system.run("usher sched start 2>&1").refused();
    assert_eq!(loaded(), "enabled");
    system.run("usher sched stop").ok();
    assert_eq!(loaded(), "disabled");
    assert_eq!(sched_status(&mut alice)["last"]["ended"], "stopped");
    crate::state::disjoint(&[&first, &second]);
    drop((first, second));
    assert_eq!(
        system.run("pgrep -x usher").ok(),
        pids,
        "no process is left"
    );
}

/// Checks that `usher sched start` starts the service if it does not run, that the service stays
/// after the end of the scheduler, and that its own end unloads the scheduler.
pub fn a_start_starts_the_service() {
    root("systemctl stop usher").ok();
    root("usher sched start").ok();
    assert_eq!(root("systemctl is-active usher").ok(), "active\n");
    assert_eq!(loaded(), "enabled");
    root("usher sched stop").ok();
    assert_eq!(root("systemctl is-active usher").ok(), "active\n");
    root("usher sched start").ok();
    root("systemctl stop usher").ok();
    assert_eq!(loaded(), "disabled");
}

/// Kills the service: the kernel must unload the scheduler, and the service must restart without
/// it.
pub fn a_killed_service_unloads_it() {
    start_service();
    root("usher sched start").ok();
    let before = status()["pid"].clone();
    root("systemctl kill --signal=KILL --kill-whom=main usher").ok();
    wait_for("the kernel's own scheduler", || {
        (loaded() == "disabled").then_some(())
    });
    wait_for("the service to restart", || {
        let answer = root("usher status --json");
        let status: Value = serde_json::from_str(&answer.text).ok()?;
        (status["pid"] != before).then_some(())
    });
    let mut system = Shell::of("root");
    let status = sched_status(&mut system);
    let ended = status["last"]["ended"].as_str().unwrap();
    assert!(ended.contains("was killed"), "{ended}");
}

/// Checks that `--foreground` needs no service, and holds the scheduler until it is stopped.
pub fn the_foreground_needs_no_service() {
    root("systemctl stop usher").ok();
    let mut system = Shell::of("root");
    let pid = system.start("exec usher sched start --foreground");
    wait_for("the scheduler", || {
        (sched_status(&mut system)["running"] == true).then_some(())
    });
    assert_eq!(sched_status(&mut system)["last"]["pid"], pid);
    assert_ne!(root("systemctl is-active usher").status, 0);
    system.run("usher sched stop").ok();
    assert_eq!(loaded(), "disabled");
}

fn loaded() -> String {
    let state = fs::read_to_string("/sys/kernel/sched_ext/state");
    state.unwrap().trim().to_owned()
}

fn sched_status(shell: &mut Shell) -> Value {
    serde_json::from_str(&shell.run("usher sched status --json").ok()).unwrap()
}
