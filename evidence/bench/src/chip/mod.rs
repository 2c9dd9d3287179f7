// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench chip`: simulates the tables 2 and 3 and figure 4 of paper 5 on a model of its chip
//! (`usher_chip`), and compares them with the figures that the paper published. All figures of this
//! project are simulated; none was measured on the chip.

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
    /// Run only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<ChipPart>,
    /// Simulate this many frames of each cell, after a frame that fills the caches
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    frames: u32,
    /// Use the parameters in this JSON file instead of the fitted parameters
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ChipPart {
    /// Measurements on the board, by cores, sizes of the second-level cache and resolutions
    Table2,
    /// One cell with uniform miss penalties, as in the simulator of the paper
    Table3,
    /// Time lost by last-come, first-served order
    Figure4,
}

/// Runs the selected parts, saves and prints their results. Returns whether every bar was met.
pub fn run(args: &ChipArgs) -> Result<bool> {
    let fitted = match &args.parameters {
        None => FittedParameters::default(),
        Some(file) => {
            let text = std::fs::read_to_string(file);
            let text = text.with_context(|| format!("reading {}", file.display()))?;
            serde_json::from_str(&text)
                .with_context(|| format!("the file {} contains no parameters", file.display()))?
        }
    };
    let extent = FrameCounts {
        warm_up: 1,
        measured: args.frames,
    };
    let folder = crate::machine::run_folder(&args.out, "chip")?;
    let mut parts = Vec::new();
    for &which in ChipPart::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&which) {
            continue;
        }
        let part = match which {
            ChipPart::Table2 => board(&fitted, extent),
            ChipPart::Table3 => simulator(&fitted, extent),
            ChipPart::Figure4 => lcfs(),
        };
        let part = part.with_context(|| format!("part {which:?}"))?;
        crate::machine::print_line(part.lines())?;
        parts.push(part);
    }
    crate::machine::finish(&folder, "The chip of paper 5, simulated", &parts)
}

/// Simulates Table 2 of paper 5.
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
        "Each cell simulates {} frames after one frame that fills the caches; each pattern of a \
         cell takes {seconds:.2} s of CPU time.",
        extent.measured
    ));
    part.raw = json!({ "fitted": fitted, "extent": extent, "rows": rows });
    Ok(part)
}

/// Simulates Table 3 of paper 5.
fn simulator(fitted: &FittedParameters, extent: FrameCounts) -> Result<Part> {
    let tallies = table_3(fitted, extent)?;
    let gain = tallies[0].cycles as f64 / tallies[1].cycles.max(1) as f64;
    let mut part = Part::new(
        "table3",
        "Table 3: the simulator of the paper, with uniform miss penalties",
    );
    part.bars.push(Bar {
        at_least: Some(1.08),
        ..Bar::at_most(
            "speed-up of pattern A over FCFS, WVGA, 128 KB, 4 cores (paper: 1.110)",
            gain,
            1.14,
            "x",
        )
    });
    part.tables.push(page::table_3(&TABLE_3, &tallies, extent));
    part.notes.push(
        "An L1 miss always costs 10 cycles, and an L2 miss 200 additional cycles; parameters, \
         tasks and addresses are those of Table 2. Miss rates depend on the definition of an \
         access, which is a word of four bytes here."
            .to_owned(),
    );
    part.raw = json!(tallies);
    Ok(part)
}

/// Simulates Figure 4 of paper 5.
fn lcfs() -> Result<Part> {
    let mut part = Part::new(
        "figure4",
        "Figure 4: time lost by last-come, first-served order (LCFS)",
    );
    for (cores, loss) in [(3, 2.0), (4, 0.0)] {
        let fcfs = figure4::schedule(cores, &mut Fcfs::default())?;
        let lcfs = figure4::schedule(cores, &mut Lcfs::default())?;
        let [first, last] = [&fcfs, &lcfs].map(|schedule| schedule[0].len());
        let what = format!(
            "24 tasks of one time unit on {cores} cores: LCFS takes {last} units, FCFS {first} \
             units; difference (paper: {loss})"
        );
        part.bars.push(Bar {
            at_least: Some(loss),
            ..Bar::at_most(what, last as f64 - first as f64, loss, "units")
        });
        part.tables
            .push(page::schedules(&[("FCFS", &fcfs), ("LCFS", &lcfs)]));
    }
    part.notes.push(
        "The table shows which of the tasks 1 to 24 runs on each core in each time unit. The \
         available text of the paper lacks the drawing of the graph, so the graph here consists \
         of chains of 3, 7, 7 and 7 tasks. As in the paper, the graph has 24 tasks, of which at \
         most four are ready at a time, and one chain is deferred until the end."
            .to_owned(),
    );
    Ok(part)
}
