// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the cells of the matrix one after another, and the parts without cells. Each result is
//! saved in a file of its own. A cell that cannot be measured is not saved; it appears on the page
//! as not measured.
//!
//! A resumed run reads these files. It measures a cell again if its file lacks a selected
//! treatment, or if a treatment ended with an error. A saved part is never measured again. A file
//! that cannot be read as a result ends the run.
//!
//! The printed remaining time is the number of remaining cells times the mean time of a measured
//! cell.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::cell::{Bench, Limits};
use super::experiments::Cell;
use super::fixture::BackgroundFixture;
use super::study::{CellResult, TreatmentPairs};
use super::treatments::{BackgroundMethod, RegulatorFixture};
use crate::bars::Part;

/// Measures the cells; reads the result of a cell that is already measured.
pub fn run(
    cells: &[Cell],
    treatments: &[BackgroundMethod],
    limits: Limits,
    fixture: &mut BackgroundFixture,
    regulator: &mut RegulatorFixture,
    folder: &Path,
) -> Result<Vec<CellResult>> {
    fs::create_dir_all(folder.join("cells"))?;
    let mut results = Vec::new();
    let mut clock = RemainingTime::new(cells.len());
    for (number, cell) in cells.iter().enumerate() {
        let file = file_of(folder, cell);
        if let Some(saved) = saved(&file, treatments)? {
            results.push(saved);
            clock.skip();
            continue;
        }
        eprintln!(
            "background: experiment {} ({} of {}){}",
            cell.id(),
            number + 1,
            cells.len(),
            clock.left()
        );
        let mut bench = Bench {
            fixture,
            regulator,
            limits,
        };
        let result = one(&mut bench, *cell, treatments);
        clock.done();
        if !result.tallies.is_empty() {
            fs::write(&file, serde_json::to_vec_pretty(&result)?)
                .with_context(|| format!("writing {}", file.display()))?;
        }
        results.push(result);
    }
    Ok(results)
}

/// Measures one cell. The result contains no pairs if the cell could not be measured.
fn one(bench: &mut Bench, cell: Cell, treatments: &[BackgroundMethod]) -> CellResult {
    let mut show = |tally: &TreatmentPairs| {
        let last = tally.pairs.last();
        let ratio = last.map_or(f64::NAN, |p| p.beside_s / p.alone_s);
        let error = tally.error.as_deref().unwrap_or("");
        let (name, pairs) = (tally.treatment.name(), tally.pairs.len());
        eprintln!("  {name:<18} pair {pairs:>2}: {ratio:.3} {error}");
    };
    let result = bench.cell(cell, treatments, &mut show);
    result.unwrap_or_else(|error| {
        eprintln!("  left out: {error:#}");
        CellResult {
            cell,
            tallies: vec![],
            notes: vec![format!("{error:#}")],
        }
    })
}

fn file_of(folder: &Path, cell: &Cell) -> PathBuf {
    folder.join("cells").join(format!("{}.json", cell.id()))
}

/// Returns the saved result of a cell if it contains all selected treatments without an error.
fn saved(file: &Path, treatments: &[BackgroundMethod]) -> Result<Option<CellResult>> {
    if !file.exists() {
        return Ok(None);
    }
    let result: CellResult = serde_json::from_slice(&fs::read(file)?)
        .with_context(|| format!("{} is not a saved result of an experiment", file.display()))?;
    let all = treatments.iter().filter(|t| t.is_sensible(result.cell.bg));
    let whole = all
        .into_iter()
        .all(|&t| result.of(t).is_some_and(|tally| tally.error.is_none()));
    Ok(whole.then_some(result))
}

/// Measures a part without cells, or reads the saved result if it exists.
pub fn once(folder: &Path, name: &str, measure: impl FnOnce() -> Result<Part>) -> Result<Part> {
    let file = folder.join("parts").join(format!("{name}.json"));
    if file.exists() {
        return serde_json::from_slice(&fs::read(&file)?)
            .with_context(|| format!("{} is not a saved part of a result", file.display()));
    }
    let part = measure()?;
    fs::create_dir_all(folder.join("parts"))?;
    fs::write(&file, serde_json::to_vec_pretty(&part)?)
        .with_context(|| format!("writing {}", file.display()))?;
    Ok(part)
}

/// Estimates the remaining time from the mean time of the cells measured since the start.
struct RemainingTime {
    left: usize,
    measured: usize,
    start: Instant,
}

impl RemainingTime {
    fn new(cells: usize) -> Self {
        Self {
            left: cells,
            measured: 0,
            start: Instant::now(),
        }
    }

    fn skip(&mut self) {
        self.left -= 1;
    }

    fn done(&mut self) {
        self.left -= 1;
        self.measured += 1;
    }

    fn left(&self) -> String {
        if self.measured == 0 {
            return String::new();
        }
        let each = self.start.elapsed() / self.measured as u32;
        let left: Duration = each * self.left as u32;
        format!(", about {:.0} minutes remain", left.as_secs_f64() / 60.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bars::Bar;

    #[test]
    fn measured_cells_are_not_measured_again() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let mut part = Part::new("idle", "Use of idle resources");
        part.bars = vec![Bar::at_least("share of the idle disk", 94.8, 90.0, "%")];
        let first = once(folder.path(), "idle", || Ok(part.clone()))?;
        let again = once(folder.path(), "idle", || anyhow::bail!("measured again"))?;
        assert_eq!((&first, &again), (&part, &part));
        assert!(once(folder.path(), "kills", || anyhow::bail!("it fails")).is_err());
        once(folder.path(), "kills", || Ok(part.clone()))?;
        Ok(())
    }
}
