// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench first`: measures what a new user of Usher meets first, and compares the figures with
//! their bars. The parts are: the automatic start of a daemon (`start`), measurements on a busy machine
//! (`busy`), and profiles from ordinary runs (`profiles`).

mod busy;
mod profiles;
mod start;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::bars::Part;
use crate::machine;
use crate::processes::usher_binary;

/// The parts, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FirstPart {
    /// Time of the automatic start of a daemon, and the resources and end of this daemon
    Start,
    /// Measurements beside two busy loops, which must not be stored
    Busy,
    /// Profiles from ordinary runs, and the cost of deliberate variation; takes about ten minutes
    Profiles,
}

/// Options of the benchmark.
#[derive(Debug, Clone, clap::Args)]
pub struct FirstArgs {
    /// Run only these parts
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<FirstPart>,
    /// Measure this `usher`; by default, the `usher` in the directory of this program
    #[arg(long, value_name = "FILE")]
    pub usher: Option<PathBuf>,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    pub out: PathBuf,
    /// Seed the random number generators
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Measure this number of automatic starts
    #[arg(long, default_value_t = 41)]
    pub starts: usize,
    /// Measure beside busy loops in this number of rounds
    #[arg(long, default_value_t = 3)]
    pub busy_rounds: usize,
    /// Run each program of part `profiles` this number of times
    #[arg(long, default_value_t = 5)]
    pub profile_rounds: usize,
    /// Read the programs of part `profiles` from the mixes in this directory
    #[arg(long, default_value = "examples/mixes", value_name = "DIR")]
    pub mixes: PathBuf,
    /// Pass this limit of other programs' CPUs to `usher profile` in part `profiles`
    #[arg(long, value_name = "CPUS")]
    pub max_other_cpus: Option<f64>,
}

/// Runs the selected parts, saves and prints their results. Returns whether every bar was met.
pub fn run(args: &FirstArgs) -> Result<bool> {
    let usher = usher_binary(args.usher.as_deref())?;
    let folder = machine::run_folder(&args.out, "first")?;
    let mut parts: Vec<Part> = Vec::new();
    for &which in FirstPart::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&which) {
            continue;
        }
        let part = match which {
            FirstPart::Start => start::run(&usher, args.starts, args.seed),
            FirstPart::Busy => busy::run(&usher, args.busy_rounds),
            FirstPart::Profiles => profiles::run(
                &usher,
                &args.mixes,
                args.profile_rounds,
                args.max_other_cpus,
            ),
        };
        let part = part.with_context(|| format!("part {which:?}"))?;
        machine::print_line(part.lines())?;
        parts.push(part);
    }
    machine::finish(&folder, "Usher: the first minute", &parts)
}
