// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench hosts`: tests on this host that Usher leaves managed programs unchanged. Parts:
//! SIGKILL of the daemon, the keeper and launchers (`kills`); programs that pin their threads
//! (`pinning`); short-lived threads and processes during a release (`churn`).
//!
//! The requirements of all selected parts are checked first. Results are saved after the last part:
//! an error that ends a part discards the results of earlier parts. A run has no time limit as a
//! whole.

mod attributes;
mod chains;
mod churn;
mod cycle;
mod kill_fixture;
mod kills;
mod pinning;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::bars::Part;
use crate::machine;
use crate::processes::usher_binary;

pub use chains::{ChainsArgs, PROGRAM as CHAINS, run as run_chains};
pub use cycle::{KIND, KindArgs, run as run_kind};

/// The parts, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HostsPart {
    /// SIGKILL of the daemon, the keeper and launchers
    Kills,
    /// Programs that pin their threads, while other programs start and end
    Pinning,
    /// Short-lived threads and processes that could keep the mask of a seat after the release
    Churn,
}

/// Measures behaviour on hosts: SIGKILL of daemons, programs that pin threads, short-lived threads
#[derive(Debug, Clone, clap::Args)]
pub struct HostsArgs {
    /// Run only these parts
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<HostsPart>,
    /// Run fewer releases and rounds, for a few minutes
    #[arg(long)]
    pub quick: bool,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    pub out: PathBuf,
    /// Measure this `usher`; by default, the `usher` in the directory of this program
    #[arg(long, value_name = "FILE")]
    usher: Option<PathBuf>,
    /// Run this many rounds with SIGKILL; 300 by default, or 16 with --quick
    #[arg(long)]
    kill_rounds: Option<usize>,
    #[command(flatten)]
    pinning: pinning::PinningArgs,
    #[command(flatten)]
    churn: churn::ChurnArgs,
}

/// Runs the selected parts, saves and prints their results. Returns whether every bar was met.
pub fn run(args: &HostsArgs) -> Result<bool> {
    let is_chosen = |which: &HostsPart| args.only.is_empty() || args.only.contains(which);
    let chosen: Vec<HostsPart> = HostsPart::value_variants()
        .iter()
        .copied()
        .filter(is_chosen)
        .collect();
    // All parts are checked before the first part runs, because an error of a later part would
    // discard the results of earlier parts.
    for which in &chosen {
        let checked = match which {
            HostsPart::Kills => kills::check(),
            HostsPart::Pinning => pinning::check(),
            HostsPart::Churn => churn::check(&args.churn),
        };
        checked.with_context(|| format!("part {which:?}"))?;
    }
    let usher = usher_binary(args.usher.as_deref())?;
    let kill_rounds = args
        .kill_rounds
        .unwrap_or(if args.quick { 16 } else { 300 });
    let folder = machine::run_folder(&args.out, "hosts")?;
    let mut parts: Vec<Part> = Vec::new();
    for which in chosen {
        let part = match which {
            HostsPart::Kills => kills::run(&usher, kill_rounds),
            HostsPart::Pinning => pinning::run(&usher, &args.pinning, args.quick),
            HostsPart::Churn => churn::run(&args.churn, args.quick),
        };
        let part = part.with_context(|| format!("part {which:?}"))?;
        machine::print_line(part.lines())?;
        parts.push(part);
    }
    machine::finish(&folder, "Usher: hosts", &parts)
}
