// SPDX-License-Identifier: MIT OR Apache-2.0
//! The number of CPUs that a program uses well, from its scalability curve.

use usher_model::Curve;

/// The useful CPUs reach this share of the best rate of the curve.
pub const USEFUL_SHARE: f64 = 0.9;

/// The useful CPUs of a program or a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsefulCpus {
    /// The least number of CPUs with at least [`USEFUL_SHARE`] of the best rate.
    pub useful: u32,
    /// The largest measured number of CPUs.
    pub measured_to: u32,
}

impl UsefulCpus {
    /// Returns whether the measurements show that fewer CPUs than `requested` are enough: the curve
    /// was measured up to the request, or up to twice the useful CPUs.
    pub fn is_less_than(self, requested: u32) -> bool {
        let covers = requested <= self.measured_to || self.useful <= self.measured_to / 2;
        self.useful < requested && covers
    }

    /// Returns the useful CPUs of a job with several programs.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            useful: self.useful.max(other.useful),
            measured_to: self.measured_to.min(other.measured_to),
        }
    }
}

/// Returns the useful CPUs; between the points of the curve, the rate is linear. `None` for a curve
/// with a single point. `cpus_per_core`: number of hardware threads of a core.
pub fn useful_cpus(curve: &Curve, cpus_per_core: u32) -> Option<UsefulCpus> {
    let points = curve.points();
    if points.len() < 2 {
        return None;
    }
    let measured_to = points.iter().map(|p| p.cores).fold(0.0, f64::max).ceil() as u32;
    let rates = points.iter().map(|p| p.rate);
    let enough = USEFUL_SHARE * rates.fold(0.0, f64::max);
    let cores = (1..=measured_to).find(|&cores| curve.rate(f64::from(cores)) >= enough);
    Some(UsefulCpus {
        useful: cores.unwrap_or(measured_to).saturating_mul(cpus_per_core),
        measured_to: measured_to.saturating_mul(cpus_per_core),
    })
}

#[cfg(test)]
mod tests {
    use usher_model::CurvePoint;

    use super::*;

    fn curve(points: &[(f64, f64)]) -> Curve {
        let point = |&(cores, rate)| CurvePoint {
            cores,
            rate,
            relative_error: 0.01,
            busy_cpus: None,
        };
        Curve::new(points.iter().map(point).collect()).unwrap()
    }

    #[test]
    fn the_useful_cpus_reach_nine_tenths_of_the_best_rate() {
        let flat = curve(&[(1.0, 1.0), (12.0, 9.0), (24.0, 10.0), (48.0, 8.0)]);
        let got = useful_cpus(&flat, 1).unwrap();
        assert_eq!((got.useful, got.measured_to), (12, 48));
        assert_eq!(useful_cpus(&flat, 2).unwrap().useful, 24);
        assert_eq!(useful_cpus(&curve(&[(4.0, 1.0)]), 1), None);
    }

    #[test]
    fn a_curve_that_still_rises_proves_nothing_about_more_cpus() {
        let rising = curve(&[(1.0, 1.0), (12.0, 12.0)]);
        let got = useful_cpus(&rising, 1).unwrap();
        assert_eq!(got.useful, 11);
        assert!(!got.is_less_than(48));
        // Five of twelve measured CPUs are enough: more CPUs do not help.
        let flat = useful_cpus(&curve(&[(1.0, 1.0), (5.0, 4.0), (12.0, 4.1)]), 1).unwrap();
        assert!(flat.is_less_than(48) && !flat.is_less_than(flat.useful));
    }
}
