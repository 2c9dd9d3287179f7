// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim profiles`: simulates how much Usher gains from ordinary runs on a machine without PMU
//! (`usher_sim::learning`).
//!
//! Mixes run in parallel, one thread per CPU of the host. There are 210 mixes, divided by
//! `--stride`. The result depends only on the options and the seed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;
use schemars::JsonSchema;
use serde_derive::Serialize;
use usher_report::stats::Estimate;
use usher_sim::campaign::mixes;
use usher_sim::learning::{LearningCampaign, LearningRow, MixRuns, gains, with_equal_durations};
use usher_sim::machine::Machine;
use usher_sim::parsec::programs;
use usher_sim::setup::{EvaluationSetup, PAPER_1};

use crate::cli::numbers::{number, whole};
use crate::failure::Outcome;
use crate::machine;
use crate::output::{self, Output, STRONG};
use crate::progress::Progress;

/// Number of programs of a mix.
const MIX: usize = 4;
/// Range of `--seconds`: a run below 1 s gives no point of the curve, and longer runs do not change
/// the result.
const SECONDS: std::ops::RangeInclusive<f64> = 2.0..=600.0;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
A mix consists of four of ten PARSEC models on a simulated machine without PMU. Each program runs
again when it has ended, until every program has completed its runs. The profile store is empty
before the first run of a mix. The code of the daemon learns from each run, and varies the seats of
some runs deliberately (docs/policies.md).

The table shows the ANTT of the first runs, the second runs, and so on: under Linux, under Usher,
and under Usher with the true curves from the first run on. The last row contains all later runs,
too. NTT is the time of a run relative to the program's best time alone; ANTT is the mean of the
NTTs of a mix. Means over the mixes are geometric. The second table shows the time that each program
lost on seats of deliberate variation.

Examples:
  usher sim profiles --stride 10    simulates every tenth mix
  usher sim profiles --json | jq '.usher_by_linux[4]'
  usher sim profiles --no-variation")]
pub struct Args {
    /// Number of runs of each program
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = whole::<u32>(1..=100))]
    runs: u32,
    /// Duration of a run of each program alone, in virtual seconds
    #[arg(long, default_value_t = 10.0, value_parser = number, allow_negative_numbers = true)]
    seconds: f64,
    /// Simulate only every Nth of the 210 mixes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=1_000_000))]
    stride: u32,
    /// Seed the kernel, the programs, the first arrivals and the pauses between runs
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    /// Do not vary seats deliberately
    #[arg(long)]
    no_variation: bool,
    /// Simulate this machine instead of that with 48 cores, for example "package:2 core:8 pu:1"
    #[arg(long, value_name = "SPEC", default_value = PAPER_1)]
    machine: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ProfilesAnswer {
    /// Always true.
    simulated: bool,
    /// The machine's description.
    machine: String,
    /// The seed of the random numbers.
    seed: u64,
    /// Whether the seats of some runs were deliberately varied.
    variation: bool,
    /// Duration of a run of each program alone, in virtual seconds.
    run_seconds: f64,
    /// For each run: geometric mean over the mixes of the ANTT under Usher divided by that under
    /// Linux.
    usher_by_linux: Vec<Option<Estimate>>,
    /// For each run: the same quotient for Usher with the true curves from the first run on.
    known_by_linux: Vec<Option<Estimate>>,
    /// The results of each mix.
    mixes: Vec<LearningRow>,
    /// Number of simulated events.
    events: u64,
}

/// Runs the command.
pub fn run(args: &Args, out: Output) -> Outcome {
    if !SECONDS.contains(&args.seconds) {
        bail!(
            "--seconds must be from {} to {}, not {}",
            SECONDS.start(),
            SECONDS.end(),
            args.seconds
        );
    }
    let setup = EvaluationSetup::new(programs()?);
    let kernel = &setup.kernel;
    let machine = Machine::new(machine::synthetic(&args.machine)?, setup.costs.clone());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let progress = Progress::new();
    progress.doing("simulating every program alone".to_owned());
    let models = &setup.models;
    let programs =
        with_equal_durations(models, &machine, kernel, args.seconds, args.seed, workers)?;
    let all = mixes(programs.len(), MIX).into_iter();
    let all: Vec<_> = all.step_by(args.stride as usize).collect();
    let begun = AtomicBool::new(false);
    let done = |row: &LearningRow| {
        if !begun.swap(true, Ordering::Relaxed) {
            progress.steps(all.len() as u64);
        }
        progress.step();
        progress.doing(row.programs.join(" "));
    };
    let campaign = LearningCampaign {
        machine: &machine,
        kernel,
        programs: &programs,
        runs: args.runs as usize,
        variation: !args.no_variation,
        seed: args.seed,
    };
    let rows = campaign.run(&all, workers, &done);
    progress.end();
    let rows = rows?;
    let answer = ProfilesAnswer {
        simulated: true,
        machine: args.machine.clone(),
        seed: args.seed,
        variation: !args.no_variation,
        run_seconds: args.seconds,
        usher_by_linux: gains(&rows, |row| &row.usher, args.seed),
        known_by_linux: gains(&rows, |row| &row.known, args.seed),
        events: rows.iter().map(|row| row.events).sum(),
        mixes: rows,
    };
    out.answer(&answer, || text(&answer, out))?;
    Ok(0)
}

/// Formats the table of all runs.
fn text(answer: &ProfilesAnswer, out: Output) -> String {
    let head = [
        "RUN",
        "LINUX",
        "USHER",
        "USHER / LINUX",
        "KNOWN / LINUX",
        "POINTS",
        "VARIED",
    ];
    let runs = answer.usher_by_linux.len();
    let mut rows = vec![head.map(|word| out.paint(STRONG, word)).to_vec()];
    for run in 0..runs {
        let last = if run + 1 == runs { " and later" } else { "" };
        let mean = |value: &dyn Fn(&LearningRow) -> f64| {
            let sum: f64 = answer.mixes.iter().map(value).sum();
            sum / answer.mixes.len() as f64
        };
        let antt = |results: &dyn Fn(&LearningRow) -> &MixRuns| {
            mean(&|row| results(row).antt[run].ln()).exp()
        };
        rows.push(vec![
            format!("{}{last}", run + 1),
            format!("{:.2}", antt(&|row| &row.linux)),
            format!("{:.2}", antt(&|row| &row.usher)),
            quotient(answer.usher_by_linux[run].as_ref()),
            quotient(answer.known_by_linux[run].as_ref()),
            format!("{:.1}", mean(&|row| row.usher.points[run])),
            format!("{:.0} %", 100.0 * mean(&|row| row.usher.varied_share[run])),
        ]);
    }
    format!(
        "Simulated: geometric means of the ANTT of {} mixes of four programs on {}, without PMU\n\
         KNOWN: Usher with the true curves; POINTS: of a profile at the start of the run; VARIED: \
         share of the time on seats of deliberate variation\n\n{}\n\
         LOST: time lost on seats of deliberate variation, of the time of {runs} runs under Linux, \
         mean over the mixes of the program; MOST: the largest loss in a mix\n\n{}",
        answer.mixes.len(),
        answer.machine,
        output::columns(&rows),
        output::columns(&losses(answer, out))
    )
}

/// Returns the table of the time that each program lost to deliberate variation.
fn losses(answer: &ProfilesAnswer, out: Output) -> Vec<Vec<String>> {
    let mut losses: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for row in &answer.mixes {
        for (program, &loss) in row.programs.iter().zip(&row.variation_loss) {
            losses.entry(program).or_default().push(loss);
        }
    }
    let head = ["PROGRAM", "MIXES", "LOST", "MOST"];
    let mut rows = vec![head.map(|word| out.paint(STRONG, word)).to_vec()];
    for (program, losses) in losses {
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        let most = losses.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        rows.push(vec![
            program.to_owned(),
            losses.len().to_string(),
            format!("{:.1} %", 100.0 * mean),
            format!("{:.1} %", 100.0 * most),
        ]);
    }
    rows
}

/// Formats an estimate with its 95 % interval.
fn quotient(estimate: Option<&Estimate>) -> String {
    let Some(estimate) = estimate else {
        return "–".to_owned();
    };
    match estimate.low.zip(estimate.high) {
        Some((low, high)) => format!("{:.3} ({low:.3} to {high:.3})", estimate.value),
        None => format!("{:.3}", estimate.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(antt: f64) -> MixRuns {
        MixRuns {
            antt: vec![antt],
            ntt: vec![vec![antt]],
            points: vec![1.5],
            varied_share: vec![0.25],
        }
    }

    #[test]
    fn the_table_is_marked_as_simulated_and_has_every_run() {
        let rows = vec![LearningRow {
            programs: vec!["ferret".to_owned()],
            linux: runs(2.0),
            usher: runs(1.6),
            known: runs(1.5),
            variation_loss: vec![0.02],
            events: 7,
        }];
        let answer = ProfilesAnswer {
            simulated: true,
            machine: "core:4 pu:1".to_owned(),
            seed: 1,
            variation: true,
            run_seconds: 10.0,
            usher_by_linux: gains(&rows, |row| &row.usher, 1),
            known_by_linux: gains(&rows, |row| &row.known, 1),
            mixes: rows,
            events: 7,
        };
        let text = text(
            &answer,
            Output {
                json: false,
                color: false,
            },
        );
        assert!(text.starts_with("Simulated: "), "{text}");
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        for expected in [
            "1 and later 2.00 1.60 0.800 0.750 1.5 25 %",
            "ferret 1 2.0 % 2.0 %",
        ] {
            assert!(lines.iter().any(|line| line == expected), "{text}");
        }
    }
}
