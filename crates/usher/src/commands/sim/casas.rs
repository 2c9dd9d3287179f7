// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim casas`: paper 1's evaluation.

mod page;
mod table;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};
use serde_derive::Serialize;
use usher_sim::campaign::{MixRow, Scheduler};
use usher_sim::evaluation::{Evaluation, Extent};
use usher_sim::parsec::programs;
use usher_sim::setup::{FREE, PAPER_1, Setup};

use super::machine;
use crate::failure::Outcome;
use crate::output::{self, Output};
use crate::progress::Progress;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Work of a simulated repetition, in seconds of the sequential program; real ones
    /// take minutes, and what they come to follows from the simulated ones' rates
    #[arg(long, default_value_t = 24.0)]
    seconds: f64,
    /// Virtual seconds to look at every mix after it has settled
    #[arg(long, default_value_t = 20.0)]
    steady: f64,
    /// Only every so manieth mix of the 210
    #[arg(long, default_value_t = 1)]
    every: usize,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also with every free parameter at either end of its range, on every seventh mix
    #[arg(long)]
    ranges: bool,
    /// Write a page and every mix's figures into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Answer {
    simulated: bool,
    machine: &'static str,
    evaluation: Evaluation,
    /// With free parameters at the ends of their ranges.
    ranges: Vec<Evaluation>,
    events: u64,
    seconds: f64,
}

/// A repetition, and a look at it, of more teaches nothing more.
const SECONDS_MAX: f64 = 3600.0;
/// Every so manieth mix is run for the ends of ranges.
const RANGES_EVERY: usize = 7;

/// Simulates and prints.
pub fn run(args: &Args, out: Output) -> Outcome {
    if args.every == 0 {
        bail!("--every must be 1 or more");
    }
    for (name, value) in [("--seconds", args.seconds), ("--steady", args.steady)] {
        if !(value > 0.0 && value <= SECONDS_MAX) {
            bail!("{name} must be a positive number, {SECONDS_MAX} at most, not {value}");
        }
    }
    if let Some(dir) = &args.out {
        fs::create_dir_all(dir).with_context(|| format!("making '{}'", dir.display()))?;
        let probe = dir.join("casas.json");
        File::create(&probe).with_context(|| format!("writing '{}'", probe.display()))?;
    }
    let began = Instant::now();
    let topology = machine(PAPER_1)?;
    let setup = Setup::new(programs()?);
    let extent = Extent {
        repetition_s: args.seconds,
        steady_s: args.steady,
        every: args.every,
        seed: args.seed,
        workers: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let progress = Progress::new();
    let evaluate = |setting: &str, setup: &Setup, schedulers: &[Scheduler], extent: &Extent| {
        progress.doing(format!("{setting} every program alone"));
        let begun = AtomicBool::new(false);
        let done = |mixes: usize, row: &MixRow| {
            if !begun.swap(true, Ordering::Relaxed) {
                progress.steps(mixes as u64);
            }
            progress.step();
            progress.doing(format!("{setting} {}", row.programs.join(" ")));
        };
        Evaluation::run(setting, setup, &topology, schedulers, extent, &done)
    };
    let evaluation = evaluate("", &setup, &Scheduler::ALL, &extent)?;
    let mut ranges = Vec::new();
    for free in FREE.iter().filter(|_| args.ranges) {
        let extent = Extent {
            every: args.every.max(RANGES_EVERY),
            ..extent
        };
        for value in [free.range.0, free.range.1] {
            let setting = format!("{} {value}", free.name);
            let setup = free.set(&setup, value);
            ranges.push(evaluate(&setting, &setup, &Scheduler::RANGES, &extent)?);
        }
    }
    progress.end();
    let all = std::iter::once(&evaluation).chain(&ranges);
    let answer = Answer {
        simulated: true,
        machine: PAPER_1,
        events: all.flat_map(|e| &e.mixes).map(|row| row.events).sum(),
        evaluation,
        ranges,
        seconds: began.elapsed().as_secs_f64(),
    };
    let written = args.out.as_ref().map_or(Ok(()), |dir| write(dir, &answer));
    out.answer(&answer, || {
        let page = args.out.as_ref().filter(|_| written.is_ok());
        let page = page.map(|dir| format!("\npage: {}\n", dir.join("index.html").display()));
        table::table(&answer, out) + &page.unwrap_or_default()
    })?;
    written.map(|()| 0)
}

/// The page and what it rests on.
fn write(dir: &Path, answer: &Answer) -> anyhow::Result<()> {
    let figures = serde_json::to_string_pretty(answer).context("writing JSON");
    let files = [
        ("casas.json", figures),
        ("index.html", Ok(page::page(answer))),
    ];
    let (_, unwritten) = output::write_files(dir, files);
    unwritten.into_iter().next().map_or(Ok(()), Err)
}
