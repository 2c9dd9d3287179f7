// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the prediction of which two programs gain from sharing their seats. One program of such
//! a pair must leave cores idle, and the other program must scale.

#![allow(clippy::unwrap_used)]

mod common;

use common::{regular, request};
use usher_model::*;
use usher_policy::seating::Request;
use usher_policy::usher::pair::most_promising;

/// Three programs that scale perfectly, each on six of eighteen cores. `shares`: the share of its
/// cores that each program keeps busy.
fn case(shares: [f64; 3]) -> (Topology, Plan, Vec<Request>) {
    let topology = regular(1, 1, 3, 6);
    let one = |(at, share): (usize, f64)| {
        let point = |cores: f64| CurvePoint {
            cores,
            rate: cores,
            relative_error: 0.0,
            busy_cpus: Some(share * cores),
        };
        Request {
            curve: Curve::new([1.0, 6.0, 12.0, 18.0].map(point).to_vec()).unwrap(),
            ..request(at as u64, "p", &[(1, 1.0)])
        }
    };
    let requests: Vec<Request> = shares.into_iter().enumerate().map(one).collect();
    let seat = |(at, request): (usize, &Request)| Seat {
        program: request.id,
        cpus: topology.domains[at].cpus.clone(),
        domains: vec![at],
        mode: SeatMode::Seated,
        ntt: Some(3.0),
    };
    let plan = Plan {
        seats: requests.iter().enumerate().map(seat).collect(),
        antt: Some(3.0),
        ..Plan::default()
    };
    (topology, plan, requests)
}

#[test]
fn a_pair_of_an_idle_and_a_scaling_program_is_promising() {
    let (topology, plan, requests) = case([1.0, 0.3, 1.0]);
    let pair = most_promising(&topology, &plan, &requests).unwrap();
    assert!(pair.has(ProgramId(1)), "{pair:?}");
    let together = pair.in_plan(&plan, &topology);
    for (before, after) in plan.seats.iter().zip(&together.seats) {
        let both = pair.has(before.program);
        assert_eq!(after.cpus.len(), if both { 12 } else { 6 });
        assert!(before.cpus.is_subset(&after.cpus));
    }
}

#[test]
fn no_pair_is_promising_if_all_cores_are_busy() {
    let (topology, plan, requests) = case([1.0, 1.0, 1.0]);
    assert_eq!(most_promising(&topology, &plan, &requests), None);
}

#[test]
fn no_pair_is_promising_if_bound_or_on_the_whole_machine() {
    let (topology, mut plan, mut requests) = case([1.0, 0.3, 1.0]);
    let mut bound = requests.clone();
    bound[1].bound_to = Some(plan.seats[1].cpus.clone());
    assert_eq!(most_promising(&topology, &plan, &bound), None);
    requests.truncate(2);
    plan.seats.truncate(2);
    plan.seats[1].cpus = plan.seats[1].cpus.or(&topology.domains[2].cpus);
    assert_eq!(most_promising(&topology, &plan, &requests), None);
}
