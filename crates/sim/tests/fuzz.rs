// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs fuzz cases of fixed seeds and checks their invariants. `USHER_FUZZ_SEEDS=FROM..TO` selects
//! other seeds.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};

use usher_model::Topology;
use usher_sim::fuzz::{FuzzCase, MACHINES, Violation};
use usher_topology::Source;

fn machines() -> Vec<Topology> {
    let load = |spec: &str| usher_topology::load(Source::Synthetic(spec.to_owned())).unwrap();
    MACHINES.into_iter().map(load).collect()
}

#[test]
fn invariants_hold_under_injected_faults() {
    let machines = machines();
    let range = std::env::var("USHER_FUZZ_SEEDS").unwrap_or_else(|_| "0..200".to_owned());
    let (from, to) = range.split_once("..").unwrap();
    let (from, to): (u64, u64) = (from.parse().unwrap(), to.parse().unwrap());
    let next = AtomicU64::new(from);
    let work = || {
        let seeds = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        let seeds = seeds.take_while(|&seed| seed < to);
        let run = |seed| FuzzCase::new(seed, &machines).run().err();
        seeds.filter_map(run).collect::<Vec<Violation>>()
    };
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get());
    let mut violation: Vec<Violation> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let violation = workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap());
        violation.collect()
    });
    violation.sort_by_key(|violation| violation.seed);
    for violation in &violation {
        eprintln!("{violation}");
    }
    if let Some(first) = violation.first() {
        let case = FuzzCase::new(first.seed, &machines);
        eprintln!("{case}\n  {}", first.last.join("\n  "));
    }
    assert!(
        violation.is_empty(),
        "{} of {} seeds",
        violation.len(),
        to - from
    );
}
