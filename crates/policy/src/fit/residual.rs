// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deviations from the law, and the error of each point of the curve.
//!
//! The logarithm of a sample is the sum of the logarithm of the law, the residual and the
//! measurement error. The residual is a Gaussian process (kriging) over log2 of the cores with the
//! standard deviation [`MISFIT`] and an exponential correlation of one octave, which permits kinks
//! in the curve. The mean of the process, given the samples, is added to the logarithm of the law.
//!
//! For the error of a point, the covariance also contains the prior of the parameters, linearised
//! at the fitted law with the denominator `D`: `dlnX/dσ = -(n-1)/D`, `dlnX/dκ = -n(n-1)/D`, and a λ
//! that is practically free. Below a collapse, the level of the curve is a further free parameter.
//! The error is thus small near samples. Far from the samples, the error of a point is the
//! remaining error of σ and κ. The computation is deterministic; its time is cubic in the number of
//! samples, and then quadratic for each point. If the numbers overflow, there is no result.
//!
//! The constants are calibrated on the published PARSEC curves (tests/fit_parsec.rs): at least 94 %
//! of the held-out points lie within two standard errors.

use usher_model::CurvePoint;

use super::cholesky::{Cholesky, dot};
use super::law::{KAPPA, SIGMA, ScalabilityLaw};

/// Standard deviation of the residual, in logarithms.
pub(super) const MISFIT: f64 = 0.1;

/// Correlation length in octaves.
const OCTAVES: f64 = 1.0;

/// Prior standard deviation of the logarithm of a free level, which is λ or the level below a
/// collapse.
const LEVEL: f64 = 10.0;

/// The residual given the samples.
pub(super) struct Residual {
    law: ScalabilityLaw,
    /// Core count below which the program collapses.
    upper: f64,
    cores: Vec<f64>,
    /// Weight of each sample in the mean.
    weights: Vec<f64>,
    /// Decomposition of the covariance of the samples, which includes the prior of the parameters
    /// and the measurement errors.
    full: Cholesky,
}

impl Residual {
    /// Returns `None` where the numbers overflow.
    pub fn new(
        samples: &[CurvePoint],
        law: &ScalabilityLaw,
        trend: &impl Fn(f64) -> f64,
        upper: f64,
    ) -> Option<Self> {
        let cores: Vec<f64> = samples.iter().map(|s| s.cores).collect();
        let misses = samples.iter().map(|s| (s.rate / trend(s.cores)).ln());
        let misses: Vec<f64> = misses.collect();
        let noise = |a: usize, b: usize| match a == b {
            true => samples[a].relative_error.powi(2),
            false => 0.0,
        };
        let size = samples.len();
        let near = Cholesky::new(size, |a, b| {
            correlated(cores[a], cores[b], upper) + noise(a, b)
        })?;
        let weights = near.solve(&misses);
        let mut this = Self {
            law: *law,
            upper,
            cores,
            weights,
            full: near,
        };
        this.full = Cholesky::new(size, |a, b| {
            this.covariance(this.cores[a], this.cores[b]) + noise(a, b)
        })?;
        this.weights.iter().all(|w| w.is_finite()).then_some(this)
    }

    /// Returns the correction of the logarithm of the rate at `cores` cores, and its standard
    /// error.
    pub fn at(&self, cores: f64) -> (f64, f64) {
        let near = self.cores.iter().map(|&c| correlated(cores, c, self.upper));
        let mean = near.zip(self.weights.iter()).map(|(k, w)| k * w).sum();
        let to_samples = self.cores.iter().map(|&c| self.covariance(cores, c));
        let to_samples: Vec<f64> = to_samples.collect();
        let known = dot(&to_samples, &self.full.solve(&to_samples));
        let left = (self.covariance(cores, cores) - known).max(0.0);
        (mean, left.sqrt())
    }

    /// Prior covariance of the logarithms of the rates at two core counts.
    fn covariance(&self, a: f64, b: f64) -> f64 {
        let (x, y) = (self.features(a), self.features(b));
        let linear: f64 = x.iter().zip(y).map(|(x, y)| x * y).sum();
        linear + correlated(a, b, self.upper)
    }

    /// Derivatives of the logarithm of the rate by the parameters, multiplied by the parameters'
    /// prior standard deviations.
    fn features(&self, cores: f64) -> [f64; 4] {
        let n = cores.max(1.0);
        let slowdown = self.law.slowdown(n);
        let collapsed = if cores < self.upper { LEVEL } else { 0.0 };
        [
            LEVEL,
            SIGMA.1 * (n - 1.0) / slowdown,
            KAPPA.1 * n * (n - 1.0) / slowdown,
            collapsed,
        ]
    }
}

/// Covariance of the residuals at two core counts; zero if the collapse is between the core counts.
fn correlated(a: f64, b: f64, upper: f64) -> f64 {
    match (a < upper) == (b < upper) {
        true => MISFIT.powi(2) * (-(a.log2() - b.log2()).abs() / OCTAVES).exp(),
        false => 0.0,
    }
}
