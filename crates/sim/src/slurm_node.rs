// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings of a simulated node of a Slurm cluster, which the schedulers `oversubscribe` and
//! `gang` use (crate `usher-policy`, module `baselines`).

use usher_model::Topology;
use usher_policy::baselines::RequestedCores;

use crate::mix::MixEntry;

/// Settings of Slurm on a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlurmNode {
    /// Length of a slice of the gang scheduler in virtual seconds (`SchedulerTimeSlice`).
    pub slice_s: f64,
    /// Maximum number of jobs on one core (`OverSubscribe=FORCE:N`).
    pub jobs_per_core: usize,
}

impl Default for SlurmNode {
    /// Returns the defaults of Slurm: slices of 30 s, and four jobs on one core.
    fn default() -> Self {
        Self {
            slice_s: 30.0,
            jobs_per_core: 4,
        }
    }
}

impl SlurmNode {
    /// Minimum length of a slice in seconds.
    pub const SLICE_S_MIN: f64 = 0.1;
    /// Maximum length of a slice in seconds: a day.
    pub const SLICE_S_MAX: f64 = 86_400.0;

    pub(crate) fn slice_ns(&self) -> u64 {
        (self.slice_s * 1e9) as u64
    }

    /// Returns `least_s`, rounded up to a multiple of the time in which each of `jobs` jobs gets a
    /// slice.
    pub(crate) fn rotations_s(&self, least_s: f64, jobs: usize) -> f64 {
        let rotation_s = self.slice_s * jobs.max(1) as f64;
        (least_s / rotation_s).ceil().max(1.0) * rotation_s
    }

    /// Returns the number of cores that each job requests. A core with several hardware threads is
    /// allocated as a whole.
    pub(crate) fn requested_cores(
        &self,
        topology: &Topology,
        entries: &[MixEntry],
    ) -> RequestedCores {
        let cpus_per_core = topology.cpus.len().div_ceil(topology.cores.len().max(1));
        let cores = |cpus: u32| (cpus as usize).div_ceil(cpus_per_core.max(1));
        let own = entries
            .iter()
            .filter_map(|entry| Some((entry, entry.cpus?)));
        own.map(|(entry, cpus)| (entry.name.clone(), cores(cpus)))
            .collect()
    }
}
