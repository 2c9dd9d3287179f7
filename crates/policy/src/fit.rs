// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scalability laws fitted to few samples.
//!
//! A program shows one to a handful of points of its curve; the planner wants
//! all of it, and wants to know how sure each point is. Three layers:
//!
//! 1. *Law* (`law`): the universal scalability law (N. J. Gunther, "Guerrilla
//!    Capacity Planning", 2007), `X(n) = λ n / (1 + σ (n-1) + κ n (n-1))`. It
//!    falls after a peak where κ > 0, is Amdahl's law where κ = 0, and a
//!    straight line where σ = 0 too. `n / X` is linear in its parameters, so
//!    no iteration over a non-linear model is needed.
//! 2. *Collapse* (`collapse`): threads that busy-wait for one another make a
//!    program several times slower once they have fewer cores than there are
//!    of them. No smooth law does that: below such a threshold the law is
//!    scaled down.
//! 3. *Residual* (`residual`): what the law misses (a kink where hardware
//!    threads begin, a work split that does not divide) is interpolated as a
//!    Gaussian process over log2 of the cores, so that the curve passes near
//!    its samples, returns to the law within an octave or two, and its error
//!    grows with the distance from what was seen.
//!
//! *Against overfitting*: a single model is fitted, with a prior on σ and κ,
//! instead of choosing among laws; with one to six samples a criterion such
//! as AICc divides by `samples - parameters - 1`, which is zero or less. The
//! prior (σ = 0.03 ± 0.3, κ = 0.0001 ± 0.002, both >= 0) spans the fits to
//! all published PARSEC curves: with one sample the curve is the prior's
//! through that sample, and its error says so.

mod cholesky;
mod collapse;
mod law;
mod residual;

use usher_model::{Curve, CurvePoint};

pub use collapse::{Collapse, collapses};
pub use law::Law;

/// Standard error of a rate that is said to be exact: nothing that runs
/// repeats to less than a hundredth.
const ERROR_MIN: f64 = 0.01;

/// Relative error at which the confidence is one half.
const ERROR_AT_HALF: f64 = 0.15;

/// Relative errors beyond this say "unknown" no louder.
const ERROR_MAX: f64 = 10.0;

/// Largest curve drawn, in cores.
const CORES_MAX: u32 = 65_536;

/// A fitted scalability law.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The law's curve at 1..=`cores_max` cores; `relative_error` says how
    /// sure each point is (one standard error).
    pub curve: Curve,
    /// How far the whole curve is to be trusted, 0..1: one half where its
    /// points are off by 15 % (root mean square over the core counts).
    pub confidence: f64,
    /// The law behind it; `None` where the samples lie so far apart that no
    /// law holds them and the curve is the samples themselves.
    pub law: Option<Law>,
    /// Below how many cores the program collapses, where the samples show it.
    pub collapse: Option<Collapse>,
}

/// Fits the law that explains the samples best; `None` without samples.
///
/// Points that make no sense (not finite, not positive) are left out, points
/// at one core count are averaged by their errors. The order of the samples
/// does not matter; rates scaled by a factor give the same curve scaled.
pub fn fit(samples: &[CurvePoint], cores_max: u32) -> Option<Fit> {
    let samples = tidy(samples);
    if samples.is_empty() {
        return None;
    }
    fitted(&samples, cores_max.clamp(1, CORES_MAX)).or_else(|| {
        Some(Fit {
            curve: Curve::new(samples.clone()).ok()?,
            confidence: 0.0,
            law: None,
            collapse: collapses(&samples),
        })
    })
}

/// The fit proper; `None` where its numbers overflow.
fn fitted(samples: &[CurvePoint], cores_max: u32) -> Option<Fit> {
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
    Some(Fit {
        curve: Curve::new(points).ok()?,
        confidence,
        law: Some(law.scaled(scale)),
        collapse,
    })
}

/// Usable samples by rising cores, one a core count.
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

/// The mean of samples at one core count, weighted by their errors.
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

/// Busy CPUs between samples; beyond the last as many as there, or in
/// proportion where those were (nearly) all that it had.
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
