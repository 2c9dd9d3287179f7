// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the variables for the number of threads (`usher run --hints`): a shell that starts
//! copies gets them in its second run, variables of the user are kept, and a run without copies
//! ends their use.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use common::{World, signal, stdout, wait_for};
use serde_json::Value;

/// The variables that `usher run` can set.
const VARIABLES: [&str; 6] = [
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "GOMAXPROCS",
];

/// A launcher of two copies: `sh -c SCRIPT`, with the same words in each run. It writes its
/// variables to the file `seen`, and ends when the test writes to the FIFO `end`. If the file
/// `serial` exists, it starts no copies, and uses CPU time instead.
struct Launcher {
    world: World,
    script: String,
}

impl Launcher {
    fn new() -> Self {
        let mut world = World::new();
        // This policy does not vary the seat from run to run.
        world.daemon(&["--policy", "equal"]);
        let path = |name: &str| world.path(name).display().to_string();
        let values = VARIABLES.map(|name| format!("${name}")).join(",");
        let script = format!(
            "echo {values} > {new}; mv {new} {seen}\n\
             if [ -e {serial} ]; then while [ -e {serial} ]; do :; done; exit; fi\n\
             sleep 600 & a=$!; sleep 601 & read line < {end}; kill $a $!; wait",
            new = path("new"),
            seen = path("seen"),
            serial = path("serial"),
            end = path("end"),
        );
        let made = std::process::Command::new("mkfifo")
            .arg(world.path("end"))
            .status();
        assert!(made.unwrap().success());
        Self { world, script }
    }

    fn seen(&self) -> PathBuf {
        self.world.path("seen")
    }

    /// Starts the launcher by `usher run OPTIONS` with a variable of the user.
    fn start(&self, options: &[&str]) -> Child {
        let _ = fs::remove_file(self.seen());
        let words = [&["run"], options, &["--", "sh", "-c", &self.script]].concat();
        let mut command = self.world.usher(&words);
        for name in VARIABLES.iter().chain(&["GOTO_NUM_THREADS"]) {
            command.env_remove(name);
        }
        command.env("GOMAXPROCS", "77");
        command.stderr(Stdio::null()).spawn().unwrap()
    }

    /// Returns the values that the launcher found in its environment.
    fn values(&self) -> Vec<String> {
        let text = wait_for("the launcher", || fs::read_to_string(self.seen()).ok());
        text.trim().split(',').map(ToOwned::to_owned).collect()
    }

    /// Waits until the copies of the only program are recognised, and returns the program.
    fn with_copies(&self) -> Value {
        wait_for("two copies", || {
            let program = self.world.programs(1).remove(0);
            let copies = program["copies"].as_array()?;
            let found = copies.iter().map(|group| group["copies"].as_array());
            let is_pair = |copies: Option<&Vec<Value>>| copies.is_some_and(|all| all.len() == 2);
            found.into_iter().any(is_pair).then_some(program)
        })
    }

    /// Ends the launcher and its copies.
    fn end(&self, mut run: Child) {
        // Opening a FIFO for reading and writing does not wait for another process.
        let mut options = OpenOptions::new();
        let path = self.world.path("end");
        let mut end = options.read(true).write(true).open(path).unwrap();
        end.write_all(b"end\n").unwrap();
        run.wait().unwrap();
        self.world.programs(0);
    }

    /// Returns the number of CPUs per copy in the profile store; `None` if it has none.
    fn stored_cpus(&self) -> Option<u64> {
        let list = self.world.json(&["profile", "list"])?;
        let mut profiles = list["profiles"].as_array()?.iter();
        profiles.find_map(|profile| profile["cpus_per_copy"].as_u64())
    }

    /// Runs the launcher once, and waits until its copies are stored. Returns the number of CPUs
    /// per copy.
    fn first_run(&self) -> u64 {
        let run = self.start(&[]);
        assert_eq!(self.values(), ["", "", "", "", "", "77"], "the first run");
        assert!(self.with_copies()["hints"].is_null());
        let cpus = wait_for("the stored copies", || self.stored_cpus());
        self.end(run);
        cpus
    }
}

#[test]
fn the_second_run_of_a_launcher_gets_the_cpus_of_one_copy() {
    let launcher = Launcher::new();
    let cpus = launcher.first_run();
    let usable = std::thread::available_parallelism().unwrap().get() as u64;
    assert!((1..=(usable / 2).max(1)).contains(&cpus), "{cpus}");
    let number = cpus.to_string();

    let run = launcher.start(&[]);
    let mut expected = vec![number.as_str(); 5];
    expected.push("77");
    assert_eq!(launcher.values(), expected, "the second run");
    let program = launcher.with_copies();
    assert_eq!(program["hints"]["threads"], cpus);
    assert_eq!(program["hints"]["from_copies"], true);
    let names: Vec<Value> = VARIABLES[..5].iter().map(|&name| name.into()).collect();
    assert_eq!(program["hints"]["variables"], Value::from(names));
    let text = stdout(&launcher.world.run(&["status"])).replace('\n', " ");
    let sentence = format!("RAYON_NUM_THREADS to {cpus}, the number of CPUs of a copy");
    assert!(text.contains(&sentence), "{text}");
    launcher.end(run);

    let run = launcher.start(&["--hints"]);
    assert_eq!(launcher.values(), expected, "--hints");
    launcher.end(run);
    let run = launcher.start(&["--no-hints"]);
    assert_eq!(launcher.values(), ["", "", "", "", "", "77"], "--no-hints");
    assert!(launcher.with_copies()["hints"].is_null());
    launcher.end(run);
}

#[test]
fn a_run_with_work_but_without_copies_ends_the_use_of_the_variables() {
    let launcher = Launcher::new();
    let cpus = launcher.first_run().to_string();
    let serial = launcher.world.path("serial");
    fs::write(&serial, "").unwrap();
    let mut run = launcher.start(&[]);
    assert_eq!(launcher.values()[0], cpus, "the copies are stored");
    wait_for("1 s of CPU time", || {
        let program = launcher.world.programs(1).remove(0);
        (program["cpu_seconds"].as_f64()? > 1.0).then_some(())
    });
    fs::remove_file(&serial).unwrap();
    assert!(run.wait().unwrap().success());
    wait_for("the deletion of the stored copies", || {
        launcher.stored_cpus().is_none().then_some(())
    });
    let run = launcher.start(&[]);
    assert_eq!(launcher.values(), ["", "", "", "", "", "77"]);
    launcher.end(run);
}

#[test]
fn a_deleted_profile_contains_no_copies() {
    let launcher = Launcher::new();
    launcher.first_run();
    let shown = stdout(&launcher.world.run(&["profile", "show", "sh"]));
    assert!(shown.contains("CPUs per copy"), "{shown}");
    let removed = launcher.world.run(&["profile", "rm", "sh"]);
    assert!(removed.status.success());
    let run = launcher.start(&[]);
    assert_eq!(launcher.values(), ["", "", "", "", "", "77"]);
    launcher.end(run);
}

#[test]
fn a_new_daemon_shows_the_variables_that_were_set_before() {
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "linux"]);
    let mut command = world.usher(&["run", "--hints", "--", "sleep", "1000"]);
    for name in VARIABLES {
        command.env_remove(name);
    }
    let mut run = command.stderr(Stdio::null()).spawn().unwrap();
    let hints = world.programs(1).remove(0)["hints"].clone();
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert_eq!(hints["threads"], cpus);
    assert_eq!(hints["from_copies"], false);
    world.end(daemon);
    world.daemon(&["--policy", "linux"]);
    let again = world.programs(1).remove(0);
    assert_eq!(again["hints"], hints);
    signal(run.id() as i32, libc::SIGTERM);
    assert_eq!(run.wait().unwrap().code(), Some(128 + libc::SIGTERM));
}
