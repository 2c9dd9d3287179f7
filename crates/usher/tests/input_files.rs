// SPDX-License-Identifier: GPL-2.0-only
//! Tests of files that the user names: a FIFO, a device, a directory or a huge file is refused at
//! once, with one line that names the file.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::File;
use std::path::Path;
use std::process::Command;

use common::{DEADLINE, World};

/// Commands that read a file; the file's path follows.
const READERS: [&[&str]; 8] = [
    &["plan", "--topology", "core:2 pu:1", "--programs"],
    &["plan", "--programs", "-", "--topology"],
    &["topo", "--from"],
    &["sim", "mix"],
    &["mix"],
    &["profile", "import"],
    &["replay"],
    &["daemon", "--thresholds"],
];

/// The exit status and the error of a command that reads the file. The command is ended, and the
/// test fails, if it waits.
fn refused(world: &World, reader: &[&str], file: &Path) -> (i32, String) {
    let args = [reader, &[file.to_str().unwrap()]].concat();
    let output = assert_cmd::Command::from_std(world.usher(&args))
        .timeout(DEADLINE)
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    let status = output.status.code();
    let Some(status) = status else {
        panic!("{args:?} waits: {error}");
    };
    (status, error)
}

fn check(world: &World, file: &Path, reason: &str) {
    for reader in READERS {
        let (status, error) = refused(world, reader, file);
        assert_eq!(status, 125, "{reader:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{reader:?}: {error}");
        assert!(
            error.contains(file.to_str().unwrap()),
            "{reader:?}: {error}"
        );
        assert!(error.contains(reason), "{reader:?}: {error}");
    }
}

#[test]
fn refuses_fifos_and_devices_at_once() {
    let world = World::new();
    let fifo = world.path("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    check(&world, &fifo, "not a regular file");
    check(&world, Path::new("/dev/zero"), "not a regular file");
}

#[test]
fn refuses_huge_files_at_once() {
    let world = World::new();
    let huge = world.path("huge");
    File::create(&huge).unwrap().set_len(10 << 30).unwrap();
    check(&world, &huge, "");
}

/// A shell passes the output of a command as a pipe: `usher plan --programs <(command)`.
#[test]
fn reads_a_pipe_that_the_caller_has_opened() {
    let world = World::new();
    for pipe in ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"] {
        let args = ["plan", "--topology", "core:2 pu:1", "--programs", pipe];
        assert_cmd::Command::from_std(world.usher(&args))
            .write_stdin(r#"{"programs":[{"name":"a","curve":{"1":1.0,"2":1.9}}]}"#)
            .timeout(DEADLINE)
            .assert()
            .success();
    }
}
