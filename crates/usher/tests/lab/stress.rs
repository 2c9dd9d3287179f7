// SPDX-License-Identifier: GPL-2.0-only
//! Runs the sched_ext scheduler under stress-ng's stressors for a minute each, and starts and stops
//! it fifty times, in a guest. A check fails if the kernel ended the scheduler for a fault.

use std::process::{Command, Stdio};

use crate::common::{World, stderr, wait_for};
use crate::sched::{Running, assert_nothing_went_wrong, sched_ext_file};

/// Duration of each stressor.
const SECONDS: &str = "60";
const STARTS: usize = 50;
/// Exit status of stress-ng if its counts of operations may be wrong (stress-ng(1)), because a
/// worker was ended while it counted. The affinity stressor does this to its own workers.
const UNSURE_OF_COUNTS: i32 = 7;

/// Runs these stressors for a minute, and checks that the scheduler has no fault and ends cleanly.
fn under(stressors: &[&str]) {
    let world = World::new();
    let running = Running::start(&world);
    let output = Command::new("stress-ng")
        .args(["--timeout", SECONDS, "--quiet"])
        .args(stressors)
        .current_dir(world.path("."))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let says = output.status.code();
    assert!(
        matches!(says, Some(0 | UNSURE_OF_COUNTS)),
        "{stressors:?}: {says:?}, {}",
        stderr(&output)
    );
    // Polls, because the scheduler restarts after CPU hotplug.
    wait_for("the scheduler to run", || {
        (running.status()["running"] == true).then_some(())
    });
    drop(running);
    assert_eq!(sched_ext_file("state"), "disabled");
    assert_nothing_went_wrong();
}

pub fn switches_yields_and_changes_of_policy() {
    under(&["--switch", "2", "--yield", "2", "--schedpolicy", "2"]);
}

pub fn forks() {
    // The daemon stressor makes chains of children, each of which ends when the next is created.
    under(&["--fork", "4", "--vfork", "2", "--daemon", "1"]);
}

pub fn affinities() {
    under(&["--affinity", "8", "--switch", "2"]);
}

pub fn cpus_that_come_and_go() {
    under(&["--cpu-online", "1", "--affinity", "2", "--switch", "2"]);
}

/// Starts and ends the scheduler fifty times; in between, the kernel's own scheduler runs all
/// threads.
pub fn fifty_starts_and_ends() {
    let world = World::new();
    for _ in 0..STARTS {
        drop(Running::start(&world));
        assert_eq!(sched_ext_file("state"), "disabled");
    }
    assert_nothing_went_wrong();
}
