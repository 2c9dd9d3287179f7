// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates the cells of Tables 2 and 3 of paper 5, and compares the results with the published
//! figures.
//!
//! 1. The frames of each picture size are generated once.
//! 2. Each cell runs under each pattern, several cells in parallel.
//! 3. The compared figures are: the ratio of each pattern's figures to those of FCFS, the number of
//!    cores with the highest frames per second (FPS), and the gain of pattern A in Table 3 (uniform
//!    miss penalties).
//! 4. For the fit of the free parameters, [`distance`] combines all deviations into one number.

use serde::{Deserialize, Serialize};

use crate::engine::{ChipError, ChipMachine, GroupedGraph};
use crate::fitted::{CLOCK_HZ, FittedParameters};
use crate::h264::{Frame, Input, frames};
use crate::memory::MissModel;
use crate::pattern::Pattern;
use crate::published::{Figures, PICTURES, TableCell, table_2};
use crate::tally::CycleTotals;
use usher_sim::parallel;

/// Number of frames to simulate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameCounts {
    /// Number of frames that run first to fill the caches and are not counted.
    pub warm_up: u32,
    /// Number of frames that are counted.
    pub measured: u32,
}

impl Default for FrameCounts {
    fn default() -> Self {
        Self {
            warm_up: 1,
            measured: 2,
        }
    }
}

/// Generated frames of several picture sizes, for one set of parameters.
#[derive(Debug, Clone)]
pub struct FrameSets {
    fitted: FittedParameters,
    frame_sets: Vec<(Input, [Frame; 2])>,
}

/// Runs the two frames of a film alternately, for the number of frames in `extent`.
///
/// # Errors
/// The chip is invalid.
fn decode(
    frames_of_input: &[Frame; 2],
    cell: TableCell,
    pattern: Pattern,
    mode: MissModel,
    fitted: &FittedParameters,
    extent: FrameCounts,
) -> Result<CycleTotals, ChipError> {
    let chip = fitted.chip(
        cell.cores,
        cell.l2_kb << 10,
        pattern.dispatch_cycles(),
        mode,
    );
    let mut bytes = (0, 0);
    for frame in frames_of_input {
        let (shared, private) = frame.graph.extent()?;
        bytes = (shared.max(bytes.0), private.max(bytes.1));
    }
    let mut machine = ChipMachine::new(&chip, bytes)?;
    let groups = [0, 1].map(|of| frames_of_input[of].groups(|place| pattern.groups(place)));
    let orders = [0, 1].map(|of: usize| pattern.order(&frames_of_input[of].order));
    let mut dispatcher = pattern.dispatcher(cell.cores, frames_of_input[0].rows);
    let mut sum = CycleTotals::default();
    for number in 0..extent.warm_up + extent.measured {
        let of = number as usize % 2;
        let work = GroupedGraph {
            graph: &frames_of_input[of].graph,
            order: &orders[of],
            groups: &groups[of],
        };
        let ran = machine.run(work, &mut *dispatcher)?;
        if number >= extent.warm_up {
            sum = sum.and(&ran.tally);
        }
    }
    Ok(sum)
}

impl FrameSets {
    /// Generates the frames of the given picture sizes.
    ///
    /// # Errors
    /// A generated graph is invalid, which is a bug of the model.
    pub fn new(inputs: &[Input], fitted: &FittedParameters) -> Result<Self, ChipError> {
        let frames_of_input = |&input: &Input| Ok((input, frames(input, fitted)?));
        Ok(Self {
            fitted: *fitted,
            frame_sets: inputs
                .iter()
                .map(frames_of_input)
                .collect::<Result<_, ChipError>>()?,
        })
    }

    /// Simulates a cell. The totals are empty if the frames of its picture size were not generated.
    ///
    /// # Errors
    /// The chip is invalid.
    pub fn run(
        &self,
        cell: TableCell,
        pattern: Pattern,
        mode: MissModel,
        extent: FrameCounts,
    ) -> Result<CycleTotals, ChipError> {
        let frames_of_input = self
            .frame_sets
            .iter()
            .find(|(input, _)| *input == cell.input);
        match frames_of_input {
            Some((_, frames_of_input)) => {
                decode(frames_of_input, cell, pattern, mode, &self.fitted, extent)
            }
            None => Ok(CycleTotals::default()),
        }
    }
}

/// Converts a run to the figures of Table 2.
pub fn figures(tally: &CycleTotals, extent: FrameCounts) -> Figures {
    let frames = f64::from(extent.measured.max(1));
    let over = |misses: u64| Some(misses as f64 * PICTURES / frames);
    Figures {
        fps: CLOCK_HZ * frames / tally.cycles.max(1) as f64,
        cycles_a_task: tally.cycles_a_task(),
        l1_misses: over(tally.counts.l1_misses()),
        l2_misses: over(tally.counts.l2_misses),
    }
}

/// Simulated and published figures of a cell and a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CellComparison {
    /// The cell of Table 2.
    pub cell: TableCell,
    /// The pattern.
    pub pattern: Pattern,
    /// Simulated figures.
    pub simulated: Figures,
    /// Published figures; `None`: the paper has no figures of this pattern.
    pub published: Option<Figures>,
    /// All totals of the simulation.
    pub tally: CycleTotals,
}

/// Returns the different cells of Table 2, in the order of the table.
///
/// # Errors
/// The data in the executable are malformed, which is a bug.
pub fn cells() -> Result<Vec<TableCell>, String> {
    let mut cells: Vec<TableCell> = table_2()?.into_iter().map(|(cell, _, _)| cell).collect();
    cells.dedup();
    Ok(cells)
}

/// Simulates the cells under the patterns with `workers` threads.
///
/// # Errors
/// A chip is invalid.
pub fn compare(
    cells: &[TableCell],
    patterns: &[Pattern],
    fitted: &FittedParameters,
    extent: FrameCounts,
    workers: usize,
) -> Result<Vec<CellComparison>, String> {
    let table = table_2()?;
    let mut inputs: Vec<Input> = cells.iter().map(|cell| cell.input).collect();
    inputs.sort_unstable();
    inputs.dedup();
    let frame_sets = FrameSets::new(&inputs, fitted).map_err(|error| error.to_string())?;
    let pairs: Vec<(TableCell, Pattern)> = cells
        .iter()
        .flat_map(|&cell| patterns.iter().map(move |&pattern| (cell, pattern)))
        .collect();
    let one = |&(cell, pattern): &(TableCell, Pattern)| {
        let tally = frame_sets.run(cell, pattern, MissModel::Contended, extent);
        let tally = tally.map_err(|error| error.to_string())?;
        let of = |row: &&(TableCell, Pattern, Figures)| row.0 == cell && row.1 == pattern;
        Ok(CellComparison {
            cell,
            pattern,
            simulated: figures(&tally, extent),
            published: table.iter().find(of).map(|row| row.2),
            tally,
        })
    };
    parallel::each(&pairs, workers, &one).into_iter().collect()
}

/// The ratio of a pattern's figure to that of FCFS in one cell, simulated and published.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The cell of Table 2.
    pub cell: TableCell,
    /// The figure of this pattern is divided by that of FCFS.
    pub pattern: Pattern,
    /// Simulated ratio.
    pub simulated: f64,
    /// Published ratio.
    pub published: f64,
}

impl Ratio {
    /// Absolute difference of the two ratios.
    pub fn off(&self) -> f64 {
        (self.simulated - self.published).abs()
    }
}

/// Returns the ratios to FCFS of the figure that `of` selects, for all cells that have the figure
/// both simulated and published.
pub fn ratios(rows: &[CellComparison], of: impl Fn(&Figures) -> Option<f64>) -> Vec<Ratio> {
    let base = |cell: TableCell| {
        rows.iter()
            .find(|row| row.cell == cell && row.pattern == Pattern::Fcfs)
    };
    let ratio = |row: &CellComparison| {
        let fcfs = base(row.cell)?;
        Some(Ratio {
            cell: row.cell,
            pattern: row.pattern,
            simulated: of(&row.simulated)? / of(&fcfs.simulated)?,
            published: of(row.published.as_ref()?)? / of(fcfs.published.as_ref()?)?,
        })
    };
    let others = rows.iter().filter(|row| row.pattern != Pattern::Fcfs);
    others.filter_map(ratio).collect()
}

/// Returns the share of the ratios that differ between simulation and paper by at most `limit`.
pub fn share_within(ratios: &[Ratio], limit: f64) -> f64 {
    let within = ratios.iter().filter(|ratio| ratio.off() <= limit).count();
    within as f64 / ratios.len().max(1) as f64
}

/// The number of cores with the highest FPS, for a picture size, a size of the second-level cache
/// and a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// Size of the pictures.
    pub input: Input,
    /// Size of the second-level cache in KiB.
    pub l2_kb: usize,
    /// The pattern.
    pub pattern: Pattern,
    /// Simulated number of cores.
    pub simulated: usize,
    /// Published number of cores.
    pub published: usize,
}

/// Returns the numbers of cores with the highest FPS, for all curves that the paper contains.
pub fn peaks(rows: &[CellComparison]) -> Vec<Peak> {
    let mut peaks: Vec<Peak> = Vec::new();
    for row in rows {
        let same = |other: &&CellComparison| {
            other.cell.input == row.cell.input
                && other.cell.l2_kb == row.cell.l2_kb
                && other.pattern == row.pattern
        };
        let most = |fps: &dyn Fn(&CellComparison) -> f64| {
            let curve = rows.iter().filter(same);
            let best = curve.max_by(|a, b| fps(a).total_cmp(&fps(b)));
            best.map_or(0, |best| best.cell.cores)
        };
        if row.cell.cores == 1 && row.published.is_some() {
            peaks.push(Peak {
                input: row.cell.input,
                l2_kb: row.cell.l2_kb,
                pattern: row.pattern,
                simulated: most(&|row| row.simulated.fps),
                published: most(&|row| row.published.map_or(0.0, |figures| figures.fps)),
            });
        }
    }
    peaks
}

/// Simulates Table 3: FCFS and pattern A with uniform miss penalties.
///
/// # Errors
/// The chip is invalid.
pub fn table_3(
    fitted: &FittedParameters,
    extent: FrameCounts,
) -> Result<[CycleTotals; 2], ChipError> {
    let frame_sets = FrameSets::new(&[Input::Wvga], fitted)?;
    let run = |pattern| frame_sets.run(HEADLINE, pattern, MissModel::Uniform, extent);
    Ok([run(Pattern::Fcfs)?, run(Pattern::A)?])
}

/// The cell of the paper's main result and of Table 3.
pub const HEADLINE: TableCell = TableCell {
    input: Input::Wvga,
    l2_kb: 128,
    cores: 4,
};

/// Returns the distance between simulation and paper for the fit: the weighted mean of the squared
/// deviations, each in units of its tolerance and clamped to three tolerances, plus a term for the
/// deviation of the gain `uniform` from that of Table 3. The ratios to FCFS have the weight 1, in
/// the cell of the main result 5; FPS and second-level misses themselves have 0.2, and first-level
/// misses 0.05.
pub fn distance(rows: &[CellComparison], uniform: f64) -> f64 {
    let mut sum = WeightedMean::default();
    for ratio in ratios(rows, |figures| Some(figures.fps)) {
        // The main result of the paper has a bar of its own.
        let weight = if ratio.cell == HEADLINE { 5.0 } else { 1.0 };
        sum.add(weight, ratio.off() / 0.10);
    }
    for ratio in ratios(rows, |figures| figures.l2_misses) {
        sum.add(1.0, ratio.off() / 0.15);
    }
    for row in rows {
        let Some(published) = row.published else {
            continue;
        };
        sum.add(0.2, (row.simulated.fps / published.fps).ln() / 0.15);
        if let (Some(here), Some(there)) = (row.simulated.l2_misses, published.l2_misses) {
            sum.add(0.2, (here / there).ln() / 0.2);
        }
        if let (Some(here), Some(there)) = (row.simulated.l1_misses, published.l1_misses) {
            sum.add(0.05, (here / there).ln() / 0.2);
        }
    }
    for peak in peaks(rows) {
        let apart = peak.simulated.abs_diff(peak.published);
        sum.add(1.0, apart.saturating_sub(1) as f64);
    }
    let beyond = ((uniform - 1.1096).abs() - 0.02).max(0.0);
    sum.of() + 0.5 * (beyond / 0.01).powi(2)
}

/// A weighted mean of squared deviations.
#[derive(Debug, Default)]
struct WeightedMean {
    sum: f64,
    weight: f64,
}

impl WeightedMean {
    fn add(&mut self, weight: f64, error: f64) {
        // Deviations are clamped to three tolerances, so that an outlier does not dominate.
        self.sum += weight * error.clamp(-3.0, 3.0).powi(2);
        self.weight += weight;
    }

    fn of(&self) -> f64 {
        self.sum / self.weight.max(f64::MIN_POSITIVE)
    }
}
