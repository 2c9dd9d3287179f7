// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the statistics: known values, properties, and a comparison with an independent second
//! implementation, which uses another generator, tails from printed tables, and plain sums.

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is a failure

use proptest::prelude::*;
use usher_report::data;
use usher_report::stats::{self, Statistic};

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * a.abs().max(b.abs()).max(1.0)
}

#[test]
fn statistics_have_known_values() {
    assert_eq!(stats::mean(&[1.0, 2.0, 6.0]), Some(3.0));
    assert_eq!(stats::median(&[3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(stats::median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    // R gives 1.75 and 3.7 for quantile(c(1, 2, 3, 4), c(.25, .9)).
    assert_eq!(stats::quantile(&[4.0, 2.0, 3.0, 1.0], 0.25), Some(1.75));
    assert!(close(
        stats::quantile(&[4.0, 2.0, 3.0, 1.0], 0.9).unwrap(),
        3.7
    ));
    assert!(close(stats::geometric_mean(&[1.0, 4.0, 2.0]).unwrap(), 2.0));
    // The nine ratios of {2, 4, 6} to {1, 2, 4} in order are .5 1 1 1.5 2 2 3 4 6; the fifth is the
    // median.
    assert_eq!(
        stats::median_pairwise_ratio(&[2.0, 4.0, 6.0], &[1.0, 2.0, 4.0]),
        Some(2.0)
    );
}

#[test]
fn statistics_without_a_value_are_none() {
    for bad in [&[][..], &[1.0, f64::NAN], &[f64::INFINITY]] {
        assert_eq!(stats::mean(bad), None);
        assert_eq!(stats::median(bad), None);
        assert_eq!(stats::geometric_mean(bad), None);
        assert_eq!(stats::estimate(bad, Statistic::Mean, 1), None);
    }
    assert_eq!(stats::geometric_mean(&[1.0, 0.0]), None);
    assert_eq!(stats::geometric_mean(&[1.0, -1.0]), None);
    assert_eq!(stats::median_pairwise_ratio(&[], &[1.0]), None);
    assert_eq!(stats::median_pairwise_ratio(&[1.0], &[0.0]), None);
    assert_eq!(stats::quantile(&[1.0], 1.5), None);
    assert_eq!(stats::quantile(&[1.0], f64::NAN), None);
    assert_eq!(stats::ratio(&[(1.0, 0.0), (f64::NAN, 1.0)], 1), None);
    assert_eq!(data::ntt(&[], Some(1.0)), None);
    assert_eq!(data::ntt(&[1.0], Some(0.0)), None);
    assert_eq!(data::antt([]), None);
    assert_eq!(data::antt([(Some(1.0), 1.0), (None, 1.0)]), None);
}

#[test]
fn ntt_and_antt_follow_paper_1() {
    assert_eq!(data::ntt(&[10.0, 12.0, 14.0], Some(8.0)), Some(1.5));
    assert_eq!(data::antt([(Some(1.5), 1.0), (Some(2.5), 1.0)]), Some(2.0));
    assert_eq!(data::antt([(Some(1.5), 3.0), (Some(2.5), 1.0)]), Some(1.75));
}

#[test]
fn few_values_give_no_interval_or_their_range() {
    let pairs = |n: usize| {
        (0..n)
            .map(|i| (1.0 + 0.1 * i as f64, 1.0))
            .collect::<Vec<_>>()
    };
    let two = stats::ratio(&pairs(2), 1).unwrap();
    assert_eq!((two.low, two.high, two.n), (None, None, 2));
    // For n = 3, the tail probability a is 7e-8: none of ten thousand resamples lies outside the
    // interval.
    let three = stats::ratio(&pairs(3), 1).unwrap();
    assert!(close(three.low.unwrap(), 1.0) && close(three.high.unwrap(), 1.2));
    assert!(!three.reaches_level() && stats::ratio(&pairs(6), 1).unwrap().reaches_level());
}

/// A second bootstrap: SplitMix64 as the generator, and the geometric mean as the n-th root of a
/// product.
fn second_bootstrap(ratios: &[f64], tail: f64, resamples: usize) -> (f64, f64) {
    let mut state = 0x1234_5678_u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let n = ratios.len();
    let mut means: Vec<f64> = (0..resamples)
        .map(|_| {
            let product: f64 = (0..n)
                .map(|_| ratios[(next() % n as u64) as usize])
                .product();
            product.powf(1.0 / n as f64)
        })
        .collect();
    means.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let at = |p: f64| means[(p * resamples as f64) as usize];
    (at(tail), at(1.0 - tail))
}

#[test]
fn interval_agrees_with_second_implementation() {
    // Expected tails, Phi(-sqrt(n / (n - 1)) t(0.975; n - 1)), from tables of t and Phi: n = 6: t
    // 2.5706, z 2.8160; n = 8: 2.3646, 2.5279; n = 10: 2.2622, 2.3845; n = 20: 2.0930, 2.1474.
    let tails = [
        (6, 0.002_431),
        (8, 0.005_737),
        (10, 0.008_551),
        (20, 0.015_881),
    ];
    for (n, tail) in tails {
        let ratios: Vec<f64> = (0..n)
            .map(|i| 0.9 + 0.03 * f64::from(i * 7 % n) + 0.02 * f64::from(i % 3))
            .collect();
        let pairs: Vec<_> = ratios.iter().map(|r| (r * 2.5, 2.5)).collect();
        let (low, high) = second_bootstrap(&ratios, tail, 200_000);
        let width = high - low;
        for seed in [1, 99] {
            let e = stats::ratio(&pairs, seed).unwrap();
            let product: f64 = ratios.iter().product();
            assert!(close(e.value, product.powf(1.0 / f64::from(n))));
            let (l, h) = (e.low.unwrap(), e.high.unwrap());
            assert!((l - low).abs() < 0.06 * width, "n {n}: {l} is not {low}");
            assert!((h - high).abs() < 0.06 * width, "n {n}: {h} is not {high}");
        }
    }
}

#[test]
fn interval_covers_the_true_value_at_its_level() {
    // Simulates 200 experiments of 8 rounds each, with a true ratio of 0.9 and 5 % noise.
    let mut random = oorandom::Rand64::new(42);
    let mut noise = || {
        let sum: f64 = (0..12).map(|_| random.rand_float()).sum();
        (0.05 * (sum - 6.0)).exp()
    };
    let held = (0..200).filter(|&seed| {
        let pairs: Vec<_> = (0..8).map(|_| (0.9 * noise(), 1.0)).collect();
        let e = stats::ratio(&pairs, seed).unwrap();
        e.low.unwrap() <= 0.9 && 0.9 <= e.high.unwrap()
    });
    let held = held.count();
    // A Binomial(200, 0.95) variable is below 181 with a probability of 1 %.
    assert!(held >= 181, "only {held} of 200");
}

#[test]
fn equal_rounds_give_a_band_around_one() {
    let pairs = [(1.00, 1.02), (1.03, 1.00), (0.99, 1.00), (1.01, 0.98)];
    let band = stats::aa_band(&pairs).unwrap();
    assert!(close(band.low * band.high, 1.0) && band.high > 1.02 && band.high <= 1.0307);
    assert_eq!(band.pairs, 4);
    let swapped = pairs.map(|(a, b)| (b, a));
    assert!(close(stats::aa_band(&swapped).unwrap().high, band.high));
    assert_eq!(stats::aa_band(&pairs[..2]), None);
}

fn positive() -> impl Strategy<Value = f64> {
    0.01..100.0_f64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn ratio_is_the_inverse_of_its_inverse(pairs in prop::collection::vec((positive(), positive()), 1..9), seed: u64) {
        let there = stats::ratio(&pairs, seed).unwrap();
        let swapped: Vec<_> = pairs.iter().map(|&(a, b)| (b, a)).collect();
        let back = stats::ratio(&swapped, seed).unwrap();
        prop_assert!((there.value * back.value - 1.0).abs() < 1e-9);
        prop_assert_eq!(there, stats::ratio(&pairs, seed).unwrap());
        if let (Some(low), Some(high)) = (there.low, there.high) {
            let ratios = pairs.iter().map(|(a, b)| a / b);
            let (least, most) = ratios.fold((f64::MAX, 0.0_f64), |(l, h), r| (l.min(r), h.max(r)));
            prop_assert!(least * 0.999_999 <= low && low <= there.value * 1.000_001);
            prop_assert!(there.value * 0.999_999 <= high && high <= most * 1.000_001);
        }
    }

    #[test]
    fn quantiles_agree_with_counting(mut values in prop::collection::vec(-1e3..1e3_f64, 1..40), p in 0.0..=1.0_f64) {
        let q = stats::quantile(&values, p).unwrap();
        values.sort_by(|a, b| a.partial_cmp(b).unwrap());
        let rank = p * (values.len() - 1) as f64;
        prop_assert!(q >= values[rank as usize] - 1e-9);
        prop_assert!(q <= values[(rank as usize + 1).min(values.len() - 1)] + 1e-9);
    }
}
