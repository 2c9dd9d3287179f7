// SPDX-License-Identifier: GPL-2.0-only
//! Tests of options that a command rejects, or that have no effect on its program.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{World, refused, stderr, stdout};

#[test]
fn options_of_run_that_contradict_each_other_are_errors() {
    let (status, line) = refused(&["run", "--hints", "--no-hints", "--", "true"]);
    assert_eq!(status, 125);
    assert!(
        line.contains("'--hints' cannot be used with '--no-hints'"),
        "{line}"
    );
}

#[test]
fn commands_without_an_answer_reject_json() {
    for (args, output) in [
        (
            &["run", "--json", "--", "true"][..],
            "the output of the program",
        ),
        (&["--json", "run", "true"], "the output of the program"),
        (&["bg", "--json", "--", "true"], "the output of the program"),
        (&["daemon", "--json"], "the output of the service"),
        (&["completions", "--json", "bash"], "the completion script"),
    ] {
        let (status, line) = refused(args);
        assert_eq!(status, 125, "{args:?}");
        let expected = format!("standard output is {output}: omit --json");
        assert!(line.contains(&expected), "{args:?}: {line}");
    }
    // After the name of the program, the option is the program's.
    let world = World::new();
    let output = world.run(&["run", "--no-daemon", "echo", "--json"]);
    assert_eq!(stdout(&output), "--json\n");
}

#[test]
fn a_placeholder_without_copies_is_reported() {
    let world = World::new();
    for cores in [&[][..], &["--cores", "1"]] {
        let args = [&["run"], cores, &["--", "echo", "-t{cpus}", "{copy}"]].concat();
        let output = world.run(&args);
        assert_eq!(stdout(&output), "-t{cpus} {copy}\n");
        let note = "usher: {cpus} in the command is passed unchanged: only --copies replaces it";
        let lines = stderr(&output);
        assert_eq!(lines.matches(note).count(), 1, "{lines}");
    }
    let output = world.run(&["run", "--copies", "1", "--", "echo", "{copy}"]);
    assert_eq!(stdout(&output), "1\n");
    assert!(
        !stderr(&output).contains("unchanged"),
        "{}",
        stderr(&output)
    );
}
