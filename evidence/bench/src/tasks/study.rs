// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes times and ratios, with their confidence intervals, from the samples of the rounds of a
//! part.
//!
//! - Two contestants are compared by the ratio of their times in the same round. The result is the
//!   median of the ratios over the rounds, with a bootstrap interval (`usher_report::stats`). A
//!   disturbance that lasts for minutes therefore affects both times of a ratio.
//! - The time of a task of a contestant is the time of the median frame of a process / number of
//!   tasks. The result is the median over the rounds.

use serde::{Deserialize, Serialize};
use usher_report::stats::{self, Estimate, Statistic};

use super::contestants::{Contestant, Runtime};

/// Seed of the random samples for bootstrap intervals.
const SEED: u64 = 1;

/// Result of a case in one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub runtime: Runtime,
    pub form: String,
    pub threads: u32,
    pub round: u32,
    pub case: String,
    /// Number of timed frames.
    pub frames: u32,
    /// Time of a task in the median frame, in nanoseconds.
    pub median_ns: f64,
    /// Time of a task in the fastest frame, in nanoseconds.
    pub least_ns: f64,
}

/// All samples of a part.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    pub all: Vec<Sample>,
    /// Failures of processes, with the reasons.
    pub failed: Vec<String>,
}

/// Time of a task in nanoseconds, over all rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    pub median_ns: f64,
    /// Lower and upper quartile over the rounds.
    pub quartiles_ns: (f64, f64),
    /// Time in the fastest frame of all rounds.
    pub least_ns: f64,
}

/// A contestant, and the number of its threads.
pub type ContestantRun = (Contestant, u32);

impl Samples {
    fn of<'a>(
        &'a self,
        (one, threads): ContestantRun,
        case: &'a str,
    ) -> impl Iterator<Item = &'a Sample> {
        self.all.iter().filter(move |sample| {
            let same = (sample.runtime, sample.form.as_str()) == (one.runtime, one.form);
            same && sample.threads == threads && sample.case == case
        })
    }

    /// Returns the time of a task over all rounds; `None` if it was not measured.
    pub fn figure(&self, turn: ContestantRun, case: &str) -> Option<Figure> {
        let medians: Vec<f64> = self.of(turn, case).map(|s| s.median_ns).collect();
        Some(Figure {
            median_ns: stats::median(&medians)?,
            quartiles_ns: (
                stats::quantile(&medians, 0.25)?,
                stats::quantile(&medians, 0.75)?,
            ),
            least_ns: self
                .of(turn, case)
                .map(|s| s.least_ns)
                .fold(f64::INFINITY, f64::min),
        })
    }

    /// Returns the time of a task in the median frame of one round, in nanoseconds.
    pub fn in_round(&self, turn: ContestantRun, case: &str, round: u32) -> Option<f64> {
        let mut samples = self.of(turn, case).filter(|s| s.round == round);
        samples.next().map(|sample| sample.median_ns)
    }

    /// Number of rounds.
    pub fn rounds(&self) -> u32 {
        let rounds = self.all.iter().map(|sample| sample.round + 1);
        rounds.max().unwrap_or(0)
    }

    /// Returns the median over the rounds of (time of `a` / time of `b`).
    pub fn ratio(&self, a: ContestantRun, b: ContestantRun, case: &str) -> Option<Estimate> {
        self.over_rounds(|round| {
            Some(self.in_round(a, case, round)? / self.in_round(b, case, round)?)
        })
    }

    /// Returns the median over the rounds of `of(round)`, with its bootstrap interval.
    pub fn over_rounds(&self, of: impl Fn(u32) -> Option<f64>) -> Option<Estimate> {
        let values: Vec<f64> = (0..self.rounds()).filter_map(of).collect();
        stats::estimate(&values, Statistic::Median, SEED)
    }

    /// Returns the contestant with the least median time.
    pub fn best(&self, of: &[Contestant], threads: u32, case: &str) -> Option<Contestant> {
        let figures = of.iter().filter_map(|&one| {
            let figure = self.figure((one, threads), case)?;
            Some((one, figure.median_ns))
        });
        figures
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(one, _)| one)
    }
}

/// Returns those contestants that are forms of a runtime.
pub fn forms_of(contestants: &[Contestant], runtime: Runtime) -> Vec<Contestant> {
    let of = contestants.iter().filter(|one| one.runtime == runtime);
    of.copied().collect()
}

/// Formats a ratio with its interval.
pub fn ratio_text(estimate: Option<Estimate>) -> String {
    estimate_text(estimate, |ratio| format!("{ratio:.2}"))
}

/// Formats an estimate with its interval.
pub fn estimate_text(estimate: Option<Estimate>, text: impl Fn(f64) -> String) -> String {
    let Some(estimate) = estimate else {
        return usher_report::text::NONE.to_owned();
    };
    let value = text(estimate.value);
    match estimate.low.zip(estimate.high) {
        Some((low, high)) => format!("{value} [{}, {}]", text(low), text(high)),
        None => value,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::tasks::contestants::{HINTED, PLAIN, WAVEFRONT_PEERS};

    /// Returns samples with the given time in nanoseconds for each round.
    pub fn samples(of: &[(ContestantRun, &str, &[f64])]) -> Samples {
        let mut samples = Samples::default();
        for &((one, threads), case, values) in of {
            for (round, &ns) in (0..).zip(values) {
                samples.all.push(Sample {
                    runtime: one.runtime,
                    form: one.form.to_owned(),
                    threads,
                    round,
                    case: case.to_owned(),
                    frames: 10,
                    median_ns: ns,
                    least_ns: ns - 1.0,
                });
            }
        }
        samples
    }

    #[test]
    fn a_machine_that_slows_down_slows_both_sides_of_a_ratio() {
        let [tbb, ..] = WAVEFRONT_PEERS;
        let samples = samples(&[
            ((PLAIN, 1), "empty", &[10.0, 20.0, 40.0, 10.0]),
            ((tbb, 1), "empty", &[20.0, 40.0, 80.0, 20.0]),
            ((tbb, 2), "empty", &[1.0]),
        ]);
        let ratio = samples.ratio((PLAIN, 1), (tbb, 1), "empty").unwrap();
        assert_eq!((ratio.value, ratio.n), (0.5, 4));
        assert_eq!(samples.ratio((PLAIN, 1), (tbb, 1), "memory:4096"), None);
        assert_eq!(samples.ratio((HINTED, 1), (tbb, 1), "empty"), None);
        let figure = samples.figure((PLAIN, 1), "empty").unwrap();
        assert_eq!((figure.median_ns, figure.least_ns), (15.0, 9.0));
    }

    #[test]
    fn the_best_form_is_that_with_the_least_median() {
        let [tbb, flow, ..] = WAVEFRONT_PEERS;
        let samples = samples(&[
            ((tbb, 1), "empty", &[30.0, 31.0, 5.0]),
            ((flow, 1), "empty", &[29.0, 29.0, 100.0]),
        ]);
        let forms = forms_of(&WAVEFRONT_PEERS, Runtime::OneTbb);
        assert_eq!(forms.len(), 2);
        assert_eq!(samples.best(&forms, 1, "empty"), Some(flow));
        assert_eq!(samples.best(&forms, 2, "empty"), None);
    }
}
