// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine that is simulated: a topology, flattened for speed, and what
//! its hardware costs.

use serde::{Deserialize, Serialize};
use usher_model::{CpuSet, Topology};

/// What the hardware costs and can carry. Sizes in bytes, times in
/// nanoseconds, bandwidths in GB/s (which are bytes a nanosecond).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// A switch from one thread to another on one CPU.
    pub switch_ns: f64,
    /// Refilling the private caches of a thread that comes from another core
    /// of its domain, or after other threads ran on its core.
    pub private_refill_ns: f64,
    /// Bandwidth at which a domain's cache fills: a thread that comes from
    /// another domain fetches its own part of the working set at this rate.
    pub refill_gbps: f64,
    /// Cache of a domain where the topology does not say.
    pub llc_bytes: f64,
    /// Bandwidth of each NUMA node.
    pub node_gbps: f64,
    /// Latency of another node's memory relative to one's own, in the same
    /// package and in another.
    pub near_factor: f64,
    /// See `near_factor`.
    pub far_factor: f64,
    /// How much slower a package's cores run when `turbo_cores` more than one
    /// of them are busy than when one is; 0: no slower.
    pub turbo_loss: f64,
    /// See `turbo_loss`.
    pub turbo_cores: f64,
    /// Speed of a core, and latency of memory, relative to those of the machine
    /// that the models of programs are given for ([`Costs::xeon`]).
    pub core_speed: f64,
    /// See `core_speed`.
    pub latency: f64,
}

impl Default for Costs {
    /// The machine of paper 1 (Opteron 6172): switch and refill as measured with
    /// lmbench on servers of its time; the bandwidth of a die (it has two
    /// channels of DDR3-1333, 21 GB/s at their peak) is what gives the paper's
    /// figures for its sample mix (`examples/fit_sample.rs`).
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
    /// Two packages of 12 cores of 2013 (Xeon E5-2695 v2), the machine of the
    /// published speed-ups that the programs are fitted to. What a loaded package
    /// loses is fitted to all programs' curves together and stands for more than
    /// the clock; the rest is from data sheets, rounded.
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

    /// One package of 64 slow cores with high-bandwidth memory of 2016 (Xeon
    /// Phi 7210), the machine that they are checked on.
    /// What its clock loses is read off the curve of blackscholes, which shares
    /// nothing; the rest is from data sheets, rounded.
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

/// A CPU, by index in the order of the topology.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub domain: usize,
    pub package: usize,
    pub capacity: f64,
    /// The other hardware threads of its core.
    pub siblings: Vec<usize>,
}

/// A machine to simulate.
#[derive(Debug, Clone)]
pub struct Machine {
    pub(crate) topology: Topology,
    pub(crate) costs: Costs,
    pub(crate) places: Vec<Place>,
    /// CPUs of each domain.
    pub(crate) domains: Vec<Vec<usize>>,
    /// The memory node that each domain is nearest to.
    pub(crate) node_of: Vec<usize>,
    /// The package that each node is in.
    pub(crate) package_of: Vec<usize>,
    pub(crate) llc_bytes: Vec<f64>,
    pub(crate) nodes: usize,
}

impl Machine {
    /// That topology with these costs.
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

    /// What its hardware costs.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// The topology that it was made of.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The CPUs of a mask.
    pub(crate) fn cpus(&self, mask: &Mask) -> CpuSet {
        let cpus = self.topology.cpus.iter().enumerate();
        cpus.filter(|&(index, _)| mask.has(index))
            .map(|(_, cpu)| cpu.os)
            .collect()
    }

    /// Indices of the CPUs in a set.
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

    /// The only one in it.
    pub fn only(&self) -> Option<usize> {
        let first = self.words.iter().position(|&word| word != 0)?;
        (self.len() == 1).then(|| first * 64 + self.words[first].trailing_zeros() as usize)
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
