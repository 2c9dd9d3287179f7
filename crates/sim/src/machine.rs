// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated hardware: a topology with index tables and bit masks for fast access, and
//! [`Costs`], the parameters of switches, migrations, caches, memory and clock rates. The file has
//! the costs of three machines, with the sources of the values. A set of CPUs takes one bit per
//! CPU, and an operation on it one step per 64 CPUs. Building a [`Machine`] takes quadratic time in
//! the number of CPUs. The values of [`Costs`] are not checked here; module `mixfile` checks those
//! of sim files.

use serde::{Deserialize, Serialize};
use usher_model::{CpuSet, Topology};

/// Costs and capacities of the hardware. Sizes are in bytes, times in nanoseconds, bandwidths in
/// GB/s (bytes per nanosecond).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// Time of a context switch between two threads on one CPU.
    pub switch_ns: f64,
    /// Time to refill a thread's private caches after a migration within its domain, or after other
    /// threads have run on its core.
    pub private_refill_ns: f64,
    /// Rate at which the cache of a domain is filled. A thread that migrates to another domain
    /// fetches its part of the working set at this rate.
    pub refill_gbps: f64,
    /// Cache size of domains for which the topology gives none.
    pub llc_bytes: f64,
    /// Bandwidth of each NUMA node.
    pub node_gbps: f64,
    /// Memory latency of another node in the same package (`near_factor`) and of another package
    /// (`far_factor`), relative to the latency of the local node.
    pub near_factor: f64,
    /// See `near_factor`.
    pub far_factor: f64,
    /// Relative slowdown of a package's cores when `turbo_cores` + 1 cores are busy, compared with
    /// a single busy core; 0: no slowdown.
    pub turbo_loss: f64,
    /// See `turbo_loss`.
    pub turbo_cores: f64,
    /// Core speed (`core_speed`) and memory latency (`latency`), relative to the machine to which
    /// the program models refer ([`Costs::xeon`]).
    pub core_speed: f64,
    /// See `core_speed`.
    pub latency: f64,
}

impl Default for Costs {
    /// Returns the costs of the machine of paper 1 (Opteron 6172). Switch and refill costs are
    /// lmbench measurements of servers of that time. The bandwidth of a die (two channels of
    /// DDR3-1333, peak 21 GB/s) is fitted to the paper's figures for its sample mix
    /// (`evidence/bench/examples/fit_sample.rs`).
    fn default() -> Self {
        Self {
            switch_ns: 2_000.0,
            private_refill_ns: 15_000.0,
            refill_gbps: 5.0,
            llc_bytes: 6e6,
            node_gbps: 12.0,
            near_factor: 1.25,
            far_factor: 1.5,
            turbo_loss: 0.0,
            turbo_cores: 3.0,
            core_speed: 0.55,
            latency: 1.2,
        }
    }
}

impl Costs {
    /// Returns the costs of a machine of 2013 with two packages of 12 cores (Xeon E5-2695 v2). The
    /// program models are fitted to speed-ups published for this machine. The slowdown of a loaded
    /// package is fitted to the curves of all programs together, and covers more than the fall of
    /// the clock rate. The other figures are rounded from data sheets.
    pub fn xeon() -> Self {
        Self {
            switch_ns: 1_500.0,
            private_refill_ns: 10_000.0,
            refill_gbps: 10.0,
            llc_bytes: 30e6,
            node_gbps: 42.0,
            near_factor: 1.0,
            far_factor: 1.5,
            turbo_loss: 0.50,
            turbo_cores: 11.0,
            core_speed: 1.0,
            latency: 1.0,
        }
    }

    /// Returns the costs of a machine of 2016 with one package of 64 slow cores and high-bandwidth
    /// memory (Xeon Phi 7210). The fitted program models are validated on this machine. The loss of
    /// clock rate is taken from the curve of blackscholes, a program without shared data. The other
    /// figures are rounded from data sheets.
    pub fn phi() -> Self {
        Self {
            switch_ns: 5_000.0,
            private_refill_ns: 20_000.0,
            refill_gbps: 5.0,
            llc_bytes: 32e6,
            node_gbps: 300.0,
            near_factor: 1.0,
            far_factor: 1.0,
            turbo_loss: 0.14,
            turbo_cores: 63.0,
            core_speed: 0.35,
            latency: 1.6,
        }
    }
}

/// Position of a CPU in the topology. CPUs are identified by their index in the topology.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub domain: usize,
    pub package: usize,
    pub capacity: f64,
    /// The other hardware threads of the core.
    pub siblings: Vec<usize>,
}

/// The simulated hardware.
#[derive(Debug, Clone)]
pub struct Machine {
    pub(crate) topology: Topology,
    pub(crate) costs: Costs,
    pub(crate) places: Vec<Place>,
    /// CPUs of each LLC domain.
    pub(crate) domains: Vec<Vec<usize>>,
    /// The nearest NUMA node of each domain.
    pub(crate) node_of: Vec<usize>,
    /// The package of each NUMA node.
    pub(crate) package_of: Vec<usize>,
    pub(crate) llc_bytes: Vec<f64>,
    pub(crate) nodes: usize,
}

impl Machine {
    /// Builds the machine from a topology and its costs.
    pub fn new(topology: Topology, costs: Costs) -> Self {
        let index = |os| topology.cpus.iter().position(|cpu| cpu.os == os);
        let members = |cpus: &CpuSet| cpus.iter().filter_map(index).collect::<Vec<usize>>();
        let place = |(at, cpu): (usize, &usher_model::Cpu)| {
            let core = &topology.cores[cpu.core];
            let mut siblings = members(&core.cpus);
            siblings.retain(|&other| other != at);
            Place {
                domain: core.domain,
                package: topology.domains[core.domain].package,
                capacity: core.capacity,
                siblings,
            }
        };
        let places = topology.cpus.iter().enumerate().map(place).collect();
        let domains = topology.domains.iter();
        let domain_cpus = domains
            .clone()
            .map(|domain| members(&domain.cpus))
            .collect();
        let node_of: Vec<usize> = domains
            .clone()
            .map(|domain| domain.nodes.first().copied().unwrap_or(0))
            .collect();
        let nodes = topology.nodes.len().max(1);
        let package_of = (0..nodes).map(|node| {
            let at = node_of.iter().position(|&n| n == node);
            at.map_or(0, |domain| topology.domains[domain].package)
        });
        let package_of = package_of.collect();
        let bytes = |domain: &usher_model::Domain| {
            let known = domain.llc.map_or(0, |cache| cache.bytes);
            if known > 0 {
                known as f64
            } else {
                costs.llc_bytes
            }
        };
        let llc_bytes = domains.map(bytes).collect();
        Self {
            places,
            domains: domain_cpus,
            node_of,
            package_of,
            llc_bytes,
            nodes,
            topology,
            costs,
        }
    }

    /// Returns the costs of the hardware.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Returns the machine's topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the CPUs of a mask as a CPU set.
    pub(crate) fn cpus(&self, mask: &Mask) -> CpuSet {
        let cpus = self.topology.cpus.iter().enumerate();
        cpus.filter(|&(index, _)| mask.has(index))
            .map(|(_, cpu)| cpu.os)
            .collect()
    }

    /// Returns the mask of a CPU set.
    pub(crate) fn mask(&self, cpus: &CpuSet) -> Mask {
        let mut mask = Mask::new(self.places.len());
        for (index, cpu) in self.topology.cpus.iter().enumerate() {
            if cpus.contains(cpu.os) {
                mask.insert(index);
            }
        }
        mask
    }
}

/// A set of CPU indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mask {
    words: Vec<u64>,
}

impl Mask {
    pub fn new(cpus: usize) -> Self {
        Self {
            words: vec![0; cpus.div_ceil(64)],
        }
    }

    pub fn insert(&mut self, cpu: usize) {
        self.words[cpu / 64] |= 1 << (cpu % 64);
    }

    pub fn has(&self, cpu: usize) -> bool {
        self.words[cpu / 64] >> (cpu % 64) & 1 == 1
    }

    pub fn or(&self, other: &Self) -> Self {
        let pairs = self.words.iter().zip(&other.words);
        Self {
            words: pairs.map(|(a, b)| a | b).collect(),
        }
    }

    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    pub fn and(&self, other: &Self) -> Self {
        let pairs = self.words.iter().zip(&other.words);
        Self {
            words: pairs.map(|(a, b)| a & b).collect(),
        }
    }
}
