// SPDX-License-Identifier: MIT OR Apache-2.0
//! New seats where the old ones were, as far as the machine allows.
//!
//! The planner decides who gets how many domains and who shares a package
//! with whom; on a machine of equal parts many seatings do that equally well.
//! A program's memory lies where it ran, so of these the one is taken that
//! moves the least: packages and the domains in them are renamed, equal ones
//! for equal ones, so that most CPUs of new seats are in domains of old ones
//! (two nested assignment problems).

use std::collections::BTreeMap;

use pathfinding::kuhn_munkres::kuhn_munkres;
use pathfinding::matrix::Matrix;
use usher_model::{CpuSet, Plan, ProgramId, Topology};

/// No exchange of unlike parts is worth so much.
const UNLIKE: i64 = -1_000_000_000_000;

/// The plan with equal parts of the machine exchanged so that seats stay
/// where these were.
pub fn stay(topology: &Topology, plan: Plan, seats: &BTreeMap<ProgramId, CpuSet>) -> Plan {
    let known = |seat: &&usher_model::Seat| seats.contains_key(&seat.program);
    if topology.packages.is_empty() || !plan.seats.iter().any(|seat| known(&seat)) {
        return plan;
    }
    let to = exchange(topology, &plan, seats);
    let mut cpu_to = BTreeMap::new();
    for (from, &to) in to.iter().enumerate() {
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

/// The domain that takes each one's place.
fn exchange(topology: &Topology, plan: &Plan, seats: &BTreeMap<ProgramId, CpuSet>) -> Vec<usize> {
    let stays = |from: usize, to: usize| match alike(topology, from, to) {
        true => overlap(topology, plan, seats, (from, to)),
        false => UNLIKE,
    };
    // Inside each pair of packages the best exchange of their domains.
    let inside = |from: usize, to: usize| {
        let (from, to) = (
            &topology.packages[from].domains,
            &topology.packages[to].domains,
        );
        (from.len() == to.len() && !from.is_empty())
            .then(|| assign(from.len(), |i, j| stays(from[i], to[j])))
    };
    let packages = topology.packages.len();
    let (_, package_to) = assign(packages, |i, j| inside(i, j).map_or(UNLIKE, |(sum, _)| sum));
    let mut domain_to: Vec<usize> = (0..topology.domains.len()).collect();
    for (from, &to) in package_to.iter().enumerate() {
        let Some((_, exchanged)) = inside(from, to) else {
            continue;
        };
        for (i, &j) in exchanged.iter().enumerate() {
            domain_to[topology.packages[from].domains[i]] = topology.packages[to].domains[j];
        }
    }
    // Nothing is exchanged rather than anything for something unlike it.
    let sound = |(from, &to): (usize, &usize)| alike(topology, from, to);
    match domain_to.iter().enumerate().all(sound) {
        true => domain_to,
        false => (0..topology.domains.len()).collect(),
    }
}

/// The assignment with the greatest sum.
fn assign(size: usize, weight: impl Fn(usize, usize) -> i64) -> (i64, Vec<usize>) {
    let weights = Matrix::from_fn(size, size, |(row, column)| weight(row, column));
    kuhn_munkres(&weights)
}

/// Whether two domains have the same cores and cache.
fn alike(topology: &Topology, a: usize, b: usize) -> bool {
    let (a, b) = (&topology.domains[a], &topology.domains[b]);
    let cores = |domain: &usher_model::Domain| -> Vec<(u64, usize)> {
        let cores = domain.cores.iter().map(|&core| &topology.cores[core]);
        cores
            .map(|core| (core.capacity.to_bits(), core.cpus.len()))
            .collect()
    };
    a.nodes.len() == b.nodes.len()
        && a.llc.as_ref().map(|llc| llc.bytes) == b.llc.as_ref().map(|llc| llc.bytes)
        && cores(a) == cores(b)
}

/// CPUs of new seats in one domain, each by how many of its program's old ones
/// are in the other; of equals what stays as planned.
fn overlap(
    topology: &Topology,
    plan: &Plan,
    seats: &BTreeMap<ProgramId, CpuSet>,
    (from, to): (usize, usize),
) -> i64 {
    let within =
        |cpus: &CpuSet, domain: usize| cpus.and(&topology.domains[domain].cpus).len() as i64;
    let each = plan.seats.iter().filter_map(|seat| {
        let old = seats.get(&seat.program)?;
        Some(within(&seat.cpus, from) * within(old, to))
    });
    2 * each.sum::<i64>() + i64::from(from == to)
}

/// A domain's CPUs, core by core.
fn cpus_in_order(topology: &Topology, domain: usize) -> impl Iterator<Item = u32> + '_ {
    let cores = topology.domains[domain].cores.iter();
    cores.flat_map(|&core| topology.cores[core].cpus.iter())
}
