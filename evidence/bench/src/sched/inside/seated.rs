// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the part `seats` in the guest: three programs with seats, one of which (the owner) is
//! idle half of the time.
//!
//! 1. A daemon with the policy `equal` gives each program a third of the CPUs.
//! 2. The other programs always have a runnable thread for each CPU that the owner does not use.
//!    The owner computes for a number of rounds, and rests after each round for the time that the
//!    round took.
//! 3. The figures of all rounds are: the busy share of all CPUs (from `/proc/uptime`); the share of
//!    their runnable time that the owner's threads waited (from `schedstat`). Under Usher's
//!    scheduler, `usher sched stats` adds the CPUs that the owner reclaimed and the time that the
//!    other programs ran outside their seats.
//!
//! All programs must have seats within 60 s. The owner's rounds have no time limit here. An error
//! leaves out the load under this scheduler.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::idle::idle_ns;
use super::programs::{Program, WORKER};
use crate::processes::{self, Daemon, wait_for};
use crate::sched::messages::{Sample, SwitchCounts};
use crate::sched::sample_names::{AS_GUESTS, BACK_MS, LOST, OWN_CPUS, RETURNS, USED};

/// Name of the program that rests half of the time.
const OWNER: &str = "owner";
/// Names of the programs that never rest.
const OTHERS: [&str; 2] = ["first", "second"];
/// Time limit until all programs have their seats; the guest's CPUs are emulated and slow.
const SEATED_WITHIN: Duration = Duration::from_secs(60);
/// The policy that gives each program the same number of cores, independent of its behaviour.
const POLICY: [&str; 2] = ["--policy", "equal"];

/// Measures the load under the present scheduler. Seats are soft seats under Usher's scheduler, and
/// affinity masks under others.
pub fn measure(usher: &Path, load: &SeatLoad, sample: &mut Sample) -> Result<()> {
    // The daemon finds Usher's scheduler by files in this runtime directory, which daemon and
    // scheduler share.
    let runtime =
        std::env::var_os("USHER_RUNTIME_DIR").context("the runtime directory does not exist")?;
    let runtime = PathBuf::from(runtime);
    std::fs::create_dir_all(&runtime).context("creating the runtime directory")?;
    let cpus = thread::available_parallelism()?.get();
    let fixture = SeatFixture::start(usher, &runtime, load, cpus)?;
    let own_cpus = fixture.own_cpus()?;
    let mut note = |name: &str, value: f64| sample.figures.insert(name.to_owned(), value);
    note(OWN_CPUS, own_cpus as f64);
    let measured = fixture.rounds(load, cpus)?;
    for (name, value) in measured {
        note(&name, value);
    }
    Ok(())
}

/// Settings of the load.
#[derive(Debug, Clone, Copy)]
pub struct SeatLoad {
    /// Number of arithmetic steps that each thread of the owner computes in a round.
    pub steps: u64,
    /// Number of rounds of the owner.
    pub rounds: usize,
}

/// Programs with seats, and the daemon that gives the seats. The programs end before the daemon.
struct SeatFixture<'a> {
    usher: &'a Path,
    runtime: &'a Path,
    owner: Program,
    others: Vec<Program>,
    _daemon: Daemon,
}

/// Those fields of a program in the daemon's answer that the benchmark uses.
#[derive(Debug, Deserialize)]
struct SeatedProgram {
    name: String,
    pid: i32,
    cpus: Option<String>,
}

#[derive(Debug, Deserialize)]
struct DaemonStatus {
    programs: Vec<SeatedProgram>,
}

/// Statistics of a scheduler that supports seats.
#[derive(Debug, Default, Deserialize)]
struct SchedulerStats {
    #[serde(default)]
    seats: Vec<SeatStats>,
}

#[derive(Debug, Deserialize)]
struct SeatStats {
    name: String,
    tally: SeatTally,
}

#[derive(Debug, Default, Clone, Deserialize)]
struct SeatTally {
    home_ns: u64,
    guest_ns: u64,
    returns: u64,
    return_latency: Vec<u64>,
}

impl<'a> SeatFixture<'a> {
    fn start(usher: &'a Path, runtime: &'a Path, load: &SeatLoad, cpus: usize) -> Result<Self> {
        let daemon = Daemon::start(usher, runtime, &POLICY)?;
        let own = cpus / (1 + OTHERS.len());
        let mut owner = program(usher, runtime, OWNER, own)?;
        // The other programs together have enough threads for all CPUs while the owner rests.
        let many = cpus.div_ceil(OTHERS.len());
        let others = OTHERS.map(|name| program(usher, runtime, name, many));
        let mut others = others.into_iter().collect::<Result<Vec<_>>>()?;
        for other in &mut others {
            other.start_work(&u64::MAX.to_string())?;
        }
        wait_for("seats of all programs", SEATED_WITHIN, || {
            thread::sleep(Duration::from_millis(100));
            managed(usher, runtime).is_ok_and(|all| all.iter().all(|one| one.cpus.is_some()))
        })?;
        owner.run(&load.steps.to_string())?;
        Ok(Self {
            usher,
            runtime,
            owner,
            others,
            _daemon: daemon,
        })
    }

    fn owner(&self) -> Result<SeatedProgram> {
        let all = managed(self.usher, self.runtime)?;
        let owner = all.into_iter().find(|one| one.name == OWNER);
        owner.context("the daemon does not manage the owner program")
    }

    fn own_cpus(&self) -> Result<usize> {
        let cpus = self
            .owner()?
            .cpus
            .context("the owner program has no seat")?;
        let cpus: usher_model::CpuSet = cpus
            .parse()
            .context("reading the seat of the owner program")?;
        Ok(cpus.iter().count())
    }

    /// Runs the owner's rounds. Returns the figures by name.
    fn rounds(mut self, load: &SeatLoad, cpus: usize) -> Result<BTreeMap<String, f64>> {
        let owner = self.owner()?.pid;
        let line = load.steps.to_string();
        let before = (stats(self.usher, self.runtime), schedstat(owner)?);
        let (begun, rested_ns) = (Instant::now(), idle_ns()?);
        for _ in 0..load.rounds {
            let round = Instant::now();
            self.owner.run(&line)?;
            thread::sleep(round.elapsed());
        }
        let all_ns = begun.elapsed().as_nanos() as f64 * cpus as f64;
        let rested_ns = idle_ns()? - rested_ns;
        let after = (stats(self.usher, self.runtime), schedstat(owner)?);
        let (ran, waited) = (after.1[0] - before.1[0], after.1[1] - before.1[1]);
        let mut figures = BTreeMap::from([
            (USED.to_owned(), 1.0 - rested_ns / all_ns),
            (LOST.to_owned(), waited / (ran + waited)),
        ]);
        for (name, value) in kept(&before.0, &after.0) {
            figures.insert(name.to_owned(), value);
        }
        Ok(figures)
    }
}

impl Drop for SeatFixture<'_> {
    fn drop(&mut self) {
        let all = managed(self.usher, self.runtime).unwrap_or_default();
        for one in &all {
            processes::terminate(one.pid);
        }
        // Each launcher ends after its program and reports the end to the daemon.
        for program in self.others.drain(..).take(all.len()) {
            program.wait();
        }
    }
}

fn program(usher: &Path, runtime: &Path, name: &str, threads: usize) -> Result<Program> {
    let exe = std::env::current_exe().context("finding the executable of usher-bench")?;
    let mut command = Command::new(usher);
    command.env("USHER_RUNTIME_DIR", runtime);
    command.args(["run", "--name", name, "--"]).arg(exe);
    command.args([WORKER, "--threads", &threads.to_string()]);
    Program::start(&mut command)
}

fn query(usher: &Path, runtime: &Path, words: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(usher)
        .args(words)
        .arg("--json")
        .env("USHER_RUNTIME_DIR", runtime)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {}", usher.display()))?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "usher {} failed: {}",
        words.join(" "),
        why.trim()
    );
    Ok(output.stdout)
}

fn managed(usher: &Path, runtime: &Path) -> Result<Vec<SeatedProgram>> {
    let answer = query(usher, runtime, &["status"])?;
    let status: DaemonStatus =
        serde_json::from_slice(&answer).context("reading the state of the daemon")?;
    Ok(status.programs)
}

/// Returns the statistics of the seats; empty if the scheduler has no seats.
fn stats(usher: &Path, runtime: &Path) -> Vec<SeatStats> {
    let answer = query(usher, runtime, &["sched", "stats"]).unwrap_or_default();
    let stats: SchedulerStats = serde_json::from_slice(&answer).unwrap_or_default();
    stats.seats
}

/// Returns the run time and the wait time in nanoseconds, summed over the threads of a process.
fn schedstat(pid: i32) -> Result<[f64; 2]> {
    let folder = format!("/proc/{pid}/task");
    let tasks = std::fs::read_dir(&folder).with_context(|| format!("reading {folder}"))?;
    let mut sums = [0.0; 2];
    for task in tasks {
        let text = std::fs::read_to_string(task?.path().join("schedstat"));
        let text = text.with_context(|| format!("reading {folder}"))?;
        let mut words = text.split_whitespace().map(str::parse::<f64>);
        for sum in &mut sums {
            *sum += words.next().context("schedstat is short")??;
        }
    }
    Ok(sums)
}

/// Computes figures from the changes of the seats' statistics between two samples.
fn kept(before: &[SeatStats], after: &[SeatStats]) -> Vec<(&'static str, f64)> {
    let mut figures = Vec::new();
    let [mut home_ns, mut guest_ns] = [0, 0];
    for kept in after {
        let earlier = before.iter().find(|one| one.name == kept.name);
        let earlier = earlier.map(|one| one.tally.clone()).unwrap_or_default();
        let tally = &kept.tally;
        if kept.name != OWNER {
            home_ns += tally.home_ns - earlier.home_ns;
            guest_ns += tally.guest_ns - earlier.guest_ns;
            continue;
        }
        let slots = tally.return_latency.iter().enumerate();
        let latency =
            slots.map(|(at, count)| count - earlier.return_latency.get(at).copied().unwrap_or(0));
        let latency: Vec<u64> = latency.collect();
        figures.push((RETURNS, (tally.returns - earlier.returns) as f64));
        let below = SwitchCounts::below_ms(&latency, 0.99);
        figures.extend(below.map(|ms| (BACK_MS, ms)));
    }
    if guest_ns + home_ns > 0 {
        let share = guest_ns as f64 / (guest_ns + home_ns) as f64;
        figures.push((AS_GUESTS, share));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(name: &str, home_ns: u64, guest_ns: u64, latency: [u64; 24]) -> SeatStats {
        SeatStats {
            name: name.to_owned(),
            tally: SeatTally {
                home_ns,
                guest_ns,
                returns: latency.iter().sum(),
                return_latency: latency.to_vec(),
            },
        }
    }

    #[test]
    fn earlier_figures_do_not_count() {
        let mut latency = [0; 24];
        latency[23] = 7;
        let before = [seat(OWNER, 5, 5, latency), seat("first", 10, 0, [0; 24])];
        latency[20] = 100;
        let after = [seat(OWNER, 9, 9, latency), seat("first", 40, 10, [0; 24])];
        let figures: BTreeMap<_, _> = kept(&before, &after).into_iter().collect();
        assert_eq!(figures[RETURNS], 100.0);
        assert_eq!(figures[BACK_MS], 40e-6);
        assert_eq!(figures[AS_GUESTS], 0.25);
        assert!(kept(&[], &[]).is_empty());
    }

    #[test]
    fn threads_of_a_process_are_summed() {
        let own = std::process::id().cast_signed();
        let [ran, waited] = schedstat(own).unwrap();
        assert!(ran > 0.0 && waited >= 0.0);
        assert!(schedstat(-1).is_err());
    }

    #[test]
    fn the_daemons_answer_is_read() {
        let answer = r#"{"policy":"equal","programs":[{"name":"owner","pid":7,"cpus":"0-15",
            "uid":0},{"name":"first","pid":8,"cpus":null}]}"#;
        let status: DaemonStatus = serde_json::from_str(answer).unwrap();
        assert_eq!(status.programs[0].cpus.as_deref(), Some("0-15"));
        assert_eq!(
            (status.programs[1].pid, &status.programs[1].cpus),
            (8, &None)
        );
    }
}
