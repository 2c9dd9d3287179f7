// SPDX-License-Identifier: MIT OR Apache-2.0
//! The selection of `usher advise` on synthetic programs with known throughputs, compared with the
//! best configuration by brute force, and with the time of an exhaustive sweep.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::collections::BTreeSet;

use proptest::prelude::*;
use usher_policy::advise::candidates::{CopyConfig, MachineSize};
use usher_policy::advise::{Advice, INDIFFERENCE, NextRun, RUNS_MAX, RunOutcome, Selection};

/// A random number generator that needs no other crate.
struct SplitMix64(u64);

impl SplitMix64 {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Approximately normal: the sum of 12 uniform numbers.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// Seconds of a copy with Amdahl's law, and slower by `contention` for each further copy.
#[derive(Debug, Clone, Copy)]
struct Model {
    serial: f64,
    contention: f64,
}

impl Model {
    fn throughput(&self, config: CopyConfig) -> f64 {
        let cores = f64::from(config.cores);
        let alone = self.serial + (1.0 - self.serial) / cores;
        let others = f64::from(config.copies - 1);
        f64::from(config.copies) / (alone * (1.0 + self.contention * others))
    }
}

/// Runs a selection. Returns the advice, and the seconds of all runs.
fn select(size: MachineSize, model: Model, deviation: f64, seed: u64) -> (Advice, f64) {
    let mut noise = SplitMix64(seed);
    let mut selection = Selection::new(size.candidates());
    let (mut seconds, mut runs) = (0.0, 0);
    while let Some(trial) = selection.next_run() {
        let rate = model.throughput(trial.config) * (deviation * noise.normal()).exp();
        let (outcome, end) = outcome(&trial, rate);
        seconds += f64::from(trial.config.copies) / end;
        selection.record(&trial, outcome);
        runs += 1;
        assert!(runs < 1000, "the selection does not end");
    }
    (selection.advice().unwrap(), seconds)
}

/// Returns the outcome of a run, and the throughput at which it ended.
fn outcome(trial: &NextRun, rate: f64) -> (RunOutcome, f64) {
    match rate < trial.floor {
        true => (RunOutcome::Capped(trial.floor), trial.floor),
        false => (RunOutcome::Completed(rate), rate),
    }
}

fn best(size: MachineSize, model: Model) -> f64 {
    let all = size.candidates().all().into_iter();
    all.map(|config| model.throughput(config))
        .fold(0.0, f64::max)
}

fn sweep_seconds(size: MachineSize, model: Model) -> f64 {
    let all = size.candidates().all().into_iter();
    let seconds = all.map(|c| f64::from(c.copies) / model.throughput(c));
    RUNS_MAX as f64 * seconds.sum::<f64>()
}

fn size(cores: u32, threads: u32) -> MachineSize {
    MachineSize {
        cores,
        cpus: cores * threads,
    }
}

fn models() -> impl Strategy<Value = Model> {
    (0.0..0.5f64, prop_oneof![Just(0.0), 0.0..0.1f64])
        .prop_map(|(serial, contention)| Model { serial, contention })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn without_noise_the_choice_is_within_the_indifference(
        cores in 1..65u32, threads in 1..3u32, model in models(),
    ) {
        let size = size(cores, threads);
        let (advice, _) = select(size, model, 0.0, 1);
        let chosen = model.throughput(advice.config);
        prop_assert!(chosen * (1.0 + INDIFFERENCE) >= best(size, model), "{advice:?}");
        prop_assert!(advice.is_certain);
    }

    #[test]
    fn candidates_use_the_machine_and_contain_the_extremes(cores in 1..200u32, threads in 1..5u32) {
        let size = size(cores, threads);
        let candidates = size.candidates();
        let all: BTreeSet<CopyConfig> = candidates.all().into_iter().collect();
        prop_assert_eq!(all.len(), candidates.all().len(), "no candidate is listed twice");
        prop_assert!(all.contains(&size.divided(1)) && all.contains(&size.divided(size.cpus)));
        prop_assert!(candidates.full.is_sorted_by_key(|config| config.copies));
        for config in &candidates.full {
            prop_assert_eq!(*config, match config.copies > cores {
                true => size.divided(config.copies),
                false => size.with_cores(config.copies, config.cores),
            });
            let used = config.copies * config.cores;
            prop_assert!(config.copies > cores || used <= cores && cores - used < config.copies);
        }
    }
}

#[test]
fn with_noise_nine_of_ten_choices_are_near_the_best_in_a_quarter_of_the_time() {
    for cores in [16, 48] {
        let size = size(cores, 1);
        let (mut good, mut spent, mut sweep) = (0, 0.0, 0.0);
        for seed in 0..300u64 {
            let mut noise = SplitMix64(seed * 7919 + 1);
            let model = Model {
                serial: noise.uniform().powi(3),
                contention: (noise.uniform() - 0.5).max(0.0) * 0.1,
            };
            let (advice, seconds) = select(size, model, 0.04, seed);
            let ratio = best(size, model) / model.throughput(advice.config);
            good += i32::from(ratio <= 1.0 + INDIFFERENCE);
            spent += seconds;
            sweep += sweep_seconds(size, model);
        }
        assert!(good >= 270, "{cores} cores: {good} of 300");
        assert!(
            spent <= 0.25 * sweep,
            "{cores} cores: {spent:.0} s of {sweep:.0} s"
        );
    }
}

#[test]
fn cores_are_divided_evenly_among_copies() {
    let divided = |copies| {
        let config = size(16, 2).divided(copies);
        (config.cores, config.cpus)
    };
    assert_eq!([1, 3, 16].map(divided), [(16, 32), (5, 10), (1, 2)]);
    // Two copies share a core, with one hardware thread each.
    assert_eq!([32, 33].map(divided), [(1, 1), (1, 1)]);
}

#[test]
fn copies_that_fail_leave_one_copy() {
    let mut selection = Selection::new(size(8, 1).candidates());
    while let Some(trial) = selection.next_run() {
        let outcome = match trial.config.copies {
            1 => RunOutcome::Completed(1.0),
            _ => RunOutcome::Failed,
        };
        selection.record(&trial, outcome);
    }
    let advice = selection.advice().unwrap();
    assert_eq!((advice.config.copies, advice.config.cores), (1, 8));
    assert!(selection.samples().iter().any(|one| one.failed));
}

#[test]
fn a_program_that_always_fails_has_no_advice() {
    let mut selection = Selection::new(size(8, 1).candidates());
    let trial = selection.next_run().unwrap();
    assert!(trial.is_warm_up && trial.config.copies == 1);
    selection.record(&trial, RunOutcome::Failed);
    assert_eq!(selection.next_run(), None);
    assert_eq!(selection.advice(), None);
}

#[test]
fn an_uncertain_choice_is_marked() {
    let mut selection = Selection::new(size(2, 1).candidates());
    let warm_up = selection.next_run().unwrap();
    selection.record(&warm_up, RunOutcome::Completed(1.0));
    let first = selection.next_run().unwrap();
    selection.record(&first, RunOutcome::Completed(1.0));
    let advice = selection.advice().unwrap();
    assert!(!advice.is_certain && advice.config.copies == 1);
}
