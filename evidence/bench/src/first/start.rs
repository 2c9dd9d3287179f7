// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `start`: measures the automatic start of a daemon by `usher run`.
//!
//! 1. Each round runs, one after another: `true` twice, `usher run true` without a daemon and with a
//!    profile store, `usher run true` again with the daemon that the former command started, and
//!    `usher run true` without a daemon and without a profile store. The round then ends the daemons.
//! 2. The figures are medians over the rounds. The upper end of the 95 % interval (bootstrap) must
//!    meet the bar. The two runs of `true` give the A/A band.
//! 3. A daemon that `usher run sleep` has started is observed for 30 s ([`REST`]). The part then ends
//!    the program, and measures the time until the daemon has ended, at most 60 s ([`END_MAX`]).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use usher_report::stats::{self, Estimate, Statistic};

use crate::bars::{Bar, Part};
use crate::processes::{cpu_seconds, end_daemons, runs, terminate, usher, wait_for};

/// Time after the start of the program, before the daemon is observed. In the first second, the daemon
/// scans the new program more often, and is not idle.
const SETTLE: Duration = Duration::from_secs(2);
/// Time for which the idle daemon is observed.
const REST: Duration = Duration::from_secs(30);
/// Upper limit of the time until a daemon has its program, and until it has ended.
const END_MAX: Duration = Duration::from_secs(60);

/// The times of one round in ms.
#[derive(Debug, Serialize)]
struct StartRound {
    plain: f64,
    plain_again: f64,
    first: f64,
    later: f64,
    first_without_store: f64,
}

/// The daemon that `usher run` has started for one sleeping program.
#[derive(Debug, Serialize)]
struct IdleDaemon {
    cpu_percent: f64,
    resident_mib: f64,
    ended_after_s: f64,
}

/// Runs the rounds and observes an idle daemon. Computes the part.
pub fn run(binary: &Path, starts: usize, seed: u64) -> Result<Part> {
    let store = tempfile::tempdir()?;
    let store = store.path().join("profiles.sqlite");
    // The first run creates the store.
    round(binary, &store)?;
    let rounds: Vec<StartRound> = (0..starts)
        .map(|_| round(binary, &store))
        .collect::<Result<_>>()?;
    let idle = observe(binary)?;
    let median = |figure: fn(&StartRound) -> f64| {
        let values: Vec<f64> = rounds.iter().map(figure).collect();
        stats::estimate(&values, Statistic::Median, seed)
    };
    let first = median(|round| round.first);
    let new_store = median(|round| round.first_without_store);
    let later = median(|round| round.later - round.plain);
    let pairs: Vec<(f64, f64)> = rounds.iter().map(|r| (r.plain, r.plain_again)).collect();
    let band = stats::aa_band(&pairs);
    let mut part = Part::new("start", "Automatic start");
    let bar = |what: &str, estimate: &Option<Estimate>, limit| {
        let what = format!("{what}: upper end of the 95 % interval of the median");
        Bar::at_most(what, estimate.and_then(|one| one.high), limit, "ms")
    };
    part.bars = vec![
        bar("first 'usher run true', starts a daemon", &first, 40.0),
        bar("the same, also creates the profile store", &new_store, 40.0),
        bar("later 'usher run true', in addition to 'true'", &later, 5.0),
        Bar::at_most(
            "CPU use of the daemon with one idle program",
            idle.cpu_percent,
            0.1,
            "% of a core",
        ),
        Bar::at_most("memory (RSS) of the daemon", idle.resident_mib, 20.0, "MiB"),
        Bar::at_most(
            "time from the end of the last program to the end of the daemon",
            idle.ended_after_s,
            10.0,
            "s",
        ),
    ];
    let shown = |estimate: &Option<Estimate>| {
        estimate.map_or("none".to_owned(), |one| format!("{:.1} ms", one.value))
    };
    part.notes = vec![format!(
        "{starts} rounds, interleaved. Medians: first run {}, first run without a profile store {}, \
         later run {} more than 'true'. A/A band of 'true': {}. CPU use was measured for {} s, \
         from {} s after the start of the program.",
        shown(&first),
        shown(&new_store),
        shown(&later),
        band.map_or("none".to_owned(), |band| format!(
            "{:.2} to {:.2}",
            band.low, band.high
        )),
        REST.as_secs(),
        SETTLE.as_secs(),
    )];
    part.raw = serde_json::json!({ "rounds": rounds, "idle": idle });
    Ok(part)
}

fn round(binary: &Path, store: &Path) -> Result<StartRound> {
    let (dir, other) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let plain = || timed(Command::new("true").stdin(Stdio::null()));
    let managed = |runtime: &Path, store: &Path| {
        let mut command = usher(binary, runtime);
        timed(
            command
                .env("USHER_STORE", store)
                .args(["run", "--", "true"]),
        )
    };
    let result = StartRound {
        plain: plain()?,
        plain_again: plain()?,
        first: managed(dir.path(), store)?,
        later: managed(dir.path(), store)?,
        first_without_store: managed(other.path(), &other.path().join("new.sqlite"))?,
    };
    let binary = fs::canonicalize(binary)?;
    end_daemons(&binary, dir.path())?;
    end_daemons(&binary, other.path())?;
    Ok(result)
}

/// Returns the duration of a command in ms.
fn timed(command: &mut Command) -> Result<f64> {
    let start = Instant::now();
    let output = command.stdout(Stdio::null()).output()?;
    let elapsed = start.elapsed().as_secs_f64() * 1e3;
    let errors = String::from_utf8_lossy(&output.stderr);
    // A line on standard error means that the program was not managed.
    anyhow::ensure!(
        output.status.success() && errors.is_empty(),
        "{command:?} ended with {}: {errors}",
        output.status
    );
    Ok(elapsed)
}

fn observe(binary: &Path) -> Result<IdleDaemon> {
    let dir = tempfile::tempdir()?;
    let mut launcher = usher(binary, dir.path())
        .args(["run", "--", "sleep", "600"])
        .spawn()?;
    let mut daemon = None;
    wait_for("the daemon with its program", END_MAX, || {
        daemon = daemon_with_program(binary, dir.path());
        daemon.is_some()
    })?;
    let daemon = daemon.context("no daemon")?;
    std::thread::sleep(SETTLE);
    let (cpu, begun) = (cpu_seconds(daemon)?, Instant::now());
    std::thread::sleep(REST);
    let cpu_percent = 100.0 * (cpu_seconds(daemon)? - cpu) / begun.elapsed().as_secs_f64();
    let resident_mib = resident_mib(daemon)?;
    // The launcher forwards SIGTERM to its program.
    terminate(launcher.id().cast_signed());
    launcher.wait()?;
    let ended_after = wait_for("the end of the daemon", END_MAX, || !runs(daemon))?;
    Ok(IdleDaemon {
        cpu_percent,
        resident_mib,
        ended_after_s: ended_after.as_secs_f64(),
    })
}

/// Returns the process number of the daemon that manages one program.
fn daemon_with_program(binary: &Path, runtime: &Path) -> Option<i32> {
    let mut command = usher(binary, runtime);
    let output = command.args(["status", "--json"]).output().ok()?;
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let pid = i32::try_from(status.get("pid")?.as_i64()?).ok()?;
    (status.get("programs")?.as_array()?.len() == 1).then_some(pid)
}

/// Returns the resident memory of a process in MiB.
fn resident_mib(pid: i32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line
        .context("no line VmRSS")?
        .trim()
        .trim_end_matches(" kB")
        .parse()?;
    Ok(kib / 1024.0)
}
