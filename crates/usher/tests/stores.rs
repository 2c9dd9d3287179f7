// SPDX-License-Identifier: GPL-2.0-only
//! Tests of commands and daemons with a profile store that cannot be used: on a full file system, at
//! a path where no file can be created, or a file that is no store.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{World, mount_tmpfs, signal, stderr, stdout, wait_for};

/// A path at which no file can be created.
const NOWHERE: &str = "/proc/nope/profiles.db";

/// A document with one profile.
const DOCUMENT: &str = r#"{"format": "usher-profiles", "version": 1, "profiles": [{
    "name": "zip", "executable": "hash:01", "arguments": "-9", "machine": "another",
    "runs": 1, "at_s": 1, "points": [{"source": "repetition", "cores": 1.0, "rate": 2.0,
    "relative_error": 0.1, "at_s": 1, "runs": 1}]}]}"#;

/// A file system of 1 MiB, which is unmounted when the value is dropped.
struct Mount(PathBuf);

impl Mount {
    /// Mounts the file system; prints a skip and returns `None` if mounting is not permitted.
    fn at(dir: PathBuf) -> Option<Self> {
        fs::create_dir(&dir).unwrap();
        mount_tmpfs(&dir, "1m").then_some(Self(dir))
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Stores the profile of [`DOCUMENT`].
fn import(world: &World, store: &Path) {
    let mut command = world.usher(&["profile", "import", "-"]);
    command.env("USHER_STORE", store).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(DOCUMENT.as_bytes()).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_store_on_a_full_file_system_can_be_read() {
    let world = World::new();
    let Some(mount) = Mount::at(world.path("small")) else {
        return;
    };
    let store = mount.0.join("profiles.db");
    import(&world, &store);
    mount.fill();
    let run = |args: &[&str]| {
        let mut command = world.usher(args);
        command.env("USHER_STORE", &store).output().unwrap()
    };
    for args in [&["list"][..], &["show", "zip"], &["export"]] {
        let output = run(&[&["profile"], args].concat());
        assert!(stdout(&output).contains("zip"), "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
    }
    let cause = format!(
        "the profile store {} cannot be written, because its file system is full: free space",
        store.display()
    );
    let output = run(&["profile", "rm", "zip"]);
    assert!(!output.status.success());
    let line = stderr(&output);
    assert!(line.starts_with(&format!("usher: {cause}")), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    let found: serde_json::Value =
        serde_json::from_slice(&run(&["doctor", "--json"]).stdout).unwrap();
    assert_eq!(found["store"]["profiles"], 1);
    let problem = found["store"]["problem"].as_str().unwrap();
    assert!(problem.starts_with(&cause), "{problem}");
}

#[test]
fn a_store_that_cannot_be_created_is_an_error_with_one_text() {
    let world = World::new();
    let run = |args: &[&str]| {
        let mut command = world.usher(args);
        command.env("USHER_STORE", NOWHERE).output().unwrap()
    };
    let problem = format!("the profile store {NOWHERE} cannot be created: /proc: ");
    let found: serde_json::Value =
        serde_json::from_slice(&run(&["doctor", "--json"]).stdout).unwrap();
    let found = found["store"]["problem"].as_str().unwrap();
    assert!(found.starts_with(&problem), "{found}");
    assert!(found.ends_with("--store or USHER_STORE"), "{found}");
    for args in [&["list"][..], &["list", "--json"], &["show", "zip"]] {
        let output = run(&[&["profile"], args].concat());
        assert_eq!(output.status.code(), Some(125), "{args:?}");
        let (text, line) = (stdout(&output), stderr(&output));
        assert_eq!((text, line), (String::new(), format!("usher: {found}\n")));
    }
    let output = run(&["run", "true"]);
    assert!(output.status.success());
    let line = stderr(&output);
    assert!(line.contains(found), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
}

#[test]
fn a_store_that_does_not_exist_yet_is_an_empty_list() {
    let world = World::new();
    let output = world.run(&["profile", "list"]);
    assert!(output.status.success());
    let text = stdout(&output);
    assert!(text.contains("has no profiles"), "{text}");
    assert_eq!(stderr(&output), "");
    assert!(!world.path("profiles.db").exists());
}

/// A store that a daemon cannot use.
struct UnusableStore {
    /// Makes the file.
    prepare: fn(&Path),
    /// The path, if the file is not in the directory of the test.
    path: Option<&'static str>,
    /// Parts of the warning.
    parts: [&'static str; 2],
}

/// Makes a store with a profile and a format version that does not exist yet.
fn store_of_a_later_version(path: &Path) {
    import(&World::new(), path);
    // The header of the file contains the version.
    let mut bytes = fs::read(path).unwrap();
    bytes[60..64].copy_from_slice(&99u32.to_be_bytes());
    fs::write(path, bytes).unwrap();
}

#[test]
fn an_unusable_store_is_logged_and_printed_once_per_daemon() {
    let cases = [
        UnusableStore {
            prepare: store_of_a_later_version,
            path: None,
            parts: ["has format 99", "use a newer version of Usher"],
        },
        UnusableStore {
            prepare: |path| fs::write(path, "no database").unwrap(),
            path: None,
            parts: ["is not a profile store", "name another file"],
        },
        UnusableStore {
            prepare: |_| {},
            path: Some(NOWHERE),
            parts: ["cannot be created", "name another file"],
        },
    ];
    for case in cases {
        let world = World::new();
        let own = || world.path("profiles.db");
        let store = case.path.map_or_else(own, PathBuf::from);
        (case.prepare)(&store);
        let usher = |args: &[&str]| {
            let mut command = world.usher(args);
            command.env("USHER_STORE", &store);
            command
        };
        // While this program runs, the daemon does not end.
        let mut first = usher(&["run", "sleep", "1000"]);
        let first = first.stderr(Stdio::piped()).spawn().unwrap();
        let program = world.programs(1)[0]["pid"].as_i64().unwrap() as i32;
        let second = usher(&["run", "echo", "done"]).output().unwrap();
        assert_eq!(
            (stdout(&second), stderr(&second)),
            ("done\n".to_owned(), String::new())
        );
        signal(program, libc::SIGKILL);
        let line = stderr(&first.wait_with_output().unwrap());
        assert_eq!(line.lines().count(), 1, "{line}");
        let path = store.display().to_string();
        let log = world.runtime_dir().join("daemon.log");
        let logged = wait_for("the warning in the log", || {
            let text = fs::read_to_string(&log).ok()?;
            text.contains(" warn usher: ").then_some(text)
        });
        for part in case.parts.into_iter().chain([path.as_str()]) {
            assert!(line.contains(part), "{line}");
            let warnings = logged.lines().filter(|line| line.contains(part));
            assert_eq!(warnings.count(), 1, "{part}: {logged}");
        }
    }
}

#[test]
fn a_store_beside_a_daemon_with_another_store_is_reported_once() {
    let mut world = World::new();
    world.daemon(&[]);
    let (own, other) = (world.path("profiles.db"), world.path("other.db"));
    let (own, other) = (own.to_str().unwrap(), other.to_str().unwrap());
    let reported = format!(
        "usher: `--store {other}` has no effect, because a daemon runs and uses the profile store \
         {own}: end the daemon ('usher daemon stop') and repeat the command, or start the daemon \
         as `usher daemon --store {other}`\n"
    );
    for args in [
        &["run", "--store", other, "--", "true"][..],
        &[
            "run", "--copies", "2", "--cores", "1", "--store", other, "--", "true",
        ],
        &["bg", "--store", other, "--", "true"],
    ] {
        let output = world.run(args);
        if args.contains(&"--copies") && stderr(&output).contains("2 copies with 1 core each need")
        {
            usher_skip::skip!("2 copies need 2 cores");
            continue;
        }
        assert!(output.status.success());
        assert_eq!(stderr(&output), reported, "{args:?}");
    }
    assert!(!Path::new(other).exists());
    let spaced = world.path("my store.db");
    let output = world.run(&["run", "--store", spaced.to_str().unwrap(), "--", "true"]);
    let remedy = format!("as `usher daemon --store '{}'`", spaced.display());
    assert!(stderr(&output).contains(&remedy), "{}", stderr(&output));
    let same = world.run(&["run", "--store", own, "--", "true"]);
    assert_eq!(stderr(&same), "");
    // The environment is no request to one command.
    let mut command = world.usher(&["run", "--", "true"]);
    let output = command.env("USHER_STORE", other).output().unwrap();
    assert_eq!(stderr(&output), "");
    let daemon_store = world.status()["store"].clone();
    assert_eq!(daemon_store, own);
}
