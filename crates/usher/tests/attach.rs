// SPDX-License-Identifier: GPL-2.0-only
//! Tests of `usher attach`, `detach`, `status` and `explain`: rejected processes, names as `status`
//! prints them, and the reasons in both outputs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command};

use common::{Sleeper, World, children, signal, stderr, stdout, wait_for};
use serde_json::json;

/// Starts a launcher of a program that sleeps.
fn launch_sleep(world: &World) -> (Child, i32) {
    let launcher = world.usher(&["run", "--", "sleep", "1000"]).spawn();
    let launcher = launcher.unwrap();
    let pid = wait_for("the program to run", || {
        let pid = *children(launcher.id() as i32).first()?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        line.starts_with(b"sleep\0").then_some(pid)
    });
    (launcher, pid)
}

fn end(mut launcher: Child, pid: i32) {
    signal(pid, libc::SIGKILL);
    launcher.wait().unwrap();
}

#[test]
fn a_pid_that_is_given_twice_is_attached_once() {
    let mut world = World::new();
    world.daemon(&[]);
    for command in [&["attach"][..], &["bg", "--attach"]] {
        let sleeper = Sleeper::start();
        let pid = sleeper.pid().to_string();
        let output = world.run(&[command, &[&pid, &pid]].concat());
        assert!(output.status.success(), "{command:?}: {}", stderr(&output));
        assert_eq!(stdout(&output).lines().count(), 1);
        world.programs(1);
        drop(sleeper);
        world.programs(0);
    }
}

#[test]
fn explain_reports_why_a_program_registered_again_has_no_cgroup_of_its_own() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let (launcher, pid) = launch_sleep(&world);
    world.programs(1);
    signal(daemon, libc::SIGKILL);
    world.reap(daemon);
    wait_for("the program to be registered again", || {
        let status = world.json(&["status"])?;
        let is_again = status["pid"] != json!(daemon);
        (is_again && status["programs"][0]["pid"] == json!(pid)).then_some(())
    });
    let cgroup = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    if cgroup(pid) == cgroup(launcher.id() as i32) {
        let text = stdout(&world.run(&["explain", &pid.to_string()]));
        assert!(
            text.contains("the program has no cgroup of its own: "),
            "{text}"
        );
    } else {
        usher_skip::skip!("the program has kept a cgroup of its own");
    }
    end(launcher, pid);
    world.programs(0);
}

#[test]
fn status_gives_one_reason_for_programs_without_a_profile() {
    let mut world = World::new();
    world.daemon(&[]);
    let (launcher, pid) = launch_sleep(&world);
    let text = wait_for("the reason", || {
        let text = stdout(&world.run(&["status"]));
        text.contains("'sleep' has no profile").then_some(text)
    });
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("no program has a seat"), "{text}");
    assert_eq!(text.matches("no profile").count(), 1, "{text}");
    let remedy = "  remedy:  run 'usher profile -- sleep …' once if the program ends by itself";
    assert!(text.contains(remedy), "{text}");
    end(launcher, pid);
    // A running program cannot be profiled.
    world.programs(0);
    let sleeper = Sleeper::start();
    let attached = world.run(&["attach", &sleeper.pid().to_string()]);
    assert!(attached.status.success(), "{}", stderr(&attached));
    let remedy = "  remedy:  restart the program with a fixed seat ('usher run --cores N'), or set";
    wait_for("the remedy for a running program", || {
        let text = stdout(&world.run(&["status"]));
        assert!(!text.contains("usher profile"), "{text}");
        text.contains(remedy).then_some(())
    });
}

#[test]
fn names_are_accepted_as_status_prints_them() {
    let mut world = World::new();
    world.daemon(&[]);
    for name in [&b"s\x1b[1m"[..], b"s\xff\xfe", b"s\r\x7f\t"] {
        let file = world.path("bin").join(OsStr::from_bytes(name));
        let _ = fs::create_dir(world.path("bin"));
        common::copy_program("/bin/sleep", &file);
        let mut program = Command::new(&file).arg("1000").spawn().unwrap();
        let attached = world.run(&["attach", &program.id().to_string()]);
        assert!(attached.status.success(), "{}", stderr(&attached));
        world.programs(1);
        let text = stdout(&world.run(&["status"]));
        let pid = program.id().to_string();
        let rows = text.lines().map(|line| line.split_whitespace().collect());
        let row: Vec<&str> = rows
            .into_iter()
            .find(|row: &Vec<&str>| row.get(2) == Some(&&*pid))
            .unwrap();
        let shown = row[1];
        let explained = world.run(&["explain", shown]);
        assert!(explained.status.success(), "{}", stderr(&explained));
        // As `ps` prints it.
        let mut raw = world.usher(&["explain"]);
        let explained = raw.arg(OsStr::from_bytes(name)).output().unwrap();
        assert!(explained.status.success(), "{}", stderr(&explained));
        let detached = world.run(&["detach", shown]);
        assert!(detached.status.success(), "{}", stderr(&detached));
        world.programs(0);
        program.kill().unwrap();
        program.wait().unwrap();
    }
}

#[test]
fn rejects_processes_of_usher_itself() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let keeper = world.status()["keeper_pid"].as_i64().unwrap() as i32;
    let (launcher, program) = launch_sleep(&world);
    world.programs(1);
    for (pid, role) in [
        (daemon, "a daemon of Usher"),
        (keeper, "a keeper of Usher"),
        (launcher.id() as i32, "runs or regulates another program"),
    ] {
        let output = world.run(&["attach", &pid.to_string()]);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{message}");
        assert!(
            message.lines().count() == 1 && message.contains(role),
            "{role}: {message}"
        );
    }
    for command in ["attach", "bg --attach"] {
        let script = format!("exec \"$0\" {command} $$");
        let usher = world.usher(&[]);
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).arg(usher.get_program());
        for (name, value) in usher.get_envs() {
            if let Some(value) = value {
                shell.env(name, value);
            }
        }
        let output = shell.output().unwrap();
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{message}");
        assert!(
            message.lines().count() == 1 && message.contains("a command of Usher"),
            "{command}: {message}"
        );
    }
    world.programs(1);
    end(launcher, program);
}
