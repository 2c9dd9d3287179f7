// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim swarm`.

use anyhow::{Context, bail};
use usher_model::Topology;
use usher_sim::swarm::{Case, MACHINES};

use super::machine;
use crate::failure::Outcome;
use crate::output::Output;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// One seed, or FROM..TO
    #[arg(value_name = "SEED|FROM..TO")]
    seeds: String,
}

/// Simulates and checks.
pub fn run(args: &Args, out: Output) -> Outcome {
    let seeds = args.seeds.as_str();
    let number = |text: &str| {
        let named = || format!("'{seeds}' is neither a seed nor FROM..TO");
        text.parse::<u64>().with_context(named)
    };
    let (from, to) = match seeds.split_once("..") {
        Some((from, to)) => (number(from)?, number(to)?),
        None => (number(seeds)?, number(seeds)? + 1),
    };
    if from >= to {
        bail!("'{seeds}' holds no seed");
    }
    let machines: Vec<Topology> = MACHINES
        .iter()
        .map(|spec| machine(spec))
        .collect::<Result<_, _>>()?;
    for seed in from..to {
        Case::new(seed, &machines).run()?;
    }
    out.text(&format!(
        "{} simulated runs, seeds {from} to {}: no invariant was broken",
        to - from,
        to - 1
    ))?;
    Ok(0)
}
