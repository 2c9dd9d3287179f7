// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench first`: measures what a new user of Usher meets first, and compares the figures with
//! their bars. The parts are:
//!
//! - `start`: the automatic start of a daemon;
//! - `busy`: measurements on a busy machine;
//! - `profiles`: profiles from ordinary runs;
//! - `advise`: choices of `usher advise`;
//! - `pytest`, `transcode` and `inference`: comparisons of `usher run` with configurations by hand.

mod advise;
mod busy;
mod compare;
mod profiles;
mod start;

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use crate::parts::{self, PartArgs};

/// The parts, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FirstPart {
    /// Time of the automatic start of a daemon, and the resources and end of this daemon
    Start,
    /// Measurements beside two busy loops, which must not be stored
    Busy,
    /// Profiles from ordinary runs, and the cost of deliberate variation; takes about ten minutes
    Profiles,
    /// Choices of `usher advise`, compared with exhaustive sweeps
    Advise,
    /// Example `examples/pytest`: worker processes with thread pools of their own
    Pytest,
    /// Example `examples/transcode`: a queue of x264 jobs
    Transcode,
    /// Example `examples/inference`: two inference servers
    Inference,
}

/// Options of the benchmark.
#[derive(Debug, Clone, clap::Args)]
pub struct FirstArgs {
    /// The parts, and where `usher` and the results are
    #[command(flatten)]
    pub parts: PartArgs<FirstPart>,
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
    /// Run each configuration 2N times in the sweeps of the part `advise`
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub sweep_rounds: usize,
    /// Measure the part `advise` on a busy machine, too; its figures are then inaccurate
    #[arg(long)]
    pub force: bool,
    /// How the examples are measured
    #[command(flatten)]
    pub compare: compare::CompareArgs,
}

/// Runs the selected parts, saves and prints their results. Returns whether every bar was met.
pub fn run(args: &FirstArgs) -> Result<bool> {
    let title = "Usher: the first minute";
    parts::run(&args.parts, "first", title, |which, input| {
        let compare = |name| compare::run(&args.compare, name, input);
        match which {
            FirstPart::Start => start::run(input.usher, args.starts, input.seed),
            FirstPart::Busy => busy::run(input.usher, args.busy_rounds),
            FirstPart::Profiles => profiles::run(
                input.usher,
                &args.mixes,
                args.profile_rounds,
                args.max_other_cpus,
            ),
            FirstPart::Advise => advise::run(
                input.usher,
                &args.compare.examples,
                args.sweep_rounds,
                args.force,
            ),
            FirstPart::Pytest => compare("pytest"),
            FirstPart::Transcode => compare("transcode"),
            FirstPart::Inference => compare("inference"),
        }
    })
}
