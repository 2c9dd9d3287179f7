// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scalability curves: progress per second of a program as a function of its number of cores.
//!
//! A [`Curve`] is a list of measured points in rising order of cores. Between two points, the rate
//! is interpolated linearly. Below the first point, the rate is proportional to the number of
//! cores; above the last point, the rate is constant. The rate and the number of busy CPUs at a
//! number of cores take a binary search. The best rate up to a number of cores, and the curve under
//! a CPU quota, take linear time. Crate `policy` fits curves to measurements.
//!
//! Points are finite: cores and rates are positive, relative errors (fractions) and busy CPUs are 0
//! or more. [`Curve::new`] sorts the points, and rejects an empty list, an invalid point, and two
//! points with the same number of cores. The number of points is not limited.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A measured or given point of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CurvePoint {
    /// Number of cores, counted by speed: a core of the fastest kind counts as 1.0; > 0.
    pub cores: f64,
    /// Progress per second, in the same unit at all points of a curve; > 0.
    pub rate: f64,
    /// Standard error of `rate`, divided by `rate`; 0 for an exact rate.
    #[serde(default)]
    pub relative_error: f64,
    /// Mean number of busy CPUs when the program runs on `cores` cores; `None`: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_cpus: Option<f64>,
}

impl CurvePoint {
    /// Relative standard error of a rate from one run: the typical variation between runs on a
    /// quiet machine. The profile store determines the actual variation of each program.
    pub const SINGLE_RUN_ERROR: f64 = 0.05;
}

/// A scalability curve: points in rising order of cores. The rate is linear between two points,
/// proportional to the number of cores below the first point, and constant above the last point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<CurvePoint>", into = "Vec<CurvePoint>")]
pub struct Curve {
    points: Vec<CurvePoint>,
}

/// Reason for which points do not form a curve.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CurveError {
    /// There is no point.
    #[error("a curve needs at least one point")]
    Empty,
    /// A core count that is not a positive number.
    #[error("the number of cores of a point must be positive, not {0}")]
    Cores(f64),
    /// A rate that is not a positive number.
    #[error("progress at {} must be a positive number, not {rate}", cores_text(*cores))]
    Rate {
        /// Core count of the point.
        cores: f64,
        /// The rejected rate.
        rate: f64,
    },
    /// Two points with the same core count.
    #[error("the curve has two points at {}", cores_text(*.0))]
    Twice(f64),
    /// A relative error or a number of busy CPUs that is negative or not a finite number.
    #[error(
        "the relative error and the number of busy CPUs at {} must not be negative",
        cores_text(*.0)
    )]
    Attribute(f64),
}

/// Formats a number of cores: "1 core", "2 cores", "1.5 cores".
pub fn cores_text(cores: f64) -> String {
    match cores == 1.0 {
        true => "1 core".to_owned(),
        false => format!("{cores} cores"),
    }
}

impl Curve {
    /// Creates a curve through points in any order.
    ///
    /// # Errors
    /// Returns an error if `points` is empty, if a core count or a rate is not finite and positive,
    /// if a relative error or a number of busy CPUs is negative or not finite, or if two points
    /// have the same core count.
    pub fn new(mut points: Vec<CurvePoint>) -> Result<Self, CurveError> {
        if points.is_empty() {
            return Err(CurveError::Empty);
        }
        for p in &points {
            if !(p.cores.is_finite() && p.cores > 0.0) {
                return Err(CurveError::Cores(p.cores));
            }
            if !(p.rate.is_finite() && p.rate > 0.0) {
                return Err(CurveError::Rate {
                    cores: p.cores,
                    rate: p.rate,
                });
            }
            let sane = |x: f64| x.is_finite() && x >= 0.0;
            if !sane(p.relative_error) || !p.busy_cpus.is_none_or(sane) {
                return Err(CurveError::Attribute(p.cores));
            }
        }
        points.sort_by(|a, b| a.cores.total_cmp(&b.cores));
        match points.windows(2).find(|w| w[0].cores == w[1].cores) {
            Some(pair) => Err(CurveError::Twice(pair[0].cores)),
            None => Ok(Self { points }),
        }
    }

    /// Creates a curve from exact rates at whole core counts.
    ///
    /// # Errors
    /// Returns the same errors as [`Curve::new`].
    pub fn from_rates(rates: &BTreeMap<u32, f64>) -> Result<Self, CurveError> {
        let point = |(&cores, &rate)| CurvePoint {
            cores: f64::from(cores),
            rate,
            relative_error: 0.0,
            busy_cpus: None,
        };
        Self::new(rates.iter().map(point).collect())
    }

    /// The points, in rising order of cores.
    pub fn points(&self) -> &[CurvePoint] {
        &self.points
    }

    /// Returns the curve under a CPU quota: the rate is constant from `cpu_quota` cores on. Without
    /// a quota (`None`), returns a copy of the curve.
    #[must_use]
    pub fn limited(&self, cpu_quota: Option<f64>) -> Self {
        let limits = |&quota: &f64| {
            let is_below_last = self.points.last().is_some_and(|last| quota < last.cores);
            quota > 0.0 && is_below_last
        };
        let Some(quota) = cpu_quota.filter(limits) else {
            return self.clone();
        };
        let below = self.points.iter().copied().filter(|p| p.cores < quota);
        let last = CurvePoint {
            cores: quota,
            rate: self.rate(quota),
            relative_error: self.relative_error(quota),
            busy_cpus: self.busy_cpus(quota).map(|busy| busy.min(quota)),
        };
        Self {
            points: below.chain([last]).collect(),
        }
    }

    /// Progress per second on `cores` cores; 0 on no core.
    pub fn rate(&self, cores: f64) -> f64 {
        self.interpolate(cores, |p| Some(p.rate)).unwrap_or(0.0)
    }

    /// Mean number of busy CPUs on `cores` cores, interpolated between the neighbouring points;
    /// `None` if a neighbouring point has no such number. The number is constant above the last
    /// point.
    pub fn busy_cpus(&self, cores: f64) -> Option<f64> {
        self.interpolate(cores, |p| p.busy_cpus)
    }

    /// The larger of the relative errors of the two points that determine `rate(cores)`.
    pub fn relative_error(&self, cores: f64) -> f64 {
        let above = self.points.partition_point(|p| p.cores < cores);
        let last = self.points.len() - 1;
        let error = |i: usize| self.points[i.min(last)].relative_error;
        error(above).max(error(above.saturating_sub(1)))
    }

    /// The best rate on at most `cores` cores (the alone-best of paper 1). The best rate may be
    /// reached on fewer cores, because some programs slow down beyond a number of cores.
    pub fn best_rate(&self, cores: f64) -> f64 {
        let inside = self
            .points
            .iter()
            .filter(|p| p.cores <= cores)
            .map(|p| p.rate);
        inside.fold(self.rate(cores), f64::max)
    }

    fn interpolate(&self, cores: f64, value: impl Fn(&CurvePoint) -> Option<f64>) -> Option<f64> {
        let above = self.points.partition_point(|p| p.cores < cores);
        let Some(right) = self.points.get(above) else {
            return value(&self.points[self.points.len() - 1]);
        };
        let (x0, y0) = match above.checked_sub(1) {
            Some(i) => (self.points[i].cores, value(&self.points[i])?),
            None => (0.0, 0.0),
        };
        let share = ((cores - x0) / (right.cores - x0)).max(0.0);
        Some(y0 + share * (value(right)? - y0))
    }
}

impl From<Curve> for Vec<CurvePoint> {
    fn from(curve: Curve) -> Self {
        curve.points
    }
}

impl TryFrom<Vec<CurvePoint>> for Curve {
    type Error = CurveError;

    fn try_from(points: Vec<CurvePoint>) -> Result<Self, Self::Error> {
        Self::new(points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(rates: &[(u32, f64)]) -> Curve {
        Curve::from_rates(&rates.iter().copied().collect()).unwrap()
    }

    #[test]
    fn is_linear_between_points_proportional_below_and_flat_above() {
        let c = curve(&[(6, 3.0), (12, 4.0)]);
        let rates = [0.0, 1.0, 6.0, 9.0, 12.0, 48.0].map(|n| c.rate(n));
        assert_eq!(rates, [0.0, 0.5, 3.0, 3.5, 4.0, 4.0]);
    }

    #[test]
    fn a_quota_flattens_the_curve_beyond_it() {
        let c = curve(&[(1, 1.0), (2, 1.8), (4, 3.0)]);
        let rates = |quota| [0.5, 1.0, 2.0, 3.0, 8.0].map(|n| c.limited(quota).rate(n));
        assert_eq!(rates(Some(2.0)), [0.5, 1.0, 1.8, 1.8, 1.8]);
        assert_eq!(rates(Some(0.5)), [0.5; 5]);
        assert_eq!(c.limited(Some(3.0)).best_rate(8.0), c.rate(3.0));
        for none in [None, Some(4.0), Some(9.0), Some(0.0), Some(f64::NAN)] {
            assert_eq!(c.limited(none), c);
        }
    }

    #[test]
    fn the_alone_best_may_lie_below_all_cores() {
        let c = curve(&[(1, 1.0), (4, 3.0), (8, 2.0)]);
        assert_eq!(
            (c.best_rate(8.0), c.best_rate(4.0), c.best_rate(2.5)),
            (3.0, 3.0, 2.0)
        );
    }

    #[test]
    fn rejects_invalid_points() {
        let point = |cores, rate| CurvePoint {
            cores,
            rate,
            relative_error: 0.0,
            busy_cpus: None,
        };
        assert_eq!(Curve::new(vec![]), Err(CurveError::Empty));
        for (cores, rate) in [
            (1.0, 0.0),
            (1.0, -2.0),
            (1.0, f64::NAN),
            (1.0, f64::INFINITY),
        ] {
            assert!(matches!(
                Curve::new(vec![point(cores, rate)]),
                Err(CurveError::Rate { .. })
            ));
        }
        assert!(matches!(
            Curve::new(vec![point(0.0, 1.0)]),
            Err(CurveError::Cores(_))
        ));
        assert_eq!(
            Curve::new(vec![point(2.0, 1.0), point(2.0, 3.0)]),
            Err(CurveError::Twice(2.0))
        );
    }
}
