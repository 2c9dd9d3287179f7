// SPDX-License-Identifier: GPL-2.0-only
//! Tests of `usher run --cores` and `usher run --copies`: seats without a profile, placeholders,
//! streams, signals and exit statuses.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::process::Stdio;

use common::{World, allowed, lives, signal, stderr, stdout, wait_for};

/// The number of CPUs that this process may use, and the number of their cores.
fn cpus(world: &World) -> (usize, usize) {
    let machine = world.json(&["topo"]).unwrap();
    let usable = std::thread::available_parallelism().unwrap().get();
    let threads = machine["cpus"].as_array().unwrap().len() / cores(&machine);
    (usable, usable / threads)
}

fn cores(machine: &serde_json::Value) -> usize {
    machine["cores"].as_array().unwrap().len()
}

#[test]
fn a_fixed_seat_needs_no_profile_and_is_explained() {
    let mut world = World::new();
    world.daemon(&[]);
    let (cpus, cores) = cpus(&world);
    if cores < 2 {
        usher_skip::skip!("this machine has one core");
        return;
    }
    let mut one = world
        .usher(&["run", "--cores", "1", "--", "sleep", "1000"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let program = world.programs(1).remove(0);
    assert_eq!(program["cores"], 1);
    assert_eq!(program["mode"], "seated");
    let pid = program["pid"].as_i64().unwrap() as i32;
    let mask = wait_for("the seat", || allowed(pid).filter(|_| lives(pid)));
    let list: Vec<&str> = mask.split([',', '-']).collect();
    assert!(list.len() <= 2 && mask.len() < 10, "{mask}");
    assert_ne!(mask, format!("0-{}", cpus - 1));
    let explained = stdout(&world.run(&["explain"]));
    let expected = "fixed at 1 core by --cores or a rule";
    assert!(explained.contains(expected), "{explained}");
    let mut other = world
        .usher(&["run", "--", "sleep", "1001"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let programs = world.programs(2);
    let is_free = |program: &&serde_json::Value| program["cores"].is_null();
    let free = programs.iter().find(is_free).unwrap()["pid"]
        .as_i64()
        .unwrap() as i32;
    let headline = "only programs with a fixed number of cores have seats";
    for command in ["status", "explain"] {
        let text = stdout(&world.run(&[command]));
        assert!(text.contains(headline), "{text}");
    }
    for pid in [pid, free] {
        signal(pid, libc::SIGTERM);
    }
    assert_eq!(other.wait().unwrap().code(), Some(128 + libc::SIGTERM));
    assert_eq!(one.wait().unwrap().code(), Some(128 + libc::SIGTERM));
}

#[test]
fn invalid_numbers_of_cores_and_copies_are_rejected() {
    let world = World::new();
    let rejected = |args: &[&str], expected: &str| {
        let output = world.run(args);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{args:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    };
    let (_, cores) = cpus(&world);
    for text in ["0", "-1", "99999", "many"] {
        let expected = format!("must be a whole number from 1 to {cores}");
        rejected(&["run", "--cores", text, "--", "true"], &expected);
        rejected(&["run", "--copies", "0", "--", "true"], "from 1 to 4096");
    }
    let expected = format!("and this process may use {cores}");
    let copies = (cores + 1).to_string();
    let args = ["run", "--copies", &copies, "--cores", "1", "--", "true"];
    rejected(&args, &expected);
    rejected(
        &["run", "--cores", "1", "--no-daemon", "--", "true"],
        "--no-daemon",
    );
    rejected(
        &["run", "--copies", "2", "--no-daemon", "--", "true"],
        "--no-daemon",
    );
    let missing = world.run(&["run", "--copies", "2", "--", "usher-no-such-program"]);
    assert_eq!(missing.status.code(), Some(127), "{}", stderr(&missing));
}

#[test]
fn each_copy_has_its_number_its_cpus_and_a_seat() {
    let mut world = World::new();
    world.daemon(&[]);
    let (cpus, cores) = cpus(&world);
    let script = "echo {copy} {cpus} $(nproc) > \"$0.{copy}\"; cat >> \"$0.{copy}\"";
    let base = world.path("out");
    let copies = cores.min(2);
    let mut command = world.usher(&["run", "--copies", &copies.to_string(), "--", "sh", "-c"]);
    command.arg(script).arg(&base).stdin(Stdio::piped());
    let mut run = command.spawn().unwrap();
    std::io::Write::write_all(&mut run.stdin.take().unwrap(), b"input\n").unwrap();
    assert!(run.wait().unwrap().success());
    let each = cpus / copies;
    for copy in 1..=copies {
        let text = fs::read_to_string(world.path(&format!("out.{copy}"))).unwrap();
        let input = if copy == 1 { "input\n" } else { "" };
        assert_eq!(text, format!("{copy} {each} {each}\n{input}"));
    }
}

#[test]
fn the_status_is_that_of_the_first_copy_that_failed() {
    let mut world = World::new();
    world.daemon(&["--policy", "linux"]);
    let status = |script: &str| {
        let args = ["run", "--copies", "3", "--", "sh", "-c", script];
        world.run(&args).status.code()
    };
    assert_eq!(status("exit 0"), Some(0));
    assert_eq!(status("[ {copy} = 1 ] || exit 1{copy}"), Some(12));
    assert_eq!(status("[ {copy} = 3 ] && kill -KILL $$ || true"), Some(137));
}

#[test]
fn signals_reach_every_copy() {
    let mut world = World::new();
    world.daemon(&["--policy", "linux"]);
    let mut run = world
        .usher(&["run", "--copies", "3", "--", "sleep", "1000"])
        .spawn()
        .unwrap();
    let programs = world.programs(3);
    let is_sleep = |pid: i32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        (name.is_ok_and(|name| name == "sleep\n")).then_some(())
    };
    for program in &programs {
        let pid = program["pid"].as_i64().unwrap() as i32;
        wait_for("the copy", || is_sleep(pid));
    }
    signal(run.id() as i32, libc::SIGTERM);
    assert_eq!(run.wait().unwrap().code(), Some(128 + libc::SIGTERM));
    let none = || world.programs(0).is_empty().then_some(());
    wait_for("the end of all copies", none);
}
