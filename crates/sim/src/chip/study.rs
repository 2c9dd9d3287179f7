// SPDX-License-Identifier: MIT OR Apache-2.0
//! The paper's tables, simulated, and how far they agree.

use serde::{Deserialize, Serialize};

use super::engine::{ChipError, Machine, Work};
use super::fitted::{CLOCK_HZ, Fitted};
use super::h264::{Frame, Input, frames};
use super::memory::Mode;
use super::pattern::Pattern;
use super::published::{Cell, Figures, PICTURES, table_2};
use super::tally::Tally;
use crate::parallel;

/// Frames that are simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Frames that fill the caches first.
    pub warm_up: u32,
    /// Frames that count.
    pub measured: u32,
}

impl Default for Extent {
    fn default() -> Self {
        Self {
            warm_up: 1,
            measured: 2,
        }
    }
}

/// Frames of all inputs with one set of parameters.
#[derive(Debug, Clone)]
pub struct Films {
    fitted: Fitted,
    films: Vec<(Input, [Frame; 2])>,
}

/// Decodes `extent` frames of a film.
///
/// # Errors
/// Where the chip cannot be.
fn decode(
    film: &[Frame; 2],
    cell: Cell,
    pattern: Pattern,
    mode: Mode,
    fitted: &Fitted,
    extent: Extent,
) -> Result<Tally, ChipError> {
    let chip = fitted.chip(
        cell.cores,
        cell.l2_kb << 10,
        pattern.dispatch_cycles(),
        mode,
    );
    let mut bytes = (0, 0);
    for frame in film {
        let (shared, private) = frame.graph.extent()?;
        bytes = (shared.max(bytes.0), private.max(bytes.1));
    }
    let mut machine = Machine::new(&chip, bytes)?;
    let groups = [0, 1].map(|of| film[of].groups(|place| pattern.groups(place)));
    let orders = [0, 1].map(|of: usize| pattern.order(&film[of].order));
    let mut dispatcher = pattern.dispatcher(cell.cores, film[0].rows);
    let mut sum = Tally::default();
    for number in 0..extent.warm_up + extent.measured {
        let of = number as usize % 2;
        let work = Work {
            graph: &film[of].graph,
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

impl Films {
    /// Of those inputs.
    ///
    /// # Errors
    /// Never, as long as the generated graphs can be run.
    pub fn new(inputs: &[Input], fitted: &Fitted) -> Result<Self, ChipError> {
        let film = |&input: &Input| Ok((input, frames(input, fitted)?));
        Ok(Self {
            fitted: *fitted,
            films: inputs.iter().map(film).collect::<Result<_, ChipError>>()?,
        })
    }

    /// Simulates a cell.
    ///
    /// # Errors
    /// Where the chip cannot be; nothing is run where the input is not here.
    pub fn run(
        &self,
        cell: Cell,
        pattern: Pattern,
        mode: Mode,
        extent: Extent,
    ) -> Result<Tally, ChipError> {
        let film = self.films.iter().find(|(input, _)| *input == cell.input);
        match film {
            Some((_, film)) => decode(film, cell, pattern, mode, &self.fitted, extent),
            None => Ok(Tally::default()),
        }
    }
}

/// A run in the terms of Table 2.
pub fn figures(tally: &Tally, extent: Extent) -> Figures {
    let frames = f64::from(extent.measured.max(1));
    let over = |misses: u64| Some(misses as f64 * PICTURES / frames);
    Figures {
        fps: CLOCK_HZ * frames / tally.cycles.max(1) as f64,
        cycles_a_task: tally.cycles_a_task(),
        l1_misses: over(tally.counts.l1_misses()),
        l2_misses: over(tally.counts.l2_misses),
    }
}

/// A cell and pattern, simulated and, where the paper has it, measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// The cell.
    pub cell: Cell,
    /// The pattern.
    pub pattern: Pattern,
    /// Here.
    pub simulated: Figures,
    /// There.
    pub published: Option<Figures>,
    /// All that was counted here.
    pub tally: Tally,
}

/// The cells of Table 2, once each, in its order.
///
/// # Errors
/// Where the data are not what they were.
pub fn cells() -> Result<Vec<Cell>, String> {
    let mut cells: Vec<Cell> = table_2()?.into_iter().map(|(cell, _, _)| cell).collect();
    cells.dedup();
    Ok(cells)
}

/// Simulates those cells under those patterns, `workers` at a time.
///
/// # Errors
/// Where a chip cannot be.
pub fn compare(
    cells: &[Cell],
    patterns: &[Pattern],
    fitted: &Fitted,
    extent: Extent,
    workers: usize,
) -> Result<Vec<Compared>, String> {
    let table = table_2()?;
    let mut inputs: Vec<Input> = cells.iter().map(|cell| cell.input).collect();
    inputs.sort_unstable();
    inputs.dedup();
    let films = Films::new(&inputs, fitted).map_err(|error| error.to_string())?;
    let pairs: Vec<(Cell, Pattern)> = cells
        .iter()
        .flat_map(|&cell| patterns.iter().map(move |&pattern| (cell, pattern)))
        .collect();
    let one = |&(cell, pattern): &(Cell, Pattern)| {
        let tally = films.run(cell, pattern, Mode::Contended, extent);
        let tally = tally.map_err(|error| error.to_string())?;
        let of = |row: &&(Cell, Pattern, Figures)| row.0 == cell && row.1 == pattern;
        Ok(Compared {
            cell,
            pattern,
            simulated: figures(&tally, extent),
            published: table.iter().find(of).map(|row| row.2),
            tally,
        })
    };
    parallel::each(&pairs, workers, &one).into_iter().collect()
}

/// A ratio of two patterns in one cell, here and in the paper.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The cell.
    pub cell: Cell,
    /// Of this pattern to FCFS.
    pub pattern: Pattern,
    /// Here.
    pub simulated: f64,
    /// There.
    pub published: f64,
}

impl Ratio {
    /// How far apart they are.
    pub fn off(&self) -> f64 {
        (self.simulated - self.published).abs()
    }
}

/// The ratios to FCFS of what `of` takes from the figures, wherever both have it.
pub fn ratios(rows: &[Compared], of: impl Fn(&Figures) -> Option<f64>) -> Vec<Ratio> {
    let base = |cell: Cell| {
        rows.iter()
            .find(|row| row.cell == cell && row.pattern == Pattern::Fcfs)
    };
    let ratio = |row: &Compared| {
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

/// The share of ratios that are off by no more than that.
pub fn share_within(ratios: &[Ratio], limit: f64) -> f64 {
    let within = ratios.iter().filter(|ratio| ratio.off() <= limit).count();
    within as f64 / ratios.len().max(1) as f64
}

/// Where FPS is highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// The pictures.
    pub input: Input,
    /// Size of the second level.
    pub l2_kb: usize,
    /// The pattern.
    pub pattern: Pattern,
    /// Cores, here.
    pub simulated: usize,
    /// Cores, there.
    pub published: usize,
}

/// The numbers of cores with most FPS, wherever the paper has them.
pub fn peaks(rows: &[Compared]) -> Vec<Peak> {
    let mut peaks: Vec<Peak> = Vec::new();
    for row in rows {
        let same = |other: &&Compared| {
            other.cell.input == row.cell.input
                && other.cell.l2_kb == row.cell.l2_kb
                && other.pattern == row.pattern
        };
        let most = |fps: &dyn Fn(&Compared) -> f64| {
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

/// Table 3 simulated: FCFS and pattern A with uniform penalties.
///
/// # Errors
/// Where the chip cannot be.
pub fn table_3(fitted: &Fitted, extent: Extent) -> Result<[Tally; 2], ChipError> {
    let films = Films::new(&[Input::Wvga], fitted)?;
    let run = |pattern| films.run(HEADLINE, pattern, Mode::Uniform, extent);
    Ok([run(Pattern::Fcfs)?, run(Pattern::A)?])
}

/// The cell of the paper's headline and of its Table 3.
pub const HEADLINE: Cell = Cell {
    input: Input::Wvga,
    l2_kb: 128,
    cores: 4,
};

/// How far simulation and paper are apart, for the fit: squares of what the bars
/// ask about, in units of their tolerances, and, at a tenth of the weight, of FPS
/// and misses themselves.
pub fn distance(rows: &[Compared], uniform: f64) -> f64 {
    let mut sum = Mean::default();
    for ratio in ratios(rows, |figures| Some(figures.fps)) {
        // The headline has a bar of its own.
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

/// A weighted mean of squares.
#[derive(Debug, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, weight: f64, error: f64) {
        // One cell far off must not decide: beyond three tolerances it is lost.
        self.sum += weight * error.clamp(-3.0, 3.0).powi(2);
        self.weight += weight;
    }

    fn of(&self) -> f64 {
        self.sum / self.weight.max(f64::MIN_POSITIVE)
    }
}
