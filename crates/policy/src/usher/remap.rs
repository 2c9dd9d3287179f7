// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moves new seats to the CPUs of the old seats, as far as equal parts of the machine permit.
//!
//! The planner decides how many domains each program gets and which programs share a package or a
//! NUMA node. On a machine with equal parts, many seatings are equally good. A program's memory is
//! near the CPUs on which the program ran: the seating that moves least is chosen.
//!
//! 1. The *overlap* of mapping domain `a` to an equal domain `b` counts the CPUs of new seats in
//!    `a` that would be in `b`, weighted by the CPUs of the same program's old seat in `b`.
//! 2. Larger parts (NUMA nodes, packages, the machine) are mapped by assigning their parts to one
//!    another, with the largest sum of overlaps (Kuhn-Munkres, cubic in the number of parts).
//! 3. Each CPU of a new seat is replaced by the CPU to which it is mapped.
//!
//! A seating is returned unchanged if no program has an old seat, or if no equal parts can be
//! mapped to all parts of the machine. For `D` domains and `p` programs, the time is of order D^3 +
//! D^2 p.

use std::collections::BTreeMap;

use pathfinding::kuhn_munkres::kuhn_munkres;
use pathfinding::matrix::Matrix;
use usher_model::{CpuSet, Plan, ProgramId, Topology};

/// Weight of mapping a part to an unequal part, which is less than the weight of any permitted
/// mapping.
const UNEQUAL: i64 = -1_000_000_000_000;

/// Returns `plan` with equal parts of the machine exchanged, by which the new seats are as near as
/// possible to the old seats `seats`.
pub fn remap(topology: &Topology, plan: Plan, seats: &BTreeMap<ProgramId, CpuSet>) -> Plan {
    if !plan
        .seats
        .iter()
        .any(|seat| seats.contains_key(&seat.program))
    {
        return plan;
    }
    let overlap = Overlap::new(topology, &plan, seats);
    let machine = machine(topology);
    let Some((_, exchanged)) = exchange(topology, &overlap, &machine, &machine) else {
        return plan;
    };
    let mut cpu_to = BTreeMap::new();
    for (from, to) in exchanged {
        let pairs = cpus_in_order(topology, from).zip(cpus_in_order(topology, to));
        cpu_to.extend(pairs);
    }
    let mut plan = plan;
    for seat in &mut plan.seats {
        let moved = seat
            .cpus
            .iter()
            .map(|cpu| cpu_to.get(&cpu).copied().unwrap_or(cpu));
        seat.cpus = moved.collect();
        seat.domains = topology.domains_in(&seat.cpus);
    }
    plan
}

/// A part of the machine: the whole machine, a package, the domains of a NUMA node in a package, or
/// a domain.
enum MachinePart {
    Domain(usize),
    Parts(Vec<MachinePart>),
}

fn machine(topology: &Topology) -> MachinePart {
    let package = |package: &usher_model::Package| {
        let mut nodes: BTreeMap<&[usize], Vec<MachinePart>> = BTreeMap::new();
        for &domain in &package.domains {
            let node = topology.domains[domain].nodes.as_slice();
            nodes
                .entry(node)
                .or_default()
                .push(MachinePart::Domain(domain));
        }
        MachinePart::Parts(nodes.into_values().map(MachinePart::Parts).collect())
    };
    MachinePart::Parts(topology.packages.iter().map(package).collect())
}

/// Returns the best mapping of part `from` to part `to`: its overlap, and its pairs of domains.
/// `None` if the parts are unequal.
fn exchange(
    topology: &Topology,
    overlap: &Overlap,
    from: &MachinePart,
    to: &MachinePart,
) -> Option<(i64, Vec<(usize, usize)>)> {
    match (from, to) {
        (&MachinePart::Domain(from), &MachinePart::Domain(to)) => {
            let kept = || (overlap.of(from, to), vec![(from, to)]);
            are_equal(topology, from, to).then(kept)
        }
        (MachinePart::Parts(from), MachinePart::Parts(to))
            if from.len() == to.len() && !from.is_empty() =>
        {
            let each = |one: &MachinePart| -> Vec<_> {
                let pair = |other: &MachinePart| exchange(topology, overlap, one, other);
                to.iter().map(pair).collect()
            };
            let pairs: Vec<Vec<_>> = from.iter().map(each).collect();
            let weights = Matrix::from_fn(from.len(), to.len(), |(i, j)| {
                pairs[i][j].as_ref().map_or(UNEQUAL, |&(kept, _)| kept)
            });
            let (_, assigned) = kuhn_munkres(&weights);
            let mut best = (0, Vec::new());
            for (i, &j) in assigned.iter().enumerate() {
                let (kept, domains) = pairs[i][j].as_ref()?;
                best.0 += kept;
                best.1.extend(domains);
            }
            Some(best)
        }
        _ => None,
    }
}

/// Whether two domains have the same cores and cache.
fn are_equal(topology: &Topology, a: usize, b: usize) -> bool {
    let (a, b) = (&topology.domains[a], &topology.domains[b]);
    let core = |&core: &usize| {
        let core = &topology.cores[core];
        (core.capacity.to_bits(), core.cpus.len())
    };
    a.nodes.len() == b.nodes.len()
        && a.llc.as_ref().map(|llc| llc.bytes) == b.llc.as_ref().map(|llc| llc.bytes)
        && a.cores.iter().map(core).eq(b.cores.iter().map(core))
}

/// For each program, the number of CPUs per domain in its new seat and in its old seat.
struct Overlap(Vec<(Vec<i64>, Vec<i64>)>);

impl Overlap {
    fn new(topology: &Topology, plan: &Plan, seats: &BTreeMap<ProgramId, CpuSet>) -> Self {
        let core_of = topology.cpus.iter().map(|cpu| (cpu.os, cpu.core));
        let core_of: BTreeMap<u32, usize> = core_of.collect();
        let counts = |cpus: &CpuSet| {
            let mut counts = vec![0; topology.domains.len()];
            for core in cpus.iter().filter_map(|cpu| core_of.get(&cpu)) {
                counts[topology.cores[*core].domain] += 1;
            }
            counts
        };
        let both = plan.seats.iter().filter_map(|seat| {
            let old = seats.get(&seat.program)?;
            Some((counts(&seat.cpus), counts(old)))
        });
        Self(both.collect())
    }

    /// Overlap if domain `from` is mapped to `to`: CPUs of new seats in `from`, each weighted by
    /// the CPUs of the program's old seat in `to`. Of equal overlaps, that of the planned domain
    /// counts as larger.
    fn of(&self, from: usize, to: usize) -> i64 {
        let each = self.0.iter().map(|(new, old)| new[from] * old[to]);
        2 * each.sum::<i64>() + i64::from(from == to)
    }
}

/// A domain's CPUs, core by core.
fn cpus_in_order(topology: &Topology, domain: usize) -> impl Iterator<Item = u32> + '_ {
    let cores = topology.domains[domain].cores.iter();
    cores.flat_map(|&core| topology.cores[core].cpus.iter())
}
