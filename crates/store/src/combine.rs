// SPDX-License-Identifier: MIT OR Apache-2.0
//! Merges a new measurement of a rate into the stored estimate.
//!
//! The result is the mean of the two estimates, weighted by the inverse of their variances. A merge
//! is a few arithmetic operations. Three rules prevent a wrong old estimate from keeping its weight
//! for ever:
//!
//! - *Ageing*: an estimate's variance doubles every 30 days ([`HALF_LIFE_S`]), since machines,
//!   libraries and inputs change. The factor is at most 2^64.
//! - *Disagreement*: if the distance of the two estimates exceeds their combined error, the error
//!   of the mean grows. The factor is the ratio of distance and combined error (the Birge ratio, as
//!   used by the Particle Data Group).
//! - *Outliers*: a new value at a distance of more than four combined errors ([`OUTLIER_SIGMAS`])
//!   gets the weight of a value at exactly this distance. The error of the mean grows with each
//!   outlier. If the program has changed, a few equal new values therefore determine the mean.
//!
//! Relative errors are fractions (0.01 is 1 %). Relative errors below [`ERROR_MIN`] are raised to
//! [`ERROR_MIN`], because runs of the same command differ by this amount only because of their
//! placement in memory.

/// Seconds in which the variance of an estimate doubles: thirty days.
pub const HALF_LIFE_S: f64 = 30.0 * 86_400.0;
/// Number of combined errors beyond which a new value is an outlier.
pub const OUTLIER_SIGMAS: f64 = 4.0;
/// The least relative error that is used, as a fraction: 1 %. Smaller errors are raised to this
/// value.
pub const ERROR_MIN: f64 = 0.01;

/// A rate with its error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Progress per second, > 0.
    pub rate: f64,
    /// Standard error relative to the rate, >= 0.
    pub relative_error: f64,
}

impl Estimate {
    fn variance(&self) -> f64 {
        let error = self.relative_error.max(ERROR_MIN) * self.rate;
        error * error
    }
}

/// Merges an estimate that is `age_s` seconds old with a new estimate. Both rates must be finite
/// and positive; the result's rate is finite and positive too.
pub fn combine(old: Estimate, age_s: f64, new: Estimate) -> Estimate {
    let fade = (age_s.max(0.0) / HALF_LIFE_S).min(64.0).exp2();
    let old_variance = old.variance() * fade;
    let distance = (new.rate - old.rate).abs();
    let sigmas = distance / (old_variance + new.variance()).sqrt();
    let new_variance = if sigmas > OUTLIER_SIGMAS {
        let held = distance / OUTLIER_SIGMAS;
        (held * held - old_variance).max(new.variance())
    } else {
        new.variance()
    };
    let new_weight = old_variance / (old_variance + new_variance);
    let rate = old.rate + new_weight * (new.rate - old.rate);
    let variance = new_weight * new_variance;
    let error = variance.sqrt() * sigmas.max(1.0);
    Estimate {
        rate,
        relative_error: error / rate,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn estimate(rate: f64, relative_error: f64) -> Estimate {
        Estimate {
            rate,
            relative_error,
        }
    }

    #[test]
    fn equal_errors_give_the_mean_and_a_smaller_error() {
        let mean = combine(estimate(100.0, 0.05), 0.0, estimate(104.0, 0.05));
        assert!((mean.rate - 102.0).abs() < 0.1, "{mean:?}");
        assert!((mean.relative_error - 0.05 / 2f64.sqrt()).abs() < 0.001);
    }

    #[test]
    fn smaller_errors_weigh_more_and_age_raises_the_error() {
        let (old, new) = (estimate(100.0, 0.02), estimate(110.0, 0.08));
        let fresh = combine(old, 0.0, new).rate;
        let faded = combine(old, 4.0 * HALF_LIFE_S, new).rate;
        assert!(
            fresh < 101.0 && faded > 104.0 && faded < 106.0,
            "{fresh} {faded}"
        );
    }

    #[test]
    fn an_outlier_weighs_little_but_repeated_values_prevail() {
        let mut now = estimate(100.0, 0.02);
        now = combine(now, 60.0, estimate(300.0, 0.02));
        assert!(now.rate < 115.0, "one outlier: {now:?}");
        for _ in 0..6 {
            now = combine(now, 60.0, estimate(300.0, 0.02));
        }
        assert!(now.rate > 280.0, "a new truth: {now:?}");
    }

    proptest! {
        #[test]
        fn the_result_lies_between_the_inputs(
            a in 1e-6f64..1e12, b in 1e-6f64..1e12,
            ea in 0.0f64..2.0, eb in 0.0f64..2.0, age in -1e3f64..1e12,
        ) {
            let mean = combine(estimate(a, ea), age, estimate(b, eb));
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(mean.rate >= low * (1.0 - 1e-9) && mean.rate <= high * (1.0 + 1e-9));
            prop_assert!(mean.relative_error.is_finite() && mean.relative_error > 0.0);
        }
    }
}
