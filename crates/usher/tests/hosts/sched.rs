// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest that root can start and stop the sched_ext scheduler beside the service, and
//! that a user's attempt is refused in one line.

use std::fs;

use crate::shell::Shell;
use crate::state::{Program, start_service, wait_for};

/// Checks that root can start and stop the scheduler beside the service, and that a user is refused
/// in one line.
pub fn root_starts_and_stops_it() {
    start_service();
    let state = || fs::read_to_string("/sys/kernel/sched_ext/state").unwrap();
    let (mut alice, mut system) = (Shell::of("alice"), Shell::of("root"));
    alice.run("usher sched start 2>&1").refused();
    assert_eq!(state().trim(), "disabled");
    system.run("usher sched start").ok();
    assert_eq!(state().trim(), "enabled");
    let first = Program::launch(&mut alice, "usher run", 2);
    let second = Program::launch(&mut alice, "usher run", 2);
    wait_for("soft seats", || {
        let stats = system.run("usher sched stats --json");
        let stats: serde_json::Value = serde_json::from_str(&stats.text).ok()?;
        (stats["seats"].as_array()?.len() == 2).then_some(())
    });
    system.run("usher sched stop").ok();
    assert_eq!(state().trim(), "disabled");
    crate::state::disjoint(&[&first, &second]);
}
