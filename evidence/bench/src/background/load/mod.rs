// SPDX-License-Identifier: MIT OR Apache-2.0
//! Load generators: `usher-bench load ...`, what the experiments run in
//! foreground and background.
//!
//! Each works in steps of tens of microseconds, for a share of the time (its *usage degree*: work
//! for `usage` of each period, sleep for the rest). It ends when its work is done, its time is
//! over, or a signal stops it. While it runs it writes to files that survive its end or its
//! freezing: a counter (work done), bins (work begun in each millisecond) and phases (when it was
//! on).

mod cpu;
mod disk;
mod meter;
mod net;
mod pace;
mod repeat;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::Result;

pub use disk::{forget, make_file};
pub use meter::{Phase, monotonic_ns, read_bins, read_counter, read_phases};

use crate::background::rig::slow;

/// Arguments of `usher-bench load`.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, clap::Subcommand)]
enum Kind {
    /// Reads one byte of each 8 KiB of a file
    Disk(disk::DiskArgs),
    /// Sends data to a server that discards it
    Net(net::NetArgs),
    /// Computes on one or more threads
    Cpu(cpu::CpuArgs),
    /// Runs the server that discards data
    Sink(net::SinkArgs),
    /// Runs a command repeatedly and counts the runs
    Repeat(repeat::RepeatArgs),
    /// Provides a file on an emulated slow disk with one head (FUSE)
    SlowDisk(slow::SlowArgs),
}

/// Default period of activity and sleep.
pub const PERIOD_MS: f64 = 100.0;

/// How much, how long, at which usage, and what is written down.
#[derive(Debug, Clone, clap::Args)]
pub struct Extent {
    /// End after this many units of work; without this option and --seconds, the load never ends
    #[arg(long)]
    pub work: Option<u64>,
    /// End after this time in seconds
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Be active for this share of the time, in %
    #[arg(long, default_value_t = 100.0, value_parser = usage)]
    pub usage: f64,
    /// Alternate between activity and sleep with this period in ms
    #[arg(long, default_value_t = PERIOD_MS, value_parser = usage_period)]
    pub period_ms: f64,
    /// Be active until this number of units is finished instead of for a fixed time; the sleep keeps
    /// its length
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub burst: Option<u64>,
    /// Write the number of finished units to this file, as 8 bytes in little-endian order
    #[arg(long, value_name = "FILE")]
    pub counter: Option<PathBuf>,
    /// Write the number of units started in each millisecond to this file, as 4 bytes each
    #[arg(long, value_name = "FILE")]
    pub bins: Option<PathBuf>,
    /// Value of the monotonic clock at the first millisecond, in ns
    #[arg(long, default_value_t = 0)]
    pub epoch_ns: u64,
    /// Write the start and the end of each active phase to this file
    #[arg(long, value_name = "FILE")]
    pub phases: Option<PathBuf>,
}

fn usage(text: &str) -> Result<f64, String> {
    let percent: f64 = text
        .parse()
        .map_err(|_| "the value is not a number".to_owned())?;
    match percent > 0.0 && percent <= 100.0 {
        true => Ok(percent),
        false => Err("the usage degree must be greater than 0 and at most 100 %".to_owned()),
    }
}

fn usage_period(text: &str) -> Result<f64, String> {
    let ms: f64 = text
        .parse()
        .map_err(|_| "the value is not a number".to_owned())?;
    match (1.0..=100_000.0).contains(&ms) {
        true => Ok(ms),
        false => Err("the period must be from 1 to 100000 ms".to_owned()),
    }
}

/// Runs a load generator.
pub fn run(args: &LoadArgs) -> Result<()> {
    match &args.kind {
        Kind::Disk(args) => disk::run(args),
        Kind::Net(args) => net::run(args),
        Kind::Cpu(args) => cpu::run(args),
        Kind::Sink(args) => net::sink(args),
        Kind::Repeat(args) => repeat::run(args),
        Kind::SlowDisk(args) => slow::run(args),
    }
}
