// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts `kills` and `storms`: kills Usher by SIGKILL while background work is frozen, and freezes
//! background work that starts processes continuously (a fork storm).
//!
//! A round of the part `kills`:
//!
//! 1. The benchmark runs a small process tree under `usher bg`, and `stress-ng`, which computes on
//!    every CPU, as the foreground.
//! 2. The benchmark waits until all processes of the tree are frozen, at most 20 s.
//! 3. The benchmark kills the daemon by SIGKILL, and then the foreground. In half of the rounds,
//!    `usher bg` has started the daemon.
//! 4. Within one second, each process of the tree must run. It must have the priorities and cgroups
//!    that it had without Usher, or a daemon that answers must manage it.
//! 5. The benchmark waits for the next daemon, at most 20 s. It then ends all processes. No cgroup
//!    of Usher may remain for more than one second.
//!
//! A round of the part `storms` runs shells that fork at full speed for 3 s while Usher freezes and
//! thaws them repeatedly. No process may leave the cgroup of the tree, and no process may stay
//! frozen for one second after the end of the foreground.
//!
//! A round that fails with an error (for example, a wait of 20 s without success) counts as failed,
//! and the next round begins. The page shows at most five errors of the kills.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::actors::{Background, MARK, foreground_mark};
use super::jobs::{Job, compute};
use crate::bars::{Bar, Part};
use crate::processes::{Daemon, runs, state_of, terminate, usher, wait_for};

const GRACE: Duration = Duration::from_secs(1);
const FREEZES: Duration = Duration::from_secs(20);
const TREE: &str = "sh -c 'while :; do :; done' & while :; do :; done";
const STORM: &str = "for i in 1 2 3 4; do (while :; do (sleep 0.02 &) ; setsid sh -c 'sleep 0.01 &' ; done) & done; wait";

/// The mount point of cgroup v2.
fn unified() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    line.split(' ').nth(1).map(PathBuf::from)
}

/// Text of `/proc/PID/cgroup`; empty if the process does not exist.
fn cgroups(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default()
}

fn v2_group(pid: i32) -> Option<String> {
    cgroups(pid)
        .lines()
        .find_map(|line| line.strip_prefix("0::").map(str::to_owned))
}

/// Whether a process is stopped by a signal or frozen by its cgroup.
fn is_held(pid: i32) -> bool {
    let frozen = || {
        let group = v2_group(pid)?;
        let events = unified()?
            .join(group.trim_start_matches('/'))
            .join("cgroup.events");
        Some(fs::read_to_string(events).ok()?.contains("frozen 1"))
    };
    matches!(state_of(pid), Some('T' | 't')) || frozen().unwrap_or(false)
}

/// Attributes of a process that Usher may change, as text.
fn standing(pid: i32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit_once(") ")
        .map_or(vec![], |(_, rest)| rest.split(' ').collect());
    // nice and scheduling policy: fields 19 and 41 of proc(5).
    let field = |n: usize| fields.get(n - 3).copied().unwrap_or("?");
    let autogroup = fs::read_to_string(format!("/proc/{pid}/autogroup")).unwrap_or_default();
    let autogroup = autogroup
        .split_once(" nice ")
        .map_or("", |(_, nice)| nice.trim())
        .to_owned();
    let ionice = Command::new("ionice")
        .args(["-p", &pid.to_string()])
        .output();
    let ionice = ionice.map_or(String::new(), |o| {
        String::from_utf8_lossy(&o.stdout).trim().to_owned()
    });
    format!(
        "nice {}, policy {}, autogroup {autogroup}, io {ionice}, cgroups {}",
        field(19),
        field(41),
        cgroups(pid).replace('\n', " ")
    )
}

/// The foreground process, which is killed when the value is dropped.
struct ForegroundLoad(Child);

impl Drop for ForegroundLoad {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The background tree, the foreground and the regulator of a round.
struct BackgroundKillFixture {
    daemon: Option<Daemon>,
    background: Background,
    foreground: ForegroundLoad,
    launcher: i32,
    binary: PathBuf,
    runtime: tempfile::TempDir,
}

impl BackgroundKillFixture {
    fn start(binary: &Path, policy: &str, with_daemon: bool, script: &str) -> Result<Self> {
        let runtime = tempfile::tempdir()?;
        let daemon = with_daemon
            .then(|| Daemon::start(binary, runtime.path(), &[]))
            .transpose()?;
        let binary = fs::canonicalize(binary)?;
        let words = [
            "setsid",
            &binary.display().to_string(),
            "bg",
            "--policy",
            policy,
            "--",
            "sh",
            "-c",
            script,
        ];
        let job = Job {
            words: words.map(str::to_owned).into(),
            counter: None,
        };
        let background = Background::start(&[job], runtime.path())?;
        let foreground = Command::new("setsid")
            .args(compute()?)
            .env(MARK, foreground_mark())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let foreground = ForegroundLoad(foreground);
        let launcher = background.first()?;
        Ok(Self {
            daemon,
            background,
            foreground,
            launcher,
            binary,
            runtime,
        })
    }

    /// Process numbers of the background, without Usher's own processes.
    fn tree(&self) -> Vec<i32> {
        let ours = |pid: &i32| {
            fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == self.binary)
        };
        self.background
            .processes()
            .into_iter()
            .filter(|pid| !ours(pid))
            .collect()
    }

    fn wait_until_held(&self, at_least: usize) -> Result<()> {
        wait_for("the process tree to be frozen", FREEZES, || {
            let tree = self.tree();
            tree.len() >= at_least && tree.iter().all(|&pid| is_held(pid))
        })
        .map(|_| ())
    }

    fn end_foreground(&mut self) -> Result<()> {
        self.foreground.0.kill()?;
        self.foreground.0.wait()?;
        Ok(())
    }

    /// The daemon's process number.
    fn regulator(&self) -> Result<i32> {
        if let Some(daemon) = &self.daemon {
            return Ok(daemon.pid());
        }
        let output = usher(&self.binary, self.runtime.path())
            .args(["status", "--json"])
            .output()?;
        let state: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let pid = state["pid"].as_i64().context("the status has no pid")?;
        Ok(i32::try_from(pid)?)
    }

    fn daemon_answers(&self) -> bool {
        let state = usher(&self.binary, self.runtime.path())
            .args(["status", "--json"])
            .output();
        state.is_ok_and(|o| o.status.success())
    }

    /// Ends Usher's processes by SIGTERM, including a daemon that a keeper starts during this time,
    /// and then the background. Usher's processes end first, because cgroups that remain are then
    /// Usher's fault and not the benchmark's.
    fn end(self) -> Result<()> {
        let all_ended = || {
            let ushers = crate::processes::ushers(&self.binary, self.runtime.path());
            let is_keeper = |words: &String| words.contains(" keeper ");
            for (pid, _) in ushers.iter().filter(|(_, words)| !is_keeper(words)) {
                terminate(*pid);
            }
            ushers.is_empty()
        };
        wait_for("the end of Usher's processes", FREEZES, all_ended)?;
        self.background.end()
    }
}

/// Returns Usher's cgroups that are directly below the mount points of cgroup file systems.
fn directories() -> BTreeSet<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let is_cgroup = |line: &&str| {
        line.split(' ')
            .nth(2)
            .is_some_and(|t| t.starts_with("cgroup"))
    };
    let points = mounts.lines().filter(is_cgroup);
    let entries = points
        .filter_map(|line| line.split(' ').nth(1))
        .filter_map(|point| fs::read_dir(point).ok())
        .flatten()
        .flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| is_ushers(path)).collect()
}

fn is_ushers(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("usher-"))
}

/// Returns whether cgroups of Usher remain that are not in `before`.
fn leaves_directories(before: &BTreeSet<PathBuf>) -> bool {
    wait_for("the removal of Usher's cgroups", GRACE, || {
        directories().is_subset(before)
    })
    .is_err()
}

fn kill(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        // The process may already have ended.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Results of the rounds.
#[derive(Debug, Default, serde::Serialize)]
struct BackgroundKillResults {
    held: usize,
    changed: usize,
    ended: usize,
    directories: usize,
    slowest_ms: f64,
    failed: Vec<String>,
}

/// Runs one round of the part `kills`, which kills the daemon. With `with_daemon`, the daemon runs
/// before the background work starts; otherwise `usher bg` starts it.
fn kill_round(binary: &Path, with_daemon: bool, tally: &mut BackgroundKillResults) -> Result<()> {
    let before = standing(rustix::process::getpid().as_raw_nonzero().get());
    let directories_before = directories();
    let mut fixture = BackgroundKillFixture::start(binary, "eii", with_daemon, TREE)?;
    fixture.wait_until_held(2)?;
    let regulator = fixture.regulator()?;
    let killed = Instant::now();
    kill(regulator);
    fixture.end_foreground()?;
    let tree = fixture.tree();
    let held = || {
        tree.iter()
            .filter(|&&pid| runs(pid) && is_held(pid))
            .count()
    };
    if wait_for("the process tree to run", GRACE, || held() == 0).is_err() {
        tally.held += 1;
    }
    // The tree must continue after the death of its regulator.
    tally.ended += usize::from(!tree.iter().any(|&pid| runs(pid)));
    tally.slowest_ms = tally.slowest_ms.max(killed.elapsed().as_secs_f64() * 1e3);
    let changed = || tree.iter().any(|&pid| runs(pid) && standing(pid) != before);
    let managed = || fixture.daemon_answers();
    let right = || !changed() || managed();
    if wait_for(
        "the former priorities to be restored",
        GRACE.saturating_sub(killed.elapsed()),
        right,
    )
    .is_err()
    {
        tally.changed += 1;
        let shown: Vec<_> = tree.iter().map(|&pid| standing(pid)).collect();
        tally.failed.push(format!(
            "the state of the process tree was {before}; its state now is {}",
            shown.join("; ")
        ));
    }
    // Without this wait, the next daemon could start after the end of the round.
    wait_for("the start of the next daemon", FREEZES, || {
        fixture.daemon_answers()
    })?;
    fixture.end()?;
    tally.directories += usize::from(leaves_directories(&directories_before));
    Ok(())
}

/// Runs one fork storm. Returns three counts: processes found outside the cgroup of the tree; 1 if
/// any process stayed frozen; 1 if a cgroup of Usher remained.
fn storm(binary: &Path) -> Result<[usize; 3]> {
    let directories_before = directories();
    let mut fixture = BackgroundKillFixture::start(binary, "eii", false, STORM)?;
    fixture.wait_until_held(2)?;
    let own_group = fixture.tree().first().and_then(|&pid| v2_group(pid));
    let own_group = own_group.context("this machine has no cgroup v2")?;
    let ours = v2_group(rustix::process::getpid().as_raw_nonzero().get());
    anyhow::ensure!(
        ours.as_ref() != Some(&own_group),
        "the process tree has no cgroup of its own"
    );
    let mut escaped = 0;
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        let outside =
            |pid: &&i32| v2_group(**pid).is_some_and(|group| !group.starts_with(&own_group));
        escaped += fixture.tree().iter().filter(outside).count();
    }
    fixture.end_foreground()?;
    terminate(fixture.launcher);
    let all_run = || fixture.tree().iter().all(|&pid| !is_held(pid));
    let left = match wait_for("the fork storm to run", GRACE, all_run) {
        Ok(_) => 0,
        Err(_) => 1,
    };
    fixture.end()?;
    let directories = usize::from(leaves_directories(&directories_before));
    Ok([escaped, left, directories])
}

/// Runs the part `kills`; in half of the rounds, `usher bg` starts the daemon.
pub fn kills(binary: &Path, rounds: usize) -> Result<Part> {
    let mut part = Part::new("kills", "SIGKILL of Usher while background work is frozen");
    let mut tally = BackgroundKillResults::default();
    let mut failed = 0;
    for round in 0..rounds {
        if let Err(error) = kill_round(binary, round % 2 == 1, &mut tally) {
            failed += 1;
            tally.failed.push(format!("round {round}: {error:#}"));
        }
        if round % 20 == 19 {
            eprintln!(
                "background: kills: finished {} of {rounds} rounds; {} rounds left processes \
                 frozen, {} left priorities changed, {} left cgroups",
                round + 1,
                tally.held,
                tally.changed,
                tally.directories
            );
        }
    }
    part.bars = vec![
        Bar::none(
            format!("kills after which a process was still frozen one second later, of {rounds}"),
            tally.held,
        ),
        Bar::none(
            format!("kills after which priorities or cgroups were not restored, of {rounds}"),
            tally.changed,
        ),
        Bar::none(
            format!("kills of Usher that also ended the whole process tree, of {rounds}"),
            tally.ended,
        ),
        Bar::none(
            format!("kills after which cgroups of Usher remained, of {rounds}"),
            tally.directories,
        ),
        Bar::none(
            format!("kills that failed with an error, of {rounds} rounds"),
            failed,
        ),
    ];
    part.notes = vec![format!(
        "The slowest thaw took {:.0} ms. The rounds kill a daemon that `usher bg` has started \
         and a daemon that ran before alternately.",
        tally.slowest_ms
    )];
    part.notes.extend(tally.failed.iter().take(5).cloned());
    part.raw = serde_json::json!(tally);
    Ok(part)
}

/// Runs the part `storms`.
pub fn storms(binary: &Path, rounds: usize) -> Result<Part> {
    let mut part = Part::new("storms", "Fork storms");
    let mut found = [0; 3];
    let mut failed = vec![];
    for round in 0..rounds {
        match storm(binary) {
            Ok(more) => found = std::array::from_fn(|i| found[i] + more[i]),
            Err(error) => failed.push(format!("round {round}: {error:#}")),
        }
        if round % 20 == 19 {
            eprintln!(
                "background: fork storms: finished {} of {rounds} rounds",
                round + 1
            );
        }
    }
    let [escaped, left, directories] = found;
    part.bars = vec![
        Bar::none(
            format!("observations of a process outside its cgroup, in {rounds} fork storms"),
            escaped,
        ),
        Bar::none(
            format!("processes still frozen one second after the end, in {rounds} fork storms"),
            left,
        ),
        Bar::none(
            format!("fork storms after which cgroups of Usher remained, of {rounds}"),
            directories,
        ),
        Bar::none(
            format!("rounds with a fork storm that failed with an error, of {rounds}"),
            failed.len(),
        ),
    ];
    part.notes = failed.iter().take(5).cloned().collect();
    part.raw = serde_json::json!({ "escaped": escaped, "left": left, "directories": directories, "failed": failed });
    Ok(part)
}
