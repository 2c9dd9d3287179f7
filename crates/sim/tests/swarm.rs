// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seeds of the swarm. `USHER_SWARM=FROM..TO` runs others.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};

use usher_model::Topology;
use usher_sim::swarm::{Broken, Case, MACHINES};
use usher_topology::Source;

fn machines() -> Vec<Topology> {
    let load = |spec: &str| usher_topology::load(Source::Synthetic(spec.to_owned())).unwrap();
    MACHINES.into_iter().map(load).collect()
}

#[test]
fn no_invariant_breaks_whatever_goes_wrong() {
    let machines = machines();
    let range = std::env::var("USHER_SWARM").unwrap_or_else(|_| "0..200".to_owned());
    let (from, to) = range.split_once("..").unwrap();
    let (from, to): (u64, u64) = (from.parse().unwrap(), to.parse().unwrap());
    let next = AtomicU64::new(from);
    let work = || {
        let seeds = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        let seeds = seeds.take_while(|&seed| seed < to);
        let run = |seed| Case::new(seed, &machines).run().err();
        seeds.filter_map(run).collect::<Vec<Broken>>()
    };
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get());
    let mut broken: Vec<Broken> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let broken = workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap());
        broken.collect()
    });
    broken.sort_by_key(|broken| broken.seed);
    for broken in &broken {
        eprintln!("{broken}");
    }
    if let Some(first) = broken.first() {
        let case = Case::new(first.seed, &machines);
        eprintln!("{case}\n  {}", first.last.join("\n  "));
    }
    assert!(broken.is_empty(), "{} of {} seeds", broken.len(), to - from);
}
