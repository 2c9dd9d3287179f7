// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interference of two programs that share a cache or a memory controller.
//!
//! The interference of a pair is the sum of two parts. The parts are computed from two figures of
//! each program: the cache bytes and the memory bandwidth that the program uses when it runs alone.
//!
//! 1. *Cache*: the bytes by which the two programs together exceed the cache, divided by the size
//!    of the cache. Two programs that fit into the cache together do not interfere in it.
//! 2. *Memory bandwidth*, and cache of unknown size: the product of the two programs' figures, each
//!    divided by the largest figure of any program. No topology contains the limit of the
//!    bandwidth. The least sum of products over all pairs puts programs of high demand next to
//!    programs of low demand.
//!
//! A program without a figure counts with the mean of the known figures. Without any figures there
//! is no interference.
//!
//! An interference is limited to 1,000,000 times the size of the cache. Bandwidths are in GB/s;
//! figures that are negative or not finite count as unknown. A pair takes constant time.

use usher_model::Topology;

use super::candidate::SeatCandidate;

/// Factor from interference to the whole numbers of a score. An interference of 1 means that two
/// programs together need twice the size of the cache.
const SCALE: f64 = 1e9;

/// Interference between each two candidates.
#[derive(Debug)]
pub(super) struct Interference {
    /// Cache bytes that each candidate uses; `bytes` is the size of the cache, if known.
    wanted: Vec<f64>,
    bytes: Option<f64>,
    /// Memory bandwidth that each candidate uses.
    memory: Vec<f64>,
    /// The largest value of `wanted`, and the largest value of `memory`.
    most: (f64, f64),
    none: bool,
}

impl Interference {
    /// Interference in a cache and its memory controller. The size of the cache is that of the
    /// smallest LLC of the machine.
    pub fn in_domain(machine: &Topology, candidates: &[SeatCandidate<'_>]) -> Self {
        let caches = machine.domains.iter().filter_map(|domain| domain.llc);
        let known = caches.map(|llc| llc.bytes).filter(|&bytes| bytes > 0);
        let wanted = candidates
            .iter()
            .map(|g| g.request.llc_bytes.map(|b| b as f64));
        Self::new(
            filled(wanted),
            known.min().map(|bytes| bytes as f64),
            bandwidths(candidates),
        )
    }

    /// Interference at a memory controller alone.
    pub fn at_controller(candidates: &[SeatCandidate<'_>]) -> Self {
        Self::new(vec![0.0; candidates.len()], None, bandwidths(candidates))
    }

    fn new(wanted: Vec<f64>, bytes: Option<f64>, memory: Vec<f64>) -> Self {
        let most = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
        let mut interference = Self {
            most: (most(&wanted), most(&memory)),
            wanted,
            bytes,
            memory,
            none: false,
        };
        let fits = bytes.is_some_and(|bytes| 2.0 * interference.most.0 <= bytes);
        interference.none = interference.most.1 == 0.0 && (fits || interference.most.0 == 0.0);
        interference
    }

    pub fn pair(&self, a: usize, b: usize) -> u64 {
        if self.none {
            return 0;
        }
        let wanted = (self.wanted[a], self.wanted[b]);
        let cache = match self.bytes {
            Some(bytes) => (wanted.0 + wanted.1 - bytes).max(0.0) / bytes,
            None => product(self.most.0, wanted.0, wanted.1),
        };
        let memory = product(self.most.1, self.memory[a], self.memory[b]);
        ((cache + memory).min(1e6) * SCALE).round() as u64
    }

    /// Whether no two candidates interfere.
    pub fn is_none(&self) -> bool {
        self.none
    }
}

fn bandwidths(candidates: &[SeatCandidate<'_>]) -> Vec<f64> {
    filled(candidates.iter().map(|g| g.request.bandwidth_gbps))
}

/// Replaces unknown and invalid figures by the mean of the known figures.
fn filled(known: impl Iterator<Item = Option<f64>>) -> Vec<f64> {
    let known: Vec<Option<f64>> = known
        .map(|x| x.filter(|x| x.is_finite() && *x >= 0.0))
        .collect();
    let count = known.iter().flatten().count().max(1) as f64;
    let mean = known.iter().flatten().map(|x| x / count).sum();
    known.into_iter().map(|x| x.unwrap_or(mean)).collect()
}

fn product(most: f64, a: f64, b: f64) -> f64 {
    match most > 0.0 {
        true => (a / most) * (b / most),
        false => 0.0,
    }
}
