// SPDX-License-Identifier: GPL-2.0-only
//! Tests that `usher NAME` runs the program `usher-NAME` beside `usher` or in `PATH`, with its
//! arguments and exit status.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use common::{World, stderr, stdout};

#[test]
fn other_commands_are_found_in_path() {
    let world = World::new();
    let dir = world.path("bin");
    fs::create_dir(&dir).unwrap();
    let program = dir.join("usher-hello");
    fs::write(&program, "#!/bin/sh\necho hello \"$@\"\nexit 4\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let output = world
        .usher(&["hello", "a b", "--json"])
        .env("PATH", path)
        .output()
        .unwrap();
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(4), "hello a b --json\n")
    );
}

#[test]
fn benchmarks_that_are_not_installed_name_the_remedy() {
    let world = World::new();
    // The program is copied, because the folder of the built program may contain usher-bench.
    let program = world.path("usher");
    fs::copy(env!("CARGO_BIN_EXE_usher"), &program).unwrap();
    let output = std::process::Command::new(&program)
        .args(["bench", "here"])
        .env("PATH", world.path("bin"))
        .output()
        .unwrap();
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (
            Some(125),
            "usher: the program usher-bench is not installed: build the program with 'make \
             install' in Usher's sources, which contain usher-bench in evidence/\n"
        )
    );
}
