// SPDX-License-Identifier: GPL-2.0-only
//! Tests of a daemon outside a container whose runtime directory is visible inside: all commands
//! inside report the same reason.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::{Command, Output, Stdio};

use common::{World, stderr, stdout};

const REASON: &str = "belongs to another PID namespace";

/// Runs `usher` in a PID namespace of its own; `None` if no namespace can be made.
fn run_inside(world: &World, args: &[&str]) -> Option<Output> {
    run_with(world, &["--pid", "--fork", "--mount-proc"], args)
}

/// Runs `usher` in the namespaces that `unshare` makes with these options.
fn run_with(world: &World, options: &[&str], args: &[&str]) -> Option<Output> {
    let usher = world.usher(args);
    let mut command = Command::new("unshare");
    command
        .args(options)
        .arg(usher.get_program())
        .args(usher.get_args())
        .stdin(Stdio::null());
    for (name, value) in usher.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().ok()?;
    let refused = stderr(&output).starts_with("unshare:");
    (!refused).then_some(output)
}

#[test]
fn commands_agree_on_a_daemon_of_another_pid_namespace() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let Some(status) = run_inside(&world, &["status"]) else {
        usher_skip::skip!("this process may not make a PID namespace");
        return;
    };
    assert_eq!(status.status.code(), Some(125));
    assert!(stderr(&status).contains(REASON), "{}", stderr(&status));
    let second = run_inside(&world, &["daemon"]).unwrap();
    assert_eq!(second.status.code(), Some(125));
    assert!(stderr(&second).contains(REASON), "{}", stderr(&second));
    let run = run_inside(&world, &["run", "--", "/bin/echo", "it ran"]).unwrap();
    assert_eq!(stdout(&run), "it ran\n");
    let text = stderr(&run);
    assert!(
        text.contains("runs unmanaged") && text.contains(REASON),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
    let doctor = stdout(&run_inside(&world, &["doctor"]).unwrap());
    let words: Vec<&str> = doctor.split_whitespace().collect();
    assert!(words.join(" ").contains(REASON), "{doctor}");
    // Outside the namespace, the daemon works as usual.
    assert!(world.json(&["status"]).is_some());
    assert_eq!(world.end(daemon), Some(0));
}

/// Without a procfs of its own, a namespace sees the processes of the outer namespace in `/proc`,
/// where each pid names another process.
#[test]
fn a_procfs_of_another_namespace_is_named_and_changes_no_process() {
    let world = World::new();
    let inside = |args: &[&str]| run_with(&world, &["--pid", "--fork"], args);
    let Some(daemon) = inside(&["daemon"]) else {
        usher_skip::skip!("this process may not make a PID namespace");
        return;
    };
    assert_eq!(daemon.status.code(), Some(125));
    assert!(stderr(&daemon).contains(REASON), "{}", stderr(&daemon));
    let bg = inside(&["bg", "--", "nice"]).unwrap();
    let text = stderr(&bg);
    assert_eq!(stdout(&bg), "19\n", "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(REASON), "{text}");
}
