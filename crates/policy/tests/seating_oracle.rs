// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seating compared with brute force: every allocation and every placement on small machines,
//! judged by a second implementation of the rules.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::collections::BTreeSet;

use common::{machine, regular, request};
use proptest::prelude::*;
use usher_model::{ProgramId, SeatMode, Topology};
use usher_policy::seating::{Request, Seating, seat, seat_within};

/// The rate on `cores` cores: linear between the points of the curve, proportional below the first
/// point, constant above the last point.
fn rate(r: &Request, cores: f64) -> f64 {
    let mut before = (0.0, 0.0);
    for p in r.curve.points() {
        if cores <= p.cores {
            return before.1 + (p.rate - before.1) * (cores - before.0) / (p.cores - before.0);
        }
        before = (p.cores, p.rate);
    }
    before.1
}

/// The best rate over 1 to N cores. All points are at whole cores and all capacities in these tests
/// are multiples of a half.
fn alone(r: &Request, all: f64) -> f64 {
    let steps = (all * 2.0) as u32;
    (1..=steps)
        .map(|n| rate(r, f64::from(n) / 2.0))
        .fold(0.0, f64::max)
}

/// Units (domains or cores) of the oracle.
struct Units {
    capacity: Vec<f64>,
    group: Vec<usize>,
}

fn domains(t: &Topology) -> Units {
    let capacity = |d: &usize| t.capacity_of(&t.domains[*d].cpus);
    let all: Vec<usize> = (0..t.domains.len()).collect();
    Units {
        capacity: all.iter().map(capacity).collect(),
        group: all.iter().map(|&d| t.domains[d].package).collect(),
    }
}

/// Key that orders allocations of equal ANTT by the rules: shared groups, (program, group) pairs,
/// units in use, then in the order of names the units of each program, and its amounts in each
/// group, largest first.
type Key = (usize, usize, usize, Vec<usize>, Vec<Vec<usize>>);

fn key(units: &Units, owner: &[usize], programs: usize) -> Key {
    let groups = units.group.iter().max().unwrap() + 1;
    let mut amounts = vec![vec![0usize; groups]; programs];
    for (unit, &owner_of_unit) in owner.iter().enumerate() {
        if owner_of_unit < programs {
            amounts[owner_of_unit][units.group[unit]] += 1;
        }
    }
    let in_group = |g: usize| amounts.iter().filter(|a| a[g] > 0).count();
    let counts: Vec<usize> = amounts.iter().map(|a| a.iter().sum()).collect();
    (
        (0..groups).filter(|&g| in_group(g) > 1).count(),
        (0..groups).map(in_group).sum(),
        counts.iter().sum(),
        counts,
        amounts
            .iter()
            .map(|a| a.iter().map(|x| usize::MAX - x).collect())
            .collect(),
    )
}

/// The least ANTT over all assignments of units to programs, and the least key among the
/// assignments with that ANTT.
fn brute(units: &Units, requests: &[Request]) -> Option<(f64, Key)> {
    let (n, d) = (requests.len(), units.capacity.len());
    let all: f64 = units.capacity.iter().sum();
    let best: Vec<f64> = requests.iter().map(|r| alone(r, all)).collect();
    let mut found: Option<(f64, Key)> = None;
    for code in 0..(n + 1).pow(d as u32) {
        let owner: Vec<usize> = (0..d)
            .map(|i| code / (n + 1).pow(i as u32) % (n + 1))
            .collect();
        let mut capacity = vec![0.0; n];
        for (unit, &owner_of_unit) in owner
            .iter()
            .enumerate()
            .filter(|(_, owner_of_unit)| **owner_of_unit < n)
        {
            capacity[owner_of_unit] += units.capacity[unit];
        }
        if capacity.contains(&0.0) {
            continue;
        }
        let ntts = (0..n).map(|i| requests[i].weight * best[i] / rate(&requests[i], capacity[i]));
        let antt = ntts.sum::<f64>() / n as f64;
        let least = found.as_ref().map_or(f64::INFINITY, |(least, _)| *least);
        if antt > least * (1.0 + 1e-10) {
            continue;
        }
        let key = key(units, &owner, n);
        let tie = antt >= least * (1.0 - 1e-10);
        if !tie || found.as_ref().is_none_or(|(_, least_key)| key < *least_key) {
            found = Some((antt, key));
        }
    }
    found
}

/// The owner of each domain in a seating, in the order of the requests.
fn owners(t: &Topology, requests: &[Request], s: &Seating) -> Vec<usize> {
    let owner = |d: usize| {
        let seat_of = |r: &Request| s.plan.seats.iter().find(|s| s.program == r.id).unwrap();
        let mut here = (0..requests.len()).filter(|&i| seat_of(&requests[i]).domains.contains(&d));
        here.next().unwrap_or(requests.len())
    };
    (0..t.domains.len()).map(owner).collect()
}

/// Checks that seats are disjoint, on this machine, not empty, of whole cores, and that their
/// domains are correct.
fn check_invariants(t: &Topology, requests: &[Request], s: &Seating) {
    assert_eq!(s.plan.seats.len(), requests.len());
    assert!(s.plan.seats.is_sorted_by_key(|s| s.program));
    for (i, a) in s.plan.seats.iter().enumerate() {
        assert!(!a.cpus.is_empty() && a.cpus.is_subset(&t.all_cpus()));
        assert_eq!(a.domains, t.domains_in(&a.cpus));
        if a.mode == SeatMode::Shared {
            continue;
        }
        assert_eq!(
            t.cpus_of_cores(t.cores_in(&a.cpus)),
            a.cpus,
            "a core is parted"
        );
        assert!(
            s.plan.seats[..i]
                .iter()
                .all(|b| !a.cpus.intersects(&b.cpus))
        );
    }
}

fn check_whole(t: &Topology, s: &Seating) {
    for seat in &s.plan.seats {
        assert_eq!(seat.mode, SeatMode::Seated);
        let whole = seat.domains.iter().map(|&d| &t.domains[d].cpus);
        assert_eq!(
            whole.fold(Default::default(), |all: usher_model::CpuSet, d| all.or(d)),
            seat.cpus
        );
    }
}

prop_compose! {
    /// Curves of few whole points with few distinct rates, so that ties are frequent.
    fn curves(cores_max: u32)(
        points in prop::collection::btree_map(1..=cores_max, 1u32..8, 1..5)
    ) -> Vec<(u32, f64)> {
        points.into_iter().map(|(n, r)| (n, f64::from(r))).collect()
    }
}

fn requests(
    programs: std::ops::Range<usize>,
    cores_max: u32,
) -> impl Strategy<Value = Vec<Request>> {
    let one = (
        curves(cores_max),
        prop::sample::select(vec![1.0, 1.0, 1.0, 2.0]),
    );
    prop::collection::vec(one, programs).prop_map(|all| {
        let numbered = all.into_iter().enumerate();
        numbered
            .map(|(i, (curve, weight))| Request {
                weight,
                ..request(i as u64, ["a", "a", "b", "c", "d"][i], &curve)
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn equal_domains_are_exact_and_ties_follow_the_rules(
        (packages, per) in prop::sample::select(vec![(1, 4), (2, 2), (2, 3), (3, 2), (6, 1), (1, 6)]),
        cores in 1usize..4,
        requests in requests(1..5, 12),
    ) {
        let t = regular(packages, 1, per, cores);
        prop_assume!(requests.len() <= t.domains.len());
        let s = seat(&t, &requests).unwrap();
        check_invariants(&t, &requests, &s);
        check_whole(&t, &s);
        let (antt, least) = brute(&domains(&t), &requests).unwrap();
        prop_assert!((s.plan.antt.unwrap() - antt).abs() <= 1e-9 * antt);
        prop_assert_eq!(s.gap, 0.0);
        let got = key(&domains(&t), &owners(&t, &requests, &s), requests.len());
        prop_assert_eq!(got, least);
    }

    #[test]
    fn unequal_domains_are_within_the_gap(
        spec in prop::collection::vec(prop::collection::vec(
            prop::collection::vec(prop::sample::select(vec![0.5, 1.0]), 1..4), 1..4), 1..3),
        requests in requests(1..4, 12),
    ) {
        let spec = spec.into_iter().map(|package| vec![package]).collect();
        let t = machine(&spec, 2, 0);
        prop_assume!(requests.len() <= t.domains.len());
        let s = seat(&t, &requests).unwrap();
        check_invariants(&t, &requests, &s);
        check_whole(&t, &s);
        let (antt, least) = brute(&domains(&t), &requests).unwrap();
        let got = s.plan.antt.unwrap();
        prop_assert!(got >= antt * (1.0 - 1e-9));
        prop_assert!(got - s.gap <= antt * (1.0 + 1e-9));
        prop_assert_eq!(s.gap, 0.0, "small cases are exact");
        let key = key(&domains(&t), &owners(&t, &requests, &s), requests.len());
        prop_assert_eq!((key.0, key.1), (least.0, least.1));
    }

    #[test]
    fn any_number_of_steps_gives_a_valid_plan_and_an_honest_gap(
        spec in prop::collection::vec(prop::collection::vec(
            prop::collection::vec(prop::sample::select(vec![0.5, 1.0]), 1..4), 1..4), 1..3),
        requests in requests(1..4, 12),
        steps in prop::sample::select(vec![0, 100, 1_000, 3_000, 10_000, 30_000, 100_000]),
    ) {
        let spec = spec.into_iter().map(|package| vec![package]).collect();
        let t = machine(&spec, 2, 0);
        prop_assume!(requests.len() <= t.domains.len());
        let s = seat_within(&t, &requests, steps).unwrap();
        check_invariants(&t, &requests, &s);
        check_whole(&t, &s);
        let (antt, _) = brute(&domains(&t), &requests).unwrap();
        let got = s.plan.antt.unwrap();
        prop_assert!(got >= antt * (1.0 - 1e-9));
        prop_assert!(got - s.gap <= antt * (1.0 + 1e-9), "{got} - {} > {antt}", s.gap);
        prop_assert_eq!(s.gap > 0.0, s.ended_by_budget);
    }

    #[test]
    fn the_order_of_requests_does_not_matter(
        requests in requests(1..5, 12).prop_flat_map(|requests| (Just(requests.clone()), Just(requests).prop_shuffle())),
        (packages, nodes, per, cores) in prop::sample::select(
            vec![(2, 2, 1, 2), (1, 1, 2, 3), (1, 1, 1, 2), (2, 1, 4, 1)]),
    ) {
        let t = regular(packages, nodes, per, cores);
        prop_assert_eq!(seat(&t, &requests.0).unwrap(), seat(&t, &requests.1).unwrap());
    }

    #[test]
    fn more_programs_than_domains_split_them_by_cores_exactly(
        (packages, per, cores) in prop::sample::select(vec![(1, 1, 6), (1, 2, 3), (2, 1, 4), (3, 1, 2)]),
        requests in requests(2..5, 8),
    ) {
        let t = regular(packages, 1, per, cores);
        prop_assume!(requests.len() > t.domains.len());
        let s = seat(&t, &requests).unwrap();
        check_invariants(&t, &requests, &s);
        prop_assert!(s.plan.seats.iter().all(|s| s.mode == SeatMode::Seated));
        let cores = Units {
            capacity: vec![1.0; t.cores.len()],
            group: t.cores.iter().map(|c| c.domain).collect(),
        };
        let (antt, least) = brute(&cores, &requests).unwrap();
        prop_assert!((s.plan.antt.unwrap() - antt).abs() <= 1e-9 * antt);
        let owner = |c: &usher_model::Core| {
            let seats = requests.iter().map(|r| s.plan.seats.iter().find(|s| s.program == r.id).unwrap());
            seats.map(|s| &s.cpus).position(|cpus| c.cpus.is_subset(cpus)).unwrap_or(requests.len())
        };
        let got = key(&cores, &t.cores.iter().map(owner).collect::<Vec<_>>(), requests.len());
        prop_assert_eq!((got.0, got.1), (least.0, least.1));
    }
}

#[test]
fn more_programs_than_cores_share_one_set() {
    let t = regular(1, 1, 1, 2);
    let requests: Vec<_> = (0..3)
        .map(|i| request(i, "p", &[(1, 1.0), (2, 1.5)]))
        .collect();
    let s = seat(&t, &requests).unwrap();
    check_invariants(&t, &requests, &s);
    for seat in &s.plan.seats {
        assert_eq!(
            (seat.mode, seat.cpus.to_string()),
            (SeatMode::Shared, "0-1".to_owned())
        );
        assert_eq!(seat.ntt, Some(3.0));
    }
    assert_eq!(
        s.plan
            .seats
            .iter()
            .map(|s| s.program)
            .collect::<BTreeSet<_>>()
            .len(),
        3
    );
    assert_eq!(s.plan.seats[1].program, ProgramId(1));
}

#[test]
fn large_machines_keep_to_stack_and_budget() {
    let t = regular(16, 1, 8, 8);
    for programs in [128, 200, 1000] {
        let requests: Vec<_> = (0..programs)
            .map(|i| {
                let knee = 1 + (i as u32 * 7) % 40;
                request(
                    i,
                    "p",
                    &[
                        (1, 1.0),
                        (knee + 1, 1.0 + f64::from(knee) * 0.9),
                        (1024, 80.0),
                    ],
                )
            })
            .collect();
        let s = seat(&t, &requests).unwrap();
        check_invariants(&t, &requests, &s);
        assert!(s.plan.seats.iter().all(|s| s.mode == SeatMode::Seated));
        if programs == 128 {
            check_whole(&t, &s);
        }
    }
}
