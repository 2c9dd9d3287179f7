// SPDX-License-Identifier: GPL-2.0-only
//! `usher profile` and `usher mix` on a busy machine, and the commands about stored profiles. The
//! stored profiles of these tests are imported, because other tests disturb every measurement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Output, Stdio};

use common::{World, stderr, stdout};
use serde_json::{Value, json};

/// A process that uses one CPU until it is dropped.
struct BusyLoop(Child);

impl BusyLoop {
    fn start() -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        Self(command.spawn().unwrap())
    }
}

impl Drop for BusyLoop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the number of profiles in the store of a test.
fn profiles(world: &World) -> u64 {
    let listed = world.json(&["profile", "list"]).unwrap();
    listed["profiles"].as_array().unwrap().len() as u64
}

#[test]
fn an_option_of_a_measurement_beside_a_command_is_an_error() {
    let world = World::new();
    let refused = world.run(&["profile", "--max-wait", "5", "list"]);
    assert_eq!(refused.status.code(), Some(125));
    let line = stderr(&refused);
    assert!(
        line.contains("--max-wait belongs to a measurement"),
        "{line}"
    );
}

/// A busy machine does not delay this error.
#[test]
fn a_command_that_does_not_exist_is_refused_at_once() {
    let world = World::new();
    let refused = world.run(&["profile", "--max-wait", "600", "no-such-program"]);
    assert_eq!(refused.status.code(), Some(127));
    assert!(stderr(&refused).contains("no-such-program"));
}

#[test]
fn a_measurement_beside_two_busy_loops_is_refused_with_one_reason() {
    let world = World::new();
    let mix = world.path("mix.toml");
    fs::write(
        &mix,
        "[[program]]\nname = \"p\"\nrun = [\"sleep\", \"0.6\"]\n",
    )
    .unwrap();
    let report = world.path("report");
    let loops = [BusyLoop::start(), BusyLoop::start()];
    let profile = ["profile", "--max-wait", "1", "--", "sleep", "0.6"];
    let words = [mix.to_str().unwrap(), "--out", report.to_str().unwrap()];
    let mix = [&["mix", "--max-wait", "1"], &words[..]].concat();
    for args in [&profile[..], &mix] {
        let output = world.run(args);
        assert_eq!(output.status.code(), Some(125), "{args:?}");
        assert_eq!(stdout(&output), "");
        let message = stderr(&output);
        let errors: Vec<_> = message.lines().filter(|l| l.contains("too busy")).collect();
        assert_eq!(errors.len(), 1, "{message}");
        let reason = "usher: the machine is too busy to measure: other programs use ";
        assert!(errors[0].starts_with(reason), "{message}");
        assert!(
            errors[0].contains("(pid ") && errors[0].contains("--force"),
            "{message}"
        );
        assert!(
            message
                .lines()
                .next()
                .unwrap()
                .contains("waiting up to 1 s"),
            "{message}"
        );
    }
    assert!(!report.exists());
    drop(loops);
    assert_eq!(profiles(&world), 0);
    // A daemon of root that uses the directory later is reached by all users.
    let is_root = rustix::process::geteuid().is_root();
    let mode = fs::metadata(world.runtime_dir()).unwrap().mode() & 0o777;
    assert_eq!(mode, if is_root { 0o755 } else { 0o700 });
}

#[test]
fn a_forced_measurement_beside_two_busy_loops_is_printed_but_not_stored() {
    let world = World::new();
    let _loops = [BusyLoop::start(), BusyLoop::start()];
    let args = [
        "profile",
        "--force",
        "--repeats",
        "1",
        "--cores",
        "1",
        "--",
        "sleep",
        "0.6",
    ];
    let output = world.run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("progress/s"),
        "{}",
        stdout(&output)
    );
    let message = stderr(&output);
    assert!(
        message.contains("the result will be inaccurate"),
        "{message}"
    );
    let last = message.lines().last().unwrap();
    assert!(
        last.starts_with("usher: the profile was not stored, because"),
        "{message}"
    );
    let output = world.run(&[&["--json"], &args[..]].concat());
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let disturbance = answer["disturbance"].as_str().unwrap();
    assert!(disturbance.contains("other programs use"), "{disturbance}");
    assert_eq!(profiles(&world), 0);
}

fn point(cores: u32, rate: f64) -> Value {
    json!({ "source": "repetition", "cores": cores, "rate": rate, "relative_error": 0.01,
            "at_s": 1_700_000_000, "runs": 2 })
}

fn profile(name: &str, executable: &str) -> Value {
    json!({ "name": name, "executable": executable, "arguments": "-p 2", "machine": "1 x [other]",
            "runs": 3, "at_s": 1_700_000_000, "points": [point(1, 0.5), point(2, 0.9)] })
}

fn document(profiles: &[Value]) -> String {
    json!({ "format": "usher-profiles", "version": 1, "profiles": profiles }).to_string()
}

/// Runs `usher profile import -`.
fn import(world: &World, more: &[&str], text: &str) -> Output {
    let mut command = world.usher(&["profile", "import", "-"]);
    let command = command.args(more).stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn stored_profiles_are_listed_shown_and_removed_by_name_and_identifier() {
    let world = World::new();
    let given = [
        profile("zip", "hash:01"),
        profile("zip", "hash:02"),
        profile("sort", "hash:03"),
    ];
    assert!(import(&world, &[], &document(&given)).status.success());
    let listed = world.json(&["profile", "list"]).unwrap();
    let names: Vec<_> = listed["profiles"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| &p["name"])
        .collect();
    assert_eq!(names, ["sort", "zip", "zip"]);
    let table = stdout(&world.run(&["profile", "list"]));
    assert!(
        table.starts_with("NAME") && table.lines().count() == 4,
        "{table}"
    );
    assert!(table.contains("1.80"), "{table}");
    // The runs were in 2023.
    assert_eq!(table.matches(" days ").count(), 3, "{table}");
    let doctor = stdout(&world.run(&["doctor"]));
    assert!(doctor.contains("(3 profiles)"), "{doctor}");

    let id = listed["profiles"][1]["id"].as_str().unwrap();
    let shown = world.json(&["profile", "show", id]).unwrap();
    assert_eq!(shown["profiles"], json!([listed["profiles"][1]]));
    let text = stdout(&world.run(&["profile", "show", "zip"]));
    assert_eq!(text.matches("identifier").count(), 2, "{text}");

    let unknown = world.run(&["profile", "rm", "sort", "zpi"]);
    assert_eq!(unknown.status.code(), Some(125));
    assert!(stderr(&unknown).contains("has no profile 'zpi'; similar: 'zip'"));
    assert_eq!(profiles(&world), 3, "an unknown name removes nothing");
    let removed = stdout(&world.run(&["profile", "rm", id]));
    assert_eq!(
        removed,
        format!("removed the profile zip ({id}): 2 points, 3 runs\n")
    );
    let rest = world.json(&["profile", "rm", "zip", "sort"]).unwrap();
    assert_eq!(rest["removed"].as_array().unwrap().len(), 2);
    assert_eq!(profiles(&world), 0);
}

/// The speed-up of a single point would be an assumption.
#[test]
fn a_profile_has_a_speed_up_from_its_second_point_on() {
    let world = World::new();
    let mut single = profile("once", "hash:04");
    single["points"] = json!([point(2, 0.9)]);
    let given = document(&[single, profile("zip", "hash:01")]);
    assert!(import(&world, &[], &given).status.success());
    let listed = world.json(&["profile", "list"]).unwrap();
    assert_eq!(listed["profiles"][0]["speed_up"], Value::Null);
    assert_eq!(listed["profiles"][1]["speed_up"], 1.8);
    for args in [&["profile", "list"][..], &["profile", "show", "once"]] {
        let text = stdout(&world.run(args));
        assert!(!text.contains("2.00") && text.contains('–'), "{text}");
    }
    let text = stdout(&world.run(&["profile", "show", "zip"]));
    assert!(text.contains("1.80"), "{text}");
}

#[test]
fn exported_profiles_are_imported_unchanged() {
    let (from, to) = (World::new(), World::new());
    let given = [profile("zip", "hash:01"), profile("sort", "hash:03")];
    assert!(import(&from, &[], &document(&given)).status.success());
    let exported = stdout(&from.run(&["profile", "export"]));
    let output = import(&to, &[], &exported);
    assert!(
        stdout(&output).contains("imported the profile zip"),
        "{}",
        stderr(&output)
    );
    assert_eq!(stdout(&to.run(&["profile", "export"])), exported);
    let file = to.path("zip.json");
    let one = to.run(&["profile", "export", "zip", "--out", file.to_str().unwrap()]);
    assert!(
        stdout(&one).starts_with("exported the profile zip"),
        "{}",
        stderr(&one)
    );
    assert!(fs::read_to_string(file).unwrap().contains("hash:01"));

    // A profile that the store already has is kept, unless it is replaced.
    let mut newer = profile("zip", "hash:01");
    newer["points"] = json!([point(1, 0.7)]);
    let newer = document(&[newer]);
    assert!(stdout(&import(&to, &[], &newer)).starts_with("kept the stored profile zip"));
    assert_eq!(stdout(&to.run(&["profile", "export"])), exported);
    assert!(import(&to, &["--replace"], &newer).status.success());
    let shown = to.json(&["profile", "show", "zip"]).unwrap();
    assert_eq!(shown["profiles"][0]["curve"].as_array().unwrap().len(), 1);
}

#[test]
fn import_prints_the_identifier_of_the_stored_profile() {
    let world = World::new();
    let mut secret = profile("zip", "hash:01");
    secret["arguments"] = json!("--password=hunter2");
    let given = document(&[secret]);
    let imported = stdout(&import(&world, &[], &given));
    let kept = stdout(&import(&world, &[], &given));
    let replaced = stdout(&import(&world, &["--json", "--replace"], &given));
    let listed = world.json(&["profile", "list"]).unwrap();
    let arguments = listed["profiles"][0]["arguments"].as_str().unwrap();
    assert!(!arguments.contains("hunter2"), "{arguments}");
    let id = listed["profiles"][0]["id"].as_str().unwrap();
    let first = format!("imported the profile zip ({id}): ");
    assert!(imported.starts_with(&first), "{imported}");
    let second = format!("kept the stored profile zip ({id}); ");
    assert!(kept.starts_with(&second), "{kept}");
    let replaced: Value = serde_json::from_str(&replaced).unwrap();
    assert_eq!(replaced["imported"][0]["id"], id);
}

#[test]
fn invalid_exports_and_imports_are_errors_that_change_nothing() {
    let world = World::new();
    let refused = |output: Output, part: &str| {
        assert_eq!(output.status.code(), Some(125));
        let message = stderr(&output);
        assert!(
            message.contains(part) && message.lines().count() == 1,
            "{message}"
        );
    };
    refused(
        world.run(&["profile", "export"]),
        "there is nothing to export",
    );
    let mut wrong = profile("bad", "hash:09");
    wrong["points"] = json!([point(2, 0.5), point(1, 0.9)]);
    let text = document(&[profile("good", "hash:08"), wrong]);
    refused(import(&world, &[], &text), "profile 2: the core counts");
    refused(import(&world, &[], "{"), "invalid JSON");
    refused(import(&world, &[], "{}"), "no file of profiles");
    refused(
        world.run(&["profile", "import", "/nowhere.json"]),
        "No such file",
    );
    refused(
        world.run(&["profile", "--name", "x", "list"]),
        "--name belongs to a measurement",
    );
    assert_eq!(profiles(&world), 0);
}

#[test]
fn a_program_with_the_name_of_a_command_follows_two_dashes() {
    let world = World::new();
    let output = world.run(&["profile", "--force", "--", "list"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(
        stderr(&output).contains("running 'list'"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn profile_does_not_store_a_program_that_is_too_short() {
    let world = World::new();
    let args = [
        "profile",
        "--max-other-cpus",
        "100000",
        "--repeats",
        "1",
        "--cores",
        "1",
        "--",
        "true",
    ];
    let output = world.run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains("too short to determine its scalability"),
        "{text}"
    );
    let message = stderr(&output);
    assert!(
        message.ends_with("the profile is not stored, because the program is too short\n"),
        "{message}"
    );
    assert!(!world.path("profiles.db").exists());
}
