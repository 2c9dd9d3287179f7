// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the daemon's log: lines with times on standard error, the level, and events with fields
//! in the systemd journal. A socket of the test replaces the journal in a mount namespace.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{World, wait_for};

/// Starts a daemon whose standard error is a file.
fn logged_daemon(world: &World, args: &[&str], log: &Path) -> Child {
    let mut words = vec!["daemon"];
    words.extend(args);
    let log = File::options().append(true).create(true).open(log).unwrap();
    let daemon = world.usher(&words).stderr(log).spawn().unwrap();
    world.status();
    daemon
}

fn stop(world: &World, mut daemon: Child) {
    assert!(world.run(&["daemon", "stop"]).status.success());
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
}

/// Checks that a line begins with a time and a level; returns the level and the text.
fn parse(line: &str) -> (&str, &str) {
    let (time, rest) = line.split_once(' ').unwrap();
    assert!(
        time.parse::<jiff::Timestamp>().is_ok() && time.ends_with('Z'),
        "{line}"
    );
    let (level, text) = rest.split_once(" usher: ").unwrap();
    assert!(
        ["error", "warn", "info", "debug"].contains(&level),
        "{line}"
    );
    (level, text)
}

#[test]
fn each_line_has_a_time_and_events_name_their_program() {
    let world = World::new();
    let log = world.path("log");
    let daemon = logged_daemon(&world, &["--log-level", "debug"], &log);
    assert!(
        world
            .run(&["run", "--name", "hello", "--", "true"])
            .status
            .success()
    );
    world.programs(0);
    stop(&world, daemon);
    let log = fs::read_to_string(&log).unwrap();
    let lines: Vec<(&str, &str)> = log.lines().map(parse).collect();
    let mut order = lines
        .iter()
        .filter(|(level, _)| *level == "info")
        .map(|line| line.1);
    for expected in [
        "the daemon listens at ",
        "program 1 (hello) has arrived",
        "program 1 (hello) has ended or was released",
        "all changes are undone",
    ] {
        assert!(
            order.any(|text| text.starts_with(expected)),
            "no '{expected}' in order:\n{log}"
        );
    }
}

#[test]
fn the_level_is_that_of_the_option_or_else_of_the_file() {
    let world = World::new();
    let file = world.path("usher.toml");
    fs::write(&file, "[daemon]\nlog_level = \"warn\"\n").unwrap();
    let config = ["--config", file.to_str().unwrap()];
    for (option, has_arrivals) in [(&[][..], false), (&["--log-level", "info"], true)] {
        let log = world.path("log");
        let args: Vec<&str> = config.iter().chain(option).copied().collect();
        let daemon = logged_daemon(&world, &args, &log);
        assert!(world.run(&["run", "--", "true"]).status.success());
        world.programs(0);
        stop(&world, daemon);
        let text = fs::read_to_string(&log).unwrap();
        assert_eq!(text.contains("has arrived"), has_arrivals, "{text}");
    }
    fs::write(&file, "[daemon]\nlog_level = \"loud\"\n").unwrap();
    let output = world.run(&["daemon", config[0], config[1]]);
    assert_eq!(output.status.code(), Some(125));
    let message = common::stderr(&output);
    assert!(message.contains("usher.toml:2: `log_level`: "), "{message}");
    assert!(message.contains("error, warn, info"), "{message}");
}

/// Parses a message of the journal's native protocol.
fn fields(message: &[u8]) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut rest = message;
    while !rest.is_empty() {
        let end = rest.iter().position(|&byte| byte == b'\n').unwrap();
        let line = &rest[..end];
        rest = &rest[end + 1..];
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        if let Some(at) = line.iter().position(|&byte| byte == b'=') {
            fields.insert(text(&line[..at]), text(&line[at + 1..]));
        } else {
            let (length, after) = rest.split_first_chunk::<8>().unwrap();
            let length = u64::from_le_bytes(*length) as usize;
            fields.insert(text(line), text(&after[..length]));
            rest = &after[length + 1..];
        }
    }
    fields
}

/// Starts a daemon whose standard error is connected to a journal with a socket in the directory
/// `journal`, as systemd does for a service. Returns the other end of standard error, too.
fn start_service(world: &World, journal: &Path) -> (Child, UnixStream) {
    // systemd connects standard error of a service to the journal, and names its inode.
    let (stderr, other_end) = UnixStream::pair().unwrap();
    let stderr = File::from(OwnedFd::from(stderr));
    let inode = stderr.metadata().unwrap();
    let usher = env!("CARGO_BIN_EXE_usher");
    let script = format!(
        "mount -t tmpfs none /run && mkdir /run/systemd && ln -s '{}' /run/systemd/journal && \
         exec '{usher}' daemon --log-level debug",
        journal.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    for (name, value) in world.usher(&[]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("JOURNAL_STREAM", format!("{}:{}", inode.dev(), inode.ino()));
    let daemon = command.stdin(Stdio::null()).stderr(stderr).spawn();
    (daemon.unwrap(), other_end)
}

#[test]
fn a_service_sends_its_events_to_the_journal() {
    let world = World::new();
    let journal = world.path("journal");
    fs::create_dir(&journal).unwrap();
    let socket = UnixDatagram::bind(journal.join("socket")).unwrap();
    socket.set_nonblocking(true).unwrap();
    let (mut daemon, _other_end) = start_service(&world, &journal);
    let mut received: Vec<BTreeMap<String, String>> = Vec::new();
    let mut message = vec![0; 1 << 16];
    let mut wait = |event: &str| {
        wait_for(event, || {
            if let Some(status) = daemon.try_wait().unwrap() {
                return Some(Err(status));
            }
            while let Ok(length) = socket.recv(&mut message) {
                received.push(fields(&message[..length]));
            }
            let mut found = received.iter();
            let found = found.find(|m| m.get("USHER_EVENT").is_some_and(|kind| kind == event));
            let listens = received.iter().any(|m| {
                m.get("MESSAGE")
                    .is_some_and(|text| text.starts_with("the daemon listens"))
            });
            match event {
                "" => listens.then(|| Ok(BTreeMap::new())),
                _ => found.cloned().map(Ok),
            }
        })
    };
    if let Err(status) = wait("") {
        usher_skip::skip!("this process may not make a mount namespace ({status})");
        return;
    }
    assert!(
        world
            .run(&["run", "--name", "hello", "--", "true"])
            .status
            .success()
    );
    let arrival = wait("arrival").unwrap();
    for (field, value) in [
        ("USHER_PROGRAM", "1"),
        ("USHER_PROGRAM_NAME", "hello"),
        ("MESSAGE", "program 1 (hello) has arrived"),
        ("SYSLOG_IDENTIFIER", "usher"),
    ] {
        assert_eq!(
            arrival.get(field).map(String::as_str),
            Some(value),
            "{arrival:?}"
        );
    }
    let departure = wait("departure").unwrap();
    assert_eq!(departure["USHER_PROGRAM"], "1");
    stop(&world, daemon);
}
