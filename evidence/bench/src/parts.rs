// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options that the benchmarks of `usher` share, and the loop over the selected parts.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::bars::Part;
use crate::machine;
use crate::processes::usher_binary;

/// Options of a benchmark with the parts `P`.
#[derive(Debug, Clone, clap::Args)]
pub struct PartArgs<P: ValueEnum + Send + Sync + 'static> {
    /// Run only these parts
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<P>,
    /// Measure this `usher`; by default, the `usher` in the directory of this program
    #[arg(long, value_name = "FILE")]
    pub usher: Option<PathBuf>,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    pub out: PathBuf,
    /// Seed the random number generators
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print the results as JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// What a part needs to run.
pub struct PartInput<'a> {
    /// The `usher` to measure.
    pub usher: &'a Path,
    /// The directory of the results.
    pub folder: &'a Path,
    /// Seed of the random number generators.
    pub seed: u64,
}

/// Runs the selected parts in their order, saves and prints their results. Returns whether every
/// bar was met.
pub fn run<P>(
    args: &PartArgs<P>,
    name: &str,
    title: &str,
    mut measure: impl FnMut(P, &PartInput) -> Result<Part>,
) -> Result<bool>
where
    P: ValueEnum + Copy + PartialEq + std::fmt::Debug + Send + Sync + 'static,
{
    let usher = usher_binary(args.usher.as_deref())?;
    let folder = machine::run_folder(&args.out, name)?;
    let input = PartInput {
        usher: &usher,
        folder: &folder,
        seed: args.seed,
    };
    let mut parts: Vec<Part> = Vec::new();
    for &which in P::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&which) {
            continue;
        }
        let part = measure(which, &input).with_context(|| format!("part {which:?}"))?;
        if !args.json {
            machine::print_line(part.lines())?;
        }
        parts.push(part);
    }
    match args.json {
        true => machine::finish_as_json(&folder, title, &parts),
        false => machine::finish(&folder, title, &parts),
    }
}
