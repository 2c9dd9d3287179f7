// SPDX-License-Identifier: GPL-2.0-only
//! Tests of `usher advise`: its output, and programs that cannot be measured. The choice itself is
//! tested with synthetic programs (crate policy, `tests/advise.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::process::{Output, Stdio};

use common::{World, signal, stderr, stdout, wait_for};
use serde_json::Value;

/// Options that accept a busy machine, because other tests run at the same time.
const FORCE: [&str; 2] = ["advise", "--force"];

fn advise(world: &World, options: &[&str], command: &[&str]) -> Output {
    let mut run = world.usher(&FORCE);
    run.args(options).arg("--").args(command);
    run.output().unwrap()
}

fn cpus() -> u64 {
    std::thread::available_parallelism().unwrap().get() as u64
}

#[test]
fn the_answer_names_copies_cpus_and_command_lines() {
    let world = World::new();
    let svg = world.path("advice.svg");
    let options = ["--json", "--sweep", "1", "--svg", svg.to_str().unwrap()];
    let script = "[ {cpus} = $(nproc) ] && [ {copy} -ge 1 ] && sleep 0.3";
    let output = advise(&world, &options, &["sh", "-c", script]);
    assert!(output.status.success(), "{}", stderr(&output));
    let answer: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let advice = &answer["advice"];
    let copies = advice["copies"].as_u64().unwrap();
    assert!((1..=cpus()).contains(&copies), "{answer}");
    assert!(advice["throughput"].as_f64().unwrap() > 0.0);
    let configurations = answer["configurations"].as_array().unwrap();
    let first = &configurations[0];
    assert_eq!(first["copies"], 1);
    assert!(
        configurations.iter().any(|one| one["copies"] == cpus()),
        "{answer}"
    );
    for one in configurations {
        assert_eq!(one["throughputs"].as_array().unwrap().len(), 1, "{one}");
        assert_eq!(one["failed"], false);
    }
    let usher = answer["commands"]["usher"].as_str().unwrap();
    assert!(
        usher.starts_with(&format!("usher run --copies {copies} ")),
        "{usher}"
    );
    assert!(usher.contains("{cpus}"), "{usher}");
    let xargs = answer["commands"]["xargs"].as_str().unwrap();
    assert!(
        xargs.starts_with(&format!("seq {copies} | xargs -P {copies} ")),
        "{xargs}"
    );
    assert!(
        fs::read_to_string(svg)
            .unwrap()
            .contains("copies per second")
    );
}

#[test]
fn the_command_line_for_xargs_runs_the_configuration() {
    let world = World::new();
    let dir = world.path("");
    let script = format!(
        "sleep 0.2; echo {{cpus}} > '{}/out {{copy}}'",
        dir.display()
    );
    let output = advise(&world, &["--json", "--sweep", "1"], &["sh", "-c", &script]);
    let answer: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let copies = answer["advice"]["copies"].as_u64().unwrap();
    for copy in 1..=cpus() {
        let _ = fs::remove_file(dir.join(format!("out {copy}")));
    }
    let xargs = answer["commands"]["xargs"].as_str().unwrap();
    let run = std::process::Command::new("sh")
        .args(["-c", xargs])
        .status();
    assert!(run.unwrap().success(), "{xargs}");
    for copy in 1..=copies {
        let text = fs::read_to_string(dir.join(format!("out {copy}"))).unwrap();
        assert_eq!(text.trim(), answer["advice"]["cpus"].to_string());
    }
}

#[test]
fn a_program_that_cannot_run_twice_gets_one_copy() {
    let world = World::new();
    if cpus() < 2 {
        usher_skip::skip!("this machine has one CPU");
        return;
    }
    let lock = world.path("lock");
    let script = "mkdir \"$0\" || { echo locked >&2; exit 3; }; sleep 0.4; rmdir \"$0\"";
    let command = ["sh", "-c", script, lock.to_str().unwrap()];
    let output = advise(&world, &["--json"], &command);
    assert!(output.status.success(), "{}", stderr(&output));
    let answer: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(answer["advice"]["copies"], 1, "{answer}");
    let notes = answer["notes"].to_string();
    let expected = "the program cannot run twice at a time: a copy ended with exit status 3";
    assert!(notes.contains(expected), "{notes}");
    assert!(notes.contains("locked"), "{notes}");
    let text = stderr(&output);
    assert!(text.contains("does not contain {cpus}"), "{text}");
}

#[test]
fn programs_that_cannot_be_measured_give_one_line() {
    let world = World::new();
    let rejected = |command: &[&str], code: i32, expected: &str| {
        let output = advise(&world, &[], command);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{command:?}: {text}");
        let mut lines = text.lines().filter(|line| line.starts_with("usher: "));
        let last = lines.next_back().unwrap();
        assert!(last.contains(expected), "{command:?}: {text}");
        assert_eq!(stdout(&output), "", "{command:?}");
    };
    let failing = ["sh", "-c", "echo no input >&2; exit 7 # {cpus}"];
    rejected(&failing, 125, "ended with exit status 7");
    rejected(&failing, 125, "no input");
    rejected(
        &["sh", "-c", "tty -s < /dev/tty"],
        125,
        "without a terminal",
    );
    rejected(&["true", "{cpus}"], 125, "too short to measure");
    rejected(&["usher-no-such-program"], 127, "usher-no-such-program");
    let once = world.path("once");
    let script = "sleep 0.2; mkdir \"$0\"";
    let once = ["sh", "-c", script, once.to_str().unwrap()];
    rejected(&once, 125, "succeeded once, and then failed");
    let slow = advise(&world, &["--timeout", "0.2"], &["sleep", "1000"]);
    assert!(
        stderr(&slow).contains("did not end within 0.2 s"),
        "{}",
        stderr(&slow)
    );
}

#[test]
fn advice_of_a_disturbed_measurement_is_marked() {
    let world = World::new();
    let loops = ["-c", "while :; do :; done"];
    let mut busy = std::process::Command::new("sh")
        .args(loops)
        .spawn()
        .unwrap();
    let output = advise(&world, &["--json", "--sweep", "1"], &["sleep", "0.2"]);
    busy.kill().unwrap();
    busy.wait().unwrap();
    let text = stderr(&output);
    assert!(
        text.contains("will be inaccurate, because the machine is busy"),
        "{text}"
    );
    let answer: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(answer["advice"]["certain"], false, "{answer}");
    let notes = answer["notes"].to_string();
    assert!(notes.contains("the advice is unreliable"), "{notes}");
    assert!(!notes.contains("serial"), "{notes}");
}

#[test]
fn a_single_measured_configuration_is_not_called_the_best() {
    let world = World::new();
    let output = advise(&world, &["--max-seconds", "0.001"], &["sleep", "0.2"]);
    let text = stdout(&output);
    assert!(
        text.contains("no other configuration was measured"),
        "{text}"
    );
}

#[test]
fn an_interruption_ends_all_copies() {
    let world = World::new();
    let marker = world.path("pids");
    let script = "echo $$ >> \"$0\"; sleep 1000";
    let mut run = world
        .usher(&FORCE)
        .args(["--", "sh", "-c", script])
        .arg(&marker)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid: i32 = wait_for("the first copy", || {
        fs::read_to_string(&marker)
            .ok()?
            .lines()
            .next()?
            .parse()
            .ok()
    });
    signal(run.id() as i32, libc::SIGINT);
    assert_eq!(run.wait().unwrap().code(), Some(128 + libc::SIGINT));
    wait_for("the end of the copy", || {
        (!common::lives(pid)).then_some(())
    });
}
