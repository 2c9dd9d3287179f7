// SPDX-License-Identifier: MIT OR Apache-2.0
//! Restricts a topology to a subset of its CPUs and renumbers the remaining cores, domains and
//! packages. A core, domain or package without a kept CPU is removed. NUMA nodes keep their
//! indices. The time is proportional to the number of CPUs, cores, domains, packages and nodes,
//! times the CPUs divided by 64. The caller ensures that at least one CPU is kept.

use crate::cpuset::CpuSet;
use crate::topology::{Core, Cpu, Domain, NumaNode, Package, Topology};

/// The CPUs that are kept, and the new index of each core, domain and package; `None`: the element
/// has no kept CPU and is removed.
pub(crate) struct RestrictedIndices {
    kept: CpuSet,
    cores: Vec<Option<usize>>,
    domains: Vec<Option<usize>>,
    packages: Vec<Option<usize>>,
}

impl RestrictedIndices {
    pub(crate) fn of(whole: &Topology, kept: CpuSet) -> Self {
        let is_kept = |cpus: &CpuSet| cpus.intersects(&kept);
        Self {
            cores: renumber(whole.cores.iter().map(|core| is_kept(&core.cpus))),
            domains: renumber(whole.domains.iter().map(|domain| is_kept(&domain.cpus))),
            packages: renumber(whole.packages.iter().map(|package| is_kept(&package.cpus))),
            kept,
        }
    }

    pub(crate) fn topology(&self, whole: &Topology) -> Topology {
        let node = |node: &NumaNode| NumaNode {
            cpus: node.cpus.and(&self.kept),
            ..node.clone()
        };
        Topology {
            name: whole.name.clone(),
            cpus: whole.cpus.iter().filter_map(|c| self.cpu(c)).collect(),
            cores: whole.cores.iter().filter_map(|c| self.core(c)).collect(),
            domains: whole
                .domains
                .iter()
                .filter_map(|d| self.domain(d))
                .collect(),
            packages: whole
                .packages
                .iter()
                .filter_map(|p| self.package(p))
                .collect(),
            nodes: whole.nodes.iter().map(node).collect(),
        }
    }

    fn cpu(&self, cpu: &Cpu) -> Option<Cpu> {
        let core = self.cores[cpu.core]?;
        let is_kept = self.kept.contains(cpu.os);
        is_kept.then_some(Cpu { os: cpu.os, core })
    }

    /// Returns the core with its new domain. The `?` never returns `None`: the domain of a core
    /// with a kept CPU has a kept CPU itself.
    fn core(&self, core: &Core) -> Option<Core> {
        let cpus = core.cpus.and(&self.kept);
        (!cpus.is_empty()).then_some(Core {
            cpus,
            domain: self.domains[core.domain]?,
            ..core.clone()
        })
    }

    fn domain(&self, domain: &Domain) -> Option<Domain> {
        let cpus = domain.cpus.and(&self.kept);
        let cores = domain.cores.iter().filter_map(|&core| self.cores[core]);
        (!cpus.is_empty()).then_some(Domain {
            cpus,
            cores: cores.collect(),
            package: self.packages[domain.package]?,
            ..domain.clone()
        })
    }

    fn package(&self, package: &Package) -> Option<Package> {
        let cpus = package.cpus.and(&self.kept);
        let domains = package.domains.iter().filter_map(|&d| self.domains[d]);
        let dies = package.dies.iter().map(|die| die.and(&self.kept));
        (!cpus.is_empty()).then_some(Package {
            cpus,
            domains: domains.collect(),
            dies: dies.filter(|die| !die.is_empty()).collect(),
            ..package.clone()
        })
    }
}

fn renumber(kept: impl Iterator<Item = bool>) -> Vec<Option<usize>> {
    kept.scan(0, |next, keep| {
        let id = *next;
        *next += usize::from(keep);
        Some(keep.then_some(id))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two packages, each with two domains of two cores with two hardware threads, numbered as
    /// Linux does: CPUs 0..8 are the first threads, 8..16 the second.
    fn machine() -> Topology {
        let threads = |cores: std::ops::Range<u32>| -> CpuSet {
            cores.flat_map(|core| [core, core + 8]).collect()
        };
        let core = |id: u32| Core {
            cpus: threads(id..id + 1),
            domain: id as usize / 2,
            capacity: 1.0,
        };
        let domain = |id: u32| Domain {
            cpus: threads(2 * id..2 * id + 2),
            cores: vec![2 * id as usize, 2 * id as usize + 1],
            package: id as usize / 2,
            nodes: vec![id as usize / 2],
            llc: None,
        };
        let package = |id: u32| Package {
            cpus: threads(4 * id..4 * id + 4),
            domains: vec![2 * id as usize, 2 * id as usize + 1],
            model: None,
            dies: (2 * id..2 * id + 2).map(|d| domain(d).cpus).collect(),
        };
        let node = |id: u32| NumaNode {
            os: id,
            cpus: threads(4 * id..4 * id + 4),
            bytes: 1 << 30,
        };
        Topology {
            name: "eight cores".to_owned(),
            cpus: (0..16)
                .map(|os| Cpu {
                    os,
                    core: os as usize % 8,
                })
                .collect(),
            cores: (0..8).map(core).collect(),
            domains: (0..4).map(domain).collect(),
            packages: (0..2).map(package).collect(),
            nodes: (0..2).map(node).collect(),
        }
    }

    #[test]
    fn removes_empty_parts_and_renumbers_the_rest() {
        let some: CpuSet = "3,6-7,14,99".parse().unwrap();
        let left = machine().restrict(&some).unwrap();
        assert_eq!(left.all_cpus().to_string(), "3,6-7,14");
        let cores: Vec<String> = left.cores.iter().map(|c| c.cpus.to_string()).collect();
        assert_eq!(cores, ["3", "6,14", "7"]);
        let domains: Vec<(String, usize)> = left
            .domains
            .iter()
            .map(|d| (d.cpus.to_string(), d.package))
            .collect();
        assert_eq!(domains, [("3".to_owned(), 0), ("6-7,14".to_owned(), 1)]);
        assert_eq!(left.packages[0].dies.len(), 1);
        assert_eq!(left.nodes.len(), 2, "memory stays where it is");
        let none = machine().restrict(&CpuSet::single(99)).unwrap_err();
        let reason = "none of the machine's CPUs 0-15 is among the allowed CPUs 99";
        assert_eq!(none.reason, reason);
    }

    proptest! {
        #[test]
        fn a_restricted_topology_is_consistent(cpus in 1u32..1 << 16) {
            let allowed: CpuSet = (0..16).filter(|cpu| cpus & (1 << cpu) != 0).collect();
            let whole = machine();
            let left = whole.restrict(&allowed).unwrap();
            prop_assert_eq!(left.check(), Ok(()));
            prop_assert_eq!(left.all_cpus(), allowed.clone());
            for cpu in allowed.iter() {
                let siblings = |t: &Topology| t.cores[t.cpu(cpu).unwrap().core].cpus.and(&allowed);
                prop_assert_eq!(siblings(&whole), siblings(&left));
            }
        }
    }
}
