// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that the lab rejects invalid requests with one line of text, before it fetches files or
//! starts programs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::process::{Command, Output};

fn lab(arguments: &[&str]) -> Output {
    let cache = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_usher-lab"))
        .args(["--cache", cache.path().to_str().unwrap()])
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
    output
}

#[test]
fn rejects_invalid_requests_with_name() {
    for (options, expected) in [
        (
            &["--topology", "package:2 core"][..],
            "the level 'core' has no count",
        ),
        (&["--topology", "package:300"], "300 CPUs"),
        (&["--topology", "/etc"], "/etc"),
        (&["--topology", "package:1 die:2 l3:2 core:2"], "die:4"),
        (&["--kernel", "seven"], "--kernel seven"),
        (&["--virtual-time=3"], "cannot take 3 ns"),
        (&["--memory", "64"], "64 MiB of memory"),
        (&["--cpus-off", "8-9"], "CPUs 8-9 cannot be taken off"),
        (&["--cpus-off", "0"], "CPU 0"),
        (&["--cpus-off", "x"], "'x'"),
        (&["--writable", "/no/such/dir"], "/no/such/dir"),
        (
            &["--scratch", "/etc/passwd"],
            "/etc/passwd is not a directory",
        ),
        (&["--env", "=x"], "NAME=VALUE"),
    ] {
        let output = lab(&[options, &["--", "true"]].concat());
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{options:?}: {message}");
        assert!(message.contains(expected), "{options:?}: {message}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(
        lab(&["--cpus-off", "1"]).status.code(),
        Some(125),
        "a command is missing"
    );
}

#[test]
fn help_shows_examples() {
    let output = lab(&["--help"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for word in ["lab/vm --topology", "--virtual-time", "125", "docs/lab.md"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn help_that_cannot_be_written_is_an_error() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    let mut command = Command::new(env!("CARGO_BIN_EXE_usher-lab"));
    let output = command
        .arg("--help")
        .stdout(full.unwrap())
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{message}");
    assert!(message.contains("writing to standard output"), "{message}");
}
