// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim swarm`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, bail};
use serde_json::json;
use usher_model::Topology;
use usher_sim::swarm::{Broken, Case, MACHINES, Passed};

use super::machine;
use crate::failure::Outcome;
use crate::output::Output;
use crate::progress::Progress;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Each seed makes a machine, its kernel, programs, a policy, and what goes wrong: CPUs that go,
daemons that are killed, actions that fail. What must always hold is checked all the while; a
seed that breaks it is told, and breaks it again.

Examples:
  usher sim swarm 0..1000
  usher sim swarm 17 --record run.jsonl && usher replay run.jsonl")]
pub struct Args {
    /// One seed, or FROM..TO
    #[arg(value_name = "SEED|FROM..TO")]
    seeds: String,
    /// Record what the daemon of one seed sees and decides, for `usher replay`;
    /// where it is killed the next one's goes to FILE.2 and so on
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Simulates and checks.
pub fn run(args: &Args, out: Output) -> Outcome {
    let seeds = range(&args.seeds)?;
    let machines: Vec<Topology> = MACHINES
        .iter()
        .map(|spec| machine(spec))
        .collect::<Result<_, _>>()?;
    if seeds.end - seeds.start == 1 {
        return one(seeds.start, &machines, args.record.as_deref(), out);
    }
    if args.record.is_some() {
        bail!("--record takes one seed, not '{}'", args.seeds);
    }
    many(seeds, &machines, out)
}

fn range(seeds: &str) -> anyhow::Result<Range<u64>> {
    let number = |text: &str| {
        let named = || format!("'{seeds}' is neither a seed nor FROM..TO");
        text.parse::<u64>().with_context(named)
    };
    let range = match seeds.split_once("..") {
        Some((from, to)) => number(from)?..number(to)?,
        None => {
            let seed = number(seeds)?;
            seed..seed.checked_add(1).context("that seed is too great")?
        }
    };
    if range.is_empty() {
        bail!("'{seeds}' holds no seed");
    }
    Ok(range)
}

/// One seed: the case, what came of it, and on failure what was done last.
fn one(seed: u64, machines: &[Topology], record: Option<&Path>, out: Output) -> Outcome {
    let case = Case::new(seed, machines);
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
        Ok(passed) => {
            out.answer(
                &json!({ "simulated": true, "seeds": 1, "totals": totals(passed) }),
                || {
                    let recorded = record.map_or(String::new(), |path| {
                        format!("\nrecorded in '{}'", path.display())
                    });
                    format!(
                        "simulated: no invariant was broken; {}{recorded}",
                        told(passed)
                    )
                },
            )?;
            Ok(0)
        }
        Err(broken) => {
            if !out.json {
                let last = broken.last.join("\n  ");
                out.text(&format!("what was done last:\n  {last}"))?;
            }
            let hint = match record {
                Some(path) => format!("'{}' holds what led there", path.display()),
                None => format!("record it: usher sim swarm {seed} --record FILE"),
            };
            fail(&[broken], out)?;
            bail!("seed {seed} breaks an invariant; {hint}");
        }
    }
}

/// Where the record of a daemon's life goes.
fn open(path: &Path, life: usize) -> std::io::Result<Box<dyn Write>> {
    let mut path = path.as_os_str().to_owned();
    if life > 1 {
        path.push(format!(".{life}"));
    }
    Ok(Box::new(BufWriter::new(File::create(path)?)))
}

/// A range of seeds, on all CPUs.
fn many(seeds: Range<u64>, machines: &[Topology], out: Output) -> Outcome {
    let progress = Progress::new();
    progress.steps(seeds.end - seeds.start);
    let next = AtomicU64::new(seeds.start);
    let sum = Mutex::new((Passed::default(), Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let result = Case::new(seed, machines).run();
            progress.step();
            // Nobody panics with it in hand.
            let mut sum = sum.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match result {
                Ok(passed) => sum.0.add(passed),
                Err(broken) => {
                    progress.say(&broken.to_string());
                    sum.1.push(broken);
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
    let (passed, mut broken) = sum
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let count = seeds.end - seeds.start;
    if broken.is_empty() {
        out.answer(
            &json!({ "simulated": true, "seeds": count, "totals": totals(passed) }),
            || {
                let (from, last) = (seeds.start, seeds.end - 1);
                format!(
                    "{count} simulated runs, seeds {from} to {last}: no invariant was broken; {}",
                    told(passed)
                )
            },
        )?;
        return Ok(0);
    }
    broken.sort_by_key(|broken| broken.seed);
    fail(&broken, out)?;
    let seed = broken[0].seed;
    bail!(
        "{} of {count} seeds break an invariant, the first is {seed}; see usher sim swarm {seed}",
        broken.len()
    );
}

/// Says as JSON what was broken; for people the error says it.
fn fail(broken: &[Broken], out: Output) -> anyhow::Result<()> {
    let one = |broken: &Broken| {
        json!({
            "seed": broken.seed,
            "policy": broken.policy,
            "at_ns": broken.at_ns,
            "what": broken.what,
            "last": broken.last,
        })
    };
    match out.json {
        true => out.json(&json!({ "broken": broken.iter().map(one).collect::<Vec<_>>() })),
        false => {
            let lines: Vec<String> = broken.iter().map(ToString::to_string).collect();
            out.text(&lines.join("\n"))
        }
    }
}

fn totals(passed: Passed) -> serde_json::Value {
    json!({
        "decisions": passed.decisions,
        "actions": passed.actions,
        "failed": passed.failed,
        "deaths": passed.deaths,
        "events": passed.events,
    })
}

fn told(passed: Passed) -> String {
    format!(
        "{} decisions, {} actions, {} of which failed, {} daemons killed, {:.1} million events",
        passed.decisions,
        passed.actions,
        passed.failed,
        passed.deaths,
        passed.events as f64 / 1e6
    )
}
