// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench hosts`: what management may do to programs, on this host.

mod chains;
mod churn;
mod cycle;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::bars::Part;
use crate::machine;

pub use chains::{ChainsArgs, PROGRAM as CHAINS, run as run_chains};
pub use cycle::{KIND, KindArgs, run as run_kind};

/// The parts, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Which {
    /// Short-lived threads and processes: which keep a seat's mask after release
    Churn,
}

/// Hosts: what management may do to programs, on this host
#[derive(Debug, Clone, clap::Args)]
pub struct HostsArgs {
    /// Only these parts
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Which>,
    /// Fewer releases and rounds: a few minutes
    #[arg(long)]
    pub quick: bool,
    /// Where the dated folder of results is made
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    pub out: PathBuf,
    #[command(flatten)]
    churn: churn::ChurnArgs,
}

/// Runs the parts asked for, saves and shows them. Returns whether every bar
/// was met.
pub fn run(args: &HostsArgs) -> Result<bool> {
    churn::check(&args.churn)?;
    let folder = machine::run_folder(&args.out, "hosts")?;
    let mut parts: Vec<Part> = Vec::new();
    for &which in Which::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&which) {
            continue;
        }
        let part = match which {
            Which::Churn => churn::run(&args.churn, args.quick),
        };
        let part = part.with_context(|| format!("part {which:?}"))?;
        machine::say(part.lines())?;
        parts.push(part);
    }
    machine::finish(&folder, "Usher: hosts", &parts)
}
