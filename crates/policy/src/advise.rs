// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses how many copies of a program to run at a time, with how many CPUs each, for the highest
//! throughput (`usher advise`).
//!
//! The measurement is a sequential selection with an indifference zone. A run of a configuration
//! gives one sample of its throughput. After each run, the selection decides which configuration
//! runs next, and when the samples suffice to choose.
//!
//! 1. *Warm-up.* One copy runs on all cores. The run fills the page cache and does not count.
//! 2. *Coarse search.* Every second candidate runs once, and the first and the last one. The others
//!    run only beside the leader, the configuration with the highest mean. The throughput of most
//!    programs has one maximum as a function of the number of copies.
//! 3. *Elimination.* A configuration is dropped when the one-sided 95 % upper bound of its difference
//!    to the leader is below 0. A run is aborted as soon as its throughput can no longer reach 85 %
//!    of the leader's (a cap).
//! 4. *Repetition.* The remaining configurations run again in passes, in alternating order. The
//!    configuration with the fewest runs is always next.
//! 5. *End.* The selection ends after [`RUNS_MAX`] runs of each remaining configuration. It ends
//!    earlier when the one-sided 90 % upper bound of the difference of every other remaining
//!    configuration to the leader is at most [`INDIFFERENCE`].
//!
//! *Statistics.* Samples are logarithms of throughputs, so that differences are relative. The
//! variance is pooled over all configurations, and starts from a prior of [`PRIOR_DEVIATION`] with
//! [`PRIOR_FREEDOM`] degrees of freedom. Bounds are Student's.
//!
//! *Sources.* Steps 3 to 5 follow the fully sequential procedure of Kim and Nelson (ACM TOMACS
//! 11(3), 2001). In contrast to this procedure, the variances are pooled instead of computed per
//! pair, and Student's intervals replace the triangular region. The caps are those of automatic
//! algorithm configuration (Hutter et al., JAIR 36, 2009, adaptive capping).
//!
//! *Limits.* A second, separate maximum between coarse candidates is not found. The confidence
//! holds per comparison, and is not corrected for their number. The module makes no measurement and
//! reads no clock.

pub mod candidates;

use serde::{Deserialize, Serialize};

use self::candidates::{Candidates, CopyConfig, half};

/// Relative difference of throughputs that does not matter.
pub const INDIFFERENCE: f64 = 0.05;
/// Largest number of counted runs of one configuration.
pub const RUNS_MAX: usize = 5;
/// Relative standard deviation of a run before measurements are known.
pub const PRIOR_DEVIATION: f64 = 0.03;
/// Weight of the prior, in degrees of freedom.
pub const PRIOR_FREEDOM: f64 = 4.0;
/// A run is aborted when its throughput is certainly below this part of the leader's.
const CAP: f64 = 0.85;

/// The outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum RunOutcome {
    /// All copies ended with success: copies per second.
    Completed(f64),
    /// The run was aborted, because its throughput is below this value.
    Capped(f64),
    /// A copy failed.
    Failed,
}

/// A run to make.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NextRun {
    /// The configuration.
    pub config: CopyConfig,
    /// The throughput in copies per second below which the run may be aborted; 0: never.
    pub floor: f64,
    /// Whether the run does not count.
    pub is_warm_up: bool,
}

/// The samples of one configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigSamples {
    /// The configuration.
    pub config: CopyConfig,
    /// Throughput of each completed run, in copies per second.
    pub throughputs: Vec<f64>,
    /// Upper bound of the throughput of an aborted run.
    pub capped_at: Option<f64>,
    /// Whether a copy failed.
    pub failed: bool,
    /// Whether the configuration is still compared.
    pub remains: bool,
}

impl ConfigSamples {
    fn new(config: CopyConfig) -> Self {
        Self {
            config,
            throughputs: Vec::new(),
            capped_at: None,
            failed: false,
            remains: true,
        }
    }

    /// Number of counted runs.
    pub fn runs(&self) -> usize {
        self.throughputs.len()
    }

    /// Mean logarithm of the throughputs; `None` without a completed run.
    fn mean(&self) -> Option<f64> {
        let sum: f64 = self.throughputs.iter().map(|rate| rate.ln()).sum();
        (self.runs() > 0).then(|| sum / self.runs() as f64)
    }

    /// Geometric mean of the throughputs in copies per second; `None` without a completed run.
    pub fn throughput(&self) -> Option<f64> {
        self.mean().map(f64::exp)
    }

    fn squares(&self) -> f64 {
        let mean = self.mean().unwrap_or(0.0);
        let squares = self
            .throughputs
            .iter()
            .map(|rate| (rate.ln() - mean).powi(2));
        squares.sum()
    }
}

/// The result of a selection.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// The chosen configuration.
    pub config: CopyConfig,
    /// Its throughput in copies per second.
    pub throughput: f64,
    /// Half-width of the 90 % confidence interval of the throughput, relative to the throughput.
    pub relative_error: f64,
    /// Whether the confidence intervals sufficed to choose.
    pub is_certain: bool,
}

/// A selection in progress.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    candidates: Candidates,
    /// The configurations that were run or are to be run.
    samples: Vec<ConfigSamples>,
    warmed_up: bool,
    /// Whether every candidate runs `runs_max` times.
    is_sweep: bool,
    runs_max: usize,
}

impl Selection {
    /// Starts a selection among candidates.
    pub fn new(candidates: Candidates) -> Self {
        let last = candidates.full.len().saturating_sub(1);
        let coarse = candidates.full.iter().enumerate();
        let coarse = coarse.filter(|&(at, _)| at % 2 == 0 || at == last);
        let samples = coarse.map(|(_, &config)| ConfigSamples::new(config));
        Self {
            samples: samples.collect(),
            candidates,
            warmed_up: false,
            is_sweep: false,
            runs_max: RUNS_MAX,
        }
    }

    /// Starts an exhaustive sweep: every candidate runs `runs` times, to its end.
    pub fn sweep(candidates: Candidates, runs: usize) -> Self {
        let all = candidates.all().into_iter();
        Self {
            samples: all.map(ConfigSamples::new).collect(),
            is_sweep: true,
            runs_max: runs,
            ..Self::new(candidates)
        }
    }

    /// Returns the samples of all configurations that were run or are to be run.
    pub fn samples(&self) -> &[ConfigSamples] {
        &self.samples
    }

    /// Returns the next run; `None` if the samples suffice, or if every configuration failed.
    pub fn next_run(&self) -> Option<NextRun> {
        if !self.warmed_up {
            let config = *self.candidates.full.first()?;
            return Some(NextRun {
                config,
                floor: 0.0,
                is_warm_up: true,
            });
        }
        if !self.is_sweep && self.is_decided() {
            return None;
        }
        let open = self.samples.iter().filter(|one| one.remains);
        let runs = open.clone().map(ConfigSamples::runs).min()?;
        let mut next: Vec<&ConfigSamples> = open.filter(|one| one.runs() == runs).collect();
        next.sort_by_key(|one| one.config);
        let next = match runs % 2 {
            0 => next.first(),
            _ => next.last(),
        }?;
        (runs < self.runs_max).then(|| NextRun {
            config: next.config,
            floor: match self.is_sweep {
                true => 0.0,
                false => CAP * self.leader().map_or(0.0, |(_, mean)| mean.exp()),
            },
            is_warm_up: false,
        })
    }

    /// Records the outcome of the run that [`Self::next_run`] returned.
    pub fn record(&mut self, trial: &NextRun, outcome: RunOutcome) {
        if trial.is_warm_up {
            self.warmed_up = true;
            if outcome == RunOutcome::Failed {
                self.samples.clear();
            }
            return;
        }
        let mut samples = self.samples.iter_mut();
        let Some(one) = samples.find(|one| one.config == trial.config) else {
            return;
        };
        match outcome {
            RunOutcome::Completed(rate) => one.throughputs.push(rate.max(f64::MIN_POSITIVE)),
            RunOutcome::Capped(bound) => {
                one.capped_at = Some(bound);
                one.remains = false;
            }
            RunOutcome::Failed => {
                one.failed = true;
                one.remains = false;
            }
        }
        if !self.is_sweep {
            self.drop_inferior();
            self.add_neighbours();
        }
    }

    /// Returns the best configuration so far; `None` if none has a completed run.
    pub fn advice(&self) -> Option<Advice> {
        let (leader, mean) = self.leader()?;
        let leader = &self.samples[leader];
        let (variance, freedom) = self.variance();
        let error = student(freedom).p95 * (variance / leader.runs() as f64).sqrt();
        Some(Advice {
            config: leader.config,
            throughput: mean.exp(),
            relative_error: error.exp_m1(),
            is_certain: self.is_decided(),
        })
    }

    /// Index and mean of the remaining configuration with the highest mean.
    fn leader(&self) -> Option<(usize, f64)> {
        let open = self.samples.iter().enumerate();
        let open = open.filter(|(_, one)| one.remains);
        let means = open.filter_map(|(at, one)| Some((at, one.mean()?)));
        means.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Pooled variance of a run, and its degrees of freedom.
    fn variance(&self) -> (f64, f64) {
        let squares: f64 = self.samples.iter().map(ConfigSamples::squares).sum();
        let freedom: usize = self
            .samples
            .iter()
            .map(|one| one.runs().saturating_sub(1))
            .sum();
        let freedom = PRIOR_FREEDOM + freedom as f64;
        let prior = PRIOR_FREEDOM * PRIOR_DEVIATION * PRIOR_DEVIATION;
        ((prior + squares) / freedom, freedom)
    }

    /// Standard error of the difference of two means.
    fn error_of_difference(&self, a: &ConfigSamples, b: &ConfigSamples) -> f64 {
        let sum = 1.0 / a.runs().max(1) as f64 + 1.0 / b.runs().max(1) as f64;
        (self.variance().0 * sum).sqrt()
    }

    fn drop_inferior(&mut self) {
        let Some((leader, mean)) = self.leader() else {
            return;
        };
        let quantile = student(self.variance().1).p95;
        let is_inferior = |one: &ConfigSamples| {
            let width = quantile * self.error_of_difference(one, &self.samples[leader]);
            one.mean().is_some_and(|own| own + width < mean)
        };
        let inferior: Vec<bool> = self.samples.iter().map(is_inferior).collect();
        for (one, is_inferior) in self.samples.iter_mut().zip(inferior) {
            one.remains &= !is_inferior;
        }
    }

    /// Adds the candidates beside the leader when every remaining configuration has run.
    fn add_neighbours(&mut self) {
        let open = |one: &ConfigSamples| one.remains && one.runs() == 0;
        if self.samples.iter().any(open) {
            return;
        }
        let Some((leader, _)) = self.leader() else {
            return;
        };
        let leader = self.samples[leader].config;
        let full = &self.candidates.full;
        let at = full.iter().position(|&config| config == leader);
        let beside = at
            .into_iter()
            .flat_map(|at| [at.checked_sub(1), Some(at + 1)]);
        let beside = beside.flatten().filter_map(|at| full.get(at).copied());
        let halved = half(leader).filter(|half| self.candidates.halves.contains(half));
        let new: Vec<CopyConfig> = beside.chain(halved).collect();
        for config in new {
            if !self.samples.iter().any(|one| one.config == config) {
                self.samples.push(ConfigSamples::new(config));
            }
        }
    }

    /// Returns whether the samples suffice: every remaining configuration has run, and no other is
    /// better than the leader by more than the indifference.
    fn is_decided(&self) -> bool {
        let Some((leader, mean)) = self.leader() else {
            return self.samples.iter().all(|one| !one.remains);
        };
        let others = self.samples.iter().enumerate();
        let mut others = others.filter(|&(at, one)| at != leader && one.remains);
        let quantile = student(self.variance().1).p90;
        others.all(|(_, one)| {
            let width = quantile * self.error_of_difference(one, &self.samples[leader]);
            let bound = one.mean().map(|own| own - mean + width);
            bound.is_some_and(|bound| bound <= INDIFFERENCE.ln_1p())
        })
    }
}

/// Quantiles of Student's distribution.
struct Quantiles {
    /// One-sided 95 %, which is two-sided 90 %.
    p95: f64,
    /// One-sided 90 %.
    p90: f64,
}

/// Returns the quantiles at whole degrees of freedom from 4 on, rounded down to the next row of
/// the table.
fn student(freedom: f64) -> Quantiles {
    const TABLE: [(f64, f64, f64); 10] = [
        (60.0, 1.671, 1.296),
        (30.0, 1.697, 1.310),
        (20.0, 1.725, 1.325),
        (15.0, 1.753, 1.341),
        (12.0, 1.782, 1.356),
        (10.0, 1.812, 1.372),
        (8.0, 1.860, 1.397),
        (6.0, 1.943, 1.440),
        (5.0, 2.015, 1.476),
        (4.0, 2.132, 1.533),
    ];
    let row = TABLE.iter().find(|(least, ..)| freedom >= *least);
    let &(_, p95, p90) = row.unwrap_or(&TABLE[9]);
    Quantiles { p95, p90 }
}
