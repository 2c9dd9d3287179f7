// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim slurm`: compares Usher on a simulated node with the two ways in which Slurm shares a
//! node among jobs, on the mixes of `usher sim casas`. Crate `usher-sim`, module `slurm`, states the
//! models and their limits.
//!
//! The result depends only on the options and the seed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::bail;
use schemars::JsonSchema;
use serde_derive::Serialize;
use usher_report::text as words;
use usher_sim::campaign::MixRow;
use usher_sim::evaluation::SimulationSize;
use usher_sim::kernel::Kernel;
use usher_sim::parsec::programs;
use usher_sim::setup::{EvaluationSetup, PAPER_1};
use usher_sim::slurm::{RatioToBetter, SCHEDULERS, SlurmComparison};
use usher_sim::slurm_node::SlurmNode;

use crate::cli::numbers::{number, whole};
use crate::failure::Outcome;
use crate::machine;
use crate::output::{self, Output, STRONG};
use crate::progress::Progress;

/// Work of a repetition of a program, in seconds of its sequential time.
const REPETITION_S: f64 = 24.0;
/// Virtual seconds of a mix after its transient; gang scheduling is simulated for whole rotations.
const STEADY_S: f64 = 20.0;

/// The kernel of the simulated node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum NodeKernel {
    /// A current kernel, which shares the CPU time evenly between jobs.
    LinuxEevdf,
    /// The kernel of paper 1, which shares the CPU time evenly between threads.
    #[value(name = "linux-2.6.37")]
    #[serde(rename = "linux-2.6.37")]
    Linux2637,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A mix consists of four of ten PARSEC programs. Each program is a job that requests all 48 cores
of the node. `oversubscribe` stacks the jobs; `gang` suspends whole jobs in turn. The bar is a
mean ANTT under Usher of at most 0.8 of the better one. docs/simulation.md states the models.

Examples:
  usher sim slurm
  usher sim slurm --stride 10 --kernel linux-2.6.37
  usher sim slurm --slice 60 --json | jq .comparison.usher")]
pub struct Args {
    /// The kernel of the node
    #[arg(long, value_enum, default_value = "linux-eevdf")]
    kernel: NodeKernel,
    /// Suspend whole jobs under gang scheduling for slices of this many virtual seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = number, allow_negative_numbers = true)]
    slice: f64,
    /// Simulate only every Nth of the 210 mixes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=1_000_000))]
    stride: u32,
    /// Seed the random number generators
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SlurmAnswer {
    /// Always true.
    simulated: bool,
    /// The machine's description.
    machine: &'static str,
    /// The kernel of the node.
    kernel: NodeKernel,
    /// The results.
    comparison: SlurmComparison,
    /// Duration of the command in seconds.
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &Args, out: Output) -> Outcome {
    let slices = SlurmNode::SLICE_S_MIN..=SlurmNode::SLICE_S_MAX;
    if !slices.contains(&args.slice) {
        let (min, max) = (slices.start(), slices.end());
        bail!(
            "--slice must be from {min} to {max} seconds, not {}",
            args.slice
        );
    }
    let began = Instant::now();
    let topology = machine::synthetic(PAPER_1)?;
    let setup = EvaluationSetup::new(programs()?);
    let kernel = match args.kernel {
        NodeKernel::LinuxEevdf => Kernel::default(),
        NodeKernel::Linux2637 => Kernel::cfs(),
    };
    let node = SlurmNode {
        slice_s: args.slice,
        ..SlurmNode::default()
    };
    let size = SimulationSize {
        repetition_s: REPETITION_S,
        steady_s: STEADY_S,
        stride: args.stride as usize,
        seed: args.seed,
        workers: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let progress = Progress::new();
    progress.doing("simulating every program alone".to_owned());
    let begun = AtomicBool::new(false);
    let done = |mixes: usize, row: &MixRow| {
        if !begun.swap(true, Ordering::Relaxed) {
            progress.steps(mixes as u64);
        }
        progress.step();
        progress.doing(row.programs.join(" "));
    };
    let comparison = SlurmComparison::run(&setup, &topology, &kernel, node, &size, &done)?;
    progress.end();
    let answer = SlurmAnswer {
        simulated: true,
        machine: PAPER_1,
        kernel: args.kernel,
        comparison,
        seconds: began.elapsed().as_secs_f64(),
    };
    out.answer(&answer, || table(&answer, out))?;
    Ok(0)
}

fn table(answer: &SlurmAnswer, out: Output) -> String {
    let comparison = &answer.comparison;
    let titles = ["SCHEDULER", "GEOMETRIC MEAN", "MEAN", "WORST"];
    let mut rows = vec![titles.map(|title| out.paint(STRONG, title)).to_vec()];
    for scheduler in SCHEDULERS {
        let Some(means) = comparison.means.get(&scheduler) else {
            continue;
        };
        rows.push(vec![
            scheduler.name().to_owned(),
            format!("{:.2}", means.geometric),
            format!("{:.2}", means.arithmetic),
            format!("{:.2}", means.worst),
        ]);
    }
    let ratio = |name: &str, ratio: &RatioToBetter| {
        format!(
            "{name} / better of both: {:.3} (by mix {:.3}, worst mix {:.3}); bar 0.8: {}\n",
            ratio.of_means,
            ratio.by_mix,
            ratio.worst,
            match ratio.of_means <= 0.8 {
                true => "met",
                false => "missed",
            }
        )
    };
    format!(
        "Simulated: ANTT of {} of four jobs on {}, slices of {} s\n\n{}\n{}{}",
        words::count(comparison.mixes.len(), "mix"),
        answer.machine,
        comparison.slice_s,
        output::columns(&rows),
        ratio("usher", &comparison.usher),
        ratio("usher (cold)", &comparison.usher_cold),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_answer_is_valid_and_names_a_missed_bar() {
        let row = |antts: [f64; 4]| MixRow {
            programs: vec!["ferret".to_owned()],
            antt: SCHEDULERS.into_iter().zip(antts).collect(),
            ntt: BTreeMap::new(),
            events: 0,
        };
        let answer = SlurmAnswer {
            simulated: true,
            machine: PAPER_1,
            kernel: NodeKernel::Linux2637,
            comparison: SlurmComparison::of(vec![row([2.0, 4.0, 1.5, 1.9])], 30.0),
            seconds: 0.5,
        };
        let schema = serde_json::to_value(crate::answers::schema::<SlurmAnswer>()).unwrap();
        let value = serde_json::to_value(&answer).unwrap();
        jsonschema::validate(&schema, &value).unwrap();
        assert_eq!(value["kernel"], "linux-2.6.37");
        let plain = Output {
            json: false,
            color: false,
        };
        let text = table(&answer, plain);
        assert!(text.contains("usher / better of both: 0.750"), "{text}");
        assert!(
            text.contains("0.950 (by mix 0.950, worst mix 0.950); bar 0.8: missed"),
            "{text}"
        );
    }
}
