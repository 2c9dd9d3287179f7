// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statistics of reports and bars: means, quantiles, ratios with confidence intervals, and the
//! noise band of equal policies.
//!
//! # The estimator of a comparison
//! Two policies are compared over rounds that ran in alternation. Round i gives one ratio r_i =
//! ANTT(policy, i) / ANTT(baseline, i); drift of the machine that affects both policies cancels.
//!
//! - The *point estimate* is the geometric mean of the r_i. With the geometric mean, "A against
//!   B" is the inverse of "B against A".
//! - The *interval* is a bootstrap over rounds. [`RESAMPLES`] times, n ratios are drawn with
//!   replacement from the n observed ratios and their geometric mean is computed. The ends of the
//!   interval are the quantiles a and 1 - a of these means.
//!
//! A plain percentile interval uses a = 0.025 and is too narrow for few rounds: its variance is
//! divided by n instead of n - 1, and it uses the normal instead of Student's distribution.
//! Hesterberg's *expanded percentile interval* ("What Teachers Should Know About the Bootstrap",
//! The American Statistician 69, 2015, section 5.3 and table 7) corrects both with a = Phi(-sqrt(n
//! / (n - 1)) * t(0.975; n - 1)). This module uses the expanded interval, which approaches the
//! plain interval as n grows. For n = 5, a = 0.00095.
//!
//! A bootstrap interval cannot exceed the range of the observed ratios. Below [`LEVEL_PAIRS`] = 6
//! rounds even that range contains the true median with less than 95 % probability (1 - 2^(1-n)).
//! [`Estimate::reaches_level`] is then false, and reports state it. Below [`INTERVAL_PAIRS`] = 3
//! there is no interval.
//!
//! "Upper 95 % bound" means the upper end of this two-sided interval, which is stricter than a
//! one-sided 95 % bound.
//!
//! The generator is PCG (crate `oorandom`) with a printed seed: the same data and seed give the
//! same interval on every machine.
//!
//! For n values, an interval costs [`RESAMPLES`] times one statistic of n values (a median also
//! sorts them), plus the sort of the resampled statistics. [`median_pairwise_ratio`] costs the sort
//! of all pairs. Values that are not finite, or not positive where required, lead to `None`.

use distrs::{Normal, StudentsT};
use oorandom::Rand64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of resamples of a bootstrap.
pub const RESAMPLES: usize = 10_000;
/// Minimum number of values for an interval.
pub const INTERVAL_PAIRS: usize = 3;
/// Minimum number of values for an interval with a level of 95 %.
pub const LEVEL_PAIRS: usize = 6;

/// A figure with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// The point estimate.
    pub value: f64,
    /// Lower end of the interval; `None` for fewer than [`INTERVAL_PAIRS`] values.
    pub low: Option<f64>,
    /// Upper end of the interval; `None` for fewer than [`INTERVAL_PAIRS`] values.
    pub high: Option<f64>,
    /// Number of values.
    pub n: usize,
    /// Seed of the bootstrap.
    pub seed: u64,
}

impl Estimate {
    /// Returns whether there are enough values for a level of 95 %.
    pub fn reaches_level(&self) -> bool {
        self.n >= LEVEL_PAIRS
    }

    /// Returns whether the whole interval lies below `x`.
    pub fn is_below(&self, x: f64) -> bool {
        self.high.is_some_and(|high| high < x)
    }

    /// Returns whether the whole interval lies above `x`.
    pub fn is_above(&self, x: f64) -> bool {
        self.low.is_some_and(|low| low > x)
    }
}

/// The noise band: the middle 95 % of A/A ratios.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NoiseBand {
    /// Lower end; at most 1.
    pub low: f64,
    /// Upper end, 1 / `low`.
    pub high: f64,
    /// Number of A/A pairs.
    pub pairs: usize,
}

/// The statistic of a bootstrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Statistic {
    /// Arithmetic mean.
    Mean,
    /// Median.
    Median,
    /// Geometric mean; the values must be > 0.
    GeometricMean,
}

impl Statistic {
    /// Computes the statistic; `None` under the conditions of [`mean`], [`median`] or
    /// [`geometric_mean`].
    pub fn of(self, values: &[f64]) -> Option<f64> {
        match self {
            Self::Mean => mean(values),
            Self::Median => median(values),
            Self::GeometricMean => geometric_mean(values),
        }
    }
}

/// Arithmetic mean; `None` for no values or a value that is not finite.
pub fn mean(values: &[f64]) -> Option<f64> {
    let sum = all_finite(values)?.iter().sum::<f64>();
    Some(sum / values.len() as f64)
}

/// Geometric mean; `None` for no values or a value that is not finite and > 0.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    if values.iter().any(|&v| v <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = values.iter().map(|v| v.ln()).collect();
    Some(mean(&logs)?.exp())
}

/// The middle value, or the mean of the two middle values; `None` as for [`mean`].
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The quantile at `p` in 0..=1, by linear interpolation between the order statistics next to the
/// position p (n - 1). This is type 7 of Hyndman and Fan, the default of R and numpy. `None` as for
/// [`mean`], and for a `p` outside the range.
pub fn quantile(values: &[f64], p: f64) -> Option<f64> {
    let mut sorted = all_finite(values)?.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_of_sorted(&sorted, p)
}

fn quantile_of_sorted(sorted: &[f64], p: f64) -> Option<f64> {
    if !(0.0..=1.0).contains(&p) {
        return None;
    }
    let at = p * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(below + (at - at.floor()) * (above - below))
}

fn all_finite(values: &[f64]) -> Option<&[f64]> {
    (!values.is_empty() && values.iter().all(|v| v.is_finite())).then_some(values)
}

/// Median of a_i / b_j over all pairs: compares two unpaired groups (Hodges and Lehmann's shift on
/// a logarithmic scale). `None` if a group is empty or a value is not finite and > 0.
pub fn median_pairwise_ratio(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.iter().chain(b).any(|&v| v <= 0.0 || !v.is_finite()) {
        return None;
    }
    let ratios: Vec<f64> = a
        .iter()
        .flat_map(|x| b.iter().map(move |y| x / y))
        .collect();
    median(&ratios)
}

/// The estimate of a ratio from `(policy, baseline)` pairs, as defined in the module documentation.
/// Pairs with a value that is not finite and > 0 are skipped; `None` if no pair is left.
pub fn ratio(pairs: &[(f64, f64)], seed: u64) -> Option<Estimate> {
    let usable = |v: f64| v.is_finite() && v > 0.0;
    let kept = pairs.iter().filter(|(a, b)| usable(*a) && usable(*b));
    let ratios: Vec<f64> = kept.map(|(a, b)| a / b).collect();
    estimate(&ratios, Statistic::GeometricMean, seed)
}

/// A statistic of `values` with its expanded percentile interval; `None` if the statistic has no
/// value.
pub fn estimate(values: &[f64], statistic: Statistic, seed: u64) -> Option<Estimate> {
    let value = statistic.of(values)?;
    let ends = interval(values, statistic, seed);
    Some(Estimate {
        value,
        low: ends.map(|(low, _)| low),
        high: ends.map(|(_, high)| high),
        n: values.len(),
        seed,
    })
}

fn interval(values: &[f64], statistic: Statistic, seed: u64) -> Option<(f64, f64)> {
    if values.len() < INTERVAL_PAIRS {
        return None;
    }
    let mut means = resampled(values, statistic, seed)?;
    means.sort_by(f64::total_cmp);
    let tail = expanded_tail(values.len())?;
    Some((
        quantile_of_sorted(&means, tail)?,
        quantile_of_sorted(&means, 1.0 - tail)?,
    ))
}

/// The statistic of [`RESAMPLES`] resamples.
fn resampled(values: &[f64], statistic: Statistic, seed: u64) -> Option<Vec<f64>> {
    let mut random = Rand64::new(u128::from(seed));
    let mut draw = vec![0.0; values.len()];
    (0..RESAMPLES)
        .map(|_| {
            for slot in &mut draw {
                *slot = values[random.rand_range(0..values.len() as u64) as usize];
            }
            statistic.of(&draw)
        })
        .collect()
}

/// Returns the tail probability a of the expanded percentile interval for n values; `None` for one
/// value.
fn expanded_tail(n: usize) -> Option<f64> {
    let n = n as f64;
    let t = StudentsT::ppf(0.975, n - 1.0);
    let z = (n / (n - 1.0)).sqrt() * t;
    let tail = Normal::cdf(-z, 0.0, 1.0);
    tail.is_finite().then_some(tail)
}

/// Returns the noise band: the middle 95 % of the A/A ratios and their inverses together, because
/// the order of the two equal policies is arbitrary. Pairs are skipped as in [`ratio`]; `None` for
/// fewer than [`INTERVAL_PAIRS`] pairs.
pub fn aa_band(pairs: &[(f64, f64)]) -> Option<NoiseBand> {
    let usable = |v: f64| v.is_finite() && v > 0.0;
    let kept = pairs.iter().filter(|(a, b)| usable(*a) && usable(*b));
    let logs: Vec<f64> = kept.map(|(a, b)| (a / b).ln()).collect();
    if logs.len() < INTERVAL_PAIRS {
        return None;
    }
    let both: Vec<f64> = logs.iter().flat_map(|&log| [log, -log]).collect();
    let half = quantile(&both, 0.975)?;
    Some(NoiseBand {
        low: (-half).exp(),
        high: half.exp(),
        pairs: logs.len(),
    })
}
