// SPDX-License-Identifier: GPL-2.0-only
//! Checks the installed systemd unit in a guest: start, answers to users, stop, and a restart
//! during which programs keep running.

use std::path::Path;

use crate::shell::{Shell, root};
use crate::state::{Program, own_cgroups, start_service, status, wait_for};

/// Checks that users get answers from the daemon while the service runs, and a one-line error
/// afterwards.
pub fn starts_answers_and_stops() {
    root("systemctl start usher").ok();
    assert_eq!(root("systemctl is-active usher").ok(), "active\n");
    let mut alice = Shell::of("alice");
    let answer = alice.run("usher status --json").ok();
    let state: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(state["acting"], "affinity masks", "{state}");
    alice.run("usher doctor").ok();
    assert_eq!(alice.run("usher run -- sh -c 'exit 7'").status, 7);
    root("systemctl stop usher").ok();
    assert_eq!(root("systemctl show -P Result usher").ok(), "success\n");
    assert!(!Path::new("/run/usher/usher.varlink").exists());
    alice.run("usher status").refused();
}

/// Checks that an orderly restart releases programs, and that their launchers register them again.
pub fn a_restart_keeps_programs() {
    start_service();
    let mut alice = Shell::of("alice");
    let first = Program::launch(&mut alice, "usher run", 3);
    let second = Program::launch(&mut alice, "usher run", 2);
    crate::state::disjoint(&[&first, &second]);
    let before = status()["pid"].clone();
    root("systemctl restart usher").ok();
    assert_ne!(status()["pid"], before);
    assert!(first.lives() && second.lives());
    root("systemctl stop usher").ok();
    first.roams();
    second.roams();
    drop((first, second));
    wait_for("cgroups to be removed", || {
        own_cgroups().is_empty().then_some(())
    });
}
