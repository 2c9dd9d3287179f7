// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fits the universal scalability law to samples by linear least squares.
//!
//! `n / X(n) = a + b (n-1) + c n (n-1)` with `a = 1/λ`, `b = σ/λ`, `c = κ/λ` is linear in `a`, `b`
//! and `c`. The least squares, weighted by the relative errors, therefore have a closed-form
//! solution. A general optimiser (Levenberg-Marquardt) would need a start value and a test of
//! convergence.
//!
//! The prior adds two rows: `(b - σ₀ a) / (s a)` for σ with the prior mean σ₀ and standard
//! deviation `s`, and the equivalent row for κ. The denominator contains the `a` of the previous
//! round, which converges in six rounds. No round is left out. σ and κ must not be negative. In
//! each round, the equations are therefore solved four times, with none, one or both of σ and κ
//! fixed at zero. The valid solution with the least error is used.
//!
//! The time is linear in the number of samples. There is no result if there are no samples or the
//! numbers overflow.

use usher_model::CurvePoint;

use super::cholesky::{Cholesky, dot};

/// Prior mean and standard deviation of σ.
pub(super) const SIGMA: (f64, f64) = (0.03, 0.3);
/// Prior mean and standard deviation of κ.
pub(super) const KAPPA: (f64, f64) = (0.000_1, 0.002);

/// Number of rounds in which the prior's scale converges.
const ROUNDS: usize = 6;

/// A universal scalability law: `X(n) = λ n / (1 + σ (n-1) + κ n (n-1))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalabilityLaw {
    /// Progress per second on one core, λ.
    pub lambda: f64,
    /// Contention, σ >= 0: the serial part of Amdahl's law.
    pub sigma: f64,
    /// Coherence, κ >= 0: if not 0, the curve eventually falls.
    pub kappa: f64,
}

impl ScalabilityLaw {
    /// Progress per second on `cores` cores; proportional below one core.
    pub fn rate(&self, cores: f64) -> f64 {
        match cores < 1.0 {
            true => self.lambda * cores,
            false => self.lambda * cores / self.slowdown(cores),
        }
    }

    /// The denominator of the law: core time per unit of work, relative to one core.
    pub(super) fn slowdown(&self, cores: f64) -> f64 {
        1.0 + self.sigma * (cores - 1.0) + self.kappa * cores * (cores - 1.0)
    }

    /// The law with all rates multiplied by `scale`.
    pub(super) fn scaled(self, scale: f64) -> Self {
        Self {
            lambda: self.lambda * scale,
            ..self
        }
    }
}

/// Linear equations `left[i] . (a, b, c) = right[i]`, each scaled to a standard error of 1.
struct WeightedRows {
    left: Vec<[f64; 3]>,
    right: Vec<f64>,
}

/// The most probable law; `None` where the numbers overflow.
pub(super) fn fit(samples: &[CurvePoint]) -> Option<ScalabilityLaw> {
    let first = samples.first()?;
    let prior = ScalabilityLaw {
        lambda: 1.0,
        sigma: SIGMA.0,
        kappa: KAPPA.0,
    };
    let mut law = prior.scaled(first.rate / prior.rate(first.cores));
    for _ in 0..ROUNDS {
        law = least_squares(&rows(samples, law.lambda.recip()))?;
    }
    Some(law)
}

fn rows(samples: &[CurvePoint], a: f64) -> WeightedRows {
    let mut rows = WeightedRows {
        left: vec![
            [-SIGMA.0 / (SIGMA.1 * a), 1.0 / (SIGMA.1 * a), 0.0],
            [-KAPPA.0 / (KAPPA.1 * a), 0.0, 1.0 / (KAPPA.1 * a)],
        ],
        right: vec![0.0, 0.0],
    };
    for sample in samples {
        let n = sample.cores.max(1.0);
        let y = sample.cores / sample.rate;
        // Rates also deviate from the law by `MISFIT` (module `residual`).
        let error = y * sample.relative_error.hypot(super::residual::MISFIT);
        rows.left
            .push([1.0, n - 1.0, n * (n - 1.0)].map(|x| x / error));
        rows.right.push(y / error);
    }
    rows
}

/// Solves the equations by least squares with b, c >= 0. Tries every set of parameters that may be
/// zero.
fn least_squares(rows: &WeightedRows) -> Option<ScalabilityLaw> {
    let mut best: Option<(f64, ScalabilityLaw)> = None;
    for free in [&[0, 1, 2][..], &[0, 1], &[0, 2], &[0]] {
        let Some((loss, [a, b, c])) = solve(rows, free) else {
            continue;
        };
        let law = ScalabilityLaw {
            lambda: a.recip(),
            sigma: b / a,
            kappa: c / a,
        };
        let sane = [law.lambda, law.sigma, law.kappa]
            .iter()
            .all(|x| x.is_finite());
        let allowed = sane && a > 0.0 && b >= 0.0 && c >= 0.0;
        if allowed && best.is_none_or(|(least, _)| loss < least) {
            best = Some((loss, law));
        }
    }
    best.map(|(_, law)| law)
}

/// Unconstrained least squares over the parameters `free`; the other parameters are zero.
fn solve(rows: &WeightedRows, free: &[usize]) -> Option<(f64, [f64; 3])> {
    let mut columns = Vec::with_capacity(free.len());
    let mut lengths = Vec::with_capacity(free.len());
    for &parameter in free {
        let column: Vec<f64> = rows.left.iter().map(|row| row[parameter]).collect();
        let length = dot(&column, &column).sqrt();
        // The columns are scaled to equal length, because n (n-1) may be thousands of times larger
        // than 1.
        columns.push(column.iter().map(|x| x / length).collect::<Vec<f64>>());
        lengths.push(length);
    }
    let normal = Cholesky::new(free.len(), |r, c| dot(&columns[r], &columns[c]))?;
    let right: Vec<f64> = columns
        .iter()
        .map(|column| dot(column, &rows.right))
        .collect();
    let solution = normal.solve(&right);
    let mut all = [0.0; 3];
    for ((&parameter, x), length) in free.iter().zip(solution).zip(lengths) {
        all[parameter] = x / length;
    }
    let missed = |(row, right): (&[f64; 3], &f64)| (dot(row, &all) - right).powi(2);
    let loss: f64 = rows.left.iter().zip(&rows.right).map(missed).sum();
    loss.is_finite().then_some((loss, all))
}
