// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench chip`: paper 5's tables on the model of its chip, beside what the
//! paper measured. Everything but the paper's own figures is simulated.

mod chart;
mod page;

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use serde_json::json;
use usher_chip::published::TABLE_3;
use usher_chip::study::{FrameCounts, cells, compare, table_3};
use usher_chip::{FittedParameters, Pattern, figure4};
use usher_tasks::dispatch::{Fcfs, Lcfs};

use crate::bars::{Bar, Part};

/// Arguments of `usher bench chip`.
#[derive(Debug, clap::Args)]
pub struct ChipArgs {
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Which>,
    /// Measured frames of each cell, after a frame that fills the caches
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    frames: u32,
    /// Parameters in place of the fitted parameters, as JSON
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,
    /// Where the dated folder of results is made
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Which {
    /// Cores, sizes of the second level, resolutions: the board
    Table2,
    /// One cell with uniform penalties: the paper's simulator
    Table3,
    /// The loss of last come, first served
    Figure4,
}

/// Runs the parts; true when every bar was met.
pub fn run(args: &ChipArgs) -> Result<bool> {
    let fitted = match &args.parameters {
        None => FittedParameters::default(),
        Some(file) => {
            let text = std::fs::read_to_string(file);
            let text = text.with_context(|| format!("reading {}", file.display()))?;
            serde_json::from_str(&text)
                .with_context(|| format!("{} holds no parameters", file.display()))?
        }
    };
    let extent = FrameCounts {
        warm_up: 1,
        measured: args.frames,
    };
    let folder = crate::machine::run_folder(&args.out, "chip")?;
    let mut parts = Vec::new();
    for &which in Which::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&which) {
            continue;
        }
        let part = match which {
            Which::Table2 => board(&fitted, extent),
            Which::Table3 => simulator(&fitted, extent),
            Which::Figure4 => last_come(),
        };
        let part = part.with_context(|| format!("part {which:?}"))?;
        crate::machine::print_line(part.lines())?;
        parts.push(part);
    }
    crate::machine::finish(&folder, "Paper 5's chip, simulated", &parts)
}

/// Table 2.
fn board(fitted: &FittedParameters, extent: FrameCounts) -> Result<Part> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let cells = cells().map_err(|error| anyhow!(error))?;
    let began = std::time::Instant::now();
    let rows = compare(&cells, &Pattern::ALL, fitted, extent, workers);
    let rows = rows.map_err(|error| anyhow!(error))?;
    let seconds = began.elapsed().as_secs_f64() * workers as f64 / rows.len().max(1) as f64;
    let mut part = Part::new(
        "table2",
        "Table 2: cores, sizes of the second level, resolutions",
    );
    part.bars = page::bars(&rows);
    part.tables = page::tables(&rows);
    part.figures = page::figures(&rows);
    part.notes = page::notes(&rows, fitted);
    part.notes.push(format!(
        "{} frames a cell after a frame that fills the caches; {seconds:.2} s of one CPU a cell and pattern.",
        extent.measured
    ));
    part.raw = json!({ "fitted": fitted, "extent": extent, "rows": rows });
    Ok(part)
}

/// Table 3.
fn simulator(fitted: &FittedParameters, extent: FrameCounts) -> Result<Part> {
    let tallies = table_3(fitted, extent)?;
    let gain = tallies[0].cycles as f64 / tallies[1].cycles.max(1) as f64;
    let mut part = Part::new(
        "table3",
        "Table 3: the paper's simulator, uniform penalties",
    );
    part.bars.push(Bar {
        at_least: Some(1.08),
        ..Bar::at_most(
            "A over FCFS, WVGA, 128 KB, 4 cores (paper: 1.110)",
            gain,
            1.14,
            "x",
        )
    });
    part.tables.push(page::table_3(&TABLE_3, &tallies, extent));
    part.notes.push(
        "L1 miss 10 cycles, L2 miss 200 more, whatever else goes on; parameters, tasks and addresses are those of Table 2. Miss rates depend on what counts as an access: here a word of four bytes."
            .to_owned(),
    );
    part.raw = json!(tallies);
    Ok(part)
}

/// Figure 4.
fn last_come() -> Result<Part> {
    let mut part = Part::new("figure4", "Figure 4: what last come, first served loses");
    for (cores, loss) in [(3, 2.0), (4, 0.0)] {
        let fcfs = figure4::schedule(cores, &mut Fcfs::default())?;
        let lcfs = figure4::schedule(cores, &mut Lcfs::default())?;
        let [first, last] = [&fcfs, &lcfs].map(|schedule| schedule[0].len());
        let what = format!(
            "24 unit tasks on {cores} cores: LCFS {last}, FCFS {first}, longer by (paper: {loss})"
        );
        part.bars.push(Bar {
            at_least: Some(loss),
            ..Bar::at_most(what, last as f64 - first as f64, loss, "units")
        });
        part.tables
            .push(page::schedules(&[("FCFS", &fcfs), ("LCFS", &lcfs)]));
    }
    part.notes.push(
        "Cores against time: which of the tasks 1 to 24 runs in each unit. The drawing is not in the text we have: these are chains of 3, 7, 7 and 7 tasks, which have its 24 tasks, at most four at a time, one chain put off until the end."
            .to_owned(),
    );
    Ok(part)
}
