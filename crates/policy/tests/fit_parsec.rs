// SPDX-License-Identifier: MIT OR Apache-2.0
//! Held-out error of the fit on published PARSEC curves. Each curve is fitted to one to four of its
//! points, and the fit is compared with the other points.
//!
//! data/parsec-speedup.json: De Sensi, De Matteis, Torquato, Mencagli, Danelutto, "Bringing
//! Parallel Patterns out of the Corner: the P3ARSEC Benchmark Suite", ACM TACO 14(4), 2017, read
//! off the published plots. On `xeon` (24 cores, 48 hardware threads) points at up to 24 cores are
//! used.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::collections::BTreeMap;

use serde::Deserialize;
use usher_model::{Curve, CurvePoint};
use usher_policy::fit::fit;

#[derive(Deserialize)]
struct Parsec {
    speedup: BTreeMap<String, BTreeMap<String, Vec<(f64, f64)>>>,
}

/// Relative error of points that were read off plots.
const READING_ERROR: f64 = 0.02;

fn point(&(cores, rate): &(f64, f64)) -> CurvePoint {
    CurvePoint {
        cores,
        rate,
        relative_error: READING_ERROR,
        busy_cpus: None,
    }
}

fn published(machine: &str, cores_max: f64) -> Vec<Vec<(f64, f64)>> {
    let all: Parsec = serde_json::from_str(include_str!("data/parsec-speedup.json")).unwrap();
    let curves = all
        .speedup
        .into_values()
        .map(|mut of| of.remove(machine).unwrap());
    curves
        .map(|c| c.into_iter().filter(|p| p.0 <= cores_max).collect())
        .collect()
}

/// Logarithmic errors of the fit and of straight lines between the samples, and the number of
/// held-out points within two standard errors.
#[derive(Default)]
struct Outcome {
    fit: Vec<f64>,
    lines: Vec<f64>,
    within: usize,
}

impl Outcome {
    fn compare(&mut self, curve: &[(f64, f64)], at: &[f64], cores_max: u32) {
        // The published point nearest to each wanted core count.
        let distance = |p: &(f64, f64), n: f64| (p.0 / n).ln().abs();
        let nearest = |&n: &f64| {
            curve
                .iter()
                .min_by(|a, b| distance(a, n).total_cmp(&distance(b, n)))
        };
        let mut seen: Vec<CurvePoint> = at.iter().filter_map(nearest).map(point).collect();
        seen.dedup_by(|a, b| a.cores == b.cores);
        let law = fit(&seen, cores_max).unwrap().curve;
        let lines = Curve::new(seen.clone()).unwrap();
        for &(n, rate) in curve.iter().filter(|p| seen.iter().all(|s| s.cores != p.0)) {
            let error = (law.rate(n) / rate).ln();
            self.fit.push(error.abs());
            self.lines.push((lines.rate(n) / rate).ln().abs());
            let sure = law.relative_error(n).hypot(READING_ERROR);
            self.within += usize::from(error.abs() <= 2.0 * sure);
        }
    }
}

fn mean(errors: &[f64]) -> f64 {
    errors.iter().sum::<f64>() / errors.len() as f64
}

fn quantile(errors: &[f64], part: f64) -> f64 {
    let mut sorted = errors.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * part) as usize]
}

/// Machine, core counts of the samples, and the upper limits of the mean and of the 90th percentile
/// of the error at the other points.
const SETS: [(&str, &[f64], f64, f64); 12] = [
    ("xeon", &[1.0], 0.21, 0.46),
    ("xeon", &[1.0, 8.0], 0.14, 0.34),
    ("xeon", &[1.0, 24.0], 0.07, 0.16),
    ("xeon", &[4.0, 24.0], 0.06, 0.14),
    ("xeon", &[1.0, 8.0, 24.0], 0.06, 0.12),
    ("xeon", &[1.0, 4.0, 12.0, 24.0], 0.05, 0.10),
    ("phi", &[1.0], 0.53, 1.00),
    ("phi", &[1.0, 16.0], 0.14, 0.29),
    ("phi", &[1.0, 64.0], 0.12, 0.27),
    ("phi", &[16.0, 64.0], 0.12, 0.24),
    ("phi", &[1.0, 16.0, 64.0], 0.06, 0.18),
    ("phi", &[1.0, 8.0, 32.0, 64.0], 0.04, 0.11),
];

#[test]
fn few_points_predict_the_published_curves() {
    println!(
        "machine  fitted on                fit: mean   90 %   within 2 s.e.   straight lines: mean"
    );
    let mut missed = Vec::new();
    for (machine, at, mean_max, q90_max) in SETS {
        let cores_max = if machine == "xeon" { 24 } else { 64 };
        let mut outcome = Outcome::default();
        for curve in published(machine, f64::from(cores_max)) {
            outcome.compare(&curve, at, cores_max);
        }
        let (error, q90) = (mean(&outcome.fit), quantile(&outcome.fit, 0.9));
        let within = outcome.within as f64 / outcome.fit.len() as f64;
        let lines = mean(&outcome.lines);
        let on = format!("{at:?}");
        println!("{machine:<8} {on:<24} {error:>9.3} {q90:>6.3} {within:>15.2} {lines:>23.3}");
        if error > mean_max || q90 > q90_max || error > lines || within < 0.93 {
            missed.push((machine, at));
        }
    }
    assert!(missed.is_empty(), "worse than stated: {missed:?}");
}
