// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim fuzz`: runs fuzz cases, which are simulated runs with injected faults, and checks
//! invariants of the control loop in each.
//!
//! 1. The seed alone determines a case.
//! 2. One seed prints the case and, after a violation, the last log entries; `--record` writes the
//!    daemon's record for `usher replay`.
//! 3. A range of seeds runs on all CPUs of the host, one thread per CPU. Each thread takes the next
//!    seed until no seed is left. The command prints totals, or all violations sorted by seed.
//!
//! A violation does not end a range early; the exit status is then 125. A range has no upper limit
//! of its length: the time grows with the number of seeds, and the memory with the number of
//! violations.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, anyhow, bail};
use usher_model::Topology;
use usher_sim::fuzz::{FuzzCase, FuzzStats, MACHINES, Violation};

use crate::answers::{FuzzAnswer, FuzzTotals, FuzzViolation};
use crate::failure::Outcome;
use crate::machine;
use crate::output::Output;
use crate::progress::Progress;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Each seed determines a machine, its kernel, programs, a policy and faults: CPUs that go offline,
daemons that are killed, actions that fail. The command checks invariants during the whole run and
reports each seed whose run violates an invariant. The same seed reproduces the violation.

Examples:
  usher sim fuzz 0..1000
  usher sim fuzz 17 --record run.jsonl && usher replay run.jsonl")]
pub struct Args {
    /// Seed to simulate, or all seeds from FROM up to and excluding TO
    #[arg(value_name = "SEED|FROM..TO")]
    seeds: String,
    /// Record the observations and decisions of the simulated daemon, for `usher replay`; takes one
    /// seed. If the daemon is killed, the next daemon is recorded in FILE.2, and so on
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args, out: Output) -> Outcome {
    let seeds = range(&args.seeds)?;
    let machines: Vec<Topology> = MACHINES
        .iter()
        .map(|spec| machine::synthetic(spec))
        .collect::<Result<_, _>>()?;
    if seeds.end - seeds.start == 1 {
        return run_one(seeds.start, &machines, args.record.as_deref(), out);
    }
    if args.record.is_some() {
        bail!(
            "--record needs a single seed, not the range '{}'",
            args.seeds
        );
    }
    run_many(seeds, &machines, out)
}

fn range(seeds: &str) -> anyhow::Result<Range<u64>> {
    let number = |text: &str| {
        text.parse::<u64>().map_err(|_| {
            anyhow!(
                "'{seeds}' is neither a seed nor a range FROM..TO of seeds; a seed is a whole \
                 number below 2^64"
            )
        })
    };
    let range = match seeds.split_once("..") {
        Some((from, to)) => number(from)?..number(to)?,
        None => {
            let seed = number(seeds)?;
            seed..seed
                .checked_add(1)
                .context("a seed must be less than 2^64 - 1")?
        }
    };
    if range.is_empty() {
        bail!("the range '{seeds}' contains no seed");
    }
    Ok(range)
}

/// Runs one seed: prints the case and its result, and after a violation the last log entries.
fn run_one(seed: u64, machines: &[Topology], record: Option<&Path>, out: Output) -> Outcome {
    let case = FuzzCase::new(seed, machines);
    if !out.json {
        out.text(&case.to_string())?;
    }
    if let Some(path) = record {
        File::create(path).with_context(|| format!("opening the record '{}'", path.display()))?;
    }
    let result = match record {
        Some(path) => case.run_recorded(&mut |life| open(path, life)),
        None => case.run(),
    };
    match result {
        Ok(stats) => {
            out.answer(&answer(1, stats, &[]), || {
                let recorded = record.map_or(String::new(), |path| {
                    format!("\nthe run is recorded in '{}'", path.display())
                });
                format!(
                    "simulated run: no violation of an invariant; {}{recorded}",
                    summary(stats)
                )
            })?;
            Ok(0)
        }
        Err(violation) => {
            if !out.json {
                let last = violation.last.join("\n  ");
                out.text(&format!("last log entries:\n  {last}"))?;
            }
            let hint = match record {
                Some(path) => format!("the run is recorded in '{}'", path.display()),
                None => format!("'usher sim fuzz {seed} --record FILE' records the run"),
            };
            fail(1, FuzzStats::default(), &[violation], out)?;
            bail!("seed {seed} violates an invariant; {hint}");
        }
    }
}

/// Opens the file for the record of the n-th daemon.
fn open(path: &Path, life: usize) -> std::io::Result<Box<dyn Write>> {
    let mut path = path.as_os_str().to_owned();
    if life > 1 {
        path.push(format!(".{life}"));
    }
    Ok(Box::new(BufWriter::new(File::create(path)?)))
}

/// Runs a range of seeds on all CPUs.
fn run_many(seeds: Range<u64>, machines: &[Topology], out: Output) -> Outcome {
    let progress = Progress::new();
    progress.steps(seeds.end - seeds.start);
    let next = AtomicU64::new(seeds.start);
    let sum = Mutex::new((FuzzStats::default(), Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let result = FuzzCase::new(seed, machines).run();
            progress.step();
            // No code that holds the lock panics.
            let mut sum = sum.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match result {
                Ok(stats) => sum.0.add(stats),
                Err(violation) => {
                    progress.print_line(&violation.to_string());
                    sum.1.push(violation);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let workers = std::thread::available_parallelism().map_or(1, |count| count.get());
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    progress.end();
    let (stats, mut violations) = sum
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let count = seeds.end - seeds.start;
    if violations.is_empty() {
        out.answer(&answer(count, stats, &[]), || {
            let (from, last) = (seeds.start, seeds.end - 1);
            format!(
                "{count} simulated runs, seeds {from} to {last}: no violation of an \
                     invariant; {}",
                summary(stats)
            )
        })?;
        return Ok(0);
    }
    violations.sort_by_key(|violation| violation.seed);
    fail(count, stats, &violations, out)?;
    let seed = violations[0].seed;
    bail!(
        "the runs of {} of {count} seeds violate an invariant; 'usher sim fuzz {seed}' reproduces \
         the first violation",
        violations.len()
    );
}

/// Prints the violations as JSON or as text.
fn fail(seeds: u64, stats: FuzzStats, violations: &[Violation], out: Output) -> anyhow::Result<()> {
    match out.json {
        true => out.json(&answer(seeds, stats, violations)),
        false => {
            let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
            out.text(&lines.join("\n"))
        }
    }
}

fn answer(seeds: u64, stats: FuzzStats, violations: &[Violation]) -> FuzzAnswer {
    let violation = |violation: &Violation| FuzzViolation {
        seed: violation.seed,
        policy: violation.policy.to_string(),
        at_ns: violation.at_ns,
        what: violation.what.clone(),
        last: violation.last.clone(),
    };
    FuzzAnswer {
        simulated: true,
        seeds,
        totals: FuzzTotals {
            decisions: stats.decisions,
            actions: stats.actions,
            failed: stats.failed,
            daemons_killed: stats.daemons_killed,
            events: stats.events,
        },
        violations: violations.iter().map(violation).collect(),
    }
}

fn summary(stats: FuzzStats) -> String {
    format!(
        "{} decisions, {} actions, {} of which failed, {} daemons killed, {:.1} million events",
        stats.decisions,
        stats.actions,
        stats.failed,
        stats.daemons_killed,
        stats.events as f64 / 1e6
    )
}
