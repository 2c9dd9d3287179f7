// SPDX-License-Identifier: MIT OR Apache-2.0
//! Assembles separate facts about a machine (sets of CPUs with attributes) into a [`Topology`], by
//! set operations alone.
//!
//! The facts come from descriptions of any quality: levels may be missing, overlap or contradict
//! one another. The result is a consistent machine for any input, because each CPU is assigned to
//! exactly one core, each core to one domain, and each domain to one package. Larger sets are
//! unions of smaller sets and are never copied from the facts. The time grows with the total size
//! of the sets, and with the number of domains times the number of memory-only nodes.
//!
//! 1. *Cores* are taken from the facts; a CPU without a core becomes a core of its own.
//! 2. *Domains* group the cores with the same last-level cache. An L3 or larger cache forms a
//!    domain even for a single core. An L2 forms a domain only if at least two cores share it,
//!    because a private L2 shows nothing about larger caches that cores share. Cores without a
//!    cache that forms a domain are grouped by the smallest die, NUMA node or package that contains
//!    them. Cores outside of all dies, nodes and packages form one group. A group that spans
//!    packages is an error of the description, because no cache spans packages; the group is split
//!    between the packages. A group may span dies, as the L3 of a tiled package does.
//! 3. *NUMA nodes*: each CPU is owned by exactly one node, as in the kernel. Of the nodes near to
//!    the CPU, the node that is near to the fewest CPUs owns the CPU. A node that owns no CPUs is
//!    memory only. The nodes local to a domain are the owners of its CPUs, most CPUs first, then
//!    the memory-only nodes near to the domain. Memory that is equally near to all CPUs is local to
//!    no domain, unless a single node owns all CPUs.
//!
//! If several sets of one level contain a CPU, the last set owns the CPU. An input without CPUs
//! gives an empty machine, which [`Topology::check`] rejects.

use std::collections::BTreeMap;

use usher_model::{
    Cache, Core, CoreId, Cpu, CpuId, CpuSet, Domain, NodeId, NumaNode, Package, PackageId, Topology,
};

use crate::capacity;

/// A machine as separate facts, each about a set of CPUs.
#[derive(Debug, Clone, Default)]
pub(crate) struct HwlocFacts {
    /// Origin of the description.
    pub name: String,
    /// The logical CPUs in hardware order.
    pub pus: Vec<CpuId>,
    /// The cores in hardware order.
    pub cores: Vec<CpuSet>,
    /// Data and unified caches from level 2 up.
    pub caches: Vec<(Cache, CpuSet)>,
    /// The dies.
    pub dies: Vec<CpuSet>,
    /// The packages with the processor's name.
    pub packages: Vec<(CpuSet, Option<String>)>,
    /// The NUMA nodes.
    pub nodes: Vec<Node>,
    /// The kinds of cores.
    pub kinds: Vec<CoreKind>,
    /// CPUs that exist and are offline; in none of the other sets.
    pub offline: CpuSet,
    /// CPUs that the cgroup of the described process excludes.
    pub disallowed: CpuSet,
    /// Values of the description that are ignored, with the reasons; one line each.
    pub notes: Vec<String>,
}

/// A NUMA node as reported by hwloc.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub os: u32,
    /// The CPUs near to the node; several nodes may be near to one CPU.
    pub near: CpuSet,
    pub bytes: u64,
}

/// A kind of core with its attributes from the system.
#[derive(Debug, Clone)]
pub(crate) struct CoreKind {
    pub cpus: CpuSet,
    /// The rank of the kind as a file of hwloc gives it, larger for faster cores.
    pub efficiency: Option<u32>,
    pub infos: BTreeMap<String, String>,
}

/// The resource that the cores of a domain have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DomainResource {
    /// The cache with this index in [`HwlocFacts::caches`].
    Cache(usize),
    /// The die, NUMA node or package with this index in the list of all dies, then all nodes, then
    /// all packages.
    Place(usize),
    /// The whole machine.
    Machine,
}

/// For each CPU number, the index of the set that contains it.
struct CpuOwners(Vec<Option<usize>>);

impl CpuOwners {
    /// If sets overlap, the last set that contains a CPU owns it.
    fn new<'a>(sets: impl IntoIterator<Item = (usize, &'a CpuSet)>) -> Self {
        let mut owners = Vec::new();
        for (index, set) in sets {
            for cpu in set.iter() {
                let cpu = cpu as usize;
                if cpu >= owners.len() {
                    owners.resize(cpu + 1, None);
                }
                owners[cpu] = Some(index);
            }
        }
        Self(owners)
    }

    fn of(&self, cpu: CpuId) -> Option<usize> {
        self.0.get(cpu as usize).copied().flatten()
    }
}

/// Indices of keys, in the order of their first occurrence.
struct KeyIndices<K>(BTreeMap<K, usize>);

impl<K: Ord> KeyIndices<K> {
    fn new() -> Self {
        Self(BTreeMap::new())
    }

    fn index(&mut self, key: K) -> usize {
        let next = self.0.len();
        *self.0.entry(key).or_insert(next)
    }
}

/// Assembles the facts.
pub(crate) fn topology(mut parts: HwlocFacts) -> Topology {
    parts.nodes.sort_by_key(|node| node.os);
    let sets = cores(&parts);
    let bonds = bonds(&parts, &sets);
    let packages = packages(&parts, &sets);
    let capacities = capacities(&parts, &sets);

    let mut groups = KeyIndices::new();
    let domain_of: Vec<usize> = packages
        .of_core
        .iter()
        .zip(&bonds)
        .map(|(&package, &bond)| groups.index((package, bond)))
        .collect();
    let keys: BTreeMap<usize, (PackageId, DomainResource)> =
        groups.0.into_iter().map(|(k, d)| (d, k)).collect();

    let cores: Vec<Core> = sets
        .iter()
        .zip(domain_of)
        .zip(capacities)
        .map(|((cpus, domain), capacity)| Core {
            cpus: cpus.clone(),
            domain,
            capacity,
        })
        .collect();
    let domains = domains(&parts, &cores, keys.values().copied());
    let owners = node_owners(&parts.nodes);
    Topology {
        cpus: cpus(&cores),
        packages: packages.finish(&parts, &domains),
        domains: with_nodes(domains, &parts.nodes, &owners),
        nodes: nodes(&parts, &owners),
        name: parts.name,
        cores,
    }
}

/// The CPUs of each core, without duplicates or omissions.
fn cores(parts: &HwlocFacts) -> Vec<CpuSet> {
    let all: CpuSet = parts.pus.iter().copied().collect();
    let owners = CpuOwners::new(parts.cores.iter().enumerate());
    let mut groups = KeyIndices::new();
    let mut sets: Vec<CpuSet> = Vec::new();
    for &cpu in &parts.pus {
        // The key of a CPU without a core is the number of the CPU.
        let key = owners.of(cpu).map_or((1, cpu as usize), |core| (0, core));
        let core = groups.index(key);
        if core == sets.len() {
            sets.push(CpuSet::new());
        }
        sets[core].insert(cpu);
    }
    debug_assert_eq!(sets.iter().map(CpuSet::len).sum::<usize>(), all.len());
    sets
}

/// Returns, for each core, the index of the set that contains the core's first CPU.
fn core_owner<'a>(
    owners: &'a CpuOwners,
    cores: &'a [CpuSet],
) -> impl Iterator<Item = Option<usize>> {
    cores
        .iter()
        .map(|cpus| cpus.first().and_then(|cpu| owners.of(cpu)))
}

fn bonds(parts: &HwlocFacts, cores: &[CpuSet]) -> Vec<DomainResource> {
    let mut by_level: Vec<(usize, &(Cache, CpuSet))> = parts.caches.iter().enumerate().collect();
    by_level.sort_by_key(|(_, (cache, _))| cache.level);
    let farthest = CpuOwners::new(by_level.into_iter().map(|(i, (_, cpus))| (i, cpus)));
    let farthest: Vec<Option<usize>> = core_owner(&farthest, cores).collect();
    let mut sharers = vec![0; parts.caches.len()];
    for &cache in farthest.iter().flatten() {
        sharers[cache] += 1;
    }
    let makes_a_domain = |&cache: &usize| parts.caches[cache].0.level > 2 || sharers[cache] > 1;

    let mut places: Vec<(usize, &CpuSet)> = parts
        .dies
        .iter()
        .chain(parts.nodes.iter().map(|node| &node.near))
        .chain(parts.packages.iter().map(|(cpus, _)| cpus))
        .enumerate()
        .collect();
    places.sort_by_key(|(_, cpus)| std::cmp::Reverse(cpus.len()));
    let smallest = CpuOwners::new(places);
    farthest
        .iter()
        .zip(core_owner(&smallest, cores))
        .map(
            |(cache, place)| match (cache.filter(makes_a_domain), place) {
                (Some(cache), _) => DomainResource::Cache(cache),
                (None, Some(place)) => DomainResource::Place(place),
                (None, None) => DomainResource::Machine,
            },
        )
        .collect()
}

/// The packages with cores, in hardware order.
struct Packages {
    of_core: Vec<PackageId>,
    /// Index of each package in [`HwlocFacts::packages`]; `None` for the package of cores without a
    /// package.
    source: Vec<Option<usize>>,
}

fn packages(parts: &HwlocFacts, cores: &[CpuSet]) -> Packages {
    let owners = CpuOwners::new(parts.packages.iter().map(|(cpus, _)| cpus).enumerate());
    let mut groups = KeyIndices::new();
    let mut source = Vec::new();
    let of_core = core_owner(&owners, cores)
        .map(|owner| {
            let package = groups.index(owner);
            if package == source.len() {
                source.push(owner);
            }
            package
        })
        .collect();
    Packages { of_core, source }
}

impl Packages {
    fn finish(self, parts: &HwlocFacts, domains: &[Domain]) -> Vec<Package> {
        let dies = CpuOwners::new(parts.dies.iter().enumerate());
        let mut of_package: Vec<Vec<usize>> = vec![Vec::new(); self.source.len()];
        for (id, domain) in domains.iter().enumerate() {
            of_package[domain.package].push(id);
        }
        let package = |(source, ids): (Option<usize>, Vec<usize>)| {
            let cpus: CpuSet = ids.iter().flat_map(|&d| domains[d].cpus.iter()).collect();
            Package {
                domains: ids,
                model: source.and_then(|p| parts.packages[p].1.clone()),
                dies: split(&cpus, &dies),
                cpus,
            }
        };
        self.source
            .into_iter()
            .zip(of_package)
            .map(package)
            .collect()
    }
}

/// Splits a set by owner; the pieces are ordered by their smallest CPUs.
fn split(cpus: &CpuSet, owners: &CpuOwners) -> Vec<CpuSet> {
    let mut groups = KeyIndices::new();
    let mut pieces: Vec<CpuSet> = Vec::new();
    for cpu in cpus.iter() {
        let piece = groups.index(owners.of(cpu));
        if piece == pieces.len() {
            pieces.push(CpuSet::new());
        }
        pieces[piece].insert(cpu);
    }
    pieces
}

/// Returns the capacity of each core: the capacity of the core's fastest CPU, divided by the
/// capacity of the machine's fastest CPU.
fn capacities(parts: &HwlocFacts, cores: &[CpuSet]) -> Vec<f64> {
    let of_kind = capacity::of_kinds(&parts.kinds);
    let owners = CpuOwners::new(parts.kinds.iter().map(|kind| &kind.cpus).enumerate());
    let of_cpu = |cpu| owners.of(cpu).map_or(1.0, |kind| of_kind[kind]);
    let of_core = |cpus: &CpuSet| cpus.iter().map(of_cpu).fold(0.0, f64::max);
    let capacities: Vec<f64> = cores.iter().map(of_core).collect();
    let fastest = capacities.iter().copied().fold(0.0, f64::max);
    capacities
        .iter()
        .map(|capacity| capacity / fastest)
        .collect()
}

fn domains(
    parts: &HwlocFacts,
    cores: &[Core],
    keys: impl Iterator<Item = (PackageId, DomainResource)>,
) -> Vec<Domain> {
    let mut domains: Vec<Domain> = keys
        .map(|(package, bond)| Domain {
            cpus: CpuSet::new(),
            cores: Vec::new(),
            package,
            nodes: Vec::new(),
            llc: match bond {
                DomainResource::Cache(cache) => Some(parts.caches[cache].0),
                DomainResource::Place(_) | DomainResource::Machine => None,
            },
        })
        .collect();
    for (id, core) in cores.iter().enumerate() {
        domains[core.domain].cores.push(id);
        domains[core.domain].cpus.extend(core.cpus.iter());
    }
    domains
}

fn cpus(cores: &[Core]) -> Vec<Cpu> {
    let of_core = |(core, c): (CoreId, &Core)| -> Vec<Cpu> {
        c.cpus.iter().map(|os| Cpu { os, core }).collect()
    };
    let mut cpus: Vec<Cpu> = cores.iter().enumerate().flat_map(of_core).collect();
    cpus.sort_by_key(|cpu| cpu.os);
    cpus
}

/// Returns the node of each CPU. Of the nodes near to a CPU, the node that is near to the fewest
/// CPUs owns the CPU; of equal nodes, the first owns it.
fn node_owners(nodes: &[Node]) -> CpuOwners {
    let mut widest_first: Vec<(usize, &CpuSet)> =
        nodes.iter().map(|node| &node.near).enumerate().collect();
    widest_first.sort_by_key(|(id, near)| std::cmp::Reverse((near.len(), *id)));
    CpuOwners::new(widest_first)
}

fn nodes(parts: &HwlocFacts, owners: &CpuOwners) -> Vec<NumaNode> {
    let mut nodes: Vec<NumaNode> = parts
        .nodes
        .iter()
        .map(|node| NumaNode {
            os: node.os,
            cpus: CpuSet::new(),
            bytes: node.bytes,
        })
        .collect();
    for &cpu in &parts.pus {
        if let Some(node) = owners.of(cpu) {
            nodes[node].cpus.insert(cpu);
        }
    }
    nodes
}

fn with_nodes(mut domains: Vec<Domain>, nodes: &[Node], owners: &CpuOwners) -> Vec<Domain> {
    let all: usize = domains.iter().map(|domain| domain.cpus.len()).sum();
    let owning: std::collections::BTreeSet<usize> = owners.0.iter().copied().flatten().collect();
    let memory_only: Vec<NodeId> = (0..nodes.len())
        .filter(|node| !owning.contains(node))
        .filter(|&node| nodes[node].near.len() < all || owning.len() == 1)
        .collect();
    for domain in &mut domains {
        let mut own: BTreeMap<NodeId, usize> = BTreeMap::new();
        for node in domain.cpus.iter().filter_map(|cpu| owners.of(cpu)) {
            *own.entry(node).or_default() += 1;
        }
        let mut near: Vec<NodeId> = own.keys().copied().collect();
        near.sort_by_key(|node| std::cmp::Reverse(own[node]));
        let near_to_domain = |&node: &NodeId| nodes[node].near.intersects(&domain.cpus);
        let mut memory: Vec<NodeId> = memory_only.iter().copied().filter(near_to_domain).collect();
        memory.sort_by_key(|&node| nodes[node].near.len());
        domain.nodes = near.into_iter().chain(memory).collect();
    }
    domains
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cpu_set() -> impl Strategy<Value = CpuSet> {
        prop::collection::vec(0u32..40, 0..12).prop_map(|cpus| cpus.into_iter().collect())
    }

    fn sets() -> impl Strategy<Value = Vec<CpuSet>> {
        prop::collection::vec(cpu_set(), 0..6)
    }

    /// Generates facts of all kinds that may contradict one another.
    fn parts() -> impl Strategy<Value = HwlocFacts> {
        let caches = prop::collection::vec((2u8..5, cpu_set()), 0..6);
        let packages = prop::collection::vec((cpu_set(), any::<Option<String>>()), 0..4);
        let nodes = prop::collection::vec((0u32..9, cpu_set()), 0..4);
        let kinds = prop::collection::vec((cpu_set(), 0u32..3000), 0..4);
        let first = (cpu_set(), sets(), sets(), caches);
        (first, packages, nodes, kinds).prop_map(
            |((cpus, cores, dies, caches), packages, nodes, kinds)| {
                let cache = |(level, cpus)| {
                    (
                        Cache {
                            level,
                            bytes: 1 << 20,
                        },
                        cpus,
                    )
                };
                let node = |(os, near)| Node { os, near, bytes: 0 };
                let kind = |(cpus, speed): (CpuSet, u32)| CoreKind {
                    cpus,
                    efficiency: None,
                    infos: [("FrequencyMaxMHz".to_owned(), speed.to_string())].into(),
                };
                HwlocFacts {
                    name: "odd".to_owned(),
                    pus: cpus.or(&CpuSet::single(7)).iter().collect(),
                    cores,
                    caches: caches.into_iter().map(cache).collect(),
                    dies,
                    packages,
                    nodes: nodes.into_iter().map(node).collect(),
                    kinds: kinds.into_iter().map(kind).collect(),
                    ..HwlocFacts::default()
                }
            },
        )
    }

    proptest! {
        #[test]
        fn any_facts_give_a_consistent_machine(parts in parts()) {
            let all: CpuSet = parts.pus.iter().copied().collect();
            let machine = topology(parts);
            prop_assert_eq!(machine.check(), Ok(()));
            prop_assert_eq!(machine.all_cpus(), all);
            prop_assert!(machine.cores.iter().any(|core| core.capacity == 1.0));
            for package in &machine.packages {
                let dies: usize = package.dies.iter().map(CpuSet::len).sum();
                prop_assert_eq!(dies, package.cpus.len());
            }
        }
    }

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn described(cores: &[&str], caches: &[(u8, &str)], packages: &[&str]) -> Vec<String> {
        let parts = HwlocFacts {
            pus: cores
                .iter()
                .flat_map(|core| set(core).iter().collect::<Vec<_>>())
                .collect(),
            cores: cores.iter().map(|core| set(core)).collect(),
            caches: caches
                .iter()
                .map(|&(level, cpus)| (Cache { level, bytes: 0 }, set(cpus)))
                .collect(),
            packages: packages.iter().map(|cpus| (set(cpus), None)).collect(),
            ..HwlocFacts::default()
        };
        let domains = topology(parts).domains;
        domains
            .iter()
            .map(|domain| domain.cpus.to_string())
            .collect()
    }

    #[test]
    fn last_shared_cache_forms_the_domain() {
        let cores = ["0", "1", "2", "3"];
        let l2 = [(2, "0-1"), (2, "2-3")];
        assert_eq!(described(&cores, &l2, &["0-3"]), ["0-1", "2-3"]);
        let both = [(3, "0-3"), (2, "0-1"), (2, "2-3")];
        assert_eq!(described(&cores, &both, &["0-3"]), ["0-3"]);
    }

    #[test]
    fn private_l2_is_no_domain_but_private_l3_is() {
        let cores = ["0", "1", "2"];
        let private = |level| [(level, "0"), (level, "1"), (level, "2")];
        assert_eq!(described(&cores, &private(2), &["0-2"]), ["0-2"]);
        assert_eq!(described(&cores, &private(3), &["0-2"]), ["0", "1", "2"]);
        // Each core has an L2 of its own: the hardware threads of one core do not count as sharing
        // it.
        assert_eq!(
            described(&["0-1", "2-3"], &[(2, "0-1"), (2, "2-3")], &["0-3"]),
            ["0-3"]
        );
    }

    #[test]
    fn cores_without_a_shared_cache_form_a_domain_beside_others() {
        // The machine has low-power cores of a tiled package: private L2, no L3.
        let cores = ["0-1", "2-3", "4", "5", "6"];
        let caches = [(3, "0-3"), (2, "4-5"), (2, "6")];
        assert_eq!(described(&cores, &caches, &["0-6"]), ["0-3", "4-5", "6"]);
    }

    #[test]
    fn cache_that_spans_packages_is_split() {
        let cores = ["0", "1", "2", "3"];
        assert_eq!(
            described(&cores, &[(3, "0-3")], &["0,2", "1,3"]),
            ["0,2", "1,3"]
        );
        assert_eq!(described(&cores, &[], &[]), ["0-3"]);
    }
}
