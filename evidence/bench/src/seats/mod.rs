// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench seats`: measures how well Usher gives seats, and compares the figures with their
//! bars. Parts: time of planning (`plan`), resources of an idle daemon (`overhead`), time until a
//! program has its seat (`latency`), lending of idle seats (`lending`), many short programs
//! (`short`), SIGKILL at random times (`kills`), and mixes of real programs (`mixes`).

mod fixtures;
mod kills;
mod latency;
mod lending;
mod mixes;
mod overhead;
mod plan;
mod short;

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;

use crate::parts::{self, PartArgs, PartInput};

/// The parts, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SeatsPart {
    /// Time to compute a plan, and whether the plan is optimal
    Plan,
    /// Resources of an idle daemon, and the additional time of `usher run`
    Overhead,
    /// Time until a program has its seat
    Latency,
    /// Lending and reclaiming idle seats
    Lending,
    /// 10,000 short programs
    Short,
    /// SIGKILL of Usher's processes at random times
    Kills,
    /// Mixes of real programs
    Mixes,
}

/// Options of the benchmark.
#[derive(Debug, Clone, clap::Args)]
pub struct SeatsArgs {
    /// The parts, and where `usher` and the results are
    #[command(flatten)]
    pub parts: PartArgs<SeatsPart>,
    /// Run this many rounds with SIGKILL
    #[arg(long, default_value_t = 1_000)]
    pub kill_rounds: usize,
    /// Observe lending for this time in seconds
    #[arg(long, default_value_t = 120.0)]
    pub lending_seconds: f64,
    /// Plan the machines of hwloc's tests in this directory, which scripts/hwloc-fixtures prints
    #[arg(long, value_name = "DIR")]
    pub hwloc_machines: Option<PathBuf>,
    /// How mixes are run
    #[command(flatten)]
    pub mixes: mixes::MixArgs,
}

/// Runs the selected parts, saves and prints their results. Returns whether every bar was met.
pub fn run(args: &SeatsArgs) -> Result<bool> {
    let scratch = tempfile::tempdir()?;
    parts::run(&args.parts, "seats", "Usher: seats", |which, input| {
        let PartInput {
            usher,
            folder,
            seed,
        } = *input;
        match which {
            SeatsPart::Plan => plan::run(seed, args.hwloc_machines.as_deref()),
            SeatsPart::Overhead => overhead::run(usher),
            SeatsPart::Latency => latency::run(scratch.path()),
            SeatsPart::Lending => lending::run(args.lending_seconds),
            SeatsPart::Short => short::run(usher),
            SeatsPart::Kills => kills::run(usher, args.kill_rounds, seed),
            SeatsPart::Mixes => mixes::run(&args.mixes, usher, folder, seed),
        }
    })
}
