// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest of the process that holds the sched_ext scheduler: a daemon, or `usher sched
//! start --foreground`. They start, end and kill this process, and let the kernel end the
//! scheduler.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{World, lives, stderr, wait_for};
use crate::sched::{Running, assert_nothing_went_wrong, sched_ext_file};

/// Ends the daemon by SIGKILL, so that it cannot unload the scheduler. The keeper must restart the
/// daemon, without a scheduler.
pub fn ends_with_its_daemon() {
    let world = World::new();
    let running = Running::start(&world);
    let pid = running.status()["last"]["pid"].as_i64().unwrap();
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    wait_for("the kernel's own scheduler", || {
        (sched_ext_file("state") == "disabled").then_some(())
    });
    let daemon = wait_for("the keeper to restart the daemon", || {
        Some(world.json(&["status"])?["pid"].clone()).filter(|now| *now != pid)
    });
    let after = running.status();
    assert_eq!(after["running"], false);
    let ended = after["last"]["ended"].as_str().unwrap();
    let killed = format!("process {pid}, which held the scheduler, was killed");
    assert!(ended.starts_with(&killed), "{ended}");
    // A scheduler can be started in the new daemon.
    drop(Running::start(&world));
    wait_for("the daemon to end", || {
        (!lives(daemon.as_i64()? as i32)).then_some(())
    });
    drop(running);
    assert_nothing_went_wrong();
}

/// Checks that a running daemon loads the scheduler, stays when the scheduler stops, and reports
/// how it ended. The daemon's end must unload the scheduler.
pub fn runs_in_the_daemon_that_listens() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let running = Running::start(&world);
    assert_eq!(running.status()["last"]["pid"], daemon);
    let does = running.status()["last"]["does"].clone();
    assert_eq!(world.status()["scheduler"], does);
    assert_eq!(world.json(&["sched", "stop"]).unwrap()["stopped"], daemon);
    assert_eq!(sched_ext_file("state"), "disabled");
    let after = running.status();
    assert_eq!(
        (&after["running"], &after["last"]["ended"]),
        (&false.into(), &"stopped".into())
    );
    assert_eq!(world.status()["scheduler"], Value::Null);
    assert_eq!(world.json(&["sched", "stop"]), None, "none runs");
    drop(running);
    world.json(&["sched", "start"]).unwrap();
    assert_eq!(world.end(daemon), Some(0));
    assert_eq!(sched_ext_file("state"), "disabled");
    assert_nothing_went_wrong();
}

/// Runs the scheduler without a daemon: other commands must reach it at a socket of its own, and
/// its process must end with it.
pub fn runs_in_the_foreground_without_a_daemon() {
    let world = World::new();
    let start = ["sched", "start", "--foreground"];
    let mut foreground = world.usher(&start).spawn().unwrap();
    wait_for("the scheduler to run", || {
        (sched_ext_file("root/ops") == "usher").then_some(())
    });
    let running = Running(&world);
    let pid = i64::from(foreground.id());
    wait_for("its status", || {
        (running.status()["last"]["pid"] == pid && running.status()["running"] == true)
            .then_some(())
    });
    assert!(!world.socket().exists(), "there is no daemon");
    assert_eq!(world.json(&["sched", "start"]), None, "beside another");
    let set = world.json(&["sched", "set", "--smt", "off"]).unwrap();
    assert_eq!(set["settings"]["smt"], false);
    assert!(world.json(&["sched", "stats"]).is_some());
    assert_eq!(world.json(&["sched", "stop"]).unwrap()["stopped"], pid);
    assert_eq!(foreground.wait().unwrap().code(), Some(0));
    assert_eq!(sched_ext_file("state"), "disabled");
    let mut killed = world.usher(&start).spawn().unwrap();
    wait_for("the scheduler to run", || {
        (sched_ext_file("root/ops") == "usher").then_some(())
    });
    killed.kill().unwrap();
    killed.wait().unwrap();
    wait_for("the kernel's own scheduler", || {
        (sched_ext_file("state") == "disabled").then_some(())
    });
    drop(running);
    assert_nothing_went_wrong();
}

/// Ends the scheduler by SysRq S, as an administrator may: the end must be reported as the
/// kernel's, and another scheduler can be started.
pub fn reports_that_the_kernel_ended_it() {
    let world = World::new();
    let running = Running::start(&world);
    fs::write("/proc/sysrq-trigger", "S").unwrap();
    wait_for("the kernel's own scheduler", || {
        (sched_ext_file("state") == "disabled").then_some(())
    });
    let last = &wait_for("the daemon to report it", || {
        let status = running.status();
        (status["last"]["state"] == "ended").then_some(status)
    })["last"];
    let why = last["ended"].as_str().unwrap();
    assert!(why.starts_with("the kernel ended the scheduler ("), "{why}");
    assert!(why.contains("sysrq"), "{why}");
    drop(running);
    drop(Running::start(&world));
    assert_nothing_went_wrong();
}

/// Lets the kernel end a scheduler without a daemon: the command must print the reason once.
pub fn the_foreground_prints_the_kernels_reason_once() {
    let world = World::new();
    let start = ["sched", "start", "--foreground"];
    let foreground = world.usher(&start).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("the scheduler to run", || {
        (sched_ext_file("root/ops") == "usher").then_some(())
    });
    fs::write("/proc/sysrq-trigger", "S").unwrap();
    let output = foreground.wait_with_output().unwrap();
    let printed = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{printed}");
    let about_end = |line: &&str| line.contains("the kernel ended the scheduler");
    let lines: Vec<&str> = printed.lines().filter(about_end).collect();
    assert_eq!(lines.len(), 1, "{printed}");
    assert!(lines[0].contains("sysrq"), "{printed}");
    assert_eq!(sched_ext_file("state"), "disabled");
    assert_nothing_went_wrong();
}

/// Starts the scheduler twice at the same time. One start must load the scheduler, in a new daemon.
/// The other start must be rejected in one line, and must not end the scheduler.
pub fn two_starts_at_once_load_one_scheduler() {
    let world = World::new();
    let start = || {
        let mut usher = world.usher(&["sched", "start"]);
        usher.stdout(Stdio::null()).stderr(Stdio::piped());
        usher.spawn().unwrap()
    };
    let outputs = [start(), start()].map(|child| child.wait_with_output().unwrap());
    let running = Running(&world);
    let mut codes = outputs.each_ref().map(|output| output.status.code());
    codes.sort_unstable();
    let printed = outputs.each_ref().map(stderr);
    assert_eq!(codes, [Some(0), Some(125)], "{printed:?}");
    let refused = outputs.iter().find(|output| !output.status.success());
    let refused = stderr(refused.unwrap());
    let is_about_another = |line: &&str| line.contains(" already");
    assert_eq!(
        refused.lines().filter(is_about_another).count(),
        1,
        "{refused}"
    );
    assert_eq!(running.status()["running"], true);
    drop(running);
    assert!(!world.socket().exists(), "the daemon ends");
    assert_nothing_went_wrong();
}

/// A process that holds a lock starts the scheduler from its own working directory. The started
/// daemon must neither keep the lock nor run in this directory or in this session.
pub fn the_daemon_closes_its_callers_files() {
    let world = World::new();
    let lock = world.path("lock");
    let start = world.usher(&["sched", "start"]);
    let mut locked = Command::new("flock");
    locked.arg(&lock).arg(start.get_program());
    locked.args(start.get_args()).current_dir(world.path("."));
    locked.env("USHER_RUNTIME_DIR", world.runtime_dir());
    assert!(locked.status().unwrap().success());
    let running = Running(&world);
    let free = Command::new("flock")
        .arg("--nonblock")
        .arg(&lock)
        .arg("true")
        .status();
    assert!(free.unwrap().success(), "the daemon has the lock still");
    let pid = running.status()["last"]["pid"].as_i64().unwrap();
    let folder = fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    assert_eq!(folder.to_str(), Some("/"));
    let daemon = Pid::from_raw(pid as i32).unwrap();
    let session = rustix::process::getsid(Some(daemon)).unwrap();
    assert_eq!(session, daemon);
    drop(running);
    assert_nothing_went_wrong();
}
