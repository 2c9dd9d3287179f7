// SPDX-License-Identifier: MIT OR Apache-2.0
//! Properties of the budget of deliberate variation: the bound of the loss for random curves, by
//! exact durations of runs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use usher_policy::variation::{FinishedRun, LOSS_MAX, VariationHistory, loss_rate, time_shares};

/// Durations of runs of a program that needs `usual_seconds` on its usual CPUs.
struct Oracle {
    usual_seconds: f64,
    usual_cpus: f64,
    /// Speed on the narrowed seat relative to the usual speed.
    speed: f64,
    cores: f64,
}

impl Oracle {
    /// Runs the program on a narrowed seat until `budget_seconds` are spent, and then as usual.
    fn varied(&self, budget_seconds: f64) -> FinishedRun {
        let rate = loss_rate(self.cores, self.usual_cpus);
        let varied_max = if self.speed > 0.0 {
            self.usual_seconds / self.speed
        } else {
            f64::INFINITY
        };
        let varied_seconds = varied_max.min(budget_seconds / rate);
        FinishedRun {
            seconds: varied_seconds + self.usual_seconds - varied_seconds * self.speed,
            cpus: self.usual_cpus,
            varied_seconds,
            varied_part: varied_seconds * self.speed / self.usual_seconds,
            lost_seconds: rate * varied_seconds,
        }
    }

    fn ordinary(&self) -> FinishedRun {
        FinishedRun {
            seconds: self.usual_seconds,
            cpus: self.usual_cpus,
            ..FinishedRun::default()
        }
    }

    /// Returns the loss after each run. A run is varied if there is a budget and `choices` permits.
    fn losses(&self, choices: &[bool]) -> Vec<f64> {
        let mut history: Option<VariationHistory> = None;
        let mut lost = 0.0;
        let each = choices.iter().map(|&choice| {
            let budget = history.map(|history| history.budget());
            let budget = budget.filter(|budget| budget.seconds > 0.0);
            let run = match budget.filter(|_| choice) {
                Some(budget) => self.varied(budget.seconds),
                None => self.ordinary(),
            };
            lost += run.seconds - self.usual_seconds;
            history = VariationHistory::after(history, &run);
            lost
        });
        each.collect()
    }
}

proptest! {
    /// The speed is concave in the cores, so that it falls at most in proportion to the cores.
    #[test]
    fn the_loss_of_a_concave_curve_is_at_most_5_percent_of_all_runs(
        usual_seconds in 0.1f64..1000.0,
        usual_cpus in 1.0f64..64.0,
        narrow in 0.05f64..0.999,
        gain in 0.0f64..1.0,
        choices in prop::collection::vec(any::<bool>(), 1..80),
    ) {
        let speed = narrow + gain * (1.0 - narrow);
        let cores = narrow * usual_cpus;
        let oracle = Oracle { usual_seconds, usual_cpus, speed, cores };
        for (at, lost) in oracle.losses(&choices).into_iter().enumerate() {
            let runs = (at + 1).max(5) as f64;
            let bound = LOSS_MAX * runs * usual_seconds;
            prop_assert!(lost <= bound * (1.0 + 1e-9), "after {} runs: {lost} > {bound}", at + 1);
        }
    }

    /// Any speed on the narrowed seat, down to none, exceeds the bound at most by one varied run.
    #[test]
    fn an_arbitrary_curve_loses_at_most_one_varied_run_more(
        usual_seconds in 0.1f64..1000.0,
        usual_cpus in 1.0f64..64.0,
        narrow in 0.05f64..0.95,
        speed in 0.0f64..1.0,
        choices in prop::collection::vec(any::<bool>(), 1..200),
    ) {
        let cores = narrow * usual_cpus;
        let oracle = Oracle { usual_seconds, usual_cpus, speed, cores };
        // The credit is at most the usual duration.
        let one_run = usual_seconds / loss_rate(cores, usual_cpus);
        for (at, lost) in oracle.losses(&choices).into_iter().enumerate() {
            let runs = (at + 1).max(5) as f64;
            let bound = LOSS_MAX * runs * usual_seconds + one_run;
            prop_assert!(lost <= bound * (1.0 + 1e-9), "after {} runs: {lost} > {bound}", at + 1);
        }
    }

    #[test]
    fn time_shares_fill_the_cores_and_exceed_no_demand(
        demands in prop::collection::vec(0.01f64..16.0, 1..8),
        cores in 1.0f64..32.0,
    ) {
        let shares = time_shares(&demands, cores);
        let (sum, demand): (f64, f64) = (shares.iter().sum(), demands.iter().sum());
        prop_assert!((sum - demand.min(cores)).abs() < 1e-9 * cores);
        prop_assert!(shares.iter().zip(&demands).all(|(share, demand)| share <= demand));
    }
}

#[test]
fn the_first_run_is_ordinary_and_an_invalid_run_changes_nothing() {
    let varied = FinishedRun {
        seconds: 10.0,
        cpus: 2.0,
        varied_seconds: 1.0,
        varied_part: 0.1,
        lost_seconds: 1.0,
    };
    assert_eq!(VariationHistory::after(None, &varied), None);
    let ordinary = FinishedRun {
        varied_seconds: 0.0,
        ..varied
    };
    let history = VariationHistory::after(None, &ordinary).unwrap();
    assert_eq!((history.runs, history.credit_seconds), (1, 2.5));
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let invalid = FinishedRun { seconds, ..varied };
        assert_eq!(
            VariationHistory::after(Some(history), &invalid),
            Some(history)
        );
    }
}

#[test]
fn the_loss_of_a_varied_run_without_demand_counts() {
    let history = VariationHistory {
        runs: 1,
        usual_seconds: 10.0,
        usual_cpus: 4.0,
        credit_seconds: 2.5,
    };
    let run = FinishedRun {
        seconds: 12.0,
        cpus: 0.0,
        varied_seconds: 3.0,
        varied_part: 0.0,
        lost_seconds: 1.0,
    };
    let next = VariationHistory::after(Some(history), &run).unwrap();
    assert_eq!((next.runs, next.credit_seconds), (2, -0.5));
    assert_eq!((next.usual_seconds, next.usual_cpus), (10.0, 4.0));
    let ordinary = FinishedRun {
        varied_seconds: 0.0,
        ..run
    };
    let same = VariationHistory::after(Some(history), &ordinary);
    assert_eq!(same, Some(history));
}

#[test]
fn a_used_up_credit_gives_a_budget_of_0_s_with_the_usual_run() {
    let history = VariationHistory {
        runs: 3,
        usual_seconds: 10.0,
        usual_cpus: 4.0,
        credit_seconds: -1.5,
    };
    let budget = history.budget();
    assert_eq!(budget.seconds, 0.0);
    assert_eq!((budget.usual_seconds, budget.usual_cpus), (10.0, 4.0));
}

#[test]
fn slow_progress_outside_of_the_varied_time_does_not_use_up_the_credit() {
    let history = VariationHistory {
        runs: 1,
        usual_seconds: 10.0,
        usual_cpus: 2.0,
        credit_seconds: 2.5,
    };
    // Half of the work took 6 s on the narrowed seat and 20 s beside other programs.
    let run = FinishedRun {
        seconds: 26.0,
        cpus: 2.0,
        varied_seconds: 6.0,
        varied_part: 0.5,
        lost_seconds: 0.2,
    };
    let next = VariationHistory::after(Some(history), &run).unwrap();
    assert_eq!(next.credit_seconds, 1.5);
    // A bound above the measured loss counts instead.
    let bounded = FinishedRun {
        lost_seconds: 2.0,
        ..run
    };
    let next = VariationHistory::after(Some(history), &bounded).unwrap();
    assert_eq!(next.credit_seconds, 0.5);
}
