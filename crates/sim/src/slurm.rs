// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares Usher with the two ways in which Slurm shares a node among jobs, on the 210 mixes of
//! the evaluation of paper 1 (module `evaluation`): mixes of four jobs, each of which requests all
//! 48 cores of the node.
//!
//! 1. Measure all programs alone.
//! 2. Simulate every mix, or every n-th mix, under [`SCHEDULERS`].
//! 3. Relate the mean ANTT under Usher to the mean of the better one of `oversubscribe` and `gang`.
//!
//! The kernel is a parameter: jobs of a current Slurm have a cgroup each, so that the kernel shares
//! the CPU time evenly between jobs ([`Kernel::default`]). The programs were fitted under the kernel
//! of paper 1 ([`Kernel::cfs`]).
//!
//! Limits: as in module `evaluation`. The costs of a suspension are the context switches and the
//! refills of the caches; the signals, and memory that is swapped out, take no time.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_model::Topology;

use crate::campaign::{Campaign, MixRow, Scheduler, measure_programs, mixes};
use crate::evaluation::SimulationSize;
use crate::fault::Fault;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::setup::EvaluationSetup;
use crate::slurm_node::SlurmNode;

/// The compared schedulers.
pub const SCHEDULERS: [Scheduler; 4] = [
    Scheduler::Oversubscribe,
    Scheduler::Gang,
    Scheduler::Usher,
    Scheduler::UsherCold,
];

/// Means of one scheduler over all mixes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SchedulerMeans {
    /// Geometric mean of the ANTT.
    pub geometric: f64,
    /// Arithmetic mean of the ANTT.
    pub arithmetic: f64,
    /// Maximum of the ANTT.
    pub worst: f64,
}

/// ANTT of Usher, relative to the better one of the two ways of Slurm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RatioToBetter {
    /// Mean ANTT divided by the lower one of the two mean ANTTs; geometric means.
    pub of_means: f64,
    /// Geometric mean of the ANTT divided by the lower one of the two ANTTs of the same mix.
    pub by_mix: f64,
    /// Maximum of the ANTT divided by the lower one of the two ANTTs of the same mix.
    pub worst: f64,
    /// Number of mixes in which `gang` has the lower ANTT of the two.
    pub gang_better: usize,
}

/// Results of the comparison under one kernel.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SlurmComparison {
    /// Length of a slice of the gang scheduler in virtual seconds.
    pub slice_s: f64,
    /// Means by scheduler.
    pub means: BTreeMap<Scheduler, SchedulerMeans>,
    /// Usher with profiles of all programs, relative to Slurm.
    pub usher: RatioToBetter,
    /// Usher without profiles, relative to Slurm.
    pub usher_cold: RatioToBetter,
    /// Results of all simulated mixes.
    pub mixes: Vec<MixRow>,
}

impl SlurmComparison {
    /// Simulates the mixes. `done` is called after every mix, with the total number of mixes.
    ///
    /// # Errors
    /// A simulation cannot continue.
    pub fn run(
        setup: &EvaluationSetup,
        topology: &Topology,
        kernel: &Kernel,
        node: SlurmNode,
        size: &SimulationSize,
        done: &(dyn Fn(usize, &MixRow) + Sync),
    ) -> Result<Self, Fault> {
        let machine = Machine::new(topology.clone(), setup.costs.clone());
        let models = &setup.models;
        let programs = measure_programs(models, &machine, kernel, size.repetition_s, size.seed)?;
        let campaign = Campaign {
            machine: &machine,
            kernel,
            programs: &programs,
            schedulers: &SCHEDULERS,
            steady_s: size.steady_s,
            node,
            scale: setup.native_s / size.repetition_s,
            seed: size.seed,
        };
        let all = mixes(programs.len(), 4).into_iter();
        let all: Vec<_> = all.step_by(size.stride.max(1)).collect();
        let rows = campaign.run(&all, size.workers, &|row| done(all.len(), row))?;
        Ok(Self::of(rows, node.slice_s))
    }

    /// Computes the means of results that contain all of [`SCHEDULERS`].
    pub fn of(mixes: Vec<MixRow>, slice_s: f64) -> Self {
        Self {
            slice_s,
            means: SCHEDULERS.map(|s| (s, means(&mixes, s))).into(),
            usher: ratio(&mixes, Scheduler::Usher),
            usher_cold: ratio(&mixes, Scheduler::UsherCold),
            mixes,
        }
    }
}

fn antts(mixes: &[MixRow], scheduler: Scheduler) -> Vec<f64> {
    let antt = |row: &MixRow| row.antt.get(&scheduler).copied().unwrap_or(f64::NAN);
    mixes.iter().map(antt).collect()
}

fn geometric(values: &[f64]) -> f64 {
    let logs: f64 = values.iter().map(|value| value.ln()).sum();
    (logs / values.len() as f64).exp()
}

fn means(mixes: &[MixRow], scheduler: Scheduler) -> SchedulerMeans {
    let values = antts(mixes, scheduler);
    SchedulerMeans {
        geometric: geometric(&values),
        arithmetic: values.iter().sum::<f64>() / values.len() as f64,
        worst: values.iter().copied().fold(f64::NAN, f64::max),
    }
}

fn ratio(mixes: &[MixRow], scheduler: Scheduler) -> RatioToBetter {
    let own = antts(mixes, scheduler);
    let stacked = antts(mixes, Scheduler::Oversubscribe);
    let gang = antts(mixes, Scheduler::Gang);
    let better = stacked.iter().zip(&gang).map(|(a, b)| a.min(*b));
    let ratios: Vec<f64> = own
        .iter()
        .zip(better)
        .map(|(own, best)| own / best)
        .collect();
    RatioToBetter {
        of_means: geometric(&own) / geometric(&stacked).min(geometric(&gang)),
        by_mix: geometric(&ratios),
        worst: ratios.iter().copied().fold(f64::NAN, f64::max),
        gang_better: stacked.iter().zip(&gang).filter(|(a, b)| b < a).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(antts: [f64; 4]) -> MixRow {
        MixRow {
            programs: Vec::new(),
            antt: SCHEDULERS.into_iter().zip(antts).collect(),
            ntt: BTreeMap::new(),
            events: 0,
        }
    }

    #[test]
    fn relates_usher_to_the_better_way_of_slurm() {
        let rows = vec![row([2.0, 4.0, 1.0, 2.0]), row([8.0, 4.0, 4.0, 8.0])];
        let result = SlurmComparison::of(rows, 30.0);
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-12, "{got} {want}");
        near(result.means[&Scheduler::Oversubscribe].geometric, 4.0);
        near(result.means[&Scheduler::Oversubscribe].arithmetic, 5.0);
        near(result.means[&Scheduler::Gang].worst, 4.0);
        // Both mean ANTTs of Slurm are 4, and Usher's is 2.
        near(result.usher.of_means, 0.5);
        // 1 / 2 and 4 / 4.
        near(result.usher.by_mix, 0.5_f64.sqrt());
        near(result.usher.worst, 1.0);
        near(result.usher_cold.worst, 2.0);
        assert_eq!(result.usher.gang_better, 1);
    }
}
