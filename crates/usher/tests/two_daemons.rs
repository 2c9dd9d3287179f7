// SPDX-License-Identifier: GPL-2.0-only
//! Tests of a user with programs at two daemons: the system's and the user's own. The commands of
//! the user run in a mount namespace in which `/run/usher` is the directory of this test.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use common::{World, signal, stderr, stdout, wait_for};
use serde_json::{Value, json};

/// The user.
const USER: u32 = 65_534;

/// Mounts the directory `$0` on `/run/usher`, and executes the other arguments as the user.
const AS_USER: &str = "mount -t tmpfs -o mode=755 none /run && mkdir /run/usher && \
                       mount --bind \"$0\" /run/usher && \
                       exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"";

/// The system daemon, and a daemon of the user.
struct TwoDaemons {
    system: World,
    own: Option<Child>,
    sleepers: Vec<Child>,
}

impl TwoDaemons {
    /// Starts both daemons; `None` if this process may not do so.
    fn start() -> Option<Self> {
        let mut two = Self {
            system: World::new(),
            own: None,
            sleepers: Vec::new(),
        };
        common::copy_program(env!("CARGO_BIN_EXE_usher"), two.system.path("usher"));
        fs::create_dir(two.home()).unwrap();
        if chown(two.home(), Some(USER), Some(USER)).is_err() {
            usher_skip::skip!("only root can act as another user");
            return None;
        }
        fs::set_permissions(two.home(), fs::Permissions::from_mode(0o700)).unwrap();
        two.system.daemon(&[]);
        let version = two.user(&["--version"]);
        if !version.status.success() {
            let text = stderr(&version);
            usher_skip::skip!("no user and mount namespace can be used: {}", text.trim());
            return None;
        }
        let mut daemon = two.command(&["daemon"]);
        two.own = Some(daemon.stderr(Stdio::null()).spawn().unwrap());
        wait_for("both daemons", || {
            let status = two.json(&["status"])?;
            (status["other_daemons"].as_array()?.len() == 1).then_some(())
        });
        Some(two)
    }

    fn home(&self) -> PathBuf {
        self.system.path("user")
    }

    fn own_dir(&self) -> String {
        self.home().join("usher").to_str().unwrap().to_owned()
    }

    /// Returns a command of the user. In its mount namespace, `/run/usher` is the directory of the
    /// system daemon.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", AS_USER]);
        command.arg(self.system.runtime_dir());
        command.arg(self.system.path("usher")).args(words);
        command
            .env_remove("USHER_RUNTIME_DIR")
            .env("USHER_CLAIM_NAME", self.system.claim_name())
            .env("USHER_STORE", self.home().join("profiles.db"))
            .env("XDG_RUNTIME_DIR", self.home())
            .env("HOME", self.home())
            .current_dir("/")
            .stdin(Stdio::null());
        command
    }

    fn user(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn json(&self, words: &[&str]) -> Option<Value> {
        let output = self.user(&[words, &["--json"]].concat());
        let is_ok = output.status.success();
        is_ok.then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Starts a program of the user and attaches it to the daemon in a directory. Returns its pid.
    fn attach(&mut self, dir: &str, name: &str) -> i32 {
        let mut sleeper = Command::new("sleep");
        let sleeper = sleeper.arg("1000").uid(USER).gid(USER).spawn().unwrap();
        let pid = sleeper.id() as i32;
        self.sleepers.push(sleeper);
        let words = ["attach", "--runtime-dir", dir, "--name", name];
        let attached = self.json(&[&words[..], &[&pid.to_string()]].concat());
        assert_eq!(attached.unwrap()["attached"][0]["runtime_dir"], dir);
        pid
    }

    /// Starts a program `alpha` of the system daemon and a program `beta` of the user's daemon, which
    /// have the same number. Returns their pids.
    fn attach_both(&mut self) -> [i32; 2] {
        let own = self.own_dir();
        let pids = [
            self.attach("/run/usher", "alpha"),
            self.attach(&own, "beta"),
        ];
        let status = self.json(&["status"]).unwrap();
        assert_eq!(status["programs"][0]["id"], 1);
        assert_eq!(status["other_daemons"][0]["programs"][0]["id"], 1);
        pids
    }
}

impl Drop for TwoDaemons {
    fn drop(&mut self) {
        for sleeper in &mut self.sleepers {
            let _ = sleeper.kill();
            let _ = sleeper.wait();
        }
        if let Some(own) = &mut self.own {
            signal(own.id() as i32, libc::SIGCONT);
            signal(own.id() as i32, libc::SIGTERM);
            let _ = own.wait();
        }
    }
}

#[test]
fn status_explain_top_and_doctor_show_the_programs_of_both_daemons() {
    let Some(mut two) = TwoDaemons::start() else {
        return;
    };
    two.attach_both();
    for command in ["status", "top"] {
        let status = two.json(&[command]).unwrap();
        assert_eq!(status["programs"][0]["name"], "alpha");
        assert_eq!(status["runtime_dir"], "/run/usher");
        let other = &status["other_daemons"][0];
        assert_eq!(other["programs"][0]["name"], "beta");
        assert_eq!(other["runtime_dir"], two.own_dir());
        assert_ne!(other["pid"], status["pid"]);
    }
    let explained = two.json(&["explain"]).unwrap();
    assert_eq!(explained["reasons"][0]["program"]["name"], "alpha");
    let other = &explained["other_daemons"][0];
    assert_eq!(other["reasons"][0]["program"]["name"], "beta");
    for command in ["status", "explain", "top"] {
        let text = stdout(&two.user(&[command]));
        for part in ["alpha", "beta", "daemon in /run/usher:", &two.own_dir()] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    let doctor = two.json(&["doctor"]).unwrap();
    assert_eq!(doctor["daemon"]["programs"][0]["name"], "alpha");
    assert_eq!(doctor["daemon"]["runtime_dir"], "/run/usher");
    let other = &doctor["other_daemons"][0];
    assert_eq!(other["programs"][0]["name"], "beta");
    assert_eq!(other["runtime_dir"], two.own_dir());
    let text = stdout(&two.user(&["doctor"]));
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    for (daemon, dir) in [(&doctor["daemon"], "/run/usher"), (other, &two.own_dir())] {
        let line = format!(
            "process {} in {dir}, policy usher, manages 1 program,",
            daemon["pid"]
        );
        assert!(text.contains(&line), "{line}: {text}");
    }
    for command in ["status", "explain"] {
        let text = stdout(&two.user(&[command, "beta"]));
        assert!(text.contains("beta") && !text.contains("alpha"), "{text}");
    }
    // --runtime-dir selects one daemon.
    let own = two.own_dir();
    let status = two.json(&["status", "--runtime-dir", &own]).unwrap();
    assert_eq!(status["programs"][0]["name"], "beta");
    assert_eq!(status["other_daemons"], json!([]));
}

#[test]
fn programs_are_detached_and_explained_at_their_daemon() {
    let Some(mut two) = TwoDaemons::start() else {
        return;
    };
    let [_, beta] = two.attach_both();
    for words in [["explain", "id:1"], ["detach", "id:1"], ["wait", "id:1"]] {
        let output = two.user(&words);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{text}");
        for part in [
            "alpha",
            "beta",
            "'/run/usher'",
            &two.own_dir(),
            "--runtime-dir",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let explained = two.json(&["explain", "beta"]).unwrap();
    assert_eq!(explained["runtime_dir"], two.own_dir());
    let detached = two.json(&["detach", &beta.to_string()]).unwrap();
    let released = &detached["detached"][0];
    let expected = json!({ "id": 1, "name": "beta", "pid": beta, "runtime_dir": two.own_dir() });
    assert_eq!(*released, expected);
    let status = two.json(&["status"]).unwrap();
    assert_eq!(status["programs"][0]["name"], "alpha");
    assert_eq!(status["other_daemons"][0]["programs"], json!([]));
    let detached = two.user(&["detach", "alpha", "beta"]);
    assert_eq!(detached.status.code(), Some(125));
    assert!(
        stderr(&detached).contains("'beta'"),
        "{}",
        stderr(&detached)
    );
    let status = two.json(&["status"]).unwrap();
    assert_eq!(status["programs"][0]["name"], "alpha");
}

#[test]
fn a_process_is_attached_to_one_daemon_only() {
    let Some(mut two) = TwoDaemons::start() else {
        return;
    };
    let [_, beta] = two.attach_both();
    let (own, pid) = (two.own_dir(), beta.to_string());
    // The system daemon, to which the command would attach the process, does not manage it.
    for words in [
        &["attach", &pid][..],
        &["attach", "--dry-run", &pid],
        &["bg", "--attach", &pid],
    ] {
        let output = two.user(words);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{text}");
        for part in [&pid, "program 1", &own] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let text = stderr(&two.user(&["attach", &pid]));
    assert!(
        text.contains(&format!("'usher detach pid:{pid}'")),
        "{text}"
    );
    let status = two.json(&["status"]).unwrap();
    assert_eq!(status["programs"].as_array().unwrap().len(), 1);
    let released = two.user(&["detach", &format!("pid:{pid}")]);
    assert!(released.status.success(), "{}", stderr(&released));
    let attached = two.user(&["attach", &pid]);
    assert!(attached.status.success(), "{}", stderr(&attached));
    let status = two.json(&["status"]).unwrap();
    assert_eq!(status["programs"].as_array().unwrap().len(), 2);
}

#[test]
fn wait_returns_after_the_programs_of_both_daemons() {
    for words in [
        &["wait", "--json"][..],
        &["wait", "--json", "alpha", "beta"],
    ] {
        let Some(mut two) = TwoDaemons::start() else {
            return;
        };
        two.attach_both();
        let mut wait = two.command(words);
        let wait = wait.stdout(Stdio::piped()).spawn().unwrap();
        let watches = || {
            let files = fs::read_dir(format!("/proc/{}/fd", wait.id())).ok()?;
            let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
            let pidfds = links.filter(|link| link.to_string_lossy().contains("pidfd"));
            (pidfds.count() == 2).then_some(())
        };
        wait_for("the pidfds of both programs", watches);
        // The program of the second daemon ends first.
        for (at, name) in [(1, "beta"), (0, "alpha")] {
            two.sleepers[at].kill().unwrap();
            two.sleepers[at].wait().unwrap();
            wait_for(name, || {
                let status = two.json(&["status"])?;
                (!status.to_string().contains(name)).then_some(())
            });
        }
        let output = wait.wait_with_output().unwrap();
        assert!(output.status.success());
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let ended = answer["ended"].as_array().unwrap().iter();
        let name_and_dir = |one: &Value| {
            let text = |key: &str| one[key].as_str().unwrap().to_owned();
            (text("name"), text("runtime_dir"))
        };
        let mut found: Vec<(String, String)> = ended.map(name_and_dir).collect();
        found.sort_unstable();
        let expected = [("alpha", "/run/usher"), ("beta", &two.own_dir())];
        assert_eq!(found, expected.map(|(name, dir)| (name.into(), dir.into())));
    }
}

#[test]
fn status_shows_the_programs_of_the_daemon_that_answers() {
    let Some(mut two) = TwoDaemons::start() else {
        return;
    };
    two.attach_both();
    let own = two.own.as_ref().unwrap().id() as i32;
    signal(own, libc::SIGSTOP);
    let status = two.user(&["status"]);
    let (text, error) = (stdout(&status), stderr(&status));
    assert_eq!(status.status.code(), Some(125), "{error}");
    assert!(text.contains("alpha") && !text.contains("beta"), "{text}");
    let reason = format!("the daemon (process {own}) did not answer within 10 s");
    for part in [&reason, &two.own_dir(), "kill -CONT"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let doctor = two.json(&["doctor"]).unwrap();
    assert_eq!(doctor["daemon"]["programs"][0]["name"], "alpha");
    let problems = doctor["daemon_problems"].to_string();
    assert!(
        problems.contains(&reason) && problems.contains(&two.own_dir()),
        "{problems}"
    );
    // The stopped daemon may manage another program with this name.
    let detached = two.user(&["detach", "alpha"]);
    assert_eq!(detached.status.code(), Some(125));
    assert!(stderr(&detached).contains("--runtime-dir"));
    let one = two.user(&["detach", "--runtime-dir", "/run/usher", "alpha"]);
    assert!(one.status.success(), "{}", stderr(&one));
}
