// SPDX-License-Identifier: GPL-2.0-only
//! Tests of signals to launchers: from a terminal to a program with a process group of its own, and
//! to background work that handles a signal that requests its end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use common::{World, children, signal, terminal, wait_for};

/// Starts `usher run` with a controlling terminal, and returns the launcher and the other end of the
/// terminal.
fn run_at_terminal(world: &World, program: &[&str]) -> (Child, File) {
    let (master, slave) = terminal();
    let usher = world.usher(&[&["run", "--"], program].concat());
    // `nohup` and background jobs ignore the signals, and programs inherit this. `setsid` makes the
    // terminal the controlling terminal of the launcher. SIGQUIT may write a core file to the working
    // directory.
    let mut command = Command::new("env");
    command.current_dir(world.path("."));
    command.args(["--default-signal=INT,QUIT", "setsid", "--ctty"]);
    command.arg(usher.get_program());
    command.args(usher.get_args());
    let variables = usher.get_envs();
    command.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    let end = || Stdio::from(OwnedFd::from(slave.try_clone().unwrap()));
    let command = command.stdin(end()).stdout(end()).stderr(end());
    (command.spawn().unwrap(), master)
}

/// `timeout` moves to a process group of its own, to which the terminal sends no signals.
#[test]
fn keys_of_a_terminal_reach_a_program_with_a_group_of_its_own() {
    let mut world = World::new();
    world.daemon(&[]);
    for (key, number) in [("\x03", libc::SIGINT), ("\x1c", libc::SIGQUIT)] {
        let (mut launcher, mut master) =
            run_at_terminal(&world, &["timeout", "600", "sleep", "600"]);
        let pid = launcher.id() as i32;
        let is_timeout = |pid: &i32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name == "timeout\n")
        };
        wait_for("the process below timeout", || {
            let timeout = children(pid).into_iter().find(is_timeout)?;
            children(timeout).first().copied()
        });
        master.write_all(key.as_bytes()).unwrap();
        assert_eq!(launcher.wait().unwrap().code(), Some(128 + number));
    }
}

/// The terminal sends the signal to the launcher only, because the program does not exist yet: the
/// launcher waits for the answer of a stopped daemon.
#[test]
fn a_key_before_the_start_of_the_program_ends_the_program() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    signal(daemon, libc::SIGSTOP);
    let (mut launcher, mut master) = run_at_terminal(&world, &["sleep", "600"]);
    let path = format!("/proc/{}/status", launcher.id());
    wait_for("the launcher to catch SIGINT", || {
        let status = std::fs::read_to_string(&path).ok()?;
        let caught = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
        (caught & (1 << (libc::SIGINT - 1)) != 0).then_some(())
    });
    master.write_all(b"\x03").unwrap();
    assert_eq!(launcher.wait().unwrap().code(), Some(128 + libc::SIGINT));
    signal(daemon, libc::SIGCONT);
}

#[test]
fn background_work_that_continues_after_a_signal_is_released_and_reported() {
    let mut world = World::new();
    world.daemon(&[]);
    let (ready, caught) = (world.path("ready"), world.path("caught"));
    let script = format!(
        "ulimit -t 60; trap ': >{}' TERM; : >{}; while :; do :; done",
        caught.display(),
        ready.display()
    );
    let mut launcher = world.usher(&["bg", "--", "sh", "-c", &script]);
    let mut launcher = launcher.stderr(Stdio::piped()).spawn().unwrap();
    wait_for("the program to start", || ready.exists().then_some(()));
    signal(launcher.id() as i32, libc::SIGTERM);
    wait_for("the signal", || caught.exists().then_some(()));
    world.programs(0);
    let mut line = String::new();
    let mut errors = BufReader::new(launcher.stderr.take().unwrap());
    errors.read_line(&mut line).unwrap();
    let expected = "usher: the program still runs after a signal that requests its end; it is not \
                    regulated any more\n";
    assert_eq!(line, expected);
    for pid in children(launcher.id() as i32) {
        signal(pid, libc::SIGKILL);
    }
    assert_eq!(launcher.wait().unwrap().code(), Some(128 + libc::SIGKILL));
}
