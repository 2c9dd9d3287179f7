// SPDX-License-Identifier: GPL-2.0-only
//! `usher doctor --calibrate`: stored results and rejected requests. No test depends on the measured
//! errors, because other tests disturb every measurement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use common::{World, stderr, stdout};
use serde_json::Value;

/// A process that uses one CPU until it is dropped.
struct BusyLoop(Child);

impl BusyLoop {
    fn start() -> Self {
        let mut command = Command::new("sh");
        Self(command.args(["-c", "while :; do :; done"]).spawn().unwrap())
    }
}

impl Drop for BusyLoop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns whether this machine can be calibrated, and reports a skip if not.
fn can_calibrate() -> bool {
    let cores = std::thread::available_parallelism().unwrap().get();
    if cores < 2 {
        usher_skip::skip!("calibration: the machine has a single usable CPU");
    }
    cores >= 2
}

#[test]
fn a_calibration_is_stored_and_shown() {
    if !can_calibrate() {
        return;
    }
    let world = World::new();
    let none = world.json(&["doctor"]).unwrap();
    assert_eq!(none["calibration"], Value::Null);
    assert!(stdout(&world.run(&["doctor"])).contains("--calibrate' measures"));
    // The limit disables the check for other programs.
    let args = [
        "doctor",
        "--calibrate",
        "--run-seconds",
        "0.6",
        "--max-other-cpus",
        "100000",
    ];
    let output = world.run(&[&["--json"], &args[..]].concat());
    if stderr(&output).contains("too little CPU time") {
        usher_skip::skip!("calibration: the machine is too busy for a sample of every program");
        return;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let calibration = &answer["calibration"];
    assert_eq!(calibration["problem"], Value::Null, "{calibration}");
    let sources = calibration["sources"].as_array().unwrap();
    let names: Vec<_> = sources.iter().map(|one| &one["source"]).collect();
    assert!(names.contains(&&"cpu-time".into()), "{names:?}");
    assert!(
        sources
            .iter()
            .all(|one| one["error"].as_f64().unwrap() >= 0.0)
    );
    let plans = sources.iter().filter(|one| one["source"] == "cpu-time");
    assert!(plans.into_iter().all(|one| one["may_plan"] == false));
    // The store keeps the calibration for later commands.
    let later = world.json(&["doctor"]).unwrap();
    assert_eq!(&later["calibration"], calibration);
    assert_eq!(later["store"]["profiles"], 0, "no profile is stored");
    let text = stdout(&world.run(&["doctor"]));
    assert!(
        text.contains("errors of speed-ups") || text.contains("busy-waiting"),
        "{text}"
    );
}

#[test]
fn a_calibration_beside_two_busy_loops_is_refused() {
    if !can_calibrate() {
        return;
    }
    let world = World::new();
    let _loops = [BusyLoop::start(), BusyLoop::start()];
    let output = world.run(&["doctor", "--calibrate", "--max-wait", "1"]);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(message.contains("too busy to measure"), "{message}");
    assert_eq!(world.json(&["doctor"]).unwrap()["calibration"], Value::Null);
}

#[test]
fn a_forced_calibration_beside_two_busy_loops_is_shown_but_not_stored() {
    if !can_calibrate() {
        return;
    }
    let world = World::new();
    let _loops = [BusyLoop::start(), BusyLoop::start()];
    let output = world.run(&[
        "--json",
        "doctor",
        "--calibrate",
        "--force",
        "--run-seconds",
        "0.6",
    ]);
    let message = stderr(&output);
    assert!(
        message.contains("the result will be inaccurate"),
        "{message}"
    );
    if !message.contains("too little CPU time") {
        assert!(
            message.contains("the calibration was not stored"),
            "{message}"
        );
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let problem = answer["calibration"]["problem"].as_str().unwrap();
        assert!(problem.contains("was not stored"), "{answer}");
    }
    assert_eq!(world.json(&["doctor"]).unwrap()["calibration"], Value::Null);
}

#[test]
fn invalid_options_are_refused() {
    let world = World::new();
    for (args, reason) in [
        (&["doctor", "--force"][..], "--force requires --calibrate"),
        (
            &["doctor", "--run-seconds", "2"],
            "--run-seconds requires --calibrate",
        ),
        (
            &["doctor", "--calibrate", "--run-seconds", "0.1"],
            "from 0.6 to 60 seconds",
        ),
        (
            &["doctor", "--calibrate", "--run-seconds", "NaN"],
            "from 0.6 to 60 seconds",
        ),
        (
            &["doctor", "--calibrate", "--max-other-cpus", "-1"],
            "--max-other-cpus",
        ),
        (
            &["calibration-worker", "other", "1", "1"],
            "compute, memory, stream, busy-wait",
        ),
    ] {
        let output = world.run(args);
        assert_eq!(output.status.code(), Some(125), "{args:?}");
        let line = stderr(&output);
        assert!(
            line.contains(reason) && line.lines().count() == 1,
            "{args:?}: {line}"
        );
    }
}

#[test]
fn one_core_cannot_be_calibrated() {
    let world = World::new();
    let mut command = world.usher(&["doctor", "--calibrate"]);
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let mut first = rustix::thread::CpuSet::new();
    let cpus = 0..rustix::thread::CpuSet::MAX_CPU;
    first.set(cpus.into_iter().find(|&cpu| allowed.is_set(cpu)).unwrap());
    let bind = move || Ok(rustix::thread::sched_setaffinity(None, &first)?);
    // SAFETY: the closure makes one system call, and allocates nothing.
    unsafe { command.pre_exec(bind) };
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let line = stderr(&output);
    assert!(line.contains("cannot be calibrated on 1 core"), "{line}");
}
