// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the slow-down of the foreground, with its confidence interval, from the pairs of runs
//! of a cell.
//!
//! 1. A pair consists of two consecutive runs of the foreground: alone, and beside the background
//!    under one treatment. The ratio of a pair is the time beside the background / the time alone.
//! 2. The slow-down of a treatment is the median of its pairs' ratios with a bootstrap confidence
//!    interval (`usher_report::stats`).
//! 3. The noise band of a cell is computed from pairs of two runs alone. It contains the middle 95
//!    % of their ratios and of the inverses of these ratios; it is not a confidence interval.
//! 4. A treatment meets its bar if the upper end of its interval is at most [`SLOWER_MAX`] (3 %)
//!    above the upper end of the noise band. An interval of [`WIDTH_MAX`] (3 %) or more allows no
//!    conclusion. With too few pairs, there is no interval or no band, and the bar is not met.

use serde::{Deserialize, Serialize};
use usher_report::stats::{self, Estimate, NoiseBand, Statistic};

use super::experiments::Cell;
use super::treatments::BackgroundMethod;

/// Seed of the random samples for bootstrap intervals.
const SEED: u64 = 1;
/// A confidence interval allows a conclusion if it is narrower than this ratio.
pub const WIDTH_MAX: f64 = 0.03;
/// Largest permitted slow-down of the foreground above the noise band, as a ratio.
pub const SLOWER_MAX: f64 = 0.03;

/// Work and resource use of the background while the foreground ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BackgroundWork {
    /// Units of work per second, read from the counter files of the load generators.
    pub units_per_s: f64,
    /// CPU seconds per second.
    pub cpu: f64,
    /// Bytes read from disks per second.
    pub read_bytes_per_s: f64,
    /// Bytes passed to write calls per second.
    pub write_bytes_per_s: f64,
}

/// Times of the foreground alone and beside the background.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Time of the foreground alone in seconds.
    pub alone_s: f64,
    /// Time of the foreground beside the background in seconds.
    pub beside_s: f64,
    /// Whether the run beside the background was stopped at the limit, so that its time is a lower
    /// bound.
    pub cut: bool,
    /// Whether the run alone was before the run beside the background.
    pub alone_first: bool,
    /// Work and resource use of the background during the run beside it.
    pub done: BackgroundWork,
}

/// All pairs of a treatment in a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TreatmentPairs {
    /// The treatment.
    pub treatment: BackgroundMethod,
    /// Pairs of the treatment, in the order in which they ran.
    pub pairs: Vec<Pair>,
    /// The error after which no further pair was measured.
    pub error: Option<String>,
}

impl TreatmentPairs {
    /// Returns a treatment without pairs.
    pub fn new(treatment: BackgroundMethod) -> Self {
        Self {
            treatment,
            pairs: vec![],
            error: None,
        }
    }

    /// Whether a run was stopped at its time limit, so that the slow-down is a lower bound.
    pub fn is_cut(&self) -> bool {
        self.pairs.iter().any(|pair| pair.cut)
    }

    /// Returns the slow-down: the median of time beside the background / time alone.
    pub fn slow_down(&self) -> Option<Estimate> {
        let ratios: Vec<f64> = self.pairs.iter().map(|p| p.beside_s / p.alone_s).collect();
        stats::estimate(&ratios, Statistic::Median, SEED)
    }

    /// Whether the confidence interval of the slow-down is narrow enough for a conclusion.
    pub fn is_resolved(&self) -> bool {
        self.slow_down().is_some_and(|e| width(&e) < WIDTH_MAX)
    }
}

/// Width of the interval; infinite without an interval.
pub fn width(estimate: &Estimate) -> f64 {
    estimate
        .high
        .zip(estimate.low)
        .map_or(f64::INFINITY, |(high, low)| high - low)
}

/// All results of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    /// The cell.
    pub cell: Cell,
    /// The pairs of each treatment; [`BackgroundMethod::Alone`] contains the pairs of two runs
    /// alone.
    pub tallies: Vec<TreatmentPairs>,
    /// Remarks about the cell.
    pub notes: Vec<String>,
}

impl CellResult {
    /// Returns the noise band: the middle 95 % of the ratios of two runs of the foreground alone,
    /// and of their inverses. `None` with too few pairs.
    pub fn band(&self) -> Option<NoiseBand> {
        let alone = self.of(BackgroundMethod::Alone)?;
        let pairs: Vec<_> = alone
            .pairs
            .iter()
            .map(|p| (p.beside_s, p.alone_s))
            .collect();
        stats::aa_band(&pairs)
    }

    /// The pairs of a treatment.
    pub fn of(&self, treatment: BackgroundMethod) -> Option<&TreatmentPairs> {
        self.tallies
            .iter()
            .find(|tally| tally.treatment == treatment)
    }

    /// Returns the distance of the upper end of a treatment's confidence interval above the noise
    /// band, as a ratio (0.03 is 3 %); `None` without an interval or a band.
    pub fn beyond_band(&self, treatment: BackgroundMethod) -> Option<f64> {
        let high = self.of(treatment)?.slow_down()?.high?;
        Some(high - self.band()?.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::experiments::matrix;

    fn tally(treatment: BackgroundMethod, ratios: &[f64]) -> TreatmentPairs {
        let pair = |ratio: &f64| Pair {
            alone_s: 2.0,
            beside_s: 2.0 * ratio,
            cut: false,
            alone_first: true,
            done: BackgroundWork::default(),
        };
        TreatmentPairs {
            pairs: ratios.iter().map(pair).collect(),
            ..TreatmentPairs::new(treatment)
        }
    }

    #[test]
    fn one_pair_that_stumbles_does_not_move_the_median() {
        let steady = tally(BackgroundMethod::Usher, &[1.01, 1.0, 1.02, 1.01, 3.0]);
        assert_eq!(steady.slow_down().unwrap().value, 1.01);
        assert!(
            !steady.is_resolved(),
            "five pairs bound nothing against an outlier"
        );
        let many = tally(BackgroundMethod::Usher, &[1.0, 1.01, 1.02].repeat(10));
        assert!(many.is_resolved());
    }

    #[test]
    fn the_bar_is_measured_from_the_band() {
        let result = CellResult {
            cell: matrix(true)[0],
            tallies: vec![
                tally(BackgroundMethod::Alone, &[1.05, 0.96, 1.04, 1.0, 1.02]),
                tally(BackgroundMethod::Usher, &[1.06, 1.06, 1.06, 1.06, 1.06]),
            ],
            notes: vec![],
        };
        let band = result.band().unwrap();
        assert!(band.high > 1.03 && band.high < 1.06, "{band:?}");
        let beyond = result.beyond_band(BackgroundMethod::Usher).unwrap();
        assert!((beyond - (1.06 - band.high)).abs() < 1e-12);
        assert_eq!(result.beyond_band(BackgroundMethod::Eii), None);
    }

    #[test]
    fn no_interval_is_not_resolved() {
        assert!(!tally(BackgroundMethod::Usher, &[1.0, 1.0]).is_resolved());
        assert!(!tally(BackgroundMethod::Usher, &[]).is_resolved());
    }
}
