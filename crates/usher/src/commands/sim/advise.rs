// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim advise`: compares the choices of `usher advise` with exhaustive sweeps on simulated
//! machines (`usher_sim::advise`). The result depends only on the options.

use schemars::JsonSchema;
use serde::Serialize;
use usher_sim::advise::{AdviseEvaluation, NoiseModel, evaluate};

use crate::cli::numbers::whole;
use crate::failure::Outcome;
use crate::machine;
use crate::output::{self, Output};

/// The simulated machines: 16 cores with two LLC domains, and 48 cores with eight.
const MACHINES: [&str; 2] = [
    "package:1 die:2 numa:1 core:8 pu:1",
    "package:4 die:2 numa:1 core:6 pu:1",
];

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Each program is a PARSEC model with randomly changed traits. Its true throughput with each
number of copies is simulated, and `usher advise` chooses from these throughputs with noise. The
table shows the share of programs with a choice within 5 % of the best configuration, and the
time of the measurements relative to an exhaustive sweep with five runs of each configuration.

Examples:
  usher sim advise
  usher sim advise --programs 20 --json | jq '.machines[].near_best'")]
pub struct Args {
    /// Simulate this number of programs on each machine
    #[arg(long, value_name = "N", default_value_t = 210, value_parser = whole::<u32>(1..=100_000))]
    programs: u32,
    /// Seed the programs and the noise
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    /// Simulate this machine instead of those with 16 and 48 cores, for example "core:8 pu:2"
    #[arg(long, value_name = "SPEC")]
    machine: Option<String>,
}

/// Choices of `usher advise` on simulated machines.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SimAdviseAnswer {
    /// Always true.
    simulated: bool,
    /// The seed of the programs and of the noise.
    seed: u64,
    /// The noise of the measurements.
    noise: NoiseModel,
    /// The results of each machine.
    machines: Vec<MachineAnswer>,
}

/// The result of a machine.
#[derive(Debug, Serialize, JsonSchema)]
struct MachineAnswer {
    /// The machine's description.
    machine: String,
    #[serde(flatten)]
    evaluation: AdviseEvaluation,
}

/// Runs the command.
pub fn run(args: &Args, out: Output) -> Outcome {
    let models = usher_sim::parsec::programs()?;
    let noise = NoiseModel::default();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let specs = match &args.machine {
        Some(spec) => vec![spec.as_str()],
        None => MACHINES.to_vec(),
    };
    let machines = specs.into_iter().map(|spec| {
        let topology = machine::synthetic(spec)?;
        let count = args.programs as usize;
        Ok(MachineAnswer {
            machine: spec.to_owned(),
            evaluation: evaluate(&topology, &models, count, noise, args.seed, workers),
        })
    });
    let answer = SimAdviseAnswer {
        simulated: true,
        seed: args.seed,
        noise,
        machines: machines.collect::<anyhow::Result<_>>()?,
    };
    out.answer(&answer, || text(&answer))?;
    Ok(0)
}

fn text(answer: &SimAdviseAnswer) -> String {
    let head = [
        "machine",
        "programs",
        "within 5 % of the best",
        "time of a sweep",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in &answer.machines {
        rows.push(vec![
            one.machine.clone(),
            one.evaluation.programs.len().to_string(),
            format!("{:.1} %", 100.0 * one.evaluation.near_best),
            format!("{:.1} %", 100.0 * one.evaluation.time_share),
        ]);
    }
    format!("simulated\n{}", output::columns(&rows))
}
