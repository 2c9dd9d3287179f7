// SPDX-License-Identifier: GPL-2.0-only
//! Tests that the reasons in `usher status` and `usher explain` agree with the measured state.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Stdio;

use common::{World, signal, stdout, wait_for};
use serde_json::Value;

/// Beats on two threads until it is killed, if the test below runs this test in a process of its
/// own.
#[test]
fn beats_on_two_threads() {
    if std::env::var_os("USHER_TEST_BEATS").is_none() {
        return;
    }
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let heart = usher_heartbeat::Heartbeat::from_env();
                loop {
                    std::hint::black_box((0..100_000).sum::<u64>());
                    heart.beat(1);
                }
            });
        }
    });
}

#[test]
fn reasons_do_not_contradict_the_measured_progress() {
    let mut world = World::new();
    world.daemon(&[]);
    let test = std::env::current_exe().unwrap();
    let test = test.to_str().unwrap();
    let start = |name: &str| {
        let words = [
            "run",
            "--name",
            name,
            "--",
            test,
            "--exact",
            "beats_on_two_threads",
        ];
        let mut command = world.usher(&words);
        command.env("USHER_TEST_BEATS", "1").stdout(Stdio::null());
        command.spawn().unwrap()
    };
    let mut launchers = [start("alpha"), start("beta")];
    let beats = |program: &Value| {
        program["progress"]["source"] == "heartbeat" && program["progress"]["confidence"] == 1.0
    };
    // From the first heartbeats on, no state may name the lack of progress as the reason.
    let seated = |state: &Value| {
        let programs = state["programs"].as_array().unwrap();
        let all = programs.len() == 2 && programs.iter().all(beats);
        assert!(
            !all || state["abstention"]["cause"] != "progress",
            "{state:#}"
        );
        all && programs.iter().all(|program| program["mode"] == "seated")
    };
    wait_for("seats of both programs", || {
        let explained = world.json(&["explain"])?;
        let found = seated(&explained["state"]);
        // No curve has been measured yet when the first seats are given.
        found.then_some(())
    });
    let text = stdout(&world.run(&["explain"]));
    assert!(!text.contains("cpu-time"), "{text}");
    for program in world.programs(2) {
        signal(program["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    }
    launchers.iter_mut().for_each(|launcher| {
        launcher.wait().unwrap();
    });
}
