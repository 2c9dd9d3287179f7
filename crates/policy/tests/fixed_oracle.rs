// SPDX-License-Identifier: MIT OR Apache-2.0
//! The placement of fixed seats, compared with brute force: every assignment of the cores of small
//! machines to at most two programs.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::collections::BTreeMap;

use common::regular;
use proptest::prelude::*;
use usher_model::{CpuSet, ProgramId, Topology};
use usher_policy::fixed::placement::{FixedRequest, place};

fn request(id: u64, cores: usize) -> FixedRequest {
    FixedRequest {
        id: ProgramId(id),
        cores,
        bound_to: None,
    }
}

fn whole_domains(topology: &Topology, taken: &CpuSet) -> usize {
    let domains = topology.domains.iter();
    domains
        .filter(|domain| !domain.cpus.intersects(taken))
        .count()
}

/// The largest number of domains without a fixed core, over all assignments of cores.
fn most_whole_domains(topology: &Topology, sizes: [usize; 2]) -> usize {
    let count = topology.cores.len();
    let assignments = (0..3usize.pow(count as u32)).filter_map(|code| {
        let owner: Vec<usize> = (0..count)
            .map(|i| code / 3usize.pow(i as u32) % 3)
            .collect();
        let of = |program: usize| owner.iter().filter(|&&one| one == program).count();
        let is_valid = of(1) == sizes[0] && of(2) == sizes[1];
        let cores = (0..count).filter(|&core| owner[core] > 0);
        is_valid.then(|| whole_domains(topology, &topology.cpus_of_cores(cores)))
    });
    assignments.max().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn fixed_seats_leave_the_most_whole_domains(
        domains in 1..5usize,
        each in 1..5usize,
        first in 1..8usize,
        second in 1..8usize,
    ) {
        prop_assume!(domains * each <= 8 && first + second <= domains * each);
        let topology = regular(1, 1, domains, each);
        let requests = [request(1, first), request(2, second)];
        let seats = place(&topology, &requests, &BTreeMap::new());
        let [a, b] = [1, 2].map(|id| &seats[&ProgramId(id)]);
        prop_assert_eq!([a.len(), b.len()], [first, second]);
        prop_assert!(!a.intersects(b));
        let best = most_whole_domains(&topology, [first, second]);
        prop_assert_eq!(whole_domains(&topology, &a.or(b)), best);
        // The seats are kept, also when a third program arrives.
        let more = [requests[0].clone(), requests[1].clone(), request(3, 8)];
        let next = place(&topology, &more, &seats);
        prop_assert_eq!([&next[&ProgramId(1)], &next[&ProgramId(2)]], [a, b]);
    }

    #[test]
    fn too_many_fixed_cores_are_shared_evenly(sizes in prop::collection::vec(1..7usize, 1..6)) {
        let topology = regular(1, 1, 2, 3);
        let ids = 1..;
        let requests: Vec<_> = ids.zip(&sizes).map(|(id, &size)| request(id, size)).collect();
        let seats = place(&topology, &requests, &BTreeMap::new());
        let load = |cpu: u32| seats.values().filter(|seat| seat.contains(cpu)).count();
        let loads: Vec<usize> = (0..6).map(load).collect();
        for (request, &size) in requests.iter().zip(&sizes) {
            prop_assert_eq!(seats[&request.id].len(), size);
        }
        let (min, max) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
        prop_assert!(max - min <= 1, "{:?}: {:?}", sizes, loads);
    }
}

#[test]
fn a_fixed_seat_stays_inside_the_binding_of_its_program() {
    let topology = regular(1, 1, 2, 4);
    let bound = |list: &str, cores| FixedRequest {
        bound_to: Some(list.parse().unwrap()),
        ..request(1, cores)
    };
    let seat = |request: FixedRequest| {
        let seats = place(&topology, &[request], &BTreeMap::new());
        seats[&ProgramId(1)].to_string()
    };
    assert_eq!(seat(bound("2-5", 2)), "2-3");
    assert_eq!(seat(bound("2-5", 8)), "2-5", "fewer cores than requested");
    assert_eq!(seat(bound("64", 2)), "0-1", "the binding does not exist");
}

#[test]
fn whole_cores_precede_cores_with_forbidden_hardware_threads() {
    let topology = common::machine(&vec![vec![vec![vec![1.0; 4]]]], 2, 0);
    let request = FixedRequest {
        bound_to: Some("1-6".parse().unwrap()),
        ..request(1, 2)
    };
    let seats = place(&topology, std::slice::from_ref(&request), &BTreeMap::new());
    assert_eq!(seats[&ProgramId(1)].to_string(), "2-5");
    let three = FixedRequest {
        cores: 3,
        ..request
    };
    let seats = place(&topology, &[three], &BTreeMap::new());
    assert_eq!(seats[&ProgramId(1)].to_string(), "1-5");
}
