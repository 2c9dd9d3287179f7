// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine as plain data: packages, NUMA nodes, last-level-cache domains, cores and logical
//! CPUs.
//!
//! A *domain* is the unit of seating (paper 1, section 3.1.1): the cores that share one last-level
//! cache (LLC). If the description of a machine contains no shared cache, the domain is the
//! smallest of these units that the description contains: die, NUMA node, package, machine. Crate
//! `topology` builds a [`Topology`]; this module defines the type, and computes sets of CPUs, cores
//! and domains of a machine.
//!
//! Capacities are relative to the fastest core, in (0, 1]; sums of capacities are in cores. For `N`
//! CPUs, a set of the cores in a CPU set and [`Topology::check`] take time of order cores x N / 64.
//! [`Topology::restrict`] fails if no CPU remains. The indices in the types are valid only within
//! one topology: [`Topology::restrict`] renumbers cores, domains and packages.

#[cfg(feature = "full")]
use schemars::JsonSchema;
#[cfg(feature = "full")]
use serde::{Deserialize, Serialize};

use crate::cpuset::{CpuId, CpuSet};
use crate::restrict::RestrictedIndices;

/// Index of a core in [`Topology::cores`].
pub type CoreId = usize;
/// Index of a domain in [`Topology::domains`].
pub type DomainId = usize;
/// Index of a package in [`Topology::packages`].
pub type PackageId = usize;
/// Index of a NUMA node in [`Topology::nodes`].
pub type NodeId = usize;

/// A logical CPU (hwloc: PU).
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "full", derive(Serialize, Deserialize, JsonSchema))]
pub struct Cpu {
    /// The operating system's number.
    pub os: CpuId,
    /// The core of which this CPU is a hardware thread.
    pub core: CoreId,
}

/// A physical core.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "full", derive(Serialize, Deserialize, JsonSchema))]
pub struct Core {
    /// Hardware threads of the core.
    pub cpus: CpuSet,
    /// The domain of the core.
    pub domain: DomainId,
    /// Speed of the core relative to the fastest core of the machine, in (0, 1].
    pub capacity: f64,
}

/// A cache, by level and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "full", derive(Serialize, Deserialize, JsonSchema))]
pub struct Cache {
    /// Level of the cache: 2 for an L2, 3 for an L3, and so on.
    pub level: u8,
    /// Capacity in bytes; 0 if unknown.
    pub bytes: u64,
}

/// The cores that share one last-level cache: the unit of seating.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "full", derive(Serialize, Deserialize, JsonSchema))]
pub struct Domain {
    /// Logical CPUs of all cores of the domain.
    pub cpus: CpuSet,
    /// Cores of the domain, in rising order.
    pub cores: Vec<CoreId>,
    /// The package of the domain.
    pub package: PackageId,
    /// NUMA nodes (memory controllers) that are local to the domain; the first is the nearest.
    pub nodes: Vec<NodeId>,
    /// Last-level cache that the cores share, if known.
    pub llc: Option<Cache>,
}

/// A processor package (socket).
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "full", derive(Serialize, Deserialize, JsonSchema))]
pub struct Package {
    /// Logical CPUs of the package.
    pub cpus: CpuSet,
    /// Domains of the package, in rising order.
    pub domains: Vec<DomainId>,
    /// The processor's name, if known.
    pub model: Option<String>,
    /// CPUs of each die in the package; a single entry if the dies are unknown.
    pub dies: Vec<CpuSet>,
}

/// A NUMA node: memory with its controller.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "full", derive(Serialize, Deserialize, JsonSchema))]
pub struct NumaNode {
    /// The operating system's number.
    pub os: u32,
    /// Logical CPUs local to the node; empty for memory without CPUs.
    pub cpus: CpuSet,
    /// Size of the memory in bytes; 0 if unknown.
    pub bytes: u64,
}

/// A machine.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "full", derive(Serialize, Deserialize, JsonSchema))]
pub struct Topology {
    /// Origin of the topology, for people: a host name, a file, a description.
    pub name: String,
    /// Logical CPUs, by rising OS number.
    pub cpus: Vec<Cpu>,
    /// Physical cores, in the order of the hardware.
    pub cores: Vec<Core>,
    /// LLC domains, in the order of the hardware.
    pub domains: Vec<Domain>,
    /// Packages, in the order of the hardware.
    pub packages: Vec<Package>,
    /// NUMA nodes, by rising OS number.
    pub nodes: Vec<NumaNode>,
}

/// An inconsistency in a topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the topology '{name}' is invalid: {reason}")]
pub struct InconsistentTopology {
    /// The name of the topology, as in [`Topology::name`].
    pub name: String,
    /// The inconsistency.
    pub reason: String,
}

impl Topology {
    /// All logical CPUs.
    pub fn all_cpus(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.os).collect()
    }

    /// Returns the logical CPU with this OS number.
    pub fn cpu(&self, os: CpuId) -> Option<&Cpu> {
        let at = self.cpus.binary_search_by_key(&os, |cpu| cpu.os).ok()?;
        self.cpus.get(at)
    }

    /// Returns the logical CPUs of the given cores.
    pub fn cpus_of_cores(&self, cores: impl IntoIterator<Item = CoreId>) -> CpuSet {
        let mut set = CpuSet::new();
        for core in cores {
            set.extend(self.cores[core].cpus.iter());
        }
        set
    }

    /// Cores of which at least one hardware thread is in the set, in rising order.
    pub fn cores_in(&self, cpus: &CpuSet) -> Vec<CoreId> {
        let of_cpu = |os| Some(self.cpu(os)?.core);
        let mut cores: Vec<CoreId> = cpus.iter().filter_map(of_cpu).collect();
        cores.sort_unstable();
        cores.dedup();
        cores
    }

    /// Domains of which at least one CPU is in the set, in rising order.
    pub fn domains_in(&self, cpus: &CpuSet) -> Vec<DomainId> {
        let of_cpu = |os| Some(self.cores[self.cpu(os)?.core].domain);
        let mut domains: Vec<DomainId> = cpus.iter().filter_map(of_cpu).collect();
        domains.sort_unstable();
        domains.dedup();
        domains
    }

    /// Sum of the capacities of the cores with a CPU in `cpus`. If all cores have the same speed,
    /// the sum is the number of cores.
    pub fn capacity_of(&self, cpus: &CpuSet) -> f64 {
        self.cores_in(cpus)
            .into_iter()
            .map(|core| self.cores[core].capacity)
            .sum()
    }

    /// Returns a copy of the topology without the CPUs outside of `allowed`, such as offline or
    /// forbidden CPUs. Cores, domains and packages without a remaining CPU are removed.
    ///
    /// # Errors
    /// Returns an error if no CPU remains.
    pub fn restrict(&self, allowed: &CpuSet) -> Result<Self, InconsistentTopology> {
        let kept = self.all_cpus().and(allowed);
        if kept.is_empty() {
            let reason = format!(
                "none of the machine's CPUs {} is among the allowed CPUs {allowed}",
                self.all_cpus()
            );
            return Err(InconsistentTopology {
                name: self.name.clone(),
                reason,
            });
        }
        Ok(RestrictedIndices::of(self, kept).topology(self))
    }

    /// Checks that the parts of the topology agree: every CPU is in exactly one core, every core in
    /// exactly one domain, and every domain in exactly one package. Capacities must be in (0, 1],
    /// and indices in range.
    ///
    /// # Errors
    /// Returns the first inconsistency found.
    pub fn check(&self) -> Result<(), InconsistentTopology> {
        self.inconsistency().map_or(Ok(()), |reason| {
            Err(InconsistentTopology {
                name: self.name.clone(),
                reason,
            })
        })
    }

    fn inconsistency(&self) -> Option<String> {
        let all = self.all_cpus();
        if all.is_empty() {
            return Some("the machine has no CPU".to_owned());
        }
        if all.len() != self.cpus.len() || !self.cpus.is_sorted_by_key(|cpu| cpu.os) {
            return Some(
                "the CPUs of the machine must be listed in rising order, each once".to_owned(),
            );
        }
        let levels = [
            (
                "cores",
                self.cores.iter().map(|c| &c.cpus).collect::<Vec<_>>(),
            ),
            ("domains", self.domains.iter().map(|d| &d.cpus).collect()),
            ("packages", self.packages.iter().map(|p| &p.cpus).collect()),
        ];
        for (level, parts) in levels {
            if !partitions(&all, &parts) {
                return Some(format!(
                    "the {level} of the machine do not contain every CPU exactly once"
                ));
            }
        }
        if let Some(core) = self
            .cores
            .iter()
            .find(|c| !(c.capacity > 0.0 && c.capacity <= 1.0))
        {
            return Some(format!(
                "the core with CPUs {} has capacity {}, but a capacity must be greater than 0 and \
                 at most 1",
                core.cpus, core.capacity
            ));
        }
        self.wrong_index()
    }

    /// Describes the first index that refers to the wrong element.
    fn wrong_index(&self) -> Option<String> {
        let cpu = self.cpus.iter().find(|c| {
            self.cores
                .get(c.core)
                .is_none_or(|core| !core.cpus.contains(c.os))
        });
        if let Some(cpu) = cpu {
            return Some(format!(
                "CPU {} refers to a core that does not contain this CPU",
                cpu.os
            ));
        }
        if let Some(id) = unlisted(
            &self
                .cores
                .iter()
                .map(|core| core.domain)
                .collect::<Vec<_>>(),
            self.domains.iter().map(|domain| &domain.cores[..]),
        ) {
            return Some(format!(
                "core {id} refers to a domain that does not contain this core"
            ));
        }
        if let Some(id) = unlisted(
            &self
                .domains
                .iter()
                .map(|domain| domain.package)
                .collect::<Vec<_>>(),
            self.packages.iter().map(|package| &package.domains[..]),
        ) {
            return Some(format!(
                "domain {id} refers to a package that does not contain this domain"
            ));
        }
        for (id, domain) in self.domains.iter().enumerate() {
            if domain.nodes.iter().any(|&node| node >= self.nodes.len()) {
                return Some(format!(
                    "domain {id} refers to a NUMA node that does not exist"
                ));
            }
        }
        None
    }
}

/// Returns the first part that its owner does not list. `owner_of` has the owner of each part, and
/// `lists` has the parts of each owner.
fn unlisted<'a>(owner_of: &[usize], lists: impl Iterator<Item = &'a [usize]>) -> Option<usize> {
    let mut listed = vec![false; owner_of.len()];
    for (owner, parts) in lists.enumerate() {
        for &part in parts {
            if owner_of.get(part) == Some(&owner) {
                listed[part] = true;
            }
        }
    }
    listed.iter().position(|listed| !listed)
}

fn partitions(all: &CpuSet, parts: &[&CpuSet]) -> bool {
    let union = parts.iter().fold(CpuSet::new(), |set, part| set.or(part));
    let sum: usize = parts.iter().map(|part| part.len()).sum();
    union == *all && sum == all.len() && parts.iter().all(|part| !part.is_empty())
}
