// SPDX-License-Identifier: GPL-2.0-only
//! `usher slurm`: profiles and records of the jobs of a Slurm cluster (`docs/slurm.md`). `export`
//! writes the record of a job on its node, `merge` collects records on the controller, and `report`
//! prints the jobs with their requested, used and useful CPUs.
//!
//! The subcommands change only the files that their options name.

mod export;
mod files;
mod merge;
mod report;

pub use merge::MergeAnswer;
pub use report::SlurmReport;

use crate::failure::Outcome;
use crate::output::Output;

/// Collects profiles of the jobs of a Slurm cluster, and reports jobs that request too many CPUs
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher slurm export --job 1234 --user alice --name md --requested 48 --elapsed 600 md
  usher slurm merge /srv/usher/records --into /var/lib/usher/jobs.json
  usher slurm report /var/lib/usher/jobs.json")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Export(Box<export::Args>),
    Merge(merge::Args),
    Report(report::Args),
}

/// Runs the command.
pub fn run(args: &Args, out: Output) -> Outcome {
    match &args.command {
        Command::Export(args) => export::run(args, out),
        Command::Merge(args) => merge::run(args, out),
        Command::Report(args) => report::run(args, out),
    }
}
