// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configurations that `usher advise` may choose, and how a machine is divided among copies.
//!
//! A configuration is a number of copies and a number of physical cores per copy. For each number
//! of cores per copy, only the largest number of copies that fits is a candidate. Two kinds of
//! candidates are added:
//!
//! - one copy per hardware thread, on machines with several threads per core;
//! - half of the copies of each candidate. This leaves half of the cores idle, and helps programs
//!   that slow each other down.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_model::{CpuSet, ProgramId, Topology};

use crate::fixed::placement::{FixedRequest, place};

/// A number of copies, and the part of the machine that each copy gets.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct CopyConfig {
    /// Number of copies that run at the same time.
    pub copies: u32,
    /// Physical cores of the seat of each copy. With more copies than cores, copies share cores.
    pub cores: u32,
    /// CPUs of each copy: the value of `{cpus}`.
    pub cpus: u32,
}

impl CopyConfig {
    /// Returns the seats of the copies, in the order of the copies, as `usher run --copies` gives
    /// them.
    pub fn seats(self, topology: &Topology) -> Vec<CpuSet> {
        let request = |copy| FixedRequest {
            id: ProgramId(u64::from(copy)),
            cores: self.cores as usize,
            bound_to: None,
        };
        let requests: Vec<_> = (1..=self.copies).map(request).collect();
        place(topology, &requests, &Default::default())
            .into_values()
            .collect()
    }
}

/// The numbers of cores and CPUs of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineSize {
    /// Physical cores, at least 1.
    pub cores: u32,
    /// Hardware threads (CPUs), at least the number of cores.
    pub cpus: u32,
}

impl MachineSize {
    /// Returns the numbers of a machine.
    pub fn of(topology: &Topology) -> Self {
        let cores = (topology.cores.len() as u32).max(1);
        Self {
            cores,
            cpus: (topology.cpus.len() as u32).max(cores),
        }
    }

    /// Divides the machine evenly: each of `copies` copies gets the number of cores divided by
    /// `copies`, rounded down, or one shared core.
    pub fn divided(self, copies: u32) -> CopyConfig {
        let copies = copies.max(1);
        match self.cores / copies {
            0 => CopyConfig {
                copies,
                cores: 1,
                cpus: (self.cpus / copies).max(1),
            },
            cores => self.with_cores(copies, cores),
        }
    }

    /// Returns the configuration with this number of cores per copy.
    pub fn with_cores(self, copies: u32, cores: u32) -> CopyConfig {
        CopyConfig {
            copies,
            cores,
            cpus: cores * (self.cpus / self.cores),
        }
    }

    /// Returns the candidates, by rising number of copies: first those that use as many cores as
    /// possible, then those that leave half of the cores idle.
    pub fn candidates(self) -> Candidates {
        let sizes: BTreeSet<u32> = (1..=self.cores).map(|copies| self.cores / copies).collect();
        let full = sizes.into_iter().rev();
        let mut full: Vec<CopyConfig> = full
            .map(|size| self.with_cores(self.cores / size, size))
            .collect();
        if self.cpus > self.cores {
            full.push(self.divided(self.cpus));
        }
        let halves = full.iter().map(|&config| half(config));
        let halves = halves.flatten().filter(|half| !full.contains(half));
        Candidates {
            halves: halves.collect(),
            full,
        }
    }
}

/// Returns the configuration with half of the copies.
pub(super) fn half(config: CopyConfig) -> Option<CopyConfig> {
    (config.copies > 1).then_some(CopyConfig {
        copies: config.copies / 2,
        ..config
    })
}

/// The candidates of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidates {
    /// Candidates that use as many cores as possible, by rising number of copies.
    pub full: Vec<CopyConfig>,
    /// Candidates that leave half of the cores idle.
    pub halves: Vec<CopyConfig>,
}

impl Candidates {
    /// Returns all candidates: the configurations of an exhaustive sweep.
    pub fn all(&self) -> Vec<CopyConfig> {
        [&self.full[..], &self.halves].concat()
    }
}
