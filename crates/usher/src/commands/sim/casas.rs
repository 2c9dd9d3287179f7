// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim casas`: repeats the evaluation of paper 1 (CASAS) on a simulated machine: mixes of
//! four PARSEC programs on 48 cores under several schedulers.
//!
//! 1. [`Evaluation`] simulates each program alone. Then [`Evaluation`] simulates the transient of
//!    each mix, in which the policy still changes seats, and the steady state after it.
//! 2. From the simulated speeds, [`Evaluation`] extrapolates the times of programs that run for
//!    minutes.
//! 3. With `--ranges`, every seventh mix, or every Nth with a larger `--stride N`, is simulated
//!    again with each free parameter at both ends of its range.
//! 4. The tables are printed, and the report page is written into the directory of `--out`.
//!
//! Mixes run in parallel, one thread per CPU of the host. There are 210 mixes, divided by
//! `--stride`; all mixes take about ten minutes on two CPUs. `--seconds` and `--steady` are virtual
//! seconds above 0 and at most 3600. The result depends only on the options and the seed. A
//! directory that cannot be written ends the command before the simulation.

mod page;
mod table;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};
use schemars::JsonSchema;
use serde_derive::Serialize;
use usher_sim::campaign::{MixRow, Scheduler};
use usher_sim::evaluation::{Evaluation, SimulationSize};
use usher_sim::parsec::programs;
use usher_sim::setup::{EvaluationSetup, FREE_PARAMETERS, PAPER_1};

use crate::cli::numbers::{number, whole};
use crate::failure::Outcome;
use crate::machine;
use crate::output::{self, Output};
use crate::progress::Progress;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A mix consists of four of ten PARSEC programs, which run at the same time on a simulated machine
with 48 cores. The output compares the ANTT under Linux, CaSAS and Usher with the published
figures (docs/glossary.md, paper 1). NTT is the time of a program in the mix relative to its best
time alone; ANTT is the mean of the NTTs. All mixes take about ten minutes on two CPUs.

Examples:
  usher sim casas --stride 10       simulates every tenth mix
  usher sim casas --out report      writes a report page
  usher sim casas --ranges          varies the parameters that are not published")]
pub struct Args {
    /// Simulate this much work per repetition of a program, in seconds of its sequential time. The
    /// results for the real programs, which run for minutes, are extrapolated from the simulated
    /// speeds
    #[arg(long, default_value_t = 24.0, value_parser = number, allow_negative_numbers = true)]
    seconds: f64,
    /// Simulate each mix for this many virtual seconds after its transient (the time in which the
    /// policy still changes seats)
    #[arg(long, default_value_t = 20.0, value_parser = number, allow_negative_numbers = true)]
    steady: f64,
    /// Simulate only every Nth of the 210 mixes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=1_000_000))]
    stride: u32,
    /// Seed the random number generators
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    /// Also simulate every seventh mix with each unpublished model parameter at both ends of its
    /// range
    #[arg(long)]
    ranges: bool,
    /// Write a report page and the figures of every mix into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct CasasAnswer {
    /// Always true.
    simulated: bool,
    /// The machine's description.
    machine: &'static str,
    /// The results of the schedulers.
    evaluation: Evaluation,
    /// Results with free parameters at the ends of their ranges.
    ranges: Vec<Evaluation>,
    /// Number of simulated events.
    events: u64,
    /// Duration of the command in seconds.
    seconds: f64,
}

/// Upper limit of `--seconds` and `--steady` in virtual seconds; longer simulations do not change
/// the result.
const SECONDS_MAX: f64 = 3600.0;
/// Minimum stride of the mixes that are run for the ends of ranges.
const RANGES_STRIDE: usize = 7;

/// Runs the command.
pub fn run(args: &Args, out: Output) -> Outcome {
    for (name, value) in [("--seconds", args.seconds), ("--steady", args.steady)] {
        if !(value > 0.0 && value <= SECONDS_MAX) {
            bail!("{name} must be a positive number of at most {SECONDS_MAX}, not {value}");
        }
    }
    if let Some(dir) = &args.out {
        fs::create_dir_all(dir).with_context(|| format!("making '{}'", dir.display()))?;
        let probe = dir.join("casas.json");
        File::create(&probe).with_context(|| format!("writing '{}'", probe.display()))?;
    }
    let began = Instant::now();
    let topology = machine::synthetic(PAPER_1)?;
    let setup = EvaluationSetup::new(programs()?);
    let size = SimulationSize {
        repetition_s: args.seconds,
        steady_s: args.steady,
        stride: args.stride as usize,
        seed: args.seed,
        workers: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let progress = Progress::new();
    let evaluate = |setting: &str,
                    setup: &EvaluationSetup,
                    schedulers: &[Scheduler],
                    size: &SimulationSize| {
        progress.doing(format!("{setting} simulating every program alone"));
        let begun = AtomicBool::new(false);
        let done = |mixes: usize, row: &MixRow| {
            if !begun.swap(true, Ordering::Relaxed) {
                progress.steps(mixes as u64);
            }
            progress.step();
            progress.doing(format!("{setting} {}", row.programs.join(" ")));
        };
        Evaluation::run(setting, setup, &topology, schedulers, size, &done)
    };
    let evaluation = evaluate("", &setup, &Scheduler::PAPER_1, &size)?;
    let mut ranges = Vec::new();
    for parameter in FREE_PARAMETERS.iter().filter(|_| args.ranges) {
        let size = SimulationSize {
            stride: (args.stride as usize).max(RANGES_STRIDE),
            ..size
        };
        for value in [parameter.range.0, parameter.range.1] {
            let setting = format!("{} {value}", parameter.name);
            let setup = parameter.set(&setup, value);
            ranges.push(evaluate(&setting, &setup, &Scheduler::RANGES, &size)?);
        }
    }
    progress.end();
    let all = std::iter::once(&evaluation).chain(&ranges);
    let answer = CasasAnswer {
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

/// Writes the report page and its data.
fn write(dir: &Path, answer: &CasasAnswer) -> anyhow::Result<()> {
    let figures = serde_json::to_string_pretty(answer).context("writing JSON");
    let files = [
        ("casas.json", figures),
        ("index.html", Ok(page::page(answer))),
    ];
    let (_, unwritten) = output::write_files(dir, files);
    unwritten.into_iter().next().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use usher_sim::campaign::ScalabilityClass;
    use usher_sim::evaluation::EvaluatedProgram;

    use super::*;

    #[test]
    fn the_answer_is_valid() {
        let evaluation = Evaluation {
            setting: String::new(),
            programs: vec![EvaluatedProgram {
                name: "ferret".to_owned(),
                class: ScalabilityClass::G,
                other: None,
                speedup: vec![(1.0, 1.0), (2.0, 1.9)],
                crowded: 1.1,
            }],
            sample: Vec::new(),
            mixes: vec![MixRow {
                programs: vec!["ferret".to_owned()],
                antt: BTreeMap::from([(Scheduler::Linux, 1.2)]),
                ntt: BTreeMap::from([(Scheduler::Linux, vec![1.2])]),
                events: 7,
            }],
        };
        let answer = CasasAnswer {
            simulated: true,
            machine: PAPER_1,
            evaluation,
            ranges: Vec::new(),
            events: 7,
            seconds: 0.5,
        };
        let schema = crate::answers::schema::<CasasAnswer>();
        let schema = serde_json::to_value(&schema).unwrap();
        let answer = serde_json::to_value(&answer).unwrap();
        jsonschema::validate(&schema, &answer).unwrap();
    }
}
