// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `overhead`: measures the CPU time and memory of a daemon that manages 100 idle programs,
//! and the time that `usher run` adds to the command `true`.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use usher_report::stats;

use crate::bars::{Bar, Part};
use crate::processes::{Daemon, cpu_seconds, memory_mib, terminate, usher, wait_for};

const PROGRAMS: usize = 100;
const REST: Duration = Duration::from_secs(30);
const PAIRS: usize = 201;

/// Measures a daemon with 100 idle programs, and `usher run true` against `true`. Computes the
/// part.
pub fn run(binary: &Path) -> Result<Part> {
    let mut part = Part::new("overhead", "Overhead");
    let dir = tempfile::tempdir()?;
    let daemon = Daemon::start(binary, dir.path(), &[])?;
    let mut programs: Vec<Child> = Vec::new();
    for _ in 0..PROGRAMS {
        programs.push(
            usher(binary, dir.path())
                .args(["run", "--", "sleep", "600"])
                .spawn()?,
        );
    }
    let managed = || count_managed(binary, dir.path()).is_some_and(|n| n == PROGRAMS);
    wait_for(
        "the management of 100 programs",
        Duration::from_secs(60),
        managed,
    )?;
    let (cpu, start) = (cpu_seconds(daemon.pid())?, Instant::now());
    std::thread::sleep(REST);
    let share = 100.0 * (cpu_seconds(daemon.pid())? - cpu) / start.elapsed().as_secs_f64();
    let memory = memory_mib(daemon.pid())?;
    let with_daemon = run_true(binary, dir.path(), &["run", "--", "true"])?;
    for program in &mut programs {
        // The launcher forwards SIGTERM to its program. After SIGKILL of the launcher, the program
        // would remain.
        terminate(program.id().cast_signed());
        program.wait()?;
    }
    drop(daemon);
    let alone = run_true(binary, dir.path(), &["run", "--no-daemon", "--", "true"])?;
    part.bars = vec![
        Bar::at_most(
            "CPU use of the daemon with 100 idle programs",
            share,
            0.2,
            "% of a core",
        ),
        Bar::at_most(
            "memory (PSS) of the daemon with 100 idle programs",
            memory,
            50.0,
            "MiB",
        ),
        Bar::at_most(
            "additional time of 'usher run --no-daemon true' over 'true', median",
            alone.0,
            5.0,
            "ms",
        ),
        Bar::at_most(
            "additional time of 'usher run true' over 'true', daemon with 100 programs, median",
            with_daemon.0,
            5.0,
            "ms",
        ),
    ];
    part.notes = vec![format!(
        "CPU use was measured for {} s. 'usher run true' and 'true' ran alternately, {PAIRS} \
         pairs; the figures are medians of the differences. The 90th percentiles are {:.2} ms \
         without and {:.2} ms with the daemon.",
        REST.as_secs(),
        alone.1,
        with_daemon.1
    )];
    part.raw = serde_json::json!({ "cpu_percent": share, "memory_mib": memory, "run_true_ms": [alone, with_daemon] });
    Ok(part)
}

fn count_managed(binary: &Path, runtime: &Path) -> Option<usize> {
    let output = usher(binary, runtime)
        .args(["status", "--json"])
        .output()
        .ok()?;
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(status.get("programs")?.as_array()?.len())
}

/// Returns the median and the 90th percentile of the time in ms that `usher run` adds to `true`.
fn run_true(binary: &Path, runtime: &Path, words: &[&str]) -> Result<(f64, f64)> {
    let mut added = Vec::new();
    for _ in 0..PAIRS {
        let plain = timed(Command::new("true").stdin(Stdio::null()))?;
        let wrapped = timed(usher(binary, runtime).args(words).stderr(Stdio::null()))?;
        added.push((wrapped - plain) * 1e3);
    }
    let at = |p| stats::quantile(&added, p).unwrap_or(f64::NAN);
    Ok((at(0.5), at(0.9)))
}

fn timed(command: &mut Command) -> Result<f64> {
    let start = Instant::now();
    let status = command.status()?;
    let elapsed = start.elapsed().as_secs_f64();
    anyhow::ensure!(status.success(), "{command:?} ended with {status}");
    Ok(elapsed)
}
