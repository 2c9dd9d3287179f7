// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fits scalability laws to few samples.
//!
//! Of each program, one to a handful of points of its curve are measured. The planner needs the
//! whole curve and the error of each point. The curve and its errors are computed in three layers:
//!
//! 1. *Law* (`law`): the universal scalability law (N. J. Gunther, "Guerrilla Capacity Planning",
//!    2007), `X(n) = λ n / (1 + σ (n-1) + κ n (n-1))`. If κ > 0, `X` falls after a peak. If κ = 0,
//!    the law equals Amdahl's law; if σ is 0, too, it is a straight line. `n / X` is linear in its
//!    parameters: no iteration over a non-linear model is needed.
//! 2. *Collapse* (`collapse`): a program with threads that busy-wait for one another is several
//!    times slower if it has fewer cores than such threads. No smooth law can describe such a
//!    collapse. Below the core count of the collapse, the law is therefore multiplied by a factor.
//! 3. *Residual* (`residual`): deviations from the law (such as a kink where second hardware
//!    threads of cores are used, or work that cannot be divided evenly) are interpolated as a
//!    Gaussian process over log2 of the cores. The curve thus passes near its samples and returns
//!    to the law within an octave or two. The error of the curve grows with the distance from the
//!    samples.
//!
//! *Against overfitting*: a single law is fitted, with a prior on σ and κ. The alternative would be
//! to choose the best of several laws by a criterion such as AICc. AICc divides by `samples -
//! parameters - 1`, which is zero or less with few samples. The prior (σ = 0.03 ± 0.3, κ = 0.0001 ±
//! 0.002, both >= 0) spans the fits to all published PARSEC curves. With a single sample, σ and κ
//! have their prior means, λ follows from the sample, and the error is correspondingly large.
//!
//! *Bounds*: a curve has a point at each whole number of cores from 1 to `cores_max`, at most
//! 65,536. With `s` valid samples at different core counts, a fit takes time of order s^3 +
//! cores_max x s^2. Relative errors are fractions (1 is 100 %): those of samples count as at least
//! 0.01, those of the curve are at most 10. Without valid samples, there is no curve. If the
//! numbers overflow, the curve consists of the samples and has the confidence 0.

mod cholesky;
mod collapse;
mod law;
mod residual;

use usher_model::{Curve, CurvePoint};

pub use collapse::{Collapse, collapses};
pub use law::ScalabilityLaw;

/// Least relative standard error of a rate, even of a rate that is given as exact: the run time of
/// no program repeats to within less than 1 %.
const ERROR_MIN: f64 = 0.01;

/// Relative error of a curve at which the confidence in the curve is 0.5.
const ERROR_AT_HALF: f64 = 0.15;

/// Upper limit of relative errors, as a fraction; larger errors carry no further information.
const ERROR_MAX: f64 = 10.0;

/// Largest number of cores in a curve.
const CORES_MAX: u32 = 65_536;

/// A fitted scalability law.
#[derive(Debug, Clone, PartialEq)]
pub struct CurveFit {
    /// The law's curve at 1..=`cores_max` cores; `relative_error` is one standard error of each
    /// point.
    pub curve: Curve,
    /// Confidence in the whole curve, 0..1. The confidence is 0.5 if the relative errors of all
    /// points have a root mean square of 15 %.
    pub confidence: f64,
    /// The fitted law. `None`: the samples differ too much for a fit, and the curve consists of the
    /// samples.
    pub law: Option<ScalabilityLaw>,
    /// The core count below which the program collapses, if the samples show a collapse.
    pub collapse: Option<Collapse>,
}

/// Fits the law that explains the samples best; `None` without samples.
///
/// Invalid points (not finite, not positive) are ignored; points with the same core count are
/// averaged, weighted by their errors. The order of the samples does not matter; a common factor of
/// all rates multiplies the curve.
pub fn fit(samples: &[CurvePoint], cores_max: u32) -> Option<CurveFit> {
    let samples = tidy(samples);
    if samples.is_empty() {
        return None;
    }
    fitted(&samples, cores_max.clamp(1, CORES_MAX)).or_else(|| {
        Some(CurveFit {
            curve: Curve::new(samples.clone()).ok()?,
            confidence: 0.0,
            law: None,
            collapse: collapses(&samples),
        })
    })
}

/// Fits the law; `None` where the numbers overflow.
fn fitted(samples: &[CurvePoint], cores_max: u32) -> Option<CurveFit> {
    let count = samples.len() as f64;
    let scale = (samples.iter().map(|s| s.rate.ln() / count).sum::<f64>()).exp();
    let unit = |s: &CurvePoint| CurvePoint {
        rate: s.rate / scale,
        ..*s
    };
    let samples: Vec<CurvePoint> = samples.iter().map(unit).collect();
    let collapse = collapses(&samples);
    let upper = collapse.map_or(0.0, |c| f64::from(c.cores));
    let sound: Vec<CurvePoint> = samples
        .iter()
        .filter(|s| s.cores >= upper)
        .copied()
        .collect();
    let law = law::fit(&sound)?;
    let factor = |cores: f64| match collapse {
        Some(collapse) if cores < upper => collapse.factor,
        _ => 1.0,
    };
    let trend = |cores: f64| law.rate(cores) * factor(cores);
    let residual = residual::Residual::new(&samples, &law, &trend, upper)?;
    let points = (1..=cores_max).map(|n| {
        let cores = f64::from(n);
        let (log, error) = residual.at(cores);
        CurvePoint {
            cores,
            rate: trend(cores) * log.exp() * scale,
            relative_error: error.min(ERROR_MAX),
            busy_cpus: busy_cpus(&samples, cores),
        }
    });
    let points: Vec<CurvePoint> = points.collect();
    let confidence = confidence(&points);
    Some(CurveFit {
        curve: Curve::new(points).ok()?,
        confidence,
        law: Some(law.scaled(scale)),
        collapse,
    })
}

/// Valid samples by rising cores, one per core count.
fn tidy(samples: &[CurvePoint]) -> Vec<CurvePoint> {
    let good = |x: f64| x.is_finite() && x > 0.0;
    let known = |x: f64| x.is_finite() && x >= 0.0;
    let mut usable: Vec<CurvePoint> = samples
        .iter()
        .filter(|s| good(s.cores) && good(s.rate) && known(s.relative_error))
        .map(|s| CurvePoint {
            relative_error: s.relative_error.max(ERROR_MIN),
            busy_cpus: s.busy_cpus.filter(|&busy| known(busy)),
            ..*s
        })
        .collect();
    usable.sort_by(|a, b| {
        let rest = a.rate.total_cmp(&b.rate);
        let rest = rest.then(a.relative_error.total_cmp(&b.relative_error));
        a.cores.total_cmp(&b.cores).then(rest)
    });
    usable
        .chunk_by(|a, b| a.cores == b.cores)
        .map(merge)
        .collect()
}

/// The mean of samples with the same core count, weighted by their errors.
fn merge(same: &[CurvePoint]) -> CurvePoint {
    let weight = |s: &CurvePoint| s.relative_error.powi(-2);
    let sum: f64 = same.iter().map(weight).sum();
    let busy: Vec<f64> = same.iter().filter_map(|s| s.busy_cpus).collect();
    let mean = |values: &[f64]| values.iter().map(|b| b / values.len() as f64).sum();
    CurvePoint {
        cores: same[0].cores,
        rate: same.iter().map(|s| s.rate * (weight(s) / sum)).sum(),
        relative_error: sum.sqrt().recip().max(ERROR_MIN),
        busy_cpus: (!busy.is_empty()).then(|| mean(&busy)),
    }
}

/// Number of busy CPUs on `cores` cores, interpolated between samples. Beyond the last sample, the
/// number is constant if less than 90 % of that sample's CPUs were busy, otherwise proportional to
/// `cores`.
fn busy_cpus(samples: &[CurvePoint], cores: f64) -> Option<f64> {
    let known = || samples.iter().filter(|s| s.busy_cpus.is_some());
    let below = known().rfind(|s| s.cores <= cores);
    let above = known().find(|s| s.cores >= cores);
    let at = |s: &CurvePoint| s.busy_cpus.unwrap_or(0.0);
    match (below, above) {
        (Some(low), Some(high)) if high.cores > low.cores => {
            let part = (cores - low.cores) / (high.cores - low.cores);
            Some(at(low) + part * (at(high) - at(low)))
        }
        (Some(low), None) if at(low) < 0.9 * low.cores => Some(at(low)),
        (Some(near), _) | (None, Some(near)) => Some(at(near) * cores / near.cores),
        (None, None) => None,
    }
}

fn confidence(points: &[CurvePoint]) -> f64 {
    let square = |p: &CurvePoint| p.relative_error.min(1.0).powi(2);
    let mean = points.iter().map(square).sum::<f64>() / points.len() as f64;
    1.0 / (1.0 + mean / ERROR_AT_HALF.powi(2))
}
