// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seeds of the swarm. `USHER_SWARM=FROM..TO` runs others.

#![allow(clippy::unwrap_used)]

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
    let run = |seed| Case::new(seed, &machines).run();
    let broken: Vec<Broken> = (from..to).filter_map(|seed| run(seed).err()).collect();
    for broken in &broken {
        eprintln!("{broken}");
        if to - from == 1 {
            eprintln!("{}\n{}", Case::new(from, &machines), broken.last.join("\n"));
        }
    }
    assert!(broken.is_empty(), "{} of {} seeds", broken.len(), to - from);
}
