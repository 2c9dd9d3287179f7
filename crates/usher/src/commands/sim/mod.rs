// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim`: the subcommands that run the control loop and the policies on simulated machines.
//! The simulator is crate `usher-sim`.
//!
//! The subcommands change nothing on the host, except for the files that their options name.

mod advise;
mod casas;
mod fuzz;
mod mix;
mod profiles;
mod slurm;
mod smt;

pub use advise::SimAdviseAnswer;
pub use casas::CasasAnswer;
pub use profiles::ProfilesAnswer;
pub use slurm::SlurmAnswer;
pub use smt::SmtAnswer;

use crate::failure::Outcome;
use crate::output::Output;

/// Runs the control loop on a simulated machine
#[derive(Debug, clap::Args)]
#[command(after_help = "\
All results are simulated, not measured: the machine, its kernel and the programs are models.
The policies and the control loop are the code of the daemon. Tests compare the models with
published measurements.

Examples:
  usher sim mix examples/sim/paper1.toml
  usher sim smt                     four loops on two cores with two hardware threads each
  usher sim casas --out report      all 210 mixes of PARSEC programs, in about ten minutes
  usher sim casas --stride 10       every tenth mix
  usher sim slurm --stride 10       Usher, stacked jobs and gang scheduling
  usher sim profiles --stride 10    what Usher learns from five runs of each program
  usher sim advise                  the choices of `usher advise` for 210 programs
  usher sim fuzz 0..1000            a thousand random runs with injected faults")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Mix(mix::Args),
    /// Simulates a published test of SMT awareness in the kernel: four loops on two cores
    Smt(smt::Args),
    /// Simulates the published evaluation of the policy casas: PARSEC programs on 48 cores
    Casas(casas::Args),
    /// Compares Usher with Slurm's ways to share a node: PARSEC programs on 48 cores
    Slurm(slurm::Args),
    /// Compares the choices of `usher advise` with exhaustive sweeps, for many program models
    Advise(advise::Args),
    /// Simulates what Usher learns from ordinary runs of programs on a machine without PMU
    Profiles(profiles::Args),
    /// Tests the control loop with random programs, machines and injected faults
    Fuzz(fuzz::Args),
}

/// Runs the command.
pub fn run(args: &Args, out: Output) -> Outcome {
    match &args.command {
        Command::Mix(args) => mix::run(args, out),
        Command::Smt(args) => smt::run(args, out),
        Command::Casas(args) => casas::run(args, out),
        Command::Slurm(args) => slurm::run(args, out),
        Command::Advise(args) => advise::run(args, out),
        Command::Profiles(args) => profiles::run(args, out),
        Command::Fuzz(args) => fuzz::run(args, out),
    }
}
