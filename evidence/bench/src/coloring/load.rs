// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures a workload on this machine in pairs of runs, with plain and with coloured task
//! structures. The two runs of a pair run consecutively and in alternating order, so that slow
//! changes of other load affect both runs equally. The gain is the median over the pairs of
//! (coloured operations per second / plain operations per second), with a bootstrap confidence
//! interval.
//!
//! Both runs of a pair use the same seed. The caller gives the number of pairs and the duration of
//! a run; the first failed run ends the measurement with its error. Without a valid pair, there is
//! no gain.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use usher_coloring::machine::{Colors, WorkloadKind};
use usher_report::stats::{self, Estimate, Statistic};

use super::cpus::{self, RunPlan, RunTotals};

/// Seed of the random samples for bootstrap intervals.
const SEED: u64 = 1;

/// A workload's pairs of runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pairs {
    /// Name of the workload.
    pub load: String,
    /// Number of threads.
    pub threads: usize,
    /// Results of the two runs of each pair: plain, coloured.
    pub pairs: Vec<[RunTotals; 2]>,
}

/// Measures `pairs` pairs of runs of the plan.
pub fn measure(plan: &RunPlan, pairs: usize) -> Result<Pairs> {
    let load: WorkloadKind = plan.load;
    let run = |colors: Colors, seed: usize| {
        cpus::run(&RunPlan {
            colors,
            seed: seed as u64 + 1,
            ..*plan
        })
    };
    let pair = |n: usize| -> Result<[RunTotals; 2]> {
        Ok(match n % 2 {
            0 => {
                let plain = run(Colors::Plain, n)?;
                [plain, run(Colors::DEFAULT, n)?]
            }
            _ => {
                let colored = run(Colors::DEFAULT, n)?;
                [run(Colors::Plain, n)?, colored]
            }
        })
    };
    Ok(Pairs {
        load: load.name().to_owned(),
        threads: plan.cpus,
        pairs: (0..pairs).map(pair).collect::<Result<_>>()?,
    })
}

impl Pairs {
    /// Returns the gain: operations per second with coloured structures / with plain structures.
    pub fn gain(&self) -> Option<Estimate> {
        let rate = |tally: &RunTotals| tally.operations as f64 / tally.seconds;
        let ratio = |[plain, colored]: &[RunTotals; 2]| rate(colored) / rate(plain);
        let ratios: Vec<f64> = self.pairs.iter().map(ratio).collect();
        stats::estimate(&ratios, Statistic::Median, SEED)
    }

    /// Returns the median of `figure` over the plain runs (`which` 0) or the coloured runs (1).
    pub fn median(&self, which: usize, figure: impl Fn(&RunTotals) -> f64) -> f64 {
        let all: Vec<f64> = self.pairs.iter().map(|pair| figure(&pair[which])).collect();
        stats::median(&all).unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gain_is_that_of_the_rates() {
        let tally = |operations, seconds| RunTotals {
            operations,
            seconds,
            ..RunTotals::default()
        };
        let pairs = Pairs {
            load: "chat".to_owned(),
            threads: 1,
            pairs: vec![[tally(100, 1.0), tally(300, 2.0)]; 3],
        };
        assert_eq!(pairs.gain().unwrap().value, 1.5);
        assert_eq!(pairs.median(1, |tally| tally.seconds), 2.0);
    }
}
