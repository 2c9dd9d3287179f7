// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the configuration file and of `usher attach --match`, through the daemon.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};

use common::{World, copy_program, signal, stderr, stdout, wait_for};
use serde_json::{Value, json};

/// Writes the configuration file of a test.
fn configure(world: &World, text: &str) -> PathBuf {
    let path = world.path("usher.toml");
    // The file is replaced at once, so that the daemon never reads half of it.
    let new = world.path("usher.toml.new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, &path).unwrap();
    path
}

fn daemon(world: &mut World, text: &str) -> i32 {
    let path = configure(world, text);
    let path = path.to_str().unwrap().to_owned();
    world.daemon(&["--policy", "linux", "--config", &path])
}

/// A copy of `tail` under a name that no other process has.
struct Copied {
    path: PathBuf,
    name: String,
}

/// Arguments with which `tail` runs until it is killed.
const ENDLESS: [&str; 2] = ["-f", "/dev/null"];

impl Copied {
    fn new(world: &World, name: &str) -> Self {
        Self::of("/usr/bin/tail", world, name)
    }

    /// Copies another program.
    fn of(program: &str, world: &World, name: &str) -> Self {
        let file = program.rsplit('/').next().unwrap_or(program);
        let name = format!("{name}-{file}-{}", std::process::id());
        let path = world.path(&name);
        copy_program(program, &path);
        Self { path, name }
    }

    fn start(&self) -> Running {
        Running(Command::new(&self.path).args(ENDLESS).spawn().unwrap())
    }
}

/// A process that is killed when it is dropped.
struct Running(Child);

impl Running {
    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `usher ARGS` for a program that runs until it is killed.
fn launch(world: &World, args: &[&str], program: &Copied) -> Running {
    let mut command = world.usher(args);
    let command = command.arg("--").arg(&program.path).args(ENDLESS);
    Running(
        command
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap(),
    )
}

fn named<'a>(programs: &'a [Value], name: &str) -> &'a Value {
    programs.iter().find(|one| one["name"] == name).unwrap()
}

#[test]
fn rules_determine_how_launched_programs_are_managed() {
    let mut world = World::new();
    let (a, b, c) = (
        Copied::new(&world, "ruled"),
        Copied::new(&world, "weighted"),
        Copied::new(&world, "ignored"),
    );
    let text = format!(
        "[[rule]]\nexecutable = '{}'\naction = 'background'\n\
         [[rule]]\nexecutable = '{}'\nweight = 0.25\nname = 'nightly'\n\
         [[rule]]\nexecutable = '{}'\naction = 'ignore'\n",
        a.name, b.name, c.name
    );
    daemon(&mut world, &text);
    let launched = [
        launch(&world, &["run"], &a),
        launch(&world, &["run"], &b),
        launch(&world, &["run", "--weight", "2", "--name", "own"], &b),
    ];
    let programs = world.programs(3);
    let background = named(&programs, &a.name);
    assert_eq!(background["mode"], "background");
    assert_eq!(background["background"]["policy"], "usher");
    assert_eq!(named(&programs, "nightly")["weight"], 0.25);
    assert_eq!(named(&programs, "own")["weight"], 2.0);
    let explained = stdout(&world.run(&["explain", &a.name]));
    assert!(explained.contains("rule 1 ("), "{explained}");
    // A launcher forwards signals also to a program that a rule made background work.
    signal(launched[0].pid(), libc::SIGTERM);
    world.programs(2);
    let ignored = world
        .usher(&["run", "--"])
        .arg(&c.path)
        .arg("/dev/null")
        .output();
    let ignored = ignored.unwrap();
    assert!(ignored.status.success());
    let line = stderr(&ignored);
    assert!(
        line.contains("the program runs unmanaged") && line.contains("rule 3 ("),
        "{line}"
    );
    for program in world.programs(2) {
        signal(program["pid"].as_i64().unwrap() as i32, libc::SIGTERM);
    }
    drop(launched);
}

#[test]
fn reload_replaces_the_rules_and_keeps_the_old_ones_after_an_error() {
    let mut world = World::new();
    let program = Copied::new(&world, "reloaded");
    let rule = |weight: &str| {
        format!(
            "[[rule]]\nexecutable = '{}'\nweight = {weight}\n",
            program.name
        )
    };
    let pid = daemon(&mut world, &rule("0.25"));
    let weight = |world: &World| {
        let running = launch(world, &["run"], &program);
        let programs = world.programs(1);
        let pid = programs[0]["pid"].as_i64().unwrap() as i32;
        signal(pid, libc::SIGKILL);
        drop(running);
        world.programs(0);
        programs[0]["weight"].as_f64().unwrap()
    };
    assert_eq!(weight(&world), 0.25);
    let path = configure(&world, "[[rule]]\nexecutabel = 'x'\n");
    let failed = world.run(&["daemon", "reload"]);
    assert_eq!(failed.status.code(), Some(125));
    let line = stderr(&failed);
    let expected = format!("{}:2: unknown field `executabel`", path.display());
    assert!(line.contains(&expected), "{line}");
    assert!(line.ends_with("; the old rules stay in force\n"), "{line}");
    assert_eq!(weight(&world), 0.25);
    configure(&world, &rule("4.0"));
    let reloaded = world.json(&["daemon", "reload"]).unwrap();
    assert_eq!(
        reloaded,
        json!({ "file": path.to_str().unwrap(), "rules": 1, "notes": [] })
    );
    assert_eq!(weight(&world), 4.0);
    // SIGHUP has the same effect, and does not end the daemon.
    configure(
        &world,
        &format!("[daemon]\npolicy = 'equal'\n{}", rule("5.0")),
    );
    signal(pid, libc::SIGHUP);
    wait_for("the daemon to use the new rules", || {
        (weight(&world) == 5.0).then_some(())
    });
    let notes = &world.json(&["daemon", "reload"]).unwrap()["notes"];
    assert_eq!(notes.as_array().unwrap().len(), 1);
    assert_eq!(world.status()["policy"], "linux");
    assert_eq!(world.status()["pid"], json!(pid));
}

#[test]
fn a_rule_with_too_many_cores_is_reported() {
    let mut world = World::new();
    let rule = |cores: u32| format!("[[rule]]\nexecutable = 'x'\ncores = {cores}\n");
    let path = configure(&world, &rule(1));
    world.daemon(&["--config", path.to_str().unwrap()]);
    let notes = |world: &World| world.json(&["daemon", "reload"]).unwrap()["notes"].clone();
    assert_eq!(notes(&world), json!([]));
    configure(&world, &rule(100_000));
    let notes = notes(&world).to_string();
    let expected = format!(
        "rule 1 ({}:1): `cores` is 100000, but the machine has ",
        path.display()
    );
    assert!(notes.contains(&expected), "{notes}");
    assert!(notes.contains("; lower `cores` to at most "), "{notes}");
}

#[test]
fn a_daemon_does_not_start_with_a_broken_file() {
    let world = World::new();
    let path = configure(&world, "[[rule]]\nuser = 0\nweigth = 1.0\n");
    let path = path.to_str().unwrap();
    let output = world.run(&["daemon", "--config", path]);
    assert_eq!(output.status.code(), Some(125));
    let line = stderr(&output);
    assert!(
        line.starts_with(&format!("usher: {path}:3: unknown field")),
        "{line}"
    );
    assert_eq!(line.lines().count(), 1, "{line}");
    let missing = world.run(&["daemon", "--config", "/no/such/file"]);
    assert_eq!(missing.status.code(), Some(125));
    assert!(
        stderr(&missing).contains("'/no/such/file'"),
        "{}",
        stderr(&missing)
    );
}

#[test]
fn settings_of_the_file_apply_unless_options_are_given() {
    let mut world = World::new();
    let path = configure(&world, "[daemon]\npolicy = 'equal'\n");
    let path = path.to_str().unwrap().to_owned();
    let first = world.daemon(&["--config", &path]);
    assert_eq!(world.status()["policy"], "equal");
    world.end(first);
    world.daemon(&["--config", &path, "--policy", "linux"]);
    assert_eq!(world.status()["policy"], "linux");
}

#[test]
fn running_processes_are_attached_by_a_rule_and_stay_detached() {
    let mut world = World::new();
    let program = Copied::new(&world, "attached");
    let old = program.start();
    let rule = format!("[[rule]]\nexecutable = '{}'\nattach = true\n", program.name);
    daemon(&mut world, &rule);
    assert_eq!(world.programs(1)[0]["pid"], json!(old.pid()));
    // The process is a child of the shell, which does not match.
    let new = program.start();
    world.programs(2);
    assert!(
        world
            .run(&["detach", &new.pid().to_string()])
            .status
            .success()
    );
    // A reload examines all processes again, but not those that were attached before.
    assert!(world.run(&["daemon", "reload"]).status.success());
    let third = program.start();
    let pids: Vec<Value> = wait_for("the third process to be attached", || {
        let status = world.json(&["status"])?;
        let programs = status["programs"].as_array()?;
        let pids: Vec<Value> = programs.iter().map(|one| one["pid"].clone()).collect();
        pids.contains(&json!(third.pid())).then_some(pids)
    });
    assert!(!pids.contains(&json!(new.pid())), "{pids:?}");
}

/// A shell has two children, one of which is managed already. The shell and the children match. The
/// children end with the shell.
#[test]
fn a_rule_attaches_the_other_children_of_a_process_with_a_managed_child() {
    let mut world = World::new();
    let (shell, child) = (
        Copied::of("/bin/sh", &world, "divided"),
        Copied::new(&world, "divided"),
    );
    daemon(&mut world, "");
    let script = format!(
        "'{0}' --pid=$$ -f /dev/null & '{0}' --pid=$$ -f /dev/null & wait",
        child.path.display()
    );
    let parent = Running(
        Command::new(&shell.path)
            .args(["-c", &script])
            .spawn()
            .unwrap(),
    );
    let children = wait_for("two children", || {
        let pid = parent.pid();
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        let pids: Vec<i32> = list
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect();
        (pids.len() == 2).then_some(pids)
    });
    let attached = world.run(&["attach", &children[0].to_string()]);
    assert!(attached.status.success(), "{}", stderr(&attached));
    let rule = |name: &str| format!("[[rule]]\nexecutable = '{name}'\nattach = true\n");
    configure(&world, &[rule(&shell.name), rule(&child.name)].concat());
    assert!(world.run(&["daemon", "reload"]).status.success());
    let pids: BTreeSet<i64> = world
        .programs(2)
        .iter()
        .map(|one| one["pid"].as_i64().unwrap())
        .collect();
    assert_eq!(pids, children.iter().map(|&pid| i64::from(pid)).collect());
}

#[test]
fn a_detached_program_stays_detached_after_a_reload() {
    let mut world = World::new();
    let program = Copied::new(&world, "released");
    daemon(&mut world, "");
    let by_hand = program.start();
    let pid = by_hand.pid().to_string();
    for command in ["attach", "detach"] {
        let done = world.run(&[command, &pid]);
        assert!(done.status.success(), "{}", stderr(&done));
    }
    let rule = format!("[[rule]]\nexecutable = '{}'\nattach = true\n", program.name);
    configure(&world, &rule);
    assert!(world.run(&["daemon", "reload"]).status.success());
    let other = program.start();
    assert_eq!(world.programs(1)[0]["pid"], json!(other.pid()));
}

#[test]
fn rules_for_executables_apply_to_attached_programs() {
    let mut world = World::new();
    let (background, ignored) = (Copied::new(&world, "lowered"), Copied::new(&world, "kept"));
    let text = format!(
        "[[rule]]\nexecutable = '{}'\naction = 'background'\n\
         [[rule]]\nexecutable = '{}'\naction = 'ignore'\n",
        background.path.display(),
        ignored.name
    );
    daemon(&mut world, &text);
    let (background_process, ignored_process) = (background.start(), ignored.start());
    let refused = world.run(&["attach", &ignored_process.pid().to_string()]);
    assert_eq!(refused.status.code(), Some(125), "{}", stdout(&refused));
    let attached = world.run(&["attach", &background_process.pid().to_string()]);
    assert!(attached.status.success(), "{}", stderr(&attached));
    let programs = world.programs(1);
    assert_eq!(programs[0]["mode"], "background");
    let command = format!("{} {}", background.path.display(), ENDLESS.join(" "));
    assert_eq!(programs[0]["command"], json!(command));
}

#[test]
fn match_attaches_the_roots_of_matching_trees() {
    let mut world = World::new();
    world.daemon(&["--policy", "linux"]);
    let program = Copied::new(&world, "matched");
    let (first, second) = (program.start(), program.start());
    let listed = world.run(&["attach", "--match", &program.name, "--dry-run"]);
    let text = stdout(&listed);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(
        text.contains(&format!("would attach process {}: ", first.pid())),
        "{text}"
    );
    world.programs(0);
    let one = world.run(&["attach", "--dry-run", &first.pid().to_string()]);
    assert!(
        stdout(&one).starts_with("would attach process"),
        "{}",
        stderr(&one)
    );
    let none = world.run(&["attach", "--dry-run", "4194304"]);
    assert_eq!(none.status.code(), Some(125));
    assert!(
        stderr(&none).contains("it does not exist"),
        "{}",
        stderr(&none)
    );
    let attached = world.run(&["attach", "--match", &program.name]);
    assert!(attached.status.success(), "{}", stderr(&attached));
    let programs = world.programs(2);
    let pids: Vec<&Value> = programs.iter().map(|one| &one["pid"]).collect();
    assert!(pids.contains(&&json!(first.pid())) && pids.contains(&&json!(second.pid())));
    for (pattern, expected) in [
        (program.name.as_str(), "is managed already"),
        (
            "no-such-program-*",
            "no process that may be attached matches",
        ),
        ("[", "invalid pattern '['"),
    ] {
        let refused = world.run(&["attach", "--match", pattern]);
        assert_eq!(refused.status.code(), Some(125));
        assert!(stderr(&refused).contains(expected), "{}", stderr(&refused));
    }
}
