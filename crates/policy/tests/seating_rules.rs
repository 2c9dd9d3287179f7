// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of seating one by one: sharing, programs that busy-wait, bound programs, weights,
//! hybrid and unequal machines, NUMA nodes.
#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use common::{machine, regular, request};
use proptest::prelude::*;
use usher_model::{ProgramId, Seat, SeatMode, Topology};
use usher_policy::seating::{Request, STEPS_MAX, SeatingError, seat, seat_within};

fn scaler(id: u64, name: &str, cores: u32) -> Request {
    let points: Vec<(u32, f64)> = (1..=cores).map(|n| (n, f64::from(n))).collect();
    request(id, name, &points)
}

fn flat(id: u64, name: &str) -> Request {
    request(id, name, &[(1, 1.0), (2, 1.0)])
}

fn seats(t: &Topology, requests: &[Request]) -> Vec<Seat> {
    seat(t, requests).unwrap().plan.seats
}

fn cpus(seats: &[Seat]) -> Vec<String> {
    seats.iter().map(|s| s.cpus.to_string()).collect()
}

#[test]
fn a_domain_that_does_not_help_stays_empty() {
    let t = regular(1, 1, 4, 2);
    assert_eq!(
        cpus(&seats(&t, &[flat(0, "a"), flat(1, "b")])),
        ["0-1", "2-3"]
    );
}

#[test]
fn a_program_that_falls_is_seated_at_its_peak() {
    let t = regular(1, 1, 4, 2);
    let falls = request(0, "falls", &[(2, 2.0), (4, 3.0), (8, 1.0)]);
    let got = seat(&t, &[falls]).unwrap();
    assert_eq!(
        (cpus(&got.plan.seats), got.plan.antt),
        (vec!["0-3".to_owned()], Some(1.0))
    );
    // The kernel gives the program all cores.
    assert_eq!(got.plan.antt_time_sharing, Some(3.0));
}

#[test]
fn no_request_gives_an_empty_plan() {
    let got = seat(&regular(1, 1, 1, 1), &[]).unwrap();
    assert_eq!(
        (got.plan.seats.len(), got.plan.antt, got.gap),
        (0, None, 0.0)
    );
}

#[test]
fn two_programs_of_a_package_each_keep_it() {
    // Seats of 3 and 1 domains would have the same sum of NTTs, but two seats of 2 domains share no
    // package.
    let t = regular(2, 1, 2, 1);
    let got = seats(&t, &[scaler(0, "a", 4), scaler(1, "b", 4)]);
    assert_eq!(cpus(&got), ["0-1", "2-3"]);
}

#[test]
fn inside_a_package_nodes_are_kept_apart() {
    // One package, two nodes of three domains; "a" takes 2 domains, "b" takes 3 domains.
    let t = regular(1, 2, 3, 1);
    let a = request(0, "a", &[(1, 1.0), (2, 5.0)]);
    let b = request(1, "b", &[(1, 1.0), (3, 9.0)]);
    assert_eq!(cpus(&seats(&t, &[a, b])), ["0-1", "3-5"]);
}

#[test]
fn high_demand_is_placed_next_to_low_demand() {
    // Four programs on two domains of 2 cores are paired by bandwidth, then by cache.
    let gbps = [20.0, 18.0, 1.0, 2.0];
    let mut requests: Vec<Request> = (0..4)
        .map(|i| flat(i, ["a", "b", "c", "d"][i as usize]))
        .collect();
    for (request, gbps) in requests.iter_mut().zip(gbps) {
        request.bandwidth_gbps = Some(gbps);
    }
    let domains = |requests: &[Request], llc: u64| {
        let t = machine(&vec![vec![vec![vec![1.0; 2]; 2]]], 1, llc);
        seats(&t, requests)
            .iter()
            .map(|s| s.domains[0])
            .collect::<Vec<_>>()
    };
    assert_eq!(domains(&requests, 0), [0, 1, 0, 1], "20 + 1 and 18 + 2");
    for (request, megabytes) in requests.iter_mut().zip([6, 1, 6, 1]) {
        (request.bandwidth_gbps, request.llc_bytes) = (None, Some(megabytes << 20));
    }
    assert_eq!(
        domains(&requests, 8 << 20),
        [0, 0, 1, 1],
        "6 + 1 fit into 8, 6 + 6 do not"
    );
    assert_eq!(
        domains(&requests, 0),
        [0, 0, 1, 1],
        "nor in a cache of unknown size"
    );
    requests[2].llc_bytes = None; // counts as the mean, which does not fit beside 6 either
    requests[0].llc_bytes = Some(7 << 20);
    assert_eq!(domains(&requests, 8 << 20), [0, 0, 1, 1]);
}

#[test]
fn a_memory_controller_is_shared_by_high_and_low_demand() {
    let t = regular(2, 1, 2, 1);
    let mut requests: Vec<Request> = (0..4).map(|i| flat(i, "p")).collect();
    for (request, gbps) in requests.iter_mut().zip([9.0, 9.0, 1.0, 1.0]) {
        request.bandwidth_gbps = Some(gbps);
    }
    let got: Vec<usize> = seats(&t, &requests)
        .iter()
        .map(|s| t.domains[s.domains[0]].package)
        .collect();
    assert_eq!(got, [0, 1, 0, 1]);
}

#[test]
fn weights_multiply_the_ntt_in_the_mean() {
    let t = regular(1, 1, 3, 1);
    let plain = [scaler(0, "a", 3), scaler(1, "b", 3)];
    let heavy = [
        scaler(0, "a", 3),
        Request {
            weight: 4.0,
            ..scaler(1, "b", 3)
        },
    ];
    assert_eq!(
        seats(&t, &plain)
            .iter()
            .map(|s| s.cpus.len())
            .collect::<Vec<_>>(),
        [1, 2]
    );
    let got = seat(&t, &heavy).unwrap();
    // NTT of "a" on 1 of 3 cores: 3. NTT of "b" on 2 of 3 cores: 1.5, with weight 4.
    assert_eq!(got.plan.antt, Some((3.0 + 4.0 * 1.5) / 2.0));
    let lighter = [
        Request {
            weight: 4.0,
            ..scaler(0, "a", 3)
        },
        scaler(1, "b", 3),
    ];
    assert_eq!(seats(&t, &lighter)[0].cpus.len(), 2);
}

#[test]
fn hybrid_cores_count_by_capacity() {
    // Two fast and four slow cores in one domain: two programs share a capacity of 4.0 cores.
    let t = machine(&vec![vec![vec![vec![1.0, 1.0, 0.5, 0.5, 0.5, 0.5]]]], 1, 0);
    let requests = [scaler(0, "a", 4), scaler(1, "b", 4)];
    let got = seat(&t, &requests).unwrap();
    for seat in &got.plan.seats {
        assert_eq!(t.capacity_of(&seat.cpus), 2.0);
        assert_eq!(seat.ntt, Some(2.0));
    }
    assert_eq!(got.gap, 0.0);
}

#[test]
fn hardware_threads_of_a_core_stay_together() {
    let t = machine(&vec![vec![vec![vec![1.0; 3]]]], 2, 0);
    assert_eq!(
        cpus(&seats(&t, &[flat(0, "a"), flat(1, "b")])),
        ["0-1", "2-3"]
    );
}

#[test]
fn busy_waiting_programs_are_not_narrowed() {
    let spins = |threads| Request {
        spinners: threads,
        ..flat(0, "spins")
    };
    // In 4 domains of 2 cores, whole domains suffice.
    let t = regular(1, 1, 4, 2);
    let got = seats(&t, &[spins(5), scaler(1, "b", 8)]);
    assert_eq!((got[0].cpus.len(), got[1].cpus.len()), (6, 2));
    // 2 domains of 4 cores have to be split.
    let t = regular(1, 1, 2, 4);
    let got = seats(&t, &[spins(6), scaler(1, "b", 8)]);
    assert_eq!((got[0].cpus.len(), got[1].cpus.len()), (6, 2));
    assert!(got.iter().all(|s| s.mode == SeatMode::Seated));
    // One program needs all 8 cores, and there is another program: no program is seated.
    let got = seats(&t, &[spins(8), scaler(1, "b", 8)]);
    assert!(
        got.iter()
            .all(|s| s.mode == SeatMode::Shared && s.cpus.len() == 8)
    );
    // Without another program, the program that needs all 8 cores is seated.
    assert_eq!(seats(&t, &[spins(8)])[0].mode, SeatMode::Seated);
}

fn bound(id: u64, name: &str, to: &str) -> Request {
    Request {
        bound_to: Some(to.parse().unwrap()),
        ..scaler(id, name, 8)
    }
}

#[test]
fn bound_programs_are_seated_within_their_cpus() {
    let t = regular(1, 1, 4, 2);
    // A whole domain lies inside the binding.
    let got = seats(&t, &[bound(0, "a", "4-7"), scaler(1, "b", 8)]);
    assert!(got[0].cpus.is_subset(&"4-7".parse().unwrap()) && got[0].mode == SeatMode::Seated);
    assert!(!got[0].cpus.intersects(&got[1].cpus));
    // No whole domain lies inside the binding: the program keeps its bound CPUs, and other programs
    // get no seat on them.
    let got = seats(&t, &[bound(0, "a", "1-2"), scaler(1, "b", 8)]);
    assert_eq!(cpus(&got), ["1-2", "0,3-7"]);
    assert_eq!((got[0].ntt, got[0].mode), (Some(1.0), SeatMode::Seated));
    // Two programs are bound to the same CPUs: the two programs share these CPUs, and other
    // programs get no seat on them.
    let got = seats(
        &t,
        &[
            bound(0, "a", "0-1"),
            bound(1, "b", "0-1"),
            scaler(2, "c", 8),
        ],
    );
    assert_eq!(cpus(&got), ["0-1", "0-1", "2-7"]);
    assert_eq!(got[0].mode, SeatMode::Shared);
    assert_eq!((got[0].ntt, got[2].ntt), (Some(2.0), Some(8.0 / 6.0)));
}

#[test]
fn a_binding_to_all_or_foreign_cpus_is_ignored() {
    let t = regular(1, 1, 2, 2);
    for to in ["0-3", "0-100", "50-60"] {
        let got = seats(&t, &[bound(0, "a", to), scaler(1, "b", 4)]);
        assert_eq!(cpus(&got), ["0-1", "2-3"]);
    }
}

#[test]
fn a_bound_hardware_thread_reserves_its_core() {
    let t = machine(&vec![vec![vec![vec![1.0; 2]; 2]]], 2, 0);
    let got = seats(&t, &[bound(0, "a", "1"), scaler(1, "b", 4)]);
    assert_eq!(cpus(&got), ["1", "2-7"]);
}

#[test]
fn invalid_requests_are_named() {
    let t = regular(1, 1, 2, 2);
    let weight = Request {
        weight: f64::NAN,
        ..flat(0, "x")
    };
    let error = seat(&t, &[weight]).unwrap_err().to_string();
    assert_eq!(
        error,
        "the weight of 'x' must be a positive number, not NaN"
    );
    let error = seat(&t, &[flat(3, "x"), flat(3, "y")]).unwrap_err();
    let id = ProgramId(3);
    assert_eq!(
        error,
        SeatingError::Twice {
            id,
            first: "x".into(),
            second: "y".into()
        }
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_requests_give_valid_seats(
        spec in prop::collection::vec(prop::collection::vec(prop::collection::vec(
            prop::collection::vec(prop::sample::select(vec![0.4, 1.0]), 1..5), 1..3), 1..3), 1..4),
        smt in 1u32..3,
        requests in prop::collection::vec((
            prop::collection::btree_map(1u32..40, 0.1f64..9.0, 1..6),
            0.1f64..5.0,
            prop::sample::select(vec![0u32, 0, 0, 2, 5]),
            prop::option::of(0u64..9_000_000),
            prop::option::of(0.0f64..30.0),
            prop::option::of((0u32..30, 0u32..10)),
        ), 1..9),
    ) {
        let t = machine(&spec, smt, 4 << 20);
        let requests: Vec<Request> = requests.into_iter().enumerate().map(|(i, a)| Request {
            weight: a.1,
            spinners: a.2,
            llc_bytes: a.3,
            bandwidth_gbps: a.4,
            bound_to: a.5.map(|(first, more)| usher_model::CpuSet::range(first, first + more)),
            ..request(i as u64, "p", &a.0.into_iter().collect::<Vec<_>>())
        }).collect();
        let got = seat(&t, &requests).unwrap();
        prop_assert!(got.gap >= 0.0 && got.plan.antt.unwrap().is_finite());
        for (i, (seat, request)) in got.plan.seats.iter().zip(&requests).enumerate() {
            prop_assert_eq!(seat.program, request.id);
            prop_assert!(!seat.cpus.is_empty() && seat.cpus.is_subset(&t.all_cpus()));
            prop_assert_eq!(&seat.domains, &t.domains_in(&seat.cpus));
            let to = request.bound_to.as_ref().filter(|to| to.intersects(&t.all_cpus()));
            prop_assert!(to.is_none_or(|to| seat.cpus.is_subset(to)));
            if seat.mode == SeatMode::Seated {
                let cores = t.cores_in(&seat.cpus);
                prop_assert!(cores.len() >= request.spinners as usize);
                // No other program, seated or not, uses these cores.
                let whole = t.cpus_of_cores(cores);
                let others = || got.plan.seats.iter().enumerate().filter(|(j, _)| *j != i);
                prop_assert!(others().all(|(_, other)| !whole.intersects(&other.cpus)));
            }
        }
        let mut reversed = requests.clone();
        reversed.reverse();
        prop_assert_eq!(seat(&t, &reversed).unwrap(), got);
    }
}

/// Programs with curves that rise, rise and end, or have a plateau, and with different weights.
fn mixed_programs(count: u64, cores: u32) -> Vec<Request> {
    let program = |id: u64| {
        let points = [1, 2, 4, 8, 16, 32, 64].into_iter().filter(|n| *n <= cores);
        let serial = 0.4 * (id as f64 / count as f64).powi(3);
        let rate = |n: u32| match id % 3 {
            0 => f64::from(n) / (1.0 + serial * f64::from(n - 1)),
            1 => f64::from(n.min(4 + id as u32)),
            _ => f64::from(n / 3 + 1),
        };
        let points: Vec<(u32, f64)> = points.map(|n| (n, rate(n))).collect();
        let mut request = request(id, &format!("p{id:02}"), &points);
        request.weight = 1.0 + (id % 5) as f64;
        request
    };
    (0..count).map(program).collect()
}

#[test]
fn one_unequal_domain_for_each_program_is_an_exact_plan() {
    // 64 programs on 64 domains of 5 to 8 cores: the local search leaves a gap here.
    let sizes = (0..64).map(|d: usize| vec![1.0; 5 + d * 7 % 4]).collect();
    let t = machine(&vec![vec![sizes]], 1, 0);
    let got = seat(&t, &mixed_programs(64, 64)).unwrap();
    assert_eq!((got.gap, got.ended_by_budget), (0.0, false));
}

#[test]
fn several_sizes_of_domains_and_kinds_of_cores_are_planned_exactly() {
    let sizes = (0..24).map(|d: usize| vec![1.0; 4 + d % 4]).collect();
    let unequal = machine(&vec![vec![sizes]], 1, 0);
    let got = seat(&unequal, &mixed_programs(8, 64)).unwrap();
    assert_eq!((got.gap, got.ended_by_budget), (0.0, false));
    let cluster = || {
        [0.7; 5]
            .into_iter()
            .chain([0.95, 0.95, 0.97, 0.97, 1.0])
            .collect()
    };
    let gb10 = machine(&vec![vec![vec![cluster(), cluster()]]], 1, 0);
    let got = seat(&gb10, &mixed_programs(9, 16)).unwrap();
    assert_eq!((got.gap, got.ended_by_budget), (0.0, false));
}

#[test]
fn a_gap_names_the_budget() {
    // 24 domains of 24 sizes: no search can consider all sets of domains.
    let sizes = (0..24).map(|d: usize| vec![1.0; 2 + d]).collect();
    let t = machine(&vec![vec![sizes]], 1, 0);
    let got = seat(&t, &mixed_programs(8, 64)).unwrap();
    assert_eq!(got.gap > 0.0, got.ended_by_budget);
    assert!(got.ended_by_budget);
}

#[test]
fn large_machines_are_planned_within_the_budget_of_steps() {
    // Packages, domains per package, cores per domain, programs.
    let cases = [
        (1, 1_024, 1, 1),
        (128, 8, 1, 8),
        (8_192, 1, 1, 1),
        (8_192, 1, 1, 8),
        (1, 8_192, 1, 64),
        (128, 8, 8, 300),
        (16, 8, 8, 1_000),
    ];
    for (packages, domains, cores, programs) in cases {
        let mut sizes = vec![vec![1.0; cores]; domains];
        for unequal in [false, true] {
            if unequal {
                sizes[0] = vec![0.5; cores];
            }
            let t = machine(&vec![vec![sizes.clone()]; packages], 1, 0);
            let requests = mixed_programs(programs, 64);
            let got = seat(&t, &requests).unwrap();
            let case = (packages, domains, cores, programs, unequal);
            assert!(got.steps <= STEPS_MAX, "{case:?}: {} steps", got.steps);
            assert_eq!(got.gap > 0.0, got.ended_by_budget, "{case:?}");
            let mut taken = usher_model::CpuSet::new();
            for seat in &got.plan.seats {
                assert_eq!(seat.mode, SeatMode::Seated, "{case:?}");
                assert!(!seat.cpus.intersects(&taken), "{case:?}");
                taken = taken.or(&seat.cpus);
            }
        }
    }
}

#[test]
fn passes_end_with_the_budget_of_steps() {
    // The steps of the passes without which there is no plan, and little more, whatever the search
    // would take.
    let sizes = (0..24).map(|d: usize| vec![1.0; 4 + d % 4]).collect();
    let t = machine(&vec![vec![sizes]], 1, 0);
    let requests = mixed_programs(8, 64);
    let needed = seat_within(&t, &requests, 0).unwrap().steps;
    let all = seat(&t, &requests).unwrap().steps;
    for steps in [10_000, 100_000, 1_000_000, 4_000_000] {
        let got = seat_within(&t, &requests, steps).unwrap();
        assert!(
            got.steps <= steps + 2 * needed,
            "{} of {steps}, {needed}",
            got.steps
        );
        assert!(all < steps || got.ended_by_budget, "{steps} of {all}");
    }
}
