// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim`: the same control loop on a machine that is not there.

mod casas;
mod mix;
mod smt;
mod swarm;

use usher_model::Topology;
use usher_topology::Source;

use crate::failure::Outcome;
use crate::output::Output;

/// Runs the control loop on a simulated machine
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Nothing that this command prints was measured: it is what models of machines, of the
kernel and of programs give. How far these are from what was published of the real
ones is part of the tests.

Examples:
  usher sim mix examples/sim/paper1.toml
  usher sim smt                     four loops on two cores with two threads each
  usher sim casas --out report      all 210 mixes, some ten minutes, and a page
  usher sim casas --every 10        every tenth mix of four PARSEC programs
  usher sim swarm 0..1000           a thousand seeds of things going wrong")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Mix(mix::Args),
    /// Paper 3b's test: does the kernel know cores from hardware threads?
    Smt(smt::Args),
    /// Paper 1's evaluation: mixes of four PARSEC programs on 48 cores
    Casas(casas::Args),
    /// Seeds of the swarm: loops, programs and machines in which things go wrong
    Swarm(swarm::Args),
}

/// Simulates and prints.
pub fn run(args: &Args, out: Output) -> Outcome {
    match &args.what {
        What::Mix(args) => mix::run(args, out),
        What::Smt(args) => smt::run(args, out),
        What::Casas(args) => casas::run(args, out),
        What::Swarm(args) => swarm::run(args, out),
    }
}

fn machine(spec: &str) -> anyhow::Result<Topology> {
    Ok(usher_topology::load(Source::Synthetic(spec.to_owned()))?)
}
