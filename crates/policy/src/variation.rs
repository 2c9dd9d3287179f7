// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budget of deliberate variation: how much the runs of a program may be slowed down in order to
//! measure the program on fewer cores.
//!
//! Without a counter of progress, only the duration of whole runs shows how fast a program is on a
//! number of cores. Policy `usher` therefore narrows the seat of some runs (module
//! `usher::variation`). A [`VariationHistory`] limits the time that the runs of one program lose:
//!
//! 1. The first run is ordinary. It gives the usual duration `T` and the usual number of CPUs, and a
//!    credit of `5 % * 5 * T`.
//! 2. Each run after the fifth adds 5 % of its duration, at most of `T`. The credit is at most `T`.
//! 3. A varied run may lose at most the credit. While its seat is narrowed, a run loses at most the
//!    fraction `1 - cores / usual` of the time ([`loss_rate`]), if its speed is a concave function
//!    of the cores. `usual` is the number of CPUs that the kernel would give to the program.
//! 4. After a varied run, the credit decreases by the greater of two values: the bound of step 3, and
//!    the measured loss. The measured loss is the time on the narrowed seat, minus the usual time of
//!    the work done in it. This work is the same part of the run's work as its CPU time is of the
//!    run's CPU time. Slow progress before or after the narrowed seat thus does not count as a loss.
//!    A varied run counts even if its demand is unknown.
//!
//! *Bound.* For a program with a concave curve, the variation takes at most 5 % of the time of its
//! runs, over the first five or more runs. Before the fifth run, it takes at most a quarter of one
//! run in total. For an arbitrary curve, one varied run may lose more than the credit, at most the
//! time on the narrowed seat. No run is then varied until the allowances of later runs exceed the
//! excess.
//!
//! *Limit.* If the program needs more CPU time for its work on fewer cores, and only a part of the
//! run is varied, the measured loss is too low.
//!
//! Durations are in seconds. All operations take constant time.

use usher_model::VariationBudget;

/// Fraction of the time of all runs that variation may take.
pub const LOSS_MAX: f64 = 0.05;
/// Largest relative error of a point that needs no further measurement.
pub const ERROR_ENOUGH: f64 = 0.10;
/// Number of runs whose allowance is granted after the first run.
const ADVANCE_RUNS: u32 = 5;
/// Greatest credit, as a multiple of the usual duration.
const CREDIT_RUNS_MAX: f64 = 1.0;
/// Number of ordinary runs over which the usual duration is averaged.
const USUAL_RUNS: u32 = 10;

/// The variation of one program over all its runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VariationHistory {
    /// Number of runs.
    pub runs: u32,
    /// Mean duration of the ordinary runs, in seconds.
    pub usual_seconds: f64,
    /// Mean number of CPUs that the program would have used alone on the machine.
    pub usual_cpus: f64,
    /// Time that varied runs may still lose, in seconds. Negative after a run that lost more than
    /// its budget.
    pub credit_seconds: f64,
}

/// A finished run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FinishedRun {
    /// Duration in seconds.
    pub seconds: f64,
    /// CPUs that the program would have used alone on the CPUs of its seats. Of a varied run, this
    /// number is not used.
    pub cpus: f64,
    /// Time on narrowed seats, in seconds.
    pub varied_seconds: f64,
    /// Part of the run's work that was done on narrowed seats, 0..=1.
    pub varied_part: f64,
    /// Upper limit of the time that was lost on narrowed seats, for a concave curve.
    pub lost_seconds: f64,
}

impl VariationHistory {
    /// Returns the history after a run; `None` if there is no history yet, and the run is not
    /// ordinary or not valid.
    pub fn after(history: Option<Self>, run: &FinishedRun) -> Option<Self> {
        let is_valid = |value: f64| value.is_finite() && value > 0.0;
        let is_varied = run.varied_seconds > 0.0;
        if !is_valid(run.seconds) || !(is_varied || is_valid(run.cpus)) {
            return history;
        }
        let Some(old) = history else {
            return (!is_varied).then(|| Self {
                runs: 1,
                usual_seconds: run.seconds,
                usual_cpus: run.cpus,
                credit_seconds: LOSS_MAX * f64::from(ADVANCE_RUNS) * run.seconds,
            });
        };
        let runs = old.runs.saturating_add(1);
        let mut next = Self { runs, ..old };
        if runs > ADVANCE_RUNS {
            next.credit_seconds += LOSS_MAX * run.seconds.min(old.usual_seconds);
        }
        if is_varied {
            let measured_loss = run.varied_seconds - run.varied_part * old.usual_seconds;
            next.credit_seconds -= run.lost_seconds.max(measured_loss);
        } else {
            let weight = 1.0 / f64::from(runs.min(USUAL_RUNS));
            next.usual_seconds += weight * (run.seconds - old.usual_seconds);
            next.usual_cpus += weight * (run.cpus - old.usual_cpus);
        }
        let credit_max = CREDIT_RUNS_MAX * next.usual_seconds;
        next.credit_seconds = next.credit_seconds.min(credit_max);
        Some(next)
    }

    /// Returns the budget of the next run, with a usual slowdown of 1. The budget is 0 s if the
    /// credit is used up.
    pub fn budget(&self) -> VariationBudget {
        VariationBudget {
            seconds: self.credit_seconds.max(0.0),
            usual_seconds: self.usual_seconds,
            usual_cpus: self.usual_cpus,
            usual_slowdown: 1.0,
        }
    }
}

/// Greatest fraction of the time that a program with a concave curve loses on a seat of `cores`
/// cores, if it would otherwise get `usual_cpus` CPUs.
pub fn loss_rate(cores: f64, usual_cpus: f64) -> f64 {
    (1.0 - cores / usual_cpus).clamp(0.0, 1.0)
}

/// Returns the number of CPUs that each program gets under time sharing of `cores` cores, if the
/// kernel divides the cores in proportion to the demands.
pub fn time_shares(demands: &[f64], cores: f64) -> Vec<f64> {
    let demand: f64 = demands.iter().sum();
    let part = (cores / demand).min(1.0);
    demands.iter().map(|demand| demand * part).collect()
}
