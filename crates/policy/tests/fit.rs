// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the fit of scalability curves: known laws are recovered, collapses detected, and any
//! samples give a valid curve that does not depend on their order or unit.
#![allow(clippy::unwrap_used)] // helpers of tests

use proptest::prelude::*;
use usher_model::CurvePoint;
use usher_policy::fit::{CurveFit, collapses, fit};

fn points(all: &[(f64, f64)]) -> Vec<CurvePoint> {
    let point = |&(cores, rate): &(f64, f64)| CurvePoint {
        cores,
        rate,
        relative_error: 0.02,
        busy_cpus: None,
    };
    all.iter().map(point).collect()
}

fn fitted(all: &[(f64, f64)], cores_max: u32) -> CurveFit {
    fit(&points(all), cores_max).unwrap()
}

/// Gunther's law, implemented independently.
fn usl(lambda: f64, sigma: f64, kappa: f64) -> impl Fn(f64) -> (f64, f64) {
    move |n| {
        let slowdown = 1.0 + sigma * (n - 1.0) + kappa * n * (n - 1.0);
        (n, lambda * n / slowdown)
    }
}

#[test]
fn a_known_law_is_recovered() {
    for (sigma, kappa) in [
        (0.0, 0.0),
        (0.05, 0.0),
        (0.02, 0.001),
        (0.3, 0.0),
        (0.6, 0.0),
    ] {
        let truth = usl(7.0, sigma, kappa);
        let seen: Vec<_> = [1.0, 2.0, 6.0, 12.0, 24.0, 48.0].map(&truth).to_vec();
        let fitted = fitted(&seen, 48);
        for n in 1..=48 {
            let (got, want) = (fitted.curve.rate(f64::from(n)), truth(f64::from(n)).1);
            assert!(
                (got / want - 1.0).abs() < 0.03,
                "σ {sigma} κ {kappa} n {n}: {got} for {want}"
            );
        }
        assert!(fitted.confidence > 0.75 && fitted.collapse.is_none());
    }
}

#[test]
fn a_curve_that_falls_peaks_where_the_law_does() {
    let truth = usl(1.0, 0.02, 0.002);
    let fitted = fitted(&[1.0, 8.0, 32.0, 64.0].map(&truth), 64);
    let best = fitted
        .curve
        .points()
        .iter()
        .max_by(|a, b| a.rate.total_cmp(&b.rate))
        .unwrap();
    // The peak of the law is at sqrt((1 - σ) / κ) = 22.1 cores.
    assert!(
        (18.0..=27.0).contains(&best.cores),
        "peak at {}",
        best.cores
    );
}

#[test]
fn one_sample_gives_moderate_scaling_and_low_confidence() {
    let fitted = fitted(&[(1.0, 3.0)], 48);
    assert!((fitted.curve.rate(1.0) / 3.0 - 1.0).abs() < 1e-9);
    assert!((10.0..30.0).contains(&(fitted.curve.rate(48.0) / 3.0)));
    assert!(fitted.confidence < 0.2, "{}", fitted.confidence);
    assert!(fitted.curve.relative_error(48.0) > 1.0 && fitted.curve.relative_error(1.0) < 0.03);
}

#[test]
fn confidence_grows_with_the_samples() {
    let truth = usl(1.0, 0.05, 0.0005);
    let seen = [1.0, 48.0, 12.0, 4.0].map(truth);
    let sure: Vec<f64> = (1..=4).map(|n| fitted(&seen[..n], 48).confidence).collect();
    assert!(sure.is_sorted(), "{sure:?}");
}

#[test]
fn a_collapse_of_busy_waiting_programs_is_detected() {
    // Measured speed-ups from 1 core to 2 cores: LAMMPS with 2 ranks, and sysbench with yielding
    // threads.
    for speedup in [5.5, 4.6] {
        let seen = [(1.0, 1.0), (2.0, speedup)];
        let collapse = collapses(&points(&seen)).unwrap();
        assert_eq!(collapse.cores, 2);
        assert!((collapse.factor - 2.0 / speedup).abs() < 1e-9);
        let curve = fitted(&seen, 2).curve;
        assert!((curve.rate(2.0) / curve.rate(1.0) / speedup - 1.0).abs() < 0.01);
    }
    let eight_ranks = [(2.0, 0.2), (4.0, 0.6), (8.0, 8.0), (16.0, 8.1)];
    let fit = fitted(&eight_ranks, 16);
    assert_eq!(fit.collapse.unwrap().cores, 8);
    assert!(fit.curve.rate(7.0) < 0.3 * fit.curve.rate(8.0));
    assert!(fit.curve.rate(12.0) > 0.9 * fit.curve.rate(8.0));
}

#[test]
fn normal_programs_and_noise_are_no_collapse() {
    assert_eq!(
        collapses(&points(&[(1.0, 1.0), (2.0, 2.1), (8.0, 9.0)])),
        None
    );
    let noisy = CurvePoint {
        relative_error: 0.5,
        ..points(&[(1.0, 1.0)])[0]
    };
    let sample = CurvePoint {
        relative_error: 0.5,
        ..points(&[(2.0, 4.0)])[0]
    };
    assert_eq!(collapses(&[noisy, sample]), None);
}

#[test]
fn busy_cpus_are_interpolated() {
    let mut seen = points(&[(1.0, 1.0), (4.0, 3.0)]);
    (seen[0].busy_cpus, seen[1].busy_cpus) = (Some(1.0), Some(2.5));
    let curve = fit(&seen, 8).unwrap().curve;
    let busy = [1.0, 2.0, 4.0, 8.0].map(|n| curve.busy_cpus(n).unwrap());
    assert_eq!(busy, [1.0, 1.5, 2.5, 2.5]);
}

#[test]
fn without_a_valid_sample_there_is_no_fit() {
    assert_eq!(fit(&[], 4), None);
    assert_eq!(
        fit(&points(&[(1.0, f64::NAN), (0.0, 1.0), (2.0, -1.0)]), 4),
        None
    );
}

fn samples() -> impl Strategy<Value = Vec<CurvePoint>> {
    let point = (1u32..64, 0.01f64..100.0, 0.0f64..0.3);
    prop::collection::vec(point, 1..7).prop_map(|all| {
        let point = |(cores, rate, relative_error)| CurvePoint {
            cores: f64::from(cores),
            rate,
            relative_error,
            busy_cpus: None,
        };
        all.into_iter().map(point).collect()
    })
}

proptest! {
    #[test]
    fn any_samples_give_a_valid_curve(seen in samples(), cores_max in 1u32..80) {
        let fit = fit(&seen, cores_max).unwrap();
        prop_assert_eq!(fit.curve.points().len(), cores_max as usize);
        prop_assert!((0.0..=1.0).contains(&fit.confidence));
        let law = fit.law.unwrap();
        prop_assert!(law.lambda > 0.0 && law.sigma >= 0.0 && law.kappa >= 0.0);
    }

    #[test]
    fn the_order_of_samples_does_not_matter(
        (seen, shuffled) in samples().prop_flat_map(|s| (Just(s.clone()), Just(s).prop_shuffle())),
    ) {
        prop_assert_eq!(fit(&seen, 48), fit(&shuffled, 48));
    }

    #[test]
    fn other_units_give_the_same_curve_scaled(seen in samples(), scale in 1e-6f64..1e6) {
        let other: Vec<_> = seen.iter().map(|s| CurvePoint { rate: s.rate * scale, ..*s }).collect();
        let (a, b) = (fit(&seen, 48).unwrap(), fit(&other, 48).unwrap());
        prop_assert!((a.confidence - b.confidence).abs() < 1e-6);
        for (p, q) in a.curve.points().iter().zip(b.curve.points()) {
            prop_assert!((p.rate * scale / q.rate - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn the_curve_passes_through_exact_samples_of_any_law(
        sigma in 0.0f64..0.5, kappa in 0.0f64..0.005, count in 1usize..6,
    ) {
        let truth = usl(2.0, sigma, kappa);
        let seen: Vec<_> = [4.0, 1.0, 32.0, 16.0, 2.0][..count].iter().map(|&n| truth(n)).collect();
        let curve = fitted(&seen, 48).curve;
        for &(n, rate) in &seen {
            prop_assert!((curve.rate(n) / rate - 1.0).abs() < 0.04, "{} for {} at {}", curve.rate(n), rate, n);
        }
    }

    #[test]
    fn extreme_numbers_do_not_panic(
        seen in prop::collection::vec((any::<f64>(), any::<f64>(), any::<f64>()), 0..6),
        cores_max in prop::sample::select(vec![0u32, 1, 2, 300]),
    ) {
        let seen: Vec<_> = seen.into_iter().map(|(cores, rate, relative_error)| CurvePoint {
            cores, rate, relative_error, busy_cpus: Some(rate),
        }).collect();
        let _ = fit(&seen, cores_max);
    }
}
