// SPDX-License-Identifier: MIT OR Apache-2.0
//! Load generators (`usher-bench load ...`) for the disk, the network and the CPU. The experiments
//! run them in foreground and background. Two further commands are a server that discards data, and
//! an emulated slow disk. The module of each command states why `fio`, `iperf3` or `stress-ng`
//! cannot replace it.
//!
//! A generator works in steps of tens of microseconds. Its *usage degree* is the share of each
//! period in per cent for which it works; it sleeps for the rest of the period. A generator ends
//! when its work is done, when its time is over, or on SIGTERM or SIGINT.
//!
//! A running generator writes record files, which other processes can read while the generator is
//! frozen or after its end:
//!
//! - the counter: number of units done;
//! - the bins: number of units begun in each millisecond;
//! - the phases: start and end of each active phase.

mod cpu;
mod disk;
mod duty_cycle;
mod limits;
mod net;
mod records;

#[cfg(test)]
mod tests;

use anyhow::Result;

pub use disk::{forget, make_file};
pub use limits::PERIOD_MS;
pub use records::{ActivePhase, monotonic_ns, read_bins, read_counter, read_phases};

use crate::background::rig::slow;

/// Arguments of `usher-bench load`.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    #[command(subcommand)]
    generator: Generator,
}

#[derive(Debug, clap::Subcommand)]
enum Generator {
    /// Reads one byte of each 8 KiB of a file
    Disk(disk::DiskArgs),
    /// Sends data to a server that discards it
    Net(net::NetArgs),
    /// Computes on one or more threads
    Cpu(cpu::CpuArgs),
    /// Runs the server that discards data
    Sink(net::SinkArgs),
    /// Provides a file on an emulated slow disk with one head (FUSE)
    SlowDisk(slow::SlowArgs),
}

/// Runs a load generator.
pub fn run(args: &LoadArgs) -> Result<()> {
    match &args.generator {
        Generator::Disk(args) => disk::run(args),
        Generator::Net(args) => net::run(args),
        Generator::Cpu(args) => cpu::run(args),
        Generator::Sink(args) => net::sink(args),
        Generator::SlowDisk(args) => slow::run(args),
    }
}
