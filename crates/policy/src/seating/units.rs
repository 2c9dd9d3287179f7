// SPDX-License-Identifier: MIT OR Apache-2.0
//! The units of an allocation: whole domains or single cores, by kind.
//!
//! Units of one kind (equal capacity, equal core count, usable by the same programs) are
//! interchangeable for every prediction. The planner therefore counts units per kind and leaves the
//! choice of the unit to the placement (module `place`).
//!
//! Capacities are in cores: the sum of the relative speeds of a unit's cores. Two capacities count
//! as equal if they are equal in billionths. A pool of `U` units in `K` classes, for `n` programs of
//! which `b` are bound to CPUs, is built in time of order U (b + log K) + K n.

use std::collections::BTreeMap;

use usher_model::{CoreId, CpuSet, Domain, DomainId, NodeId, PackageId, Topology};

use super::candidate::SeatCandidate;

/// Number of units of each class for each candidate: `allotment[candidate][class]`.
pub(super) type Allotment = Vec<Vec<u32>>;

/// One domain or one core.
#[derive(Debug)]
pub(super) struct Unit {
    pub cpus: CpuSet,
    pub package: PackageId,
    pub node: Option<NodeId>,
    pub domain: DomainId,
    pub class: usize,
}

/// A class of interchangeable units: equal capacity, equal number of cores, usable by the same
/// candidates.
#[derive(Debug)]
pub(super) struct UnitClass {
    /// Capacity of one unit.
    pub capacity: f64,
    /// Cores of one unit.
    pub cores: u32,
    /// Number of units.
    pub supply: u32,
    /// For each candidate, whether it may use the units of this class.
    pub open_to: Vec<bool>,
}

/// All units of an allocation.
#[derive(Debug, Default)]
pub(super) struct UnitPool {
    pub units: Vec<Unit>,
    pub classes: Vec<UnitClass>,
}

/// Key of a class of units: capacity in billionths, number of cores, and for each bound candidate
/// whether it may use the unit.
type UnitKind = (u64, u32, Vec<bool>);

impl UnitPool {
    /// Creates the pool of whole LLC domains.
    pub fn of_domains(machine: &Topology, candidates: &[SeatCandidate<'_>]) -> Self {
        Self::gather(machine, candidates, |domain| vec![domain.cores.clone()])
    }

    /// Creates the pool of whole cores. The hardware threads of a core are never separated.
    pub fn of_cores(machine: &Topology, candidates: &[SeatCandidate<'_>]) -> Self {
        Self::gather(machine, candidates, |domain| {
            domain.cores.iter().map(|&core| vec![core]).collect()
        })
    }

    /// Number of units of each class.
    pub fn supply(&self) -> Vec<u32> {
        self.classes.iter().map(|class| class.supply).collect()
    }

    fn gather(
        machine: &Topology,
        candidates: &[SeatCandidate<'_>],
        cut: impl Fn(&Domain) -> Vec<Vec<CoreId>>,
    ) -> Self {
        let mut pool = Self::default();
        let mut kinds: BTreeMap<UnitKind, usize> = BTreeMap::new();
        let is_bound = |&index: &usize| candidates[index].bound.is_some();
        let bound: Vec<usize> = (0..candidates.len()).filter(is_bound).collect();
        for (domain, it) in machine.domains.iter().enumerate() {
            for cores in cut(it) {
                let cpus = machine.cpus_of_cores(cores.iter().copied());
                let capacity: f64 = cores.iter().map(|&c| machine.cores[c].capacity).sum();
                let open_to = bound.iter().map(|&index| candidates[index].may_use(&cpus));
                let kind = (
                    (capacity * 1e9).round() as u64,
                    cores.len() as u32,
                    open_to.collect(),
                );
                let class = *kinds.entry(kind).or_insert(pool.classes.len());
                if class == pool.classes.len() {
                    pool.classes.push(UnitClass {
                        capacity,
                        cores: cores.len() as u32,
                        supply: 0,
                        open_to: candidates.iter().map(|g| g.may_use(&cpus)).collect(),
                    });
                }
                pool.classes[class].supply += 1;
                pool.units.push(Unit {
                    cpus,
                    package: it.package,
                    node: it.nodes.first().copied(),
                    domain,
                    class,
                });
            }
        }
        pool
    }
}
