// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fixture of the part `kills` of `usher bench hosts`: starts a daemon of root with a launched and
//! an attached program, which both have seats, and with background work that is demoted and frozen.
//!
//! All programs of a fixture have the variable [`MARK`] in their environment, by which the fixture
//! finds its processes in `/proc`. Their attributes (masks, priorities, cgroups) are compared with
//! those of an equal process without Usher. All processes end when the value is dropped, or when
//! the benchmark is killed ([`reaper`]). Each step of the set-up and of the end may take 30 s;
//! otherwise the round fails. Commands of `usher` have no time limit here.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::attributes::{is_held, managed_attributes};
use crate::background::reaper_of;
use crate::processes::{runs, terminate, wait_for};

/// Environment variable that marks all processes of a fixture.
const MARK: &str = "USHER_BENCH_KILLS";
/// Time limit of a step on a loaded machine.
const STEP_MAX: Duration = Duration::from_secs(30);
/// UID of the ordinary user.
const USER: &str = "1000";
const SLEEPER: &str = "sleep 600 & exec sleep 600";
const SPINNER: &str = "sh -c 'while :; do :; done' & while :; do :; done";

/// The processes of one round; dropping the value ends all of them.
pub struct KillFixture {
    dir: tempfile::TempDir,
    mark: String,
    as_user: bool,
    daemon: Child,
    hogs: Vec<Child>,
    launchers: Vec<Child>,
    attached: Child,
    /// Process numbers of the launched programs.
    pub launched: Vec<i32>,
    /// Process numbers of the attached program.
    pub without_launcher: Vec<i32>,
    /// Attributes that the same processes have without Usher.
    plain: BTreeSet<String>,
}

/// Returns a value that ends the processes of all fixtures when it is dropped, or when this process
/// ends for any reason.
pub fn reaper() -> Result<impl Drop> {
    reaper_of(&format!("{MARK}={}-", std::process::id()))
}

impl KillFixture {
    /// Starts the programs of root or of an ordinary user under a daemon of root, and waits until
    /// the foreground programs are seated and the background work is frozen.
    pub fn start(usher: &Path, as_user: bool, round: usize) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        // An ordinary user may have no access to the folder of the build.
        fs::copy(usher, dir.path().join("usher")).context("copying usher")?;
        let mark = format!("{}-{round}", std::process::id());
        let base = FixtureCommands {
            dir: dir.path(),
            mark: &mark,
            as_user,
        };
        let daemon = base.daemon().spawn().context("starting the daemon")?;
        let attached = base.program(&["sh", "-c", SLEEPER]).spawn()?;
        let mut fixture = Self {
            attached,
            daemon,
            hogs: vec![],
            launchers: vec![],
            launched: vec![],
            without_launcher: vec![],
            plain: BTreeSet::new(),
            as_user,
            mark: mark.clone(),
            dir,
        };
        fixture.fill()?;
        Ok(fixture)
    }

    fn fill(&mut self) -> Result<()> {
        let pid = self.attached.id().cast_signed();
        wait_for("the first program", STEP_MAX, || tree(pid).len() == 2)?;
        self.without_launcher = tree(pid);
        self.plain = managed_attributes(pid);
        wait_for("the daemon", STEP_MAX, || self.status().is_some())?;
        let words = ["run", "--name", "seated", "--", "sh", "-c", SLEEPER];
        self.launch(&words)?;
        let words = ["bg", "--name", "frozen", "--policy", "eii", "--"];
        self.launch(&[&words[..], &["sh", "-c", SPINNER]].concat())?;
        let attach = ["attach", "--name", "attached", &pid.to_string()];
        let attach = self.base().usher(&attach).output()?;
        let text = String::from_utf8_lossy(&attach.stderr);
        ensure!(attach.status.success(), "usher attach: {text}");
        let cpus = std::thread::available_parallelism()?.get();
        for _ in 0..cpus {
            let hog = ["sh", "-c", "while :; do :; done"];
            self.hogs.push(self.base().command(&hog).spawn()?);
        }
        let roots = ["seated", "frozen"].map(|name| self.wait_for_program(name));
        for root in roots {
            let root = root?;
            wait_for("a program's child", STEP_MAX, || tree(root).len() == 2)?;
            self.launched.extend(tree(root));
        }
        self.wait_until_changed()
    }

    /// Waits until Usher has changed the attributes of every process.
    fn wait_until_changed(&self) -> Result<()> {
        let seated = [&self.launched[..2], &self.without_launcher].concat();
        let is_seated = |pid: &i32| managed_attributes(*pid) != self.plain;
        wait_for("seats", STEP_MAX, || seated.iter().all(is_seated))?;
        let background = &self.launched[2..];
        let is_ready = |pid: &i32| is_seated(pid) && is_held(*pid);
        let frozen = wait_for("a freeze", STEP_MAX, || background.iter().all(is_ready));
        frozen.map(|_| ())
    }

    fn base(&self) -> FixtureCommands<'_> {
        FixtureCommands {
            dir: self.dir.path(),
            mark: &self.mark,
            as_user: self.as_user,
        }
    }

    fn launch(&mut self, words: &[&str]) -> Result<()> {
        let mut command = self.base().usher(words);
        self.launchers.push(command.spawn().context("launching")?);
        Ok(())
    }

    /// Waits until the daemon manages the program `name`. Returns the number of the program's first
    /// process.
    fn wait_for_program(&self, name: &str) -> Result<i32> {
        let mut found = None;
        wait_for(name, STEP_MAX, || {
            let programs = self.programs().into_iter();
            let mut named = programs.filter(|(_, one)| one == name);
            found = named.next().map(|(pid, _)| pid);
            found.is_some()
        })?;
        found.context("no process")
    }

    /// The status from the daemon; `None` if no daemon answers.
    pub fn status(&self) -> Option<Value> {
        let mut command = self.base().as_root(&["status", "--json"]);
        let output = command.stdout(Stdio::piped()).output().ok()?;
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        status.get("policy")?;
        Some(status)
    }

    /// First process and name of each managed program.
    fn programs(&self) -> Vec<(i32, String)> {
        let status = self.status().unwrap_or_default();
        let programs = status["programs"].as_array().cloned().unwrap_or_default();
        let one = |program: &Value| {
            let pid = program["pid"].as_i64()?;
            Some((pid as i32, program["name"].as_str()?.to_owned()))
        };
        programs.iter().filter_map(one).collect()
    }

    /// Process numbers of the daemon and of its keeper.
    pub fn daemon_and_keeper(&self) -> Result<(i32, i32)> {
        let status = self.status().context("the daemon does not reply")?;
        let pid = |key: &str| Some(status[key].as_i64()? as i32).filter(|&pid| pid > 0);
        let masters = pid("pid").zip(pid("keeper_pid"));
        masters.context("the daemon has no keeper")
    }

    /// Ends the foreground work because of which Usher freezes the background work.
    pub fn end_hogs(&mut self) -> Result<()> {
        for mut hog in self.hogs.drain(..) {
            hog.kill()?;
            hog.wait()?;
        }
        Ok(())
    }

    /// Kills the launchers. `setpriv` replaces itself by the launcher with `exec`; the PID of the
    /// child is therefore that of the launcher.
    pub fn kill_launchers(&mut self) -> Result<()> {
        for launcher in &mut self.launchers {
            launcher.kill()?;
            launcher.wait()?;
        }
        Ok(())
    }

    /// Returns those processes of `pids` that have other attributes than without Usher.
    pub fn changed(&self, pids: &[i32]) -> Vec<i32> {
        let is_changed = |pid: &i32| {
            let now = managed_attributes(*pid);
            runs(*pid) && (is_held(*pid) || (!now.is_empty() && now != self.plain))
        };
        pids.iter().copied().filter(is_changed).collect()
    }

    /// Returns whether each of the processes has the attributes that it has without Usher, or is
    /// managed by a daemon that answers.
    pub fn are_free_or_managed(&self, pids: &[i32]) -> bool {
        let changed = self.changed(pids);
        if changed.is_empty() {
            return true;
        }
        let managed = self.programs().into_iter();
        let managed: BTreeSet<i32> = managed.flat_map(|(pid, _)| tree(pid)).collect();
        changed.iter().all(|pid| managed.contains(pid))
    }

    /// Attributes of the processes, as text for a report.
    pub fn describe(&self, pids: &[i32]) -> String {
        let one = |&pid: &i32| {
            format!(
                "process {pid}: stopped {}, {:?}",
                is_held(pid),
                managed_attributes(pid)
            )
        };
        let all: Vec<_> = pids.iter().map(one).collect();
        format!(
            "the state of the process without Usher was {:?}; the state now is {}",
            self.plain,
            all.join("; ")
        )
    }

    /// Runs the command that the systemd unit has as `ExecStopPost=`: `usher undo`.
    pub fn undo(&self) -> Result<()> {
        let status = self.base().as_root(&["undo"]).status()?;
        ensure!(status.success(), "usher undo: {status}");
        Ok(())
    }

    /// Starts a daemon if no daemon answers, and ends the daemon with SIGTERM. Returns the number
    /// of processes that still have other attributes than without Usher.
    pub fn start_again_and_end(&mut self) -> Result<usize> {
        if self.status().is_none() {
            // Reaps the killed daemon.
            let _ = self.daemon.try_wait();
            self.daemon = self.base().daemon().spawn()?;
            wait_for("the next daemon", STEP_MAX, || self.status().is_some())?;
        }
        let mut scans_without_daemon = 0;
        wait_for("the end of the daemons", STEP_MAX, || {
            let daemons = self.daemons();
            daemons.iter().for_each(|&pid| terminate(pid));
            let _ = self.daemon.try_wait();
            scans_without_daemon = if daemons.is_empty() {
                scans_without_daemon + 1
            } else {
                0
            };
            scans_without_daemon == 5
        })?;
        let all = [&self.launched[..], &self.without_launcher].concat();
        // Launchers that still run also undo changes after the end of the daemon, and need some
        // time.
        let free = || self.changed(&all).is_empty();
        let _ = wait_for("the release of all programs", Duration::from_secs(2), free);
        Ok(self.changed(&all).len())
    }

    /// Number of journals that exist.
    pub fn journals(&self) -> usize {
        let entries = fs::read_dir(self.dir.path().join("run/instances"));
        entries.map_or(0, |entries| entries.flatten().count())
    }

    /// Process numbers of the daemons and keepers of this fixture. A keeper becomes the next
    /// daemon.
    fn daemons(&self) -> Vec<i32> {
        let serves = |pid: &i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = words.split(|byte| *byte == 0).skip(1);
            runs(*pid) && words.any(|word| word == b"daemon" || word == b"keeper")
        };
        marked(&self.mark).into_iter().filter(serves).collect()
    }
}

impl Drop for KillFixture {
    fn drop(&mut self) {
        // The search is repeated, because processes may fork during the search.
        for _ in 0..5 {
            marked(&self.mark).into_iter().for_each(kill);
        }
        let launchers = self.launchers.iter_mut().chain(&mut self.hogs);
        for child in launchers.chain([&mut self.daemon, &mut self.attached]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Settings that all commands of a fixture share.
struct FixtureCommands<'a> {
    dir: &'a Path,
    mark: &'a str,
    as_user: bool,
}

impl FixtureCommands<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env(MARK, self.mark)
            .env("USHER_RUNTIME_DIR", self.dir.join("run"))
            .env("USHER_STORE", self.dir.join("profiles.sqlite"))
            .env("USHER_CLAIM_NAME", format!("kills-{}", self.mark))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn binary(&self) -> PathBuf {
        self.dir.join("usher")
    }

    fn as_root(&self, words: &[&str]) -> Command {
        let binary = self.binary();
        self.command(&[&[&*binary.to_string_lossy()], words].concat())
    }

    fn daemon(&self) -> Command {
        self.as_root(&["daemon", "--policy", "equal"])
    }

    /// Returns a command that runs as the fixture's user, in a session of its own.
    fn program(&self, words: &[&str]) -> Command {
        let user = [
            "setpriv",
            "--reuid",
            USER,
            "--regid",
            USER,
            "--clear-groups",
        ];
        match self.as_user {
            true => self.command(&[&["setsid"], &user[..], words].concat()),
            false => self.command(&[&["setsid"], words].concat()),
        }
    }

    fn usher(&self, words: &[&str]) -> Command {
        let binary = self.binary();
        let mut command = self.program(&[&[&*binary.to_string_lossy()], words].concat());
        command.stderr(Stdio::piped());
        command
    }
}

/// Process numbers of all processes with `mark` in their environment.
fn marked(mark: &str) -> Vec<i32> {
    let line = format!("{MARK}={mark}");
    let is_marked = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|one| one == line.as_bytes())
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_marked).collect()
}

/// Process numbers of a process and of its children.
fn tree(pid: i32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(path).unwrap_or_default();
    let children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    [pid].into_iter().chain(children).collect()
}

/// Sends SIGKILL to a process. A process that has already ended is no error.
pub fn kill(pid: i32) {
    signal(pid, Signal::KILL);
}

/// Sends a signal to a process. A process that has already ended is no error.
pub fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}
