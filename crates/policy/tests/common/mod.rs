// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fixtures of the planner's tests: machines built from nested lists of packages, nodes, domains
//! and cores, and requests with given curves.
#![allow(dead_code, clippy::unwrap_used)] // each test file uses a part; helpers of tests

use usher_model::{
    Cache, Core, Cpu, CpuSet, Curve, Domain, NumaNode, Package, ProgramId, Topology,
};
use usher_policy::seating::Request;

/// A domain: the capacity of each of its cores.
pub type DomainSpec = Vec<f64>;
/// A machine: a list of packages, which are lists of NUMA nodes, which are lists of domains.
pub type MachineSpec = Vec<Vec<Vec<DomainSpec>>>;

/// Builds a machine with `smt` hardware threads per core and, where `llc_bytes` is not 0, L3 caches
/// of that size.
pub fn machine(spec: &MachineSpec, smt: u32, llc_bytes: u64) -> Topology {
    let mut t = Topology {
        name: "test".to_owned(),
        cpus: vec![],
        cores: vec![],
        domains: vec![],
        packages: vec![],
        nodes: vec![],
    };
    for nodes in spec {
        let (first_cpu, first_domain) = (t.cpus.len() as u32, t.domains.len());
        for domains in nodes {
            let node_first = t.cpus.len() as u32;
            let node = t.nodes.len();
            for cores in domains {
                let domain_first = t.cpus.len() as u32;
                let core_first = t.cores.len();
                for &capacity in cores {
                    let os = t.cpus.len() as u32;
                    let core = t.cores.len();
                    t.cpus.extend((os..os + smt).map(|os| Cpu { os, core }));
                    t.cores.push(Core {
                        cpus: CpuSet::range(os, os + smt - 1),
                        domain: t.domains.len(),
                        capacity,
                    });
                }
                t.domains.push(Domain {
                    cpus: CpuSet::range(domain_first, t.cpus.len() as u32 - 1),
                    cores: (core_first..t.cores.len()).collect(),
                    package: t.packages.len(),
                    nodes: vec![node],
                    llc: (llc_bytes > 0).then_some(Cache {
                        level: 3,
                        bytes: llc_bytes,
                    }),
                });
            }
            t.nodes.push(NumaNode {
                os: node as u32,
                cpus: CpuSet::range(node_first, t.cpus.len() as u32 - 1),
                bytes: 0,
            });
        }
        let cpus = CpuSet::range(first_cpu, t.cpus.len() as u32 - 1);
        t.packages.push(Package {
            dies: vec![cpus.clone()],
            cpus,
            domains: (first_domain..t.domains.len()).collect(),
            model: None,
        });
    }
    t.check().unwrap();
    t
}

/// A machine of `packages` packages with `nodes` NUMA nodes each, `domains` domains per node and
/// `cores` cores per domain.
pub fn regular(packages: usize, nodes: usize, domains: usize, cores: usize) -> Topology {
    let spec = vec![vec![vec![vec![1.0; cores]; domains]; nodes]; packages];
    machine(&spec, 1, 0)
}

/// A request with this curve and default values.
pub fn request(id: u64, name: &str, curve: &[(u32, f64)]) -> Request {
    Request {
        id: ProgramId(id),
        name: name.to_owned(),
        curve: Curve::from_rates(&curve.iter().copied().collect()).unwrap(),
        weight: 1.0,
        spinners: 0,
        llc_bytes: None,
        bandwidth_gbps: None,
        bound_to: None,
        pinned: false,
    }
}
