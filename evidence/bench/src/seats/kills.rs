// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `kills`: kills Usher's processes by SIGKILL at random times, in all combinations. After
//! that, no process may be stopped or have the mask of a seat, and no cgroup of Usher may exist.
//!
//! 1. A round starts a daemon with its keeper, and two programs by `usher run`. The policy `equal`
//!    gives the programs seats.
//! 2. The round kills a random subset of {daemon, keeper, launcher, program}, with a random pause
//!    between two kills.
//! 3. Within one second, each process of a program must be free (its old CPUs, not stopped) or be
//!    managed by a daemon that answers. If daemon, keeper and the program's launcher are dead, no
//!    process can undo the changes; the round then starts Usher again, which must undo them.
//! 4. At the end of the round, the programs are killed, the daemons are ended by SIGTERM, and Usher
//!    is started once more. After that, no cgroup of the round may exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::bars::{Bar, Part};
use crate::processes::{end_daemons, runs, state_of, terminate, usher, ushers, wait_for};

/// Time limit of the undo after the last kill, including the next start of Usher if it is needed.
const GRACE: Duration = Duration::from_millis(1_000);

/// Failures of all rounds, and times.
#[derive(Debug, Default)]
struct SeatKillResults {
    left: usize,
    orphans: usize,
    rounds: [usize; 16],
    slowest_ms: f64,
}

/// Runs the rounds, and computes the part.
pub fn run(binary: &Path, rounds: usize, seed: u64) -> Result<Part> {
    let mut part = Part::new("kills", "SIGKILL of Usher's processes at random times");
    let mut rng = oorandom::Rand64::new(u128::from(seed));
    let mut tally = SeatKillResults::default();
    for round in 0..rounds {
        let victims = 1 + rng.rand_range(0..15) as usize;
        let found = one_round(binary, victims, &mut rng, &mut tally);
        found.with_context(|| format!("round {round} (seed {seed}, victims {victims:04b})"))?;
        if round % 50 == 49 {
            eprintln!(
                "kills: finished {} rounds; {} rounds left processes with a seat, {} left cgroups",
                round + 1,
                tally.left,
                tally.orphans
            );
        }
    }
    part.bars = vec![
        Bar::none(
            format!(
                "rounds with a process that was still stopped or had a seat one second later, of \
                 {rounds}"
            ),
            tally.left,
        ),
        Bar::none(
            format!("rounds after which a cgroup of Usher remained, of {rounds}"),
            tally.orphans,
        ),
    ];
    part.notes = vec![
        "Each round kills a random subset of the daemon, the keeper, the launcher and the \
         program. If the daemon, the keeper and the launcher of a program all died, the next \
         start of Usher undoes the changes, within the same second."
            .to_owned(),
        format!(
            "In the slowest round all changes were undone after {:.0} ms. The seed is {seed}.",
            tally.slowest_ms
        ),
    ];
    part.raw = serde_json::json!({ "rounds_by_victims": tally.rounds, "left": tally.left, "orphans": tally.orphans, "slowest_ms": tally.slowest_ms });
    Ok(part)
}

/// The processes of a round. They end when the value is dropped.
struct SeatKillFixture<'a> {
    binary: &'a Path,
    dir: tempfile::TempDir,
    daemon: Child,
    launchers: Vec<Child>,
    programs: Vec<i32>,
}

fn one_round(
    binary: &Path,
    victims: usize,
    rng: &mut oorandom::Rand64,
    tally: &mut SeatKillResults,
) -> Result<()> {
    let fixture = SeatKillFixture::start(binary)?;
    let state = fixture.state().context("the daemon does not reply")?;
    let keeper = state["keeper_pid"].as_i64().context("no keeper")? as i32;
    let daemon = fixture.daemon.id().cast_signed();
    let launcher = fixture.launchers[0].id().cast_signed();
    let all = [daemon, keeper, launcher, fixture.programs[0]];
    let mut doomed: Vec<i32> = (0..4)
        .filter(|i| victims & (1 << i) != 0)
        .map(|i| all[i])
        .collect();
    while !doomed.is_empty() {
        let next = doomed.swap_remove(rng.rand_range(0..doomed.len() as u64) as usize);
        kill(next);
        std::thread::sleep(Duration::from_micros(rng.rand_range(0..20_000)));
    }
    let killed = Instant::now();
    // If daemon, keeper and launcher are dead, only the next start of Usher can undo the changes.
    if victims & 0b0111 == 0b0111 {
        fixture.start_again()?;
    }
    let grace = GRACE.saturating_sub(killed.elapsed());
    match wait_for(
        "the release or the management of all programs",
        grace,
        || fixture.is_right(),
    ) {
        Ok(_) => {
            let took_ms = killed.elapsed().as_secs_f64() * 1e3;
            tally.slowest_ms = tally.slowest_ms.max(took_ms);
        }
        Err(_) => {
            tally.left += 1;
            eprintln!("kills: victims {victims:04b}: {}", fixture.describe());
        }
    }
    tally.rounds[victims] += 1;
    tally.orphans += usize::from(fixture.end()?);
    Ok(())
}

impl<'a> SeatKillFixture<'a> {
    fn start(binary: &'a Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let daemon = usher(binary, dir.path())
            .env("USHER_CLAIM_NAME", std::process::id().to_string())
            .args(["daemon", "--policy", "equal", "--store"])
            .arg(dir.path().join("profiles.sqlite"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut fixture = Self {
            binary,
            dir,
            daemon,
            launchers: vec![],
            programs: vec![],
        };
        wait_for("the daemon", Duration::from_secs(10), || {
            fixture.state().is_some()
        })?;
        for _ in 0..2 {
            let mut command = usher(binary, fixture.dir.path());
            command
                .args(["run", "--", "sleep", "600"])
                .stderr(Stdio::null());
            fixture.launchers.push(command.spawn()?);
        }
        let both_have_seats = |state: &Value| {
            let programs = state["programs"].as_array().cloned().unwrap_or_default();
            programs.len() == 2 && programs.iter().all(|p| p["mode"] == "seated")
        };
        wait_for(
            "the seats of both programs",
            Duration::from_secs(10),
            || fixture.state().is_some_and(|s| both_have_seats(&s)),
        )?;
        let state = fixture.state().context("the daemon has ended")?;
        let pid = |program: &Value| program["pid"].as_i64().map(|pid| pid as i32);
        let programs = state["programs"].as_array().into_iter().flatten();
        fixture.programs = programs
            .map(|p| pid(p).context("no pid"))
            .collect::<Result<_>>()?;
        // The program of the first launcher must be the first of the list.
        let first = fixture.launchers[0].id().cast_signed();
        fixture
            .programs
            .sort_by_key(|&pid| parent_of(pid) != Some(first));
        Ok(fixture)
    }

    fn state(&self) -> Option<Value> {
        let output = usher(self.binary, self.dir.path())
            .args(["status", "--json"])
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let state: Value = serde_json::from_slice(&output.stdout).ok()?;
        state.get("policy")?;
        Some(state)
    }

    fn managed(&self) -> BTreeSet<i32> {
        let state = self.state();
        let programs = state
            .iter()
            .filter_map(|s| s["programs"].as_array())
            .flatten();
        programs
            .filter_map(|p| p["pid"].as_i64().map(|pid| pid as i32))
            .collect()
    }

    fn is_right(&self) -> bool {
        let unreleased: Vec<i32> = self
            .programs
            .iter()
            .copied()
            .filter(|&pid| runs(pid) && !is_free(pid))
            .collect();
        unreleased.is_empty() || unreleased.iter().all(|pid| self.managed().contains(pid))
    }

    fn describe(&self) -> String {
        let one = |&pid: &i32| {
            format!(
                "process {pid}: state {:?}, CPUs {:?}",
                state_of(pid),
                cpus_of(pid)
            )
        };
        let programs: Vec<_> = self.programs.iter().map(one).collect();
        let ushers = ushers(self.binary, self.dir.path());
        format!(
            "{}; managed {:?}; instances {:?}; running {ushers:?}",
            programs.join("; "),
            self.managed(),
            names_in(&self.instances())
        )
    }

    /// Kills the programs, ends the daemons with SIGTERM, and starts Usher once more. Returns
    /// whether a cgroup of this fixture still exists.
    fn end(mut self) -> Result<bool> {
        for &pid in &self.programs {
            kill(pid);
        }
        // A keeper may be starting a new daemon at this moment. Until the new daemon's program is
        // executed, no process can be attributed to this round. Therefore, several consecutive
        // scans must find no process.
        let mut scans_without = 0;
        wait_for("the end of the daemons", Duration::from_secs(10), || {
            let daemons = self.daemons();
            daemons.iter().for_each(|&pid| terminate(pid));
            scans_without = if daemons.is_empty() {
                scans_without + 1
            } else {
                0
            };
            scans_without == 5
        })?;
        for launcher in &mut self.launchers {
            launcher.wait()?;
        }
        self.daemon.wait()?;
        self.start_again()?;
        let left = names_in(&self.instances());
        if !left.is_empty() {
            eprintln!(
                "kills: cgroups that remained at the end: {}",
                self.describe()
            );
        }
        Ok(!left.is_empty())
    }

    /// Starts Usher again, by a launcher that starts a daemon, and ends this daemon.
    fn start_again(&self) -> Result<()> {
        usher(self.binary, self.dir.path())
            .args(["run", "true"])
            .stderr(Stdio::null())
            .status()?;
        end_daemons(self.binary, self.dir.path())
    }

    /// Process numbers of the daemons and keepers. A keeper becomes the next daemon.
    fn daemons(&self) -> Vec<i32> {
        let ushers = ushers(self.binary, self.dir.path());
        let serves = |words: &str| words.contains(" daemon ") || words.contains(" keeper ");
        let serving = ushers.into_iter().filter(|(_, words)| serves(words));
        serving.map(|(pid, _)| pid).collect()
    }

    fn instances(&self) -> PathBuf {
        self.dir.path().join("instances")
    }
}

impl Drop for SeatKillFixture<'_> {
    fn drop(&mut self) {
        for child in self.launchers.iter_mut().chain([&mut self.daemon]) {
            // The launchers and the daemon have usually ended; after a failure, they are killed
            // here.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.daemons().into_iter().for_each(kill);
        self.programs.iter().for_each(|&pid| kill(pid));
    }
}

fn names_in(dir: &PathBuf) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn kill(pid: i32) {
    signal(pid, rustix::process::Signal::KILL);
}

fn signal(pid: i32, signal: rustix::process::Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid).filter(|_| runs(pid)) {
        // The process may already have ended.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn is_free(pid: i32) -> bool {
    let stopped = matches!(state_of(pid), Some('T'));
    !stopped
        && cpus_of(pid).is_none_or(|cpus| {
            Some(cpus) == cpus_of(rustix::process::getpid().as_raw_nonzero().get())
        })
}

fn cpus_of(pid: i32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(
        status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?
            .trim()
            .to_owned(),
    )
}

fn parent_of(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("PPid:"))?
        .trim()
        .parse()
        .ok()
}
