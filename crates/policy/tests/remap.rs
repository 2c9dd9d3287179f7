// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that new seats are placed where the old seats were, without changes of the planner's
//! decisions.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use proptest::prelude::*;
use usher_model::{CpuSet, Plan, ProgramId, Seat, SeatMode, Topology};
use usher_policy::usher::remap::remap;

fn regular(packages: usize, domains: usize, cores: usize) -> Topology {
    common::regular(packages, domains, 1, cores)
}

#[test]
fn a_program_with_a_node_of_its_own_keeps_one() {
    // One package, two nodes of two domains of two cores.
    let topology = common::regular(1, 2, 2, 2);
    let new = seats(&[(1, "0-3"), (2, "4-5"), (3, "6-7")]);
    let old = seats(&[(1, "2-7"), (2, "0-1")]);
    let plan = remap(&topology, plan(&topology, &new), &old);
    let first: Vec<_> = plan.seats[0]
        .domains
        .iter()
        .map(|&d| &topology.domains[d].nodes)
        .collect();
    assert_eq!(first[0], first[1], "{plan:?}");
}

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn plan(topology: &Topology, seats: &BTreeMap<ProgramId, CpuSet>) -> Plan {
    let seat = |(&program, cpus): (&ProgramId, &CpuSet)| Seat {
        program,
        domains: topology.domains_in(cpus),
        cpus: cpus.clone(),
        ntt: None,
        mode: SeatMode::Seated,
    };
    Plan {
        seats: seats.iter().map(seat).collect(),
        ..Plan::default()
    }
}

fn seats(of: &[(u64, &str)]) -> BTreeMap<ProgramId, CpuSet> {
    of.iter()
        .map(|&(id, text)| (ProgramId(id), cpus(text)))
        .collect()
}

fn remapped(new: &[(u64, &str)], old: &[(u64, &str)]) -> Vec<String> {
    let topology = regular(2, 2, 2);
    let plan = remap(&topology, plan(&topology, &seats(new)), &seats(old));
    plan.seats
        .iter()
        .map(|seat| seat.cpus.to_string())
        .collect()
}

#[test]
fn programs_keep_their_seats() {
    let swapped = remapped(&[(1, "0-3"), (2, "4-7")], &[(1, "4-7"), (2, "0-3")]);
    assert_eq!(swapped, ["4-7", "0-3"]);
    let grown = remapped(&[(1, "0-5"), (2, "6-7")], &[(1, "2-3"), (2, "0-1")]);
    assert_eq!(grown, ["2-7", "0-1"]);
}

#[test]
fn programs_that_share_a_package_still_share_it() {
    let apart = remapped(&[(1, "0-1"), (2, "2-3")], &[(1, "0-1"), (2, "6-7")]);
    let both = cpus(&apart[0]).or(&cpus(&apart[1]));
    assert!(both == cpus("0-3") || both == cpus("4-7"), "{apart:?}");
}

#[test]
fn without_old_seats_the_plan_is_unchanged() {
    let new = [(1, "0-1"), (2, "2-7")];
    assert_eq!(remapped(&new, &[]), ["0-1", "2-7"]);
    assert_eq!(remapped(&new, &[(3, "6-7")]), ["0-1", "2-7"]);
    assert_eq!(remapped(&new, &new), ["0-1", "2-7"]);
}

#[test]
fn unequal_parts_are_not_exchanged() {
    let spec = vec![vec![vec![vec![1.0; 2]]], vec![vec![vec![1.0; 4]]]];
    let topology = common::machine(&spec, 1, 0);
    let new = seats(&[(1, "0-1"), (2, "2-5")]);
    let old = seats(&[(1, "2-5"), (2, "0-1")]);
    let planned = plan(&topology, &new);
    assert_eq!(remap(&topology, planned.clone(), &old), planned);
}

/// CPUs of seats that lie in domains of their programs' old seats.
fn overlapping_cpus(topology: &Topology, plan: &Plan, old: &BTreeMap<ProgramId, CpuSet>) -> usize {
    let each = plan
        .seats
        .iter()
        .filter_map(|seat| Some((seat, old.get(&seat.program)?)));
    let within = |(seat, old): (&Seat, &CpuSet)| -> usize {
        let domains = topology.domains.iter();
        domains
            .map(|d| seat.cpus.and(&d.cpus).len() * old.and(&d.cpus).len())
            .sum()
    };
    each.map(within).sum()
}

/// Assigns every domain to one of three programs or to none.
fn any_seats(domains: usize) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0..4u64, domains)
}

/// All permutations.
fn orders(items: &[usize]) -> Vec<Vec<usize>> {
    if items.is_empty() {
        return vec![vec![]];
    }
    let first = |(at, &item): (usize, &usize)| {
        let rest: Vec<usize> = [&items[..at], &items[at + 1..]].concat();
        let orders = orders(&rest).into_iter();
        orders
            .map(|order| [vec![item], order].concat())
            .collect::<Vec<_>>()
    };
    items.iter().enumerate().flat_map(first).collect()
}

/// All orders of the domains that keep packages and nodes together.
fn exchanges(packages: usize, nodes: usize, domains: usize) -> Vec<Vec<usize>> {
    let keeps = |order: &Vec<usize>, of: usize| {
        let mut groups = order.chunks(of);
        groups.all(|group| group.iter().all(|d| d / of == group[0] / of))
    };
    let all: Vec<usize> = (0..packages * nodes * domains).collect();
    let mut orders = orders(&all);
    orders.retain(|order| keeps(order, domains) && keeps(order, nodes * domains));
    orders
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_exchange_of_equal_parts_overlaps_more(
        shape in prop::sample::select(vec![(1, 1, 6), (1, 2, 3), (2, 1, 3), (3, 1, 2), (3, 2, 1), (1, 3, 2)]),
        new in any_seats(6),
        old in any_seats(6),
    ) {
        let (packages, nodes, domains) = shape;
        let topology = common::regular(packages, nodes, domains, 2);
        let seated = |owners: &[u64]| seated(&topology, owners);
        let old = seated(&old);
        let after = remap(&topology, plan(&topology, &seated(&new)), &old);
        let best = exchanges(packages, nodes, domains).into_iter().map(|order| {
            let mut moved = vec![0; new.len()];
            for (from, &to) in order.iter().enumerate() {
                moved[to] = new[from];
            }
            overlapping_cpus(&topology, &plan(&topology, &seated(&moved)), &old)
        });
        prop_assert_eq!(Some(overlapping_cpus(&topology, &after, &old)), best.max());
    }
}

/// Seats by the owner of each domain; 0: the domain has no owner.
fn seated(topology: &Topology, owners: &[u64]) -> BTreeMap<ProgramId, CpuSet> {
    let mut seats: BTreeMap<ProgramId, CpuSet> = BTreeMap::new();
    for (domain, &owner) in topology.domains.iter().zip(owners).filter(|(_, o)| **o > 0) {
        let seat = seats.entry(ProgramId(owner)).or_default();
        *seat = seat.or(&domain.cpus);
    }
    seats
}

proptest! {
    #[test]
    fn remapping_keeps_the_shape_of_the_plan(
        (packages, domains) in (1..4usize, 1..4usize),
        new in any_seats(9),
        old in any_seats(9),
    ) {
        let topology = regular(packages, domains, 2);
        let (new, old) = (seated(&topology, &new), seated(&topology, &old));
        let before = plan(&topology, &new);
        let after = remap(&topology, before.clone(), &old);
        let mut taken = CpuSet::new();
        for (was, is) in before.seats.iter().zip(&after.seats) {
            prop_assert_eq!(was.cpus.len(), is.cpus.len());
            prop_assert_eq!(&is.domains, &topology.domains_in(&is.cpus));
            prop_assert!(!is.cpus.intersects(&taken));
            taken = taken.or(&is.cpus);
            let spread = |seat: &Seat| {
                let mut counts: Vec<usize> = topology
                    .packages
                    .iter()
                    .map(|p| p.domains.iter().filter(|d| seat.domains.contains(d)).count())
                    .collect();
                counts.sort_unstable();
                counts
            };
            prop_assert_eq!(spread(was), spread(is));
        }
        prop_assert!(overlapping_cpus(&topology, &after, &old) >= overlapping_cpus(&topology, &before, &old));
    }
}
