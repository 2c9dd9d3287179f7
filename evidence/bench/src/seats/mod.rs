// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench seats`: measures how well Usher gives seats, and compares the figures with their
//! bars. Parts: time of planning (`plan`), resources of an idle daemon (`overhead`), time until a
//! program has its seat (`latency`), lending of idle seats (`lending`), many short programs
//! (`short`), SIGKILL at random times (`kills`), and mixes of real programs (`mixes`).

mod kills;
mod latency;
mod lending;
mod mixes;
mod overhead;
mod plan;
mod short;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::bars::Part;
use crate::machine;
use crate::processes::usher_binary;

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
    /// Run only these parts
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<SeatsPart>,
    /// Measure this `usher`; by default, the `usher` in the directory of this program
    #[arg(long, value_name = "FILE")]
    pub usher: Option<PathBuf>,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    pub out: PathBuf,
    /// Seed the random number generators
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run this many rounds with SIGKILL
    #[arg(long, default_value_t = 1_000)]
    pub kill_rounds: usize,
    /// Observe lending for this time in seconds
    #[arg(long, default_value_t = 120.0)]
    pub lending_seconds: f64,
    /// How mixes are run
    #[command(flatten)]
    pub mixes: mixes::MixArgs,
}

/// Runs the selected parts, saves and prints their results. Returns whether every bar was met.
pub fn run(args: &SeatsArgs) -> Result<bool> {
    let usher = usher_binary(args.usher.as_deref())?;
    let folder = machine::run_folder(&args.out, "seats")?;
    let scratch = tempfile::tempdir()?;
    let mut parts: Vec<Part> = Vec::new();
    for &which in SeatsPart::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&which) {
            continue;
        }
        let part = match which {
            SeatsPart::Plan => plan::run(args.seed),
            SeatsPart::Overhead => overhead::run(&usher),
            SeatsPart::Latency => latency::run(scratch.path()),
            SeatsPart::Lending => lending::run(args.lending_seconds),
            SeatsPart::Short => short::run(&usher),
            SeatsPart::Kills => kills::run(&usher, args.kill_rounds, args.seed),
            SeatsPart::Mixes => mixes::run(&args.mixes, &usher, &folder, args.seed),
        };
        let part = part.with_context(|| format!("part {which:?}"))?;
        crate::machine::print_line(part.lines())?;
        parts.push(part);
    }
    crate::machine::finish(&folder, "Usher: seats", &parts)
}
