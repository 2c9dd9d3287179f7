// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench hosts`: what management may do to programs, on this host.

mod chains;
mod churn;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::bars::Part;
use crate::machine;

pub use chains::{ChainsArgs, PROGRAM, run as run_chains};

/// The parts, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Which {
    /// Threads and processes that live for a moment: does any keep a seat's mask
    Churn,
}

/// Options of the benchmark.
#[derive(Debug, Clone, clap::Args)]
pub struct HostsArgs {
    /// Only these parts
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Which>,
    /// Where the dated folder of results is made
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    pub out: PathBuf,
    /// Releases of each kind of program
    #[arg(long, default_value_t = 1_000)]
    pub releases: usize,
}

/// Runs the parts asked for, saves and shows them. Returns whether every bar
/// was met.
pub fn run(args: &HostsArgs) -> Result<bool> {
    let folder = machine::run_folder(&args.out, "hosts")?;
    let mut parts: Vec<Part> = Vec::new();
    for &which in Which::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&which) {
            continue;
        }
        let part = match which {
            Which::Churn => churn::run(args.releases),
        };
        let part = part.with_context(|| format!("part {which:?}"))?;
        println!("{}", part.lines());
        parts.push(part);
    }
    machine::finish(&folder, "Usher: hosts", &parts)
}
