// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the prediction of time sharing: cases computed by hand, and two properties: no program
//! gains from the presence of other programs, and CPU time is conserved.
#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use common::{regular, request};
use proptest::prelude::*;
use usher_model::{Curve, CurvePoint};
use usher_policy::seating::Request;
use usher_policy::timeshare::time_sharing;

fn scaler(id: u64, cores: u32) -> Request {
    let points: Vec<(u32, f64)> = (1..=cores).map(|n| (n, f64::from(n))).collect();
    request(id, "scaler", &points)
}

/// A program with a single thread, which has the same rate on any number of cores.
fn serial(id: u64, cores: f64) -> Request {
    let point = |cores: f64| CurvePoint {
        cores,
        rate: 1.0,
        relative_error: 0.0,
        busy_cpus: Some(1.0),
    };
    Request {
        curve: Curve::new(vec![point(1.0), point(cores)]).unwrap(),
        ..request(id, "serial", &[(1, 1.0)])
    }
}

#[test]
fn one_program_alone_has_ntt_1() {
    let t = regular(1, 1, 2, 4);
    assert_eq!(time_sharing(&t, &[scaler(0, 8)]), [1.0]);
    assert_eq!(time_sharing(&t, &[serial(0, 8.0)]), [1.0]);
    assert!(time_sharing(&t, &[]).is_empty());
}

#[test]
fn alone_on_all_cores_one_that_falls_is_slower_than_its_best() {
    let falls = request(0, "falls", &[(1, 1.0), (4, 3.0), (8, 2.0)]);
    assert_eq!(time_sharing(&regular(1, 1, 2, 4), &[falls]), [1.5]);
}

#[test]
fn two_perfect_scalers_take_twice_as_long() {
    let t = regular(1, 1, 1, 2);
    assert_eq!(time_sharing(&t, &[scaler(0, 2), scaler(1, 2)]), [2.0, 2.0]);
}

#[test]
fn cpus_left_by_a_serial_program_are_used() {
    let two = regular(1, 1, 1, 2);
    // An even share is one CPU: the program that scales gets the other CPU, and no more.
    assert_eq!(
        time_sharing(&two, &[serial(0, 2.0), scaler(1, 2)]),
        [1.0, 2.0]
    );
    let eight = regular(1, 1, 2, 4);
    let ntts = time_sharing(&eight, &[serial(0, 8.0), scaler(1, 8)]);
    assert_eq!(ntts[0], 1.0);
    assert!((ntts[1] - 8.0 / 7.0).abs() < 1e-12, "{ntts:?}");
}

#[test]
fn busy_waiting_threads_lose_more_than_their_share() {
    let t = regular(1, 1, 1, 2);
    let spins = Request {
        spinners: 2,
        ..scaler(0, 2)
    };
    assert_eq!(time_sharing(&t, &[spins, scaler(1, 2)]), [4.0, 2.0]);
}

#[test]
fn programs_bound_to_one_part_share_it_and_leave_the_rest() {
    let t = regular(1, 1, 2, 2);
    let bound = |id| Request {
        bound_to: Some("0-1".parse().unwrap()),
        ..scaler(id, 4)
    };
    let ntts = time_sharing(&t, &[bound(0), bound(1), scaler(2, 4)]);
    assert_eq!(ntts, [2.0, 2.0, 2.0]);
}

proptest! {
    #[test]
    fn no_program_gains_and_the_cpus_are_never_exceeded(
        used in prop::collection::vec(0.1f64..16.0, 1..8),
        cores in 1u32..16,
    ) {
        let t = regular(1, 1, 1, cores as usize);
        let requests: Vec<Request> = used.iter().enumerate().map(|(i, &busy)| {
            let point = CurvePoint {
                cores: f64::from(cores),
                rate: 2.5,
                relative_error: 0.0,
                busy_cpus: Some(busy),
            };
            Request { curve: Curve::new(vec![point]).unwrap(), ..scaler(i as u64, cores) }
        }).collect();
        let ntts = time_sharing(&t, &requests);
        let busy: Vec<f64> = used.iter().map(|u| u.min(f64::from(cores))).collect();
        let granted: Vec<f64> = busy.iter().zip(&ntts).map(|(u, ntt)| u / ntt).collect();
        let (sum, wanted): (f64, f64) = (granted.iter().sum(), busy.iter().sum());
        prop_assert!(ntts.iter().all(|&ntt| ntt >= 1.0 - 1e-12));
        // Work-conserving: all CPU time is used, or no program waits.
        prop_assert!((sum - wanted.min(f64::from(cores))).abs() < 1e-9);
    }
}
