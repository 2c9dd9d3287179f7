// SPDX-License-Identifier: MIT OR Apache-2.0
//! Estimates the rates of a profile on fewer cores than those of its narrowest point.
//!
//! The first ordinary run of a program gives a single point, on all `n` cores, with the mean number
//! `b` of busy CPUs. Without further data, a rate in proportion to the cores would be assumed. A
//! program that keeps few CPUs busy is slowed down much less by a narrower seat.
//!
//! The number of CPUs that the program uses varies over time between 1 and `n`, with the mean `b`.
//! On `c` cores, the duration of a phase that uses `d` CPUs grows at most by the factor
//! `max(1, d / c)`, which is convex in `d`. The longest time therefore results from phases on 1 CPU
//! and on `n` CPUs only (Amdahl's law). The second kind takes the part `t = (b - 1) / (n - 1)` of the
//! time. The rate on `c` cores is then at least `rate(n) / (1 + t * (n / c - 1))`. If all CPUs are
//! busy, the rate is in proportion to the cores.
//!
//! *Limits.* The bound does not hold for programs that need more CPU time on fewer cores. Threads
//! that busy-wait count as busy, so that the bound of such programs is low.
//!
//! The curve gets a point at each halving of the cores down to one core, with the error of the
//! narrowest point. Between two points, the curve is linear and thus below the bound.

use usher_model::{Curve, CurvePoint};

/// Returns the curve with estimated points below its narrowest point; unchanged if the number of
/// busy CPUs of this point is unknown.
pub fn with_fewer_cores(curve: &Curve) -> Curve {
    let Some((narrowest, busy)) = curve
        .points()
        .first()
        .and_then(|p| Some((*p, p.busy_cpus?)))
    else {
        return curve.clone();
    };
    let cores = narrowest.cores;
    let wide_part = ((busy - 1.0) / (cores - 1.0)).clamp(0.0, 1.0);
    // The CPU time of the work stays the same, and the run takes longer.
    let slowdown = |fewer: f64| 1.0 + wide_part * (cores / fewer - 1.0);
    let busy_on = |fewer: f64| (busy / slowdown(fewer)).min(fewer);
    let estimate = |fewer: f64| CurvePoint {
        cores: fewer,
        rate: narrowest.rate / slowdown(fewer),
        busy_cpus: Some(busy_on(fewer)),
        ..narrowest
    };
    let halvings = std::iter::successors(Some(cores / 2.0), |cores| Some(cores / 2.0));
    let fewer = halvings.take_while(|&fewer| fewer > 1.0).chain([1.0]);
    let fewer = fewer.filter(|&fewer| fewer < cores).map(estimate);
    let points = curve.points().iter().copied().chain(fewer).collect();
    Curve::new(points).unwrap_or_else(|_| curve.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn single(cores: f64, busy_cpus: Option<f64>) -> Curve {
        let point = CurvePoint {
            cores,
            rate: 1.0,
            relative_error: 0.05,
            busy_cpus,
        };
        Curve::new(vec![point]).unwrap()
    }

    #[test]
    fn a_program_with_few_busy_cpus_loses_less_than_in_proportion() {
        let curve = with_fewer_cores(&single(4.0, Some(2.5)));
        // The half of the time with four busy CPUs doubles on two CPUs, and quadruples on one.
        let rates = [1.0, 2.0, 4.0].map(|cores| curve.rate(cores));
        assert_eq!(rates, [1.0 / 2.5, 1.0 / 1.5, 1.0]);
        assert_eq!(curve.busy_cpus(1.0), Some(1.0));
        let busy = with_fewer_cores(&single(4.0, Some(4.0)));
        assert_eq!([1.0, 2.0].map(|cores| busy.rate(cores)), [0.25, 0.5]);
        let idle = with_fewer_cores(&single(4.0, Some(0.5)));
        assert_eq!([1.0, 2.0].map(|cores| idle.rate(cores)), [1.0, 1.0]);
    }

    #[test]
    fn a_curve_without_busy_cpus_or_fewer_cores_is_unchanged() {
        for curve in [
            single(4.0, None),
            single(1.0, Some(1.0)),
            single(0.5, Some(0.5)),
        ] {
            assert_eq!(with_fewer_cores(&curve), curve);
        }
    }

    proptest! {
        /// The oracle runs phases with random numbers of busy CPUs on fewer cores.
        #[test]
        fn the_estimate_is_at_most_the_rate_of_random_phases(
            phases in prop::collection::vec((0.01f64..1.0, 1.0f64..48.0), 1..6),
            wider in 0.0f64..16.0,
        ) {
            let cores = phases.iter().map(|phase| phase.1).fold(2.0, f64::max) + wider;
            let seconds: f64 = phases.iter().map(|phase| phase.0).sum();
            let busy: f64 = phases.iter().map(|(part, cpus)| part * cpus).sum::<f64>() / seconds;
            let curve = with_fewer_cores(&single(cores, Some(busy)));
            for fewer in 1..cores as u32 {
                let fewer = f64::from(fewer);
                let slow: f64 = phases.iter().map(|(part, cpus)| part * (cpus / fewer).max(1.0)).sum();
                let rate = seconds / slow;
                prop_assert!(curve.rate(fewer) <= rate * (1.0 + 1e-9), "{fewer} of {cores} cores");
                prop_assert!(curve.rate(fewer) >= fewer / cores * (1.0 - 1e-9));
            }
        }
    }
}
