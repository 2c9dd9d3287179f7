// SPDX-License-Identifier: GPL-2.0-only
//! Checks that messages name the cause and the remedy: of a stopped daemon, a refused journal, an
//! unusable profile store, a path that is too long for a socket, output that cannot be written,
//! unknown options, unknown environment variables, and ignored values of a described machine.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, OpenOptions};
use std::process::{Child, Output, Stdio};

use common::{Sleeper, World, signal, stderr, stdout};
use serde_json::json;

/// A pid that is larger than every pid of the kernel.
const NO_PID: u32 = 999_999_999;

/// Joins the lines of a text, which `usher doctor` wraps.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Makes the directory of a dead instance with this journal.
fn stale_journal(world: &World, text: &str) {
    let dir = world.runtime_dir().join(format!("instances/{NO_PID}-1"));
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("journal.jsonl"), text).unwrap();
}

#[test]
fn a_stopped_daemon_is_named_with_the_command_that_continues_it() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let sleeper = Sleeper::start();
    signal(daemon, libc::SIGSTOP);
    let pid = sleeper.pid().to_string();
    let commands: [&[&str]; 5] = [
        &["status"],
        &["attach", &pid],
        &["explain"],
        &["sched", "status"],
        &["doctor"],
    ];
    // Each waits for its time-out; all do at once.
    let spawn = |args: &&[&str]| {
        let mut command = world.usher(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        (args.join(" "), command.spawn().unwrap())
    };
    let started: Vec<(String, Child)> = commands.iter().map(spawn).collect();
    for (name, child) in started {
        let output: Output = child.wait_with_output().unwrap();
        let text = joined(&format!("{}{}", stderr(&output), stdout(&output)));
        let line = format!("the daemon (process {daemon}) did not answer within");
        let remedy = format!(
            "a signal (SIGSTOP) has stopped the process; continue it with 'kill -CONT {daemon}'"
        );
        assert!(
            text.contains(&line) && text.contains(&remedy),
            "{name}: {text}"
        );
        assert!(!text.contains("no daemon runs"), "{name}: {text}");
        let code = if name == "doctor" { 0 } else { 125 };
        assert_eq!(output.status.code(), Some(code), "{name}: {text}");
    }
    let second = stderr(&world.run(&["daemon"]));
    assert!(
        second.contains(&format!("'kill -CONT {daemon}'")),
        "{second}"
    );
    signal(daemon, libc::SIGCONT);
    assert_eq!(world.end(daemon), Some(0));
}

#[test]
fn a_journal_of_a_newer_format_is_refused_with_a_remedy() {
    let mut world = World::new();
    stale_journal(&world, "{\"do\":\"open\",\"version\":99}\n");
    let doctor = joined(&stdout(&world.run(&["doctor"])));
    let journal = world
        .runtime_dir()
        .join(format!("instances/{NO_PID}-1/journal.jsonl"));
    let refusal = format!(
        "refusing to undo the journal {}: the journal has format 99",
        journal.display()
    );
    let remedy = "run 'usher undo' of the version that wrote the journal";
    assert!(
        doctor.contains(&refusal) && doctor.contains(remedy),
        "{doctor}"
    );
    assert!(!doctor.contains("stale journals"), "{doctor}");
    let undone = world.run(&["undo"]);
    assert_eq!(undone.status.code(), Some(125));
    assert!(stderr(&undone).contains(&refusal), "{}", stderr(&undone));
    // The daemon starts, and its state contains what it could not undo.
    world.daemon(&[]);
    let status = stdout(&world.run(&["status"]));
    assert!(
        status.contains(&refusal) && status.contains(remedy),
        "{status}"
    );
    let doctor = joined(&stdout(&world.run(&["doctor"])));
    assert!(doctor.contains(&refusal), "{doctor}");
    assert!(journal.exists());
}

#[test]
fn a_damaged_line_of_a_journal_is_named_and_the_rest_is_undone() {
    let world = World::new();
    stale_journal(&world, "%%\n");
    let doctor = joined(&stdout(&world.run(&["doctor"])));
    let line = "line 1 of the journal";
    let effect = "is damaged: a change that it records is not undone, and all other changes are";
    assert!(doctor.contains(line) && doctor.contains(effect), "{doctor}");
    assert!(doctor.contains("stale journals 1; the next"), "{doctor}");
    let undone = world.run(&["undo"]);
    let message = stderr(&undone);
    assert!(
        message.contains(line) && message.contains(effect),
        "{message}"
    );
    assert!(!message.contains("column"), "{message}");
    let left = world.json(&["doctor"]).unwrap();
    assert_eq!(left["stale_journals"], json!([]));
}

#[test]
fn an_unusable_profile_store_is_a_warning_without_programs_too() {
    let mut world = World::new();
    fs::write(world.path("profiles.db"), "no database").unwrap();
    world.daemon(&[]);
    let warning = format!(
        "{} is not a profile store",
        world.path("profiles.db").display()
    );
    let lost = "new measurements are kept in memory";
    let status = stdout(&world.run(&["status"]));
    assert!(
        status.contains(&warning) && status.contains(lost),
        "{status}"
    );
    let doctor = joined(&stdout(&world.run(&["doctor"])));
    let shown = format!("warning {warning}");
    assert!(doctor.contains(&shown) && doctor.contains(lost), "{doctor}");
}

#[test]
fn a_path_too_long_for_a_socket_is_reported_with_length_and_limit() {
    let world = World::new();
    let dir = world.path(&"x".repeat(120));
    let length = dir.join("usher.varlink").as_os_str().len();
    fs::create_dir(&dir).unwrap();
    for args in [&["daemon"][..], &["status"], &["attach", "1"]] {
        let mut command = world.usher(args);
        let output = command.env("USHER_RUNTIME_DIR", &dir).output().unwrap();
        let message = stderr(&output);
        let reason = format!(
            "the path has {length} bytes, but the path of a Unix socket can have at most 107"
        );
        assert!(message.contains(&reason), "{message}");
        assert!(
            message.contains("by --runtime-dir or USHER_RUNTIME_DIR"),
            "{message}"
        );
        assert_eq!(output.status.code(), Some(125));
    }
    let metrics = format!("unix:{}", dir.join("metrics").display());
    let output = world.run(&["daemon", "--metrics", &metrics]);
    let message = stderr(&output);
    assert!(
        message.contains("give a shorter path after 'unix:'"),
        "{message}"
    );
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let mut world = World::new();
    world.daemon(&[]);
    let commands: [&[&str]; 13] = [
        &["--help"],
        &["help"],
        &["help", "run"],
        &["--version"],
        &["status", "--help"],
        &["sched", "start", "-h"],
        &["status"],
        &["status", "--json"],
        &["top"],
        &["explain"],
        &["doctor"],
        &["topo"],
        &["completions", "bash"],
    ];
    for args in commands {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = world
            .usher(args)
            .stdout(full)
            .stderr(Stdio::piped())
            .output();
        let output = output.unwrap();
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (
                Some(125),
                "usher: writing to standard output: No space left on device\n".to_owned()
            ),
            "{args:?}"
        );
        // A reader that closes a pipe early (`usher topo | head -1`) has enough.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = world
            .usher(args)
            .stdout(writer)
            .stderr(Stdio::piped())
            .output();
        let output = output.unwrap();
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(0), String::new()),
            "{args:?}"
        );
    }
}

#[test]
fn an_unknown_option_before_the_program_is_an_error() {
    let world = World::new();
    let refused = |args: &[&str]| {
        let output = world.run(args);
        assert_eq!(output.status.code(), Some(125), "{args:?}");
        stderr(&output)
    };
    for command in ["run", "bg", "profile"] {
        assert_eq!(
            refused(&[command, "--bogus", "--", "true"]),
            format!(
                "usher: unexpected argument '--bogus' found; to pass '--bogus' as a value, use \
                 '-- --bogus'; see 'usher {command} --help'\n"
            )
        );
    }
    assert_eq!(
        refused(&["run", "--wieght", "2", "--", "true"]),
        "usher: unexpected argument '--wieght' found; a similar argument exists: '--weight'; to \
         pass '--wieght' as a value, use '-- --wieght'; see 'usher run --help'\n"
    );
    assert!(refused(&["mix", "--ruonds", "2", "x.toml"]).contains("'--rounds'"));
    // Options after the program's name are the program's.
    assert!(world.run(&["run", "test", "-n", "x"]).status.success());
}

#[test]
fn an_unknown_environment_variable_of_usher_is_named() {
    let world = World::new();
    let mut run = world.usher(&["run", "--", "true"]);
    let output = run.env("USHER_STOER", "x").output().unwrap();
    assert!(output.status.success());
    let line = "usher: the environment variable USHER_STOER is unknown and has no effect; a \
                similar variable exists: USHER_STORE\n";
    assert_eq!(stderr(&output), line);
}

#[test]
fn help_of_sched_explain_describes_capacity_and_isolated_cpus() {
    let world = World::new();
    let text = stdout(&world.run(&["sched", "explain", "--help"]));
    for words in [
        "1024, the capacity of the fastest CPUs",
        "isolcpus, nohz_full",
    ] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn ignored_values_of_a_machine_are_reported_on_standard_error() {
    let world = World::new();
    let machine = "core:2(tier=0) pu:1";
    let output = world.run(&["topo", "--from", machine]);
    assert!(output.status.success());
    let note = format!(
        "usher: note: the description '{machine}': at character 8: the attribute 'tier' is unknown \
         and has no effect\n"
    );
    assert_eq!(stderr(&output), note);
    assert!(stdout(&output).contains("2 cores"));
    let programs = world.path("programs.json");
    fs::write(
        &programs,
        r#"{"programs":[{"name":"a","curve":{"1":1,"2":1.5}}]}"#,
    )
    .unwrap();
    let programs = programs.to_str().unwrap();
    let output = world.run(&["plan", "--topology", machine, "--programs", programs]);
    assert_eq!(stderr(&output), note);
    serde_json::from_str::<serde_json::Value>(&stdout(&output)).unwrap();
}
