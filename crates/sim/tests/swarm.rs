// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seeds of the swarm. `USHER_SWARM=FROM..TO` runs others.

#![allow(clippy::unwrap_used)]

use usher_sim::swarm::{Case, MACHINES};
use usher_topology::Source;

#[test]
fn no_invariant_breaks_whatever_goes_wrong() {
    let machines: Vec<_> = MACHINES
        .into_iter()
        .map(|spec| usher_topology::load(Source::Synthetic(spec.to_owned())).unwrap())
        .collect();
    let range = std::env::var("USHER_SWARM").unwrap_or_else(|_| "0..200".to_owned());
    let (from, to) = range.split_once("..").unwrap();
    for seed in from.parse().unwrap()..to.parse().unwrap() {
        let case = Case::new(seed, &machines);
        if let Err(broken) = case.run() {
            panic!("{broken}; {:?}", case.faults);
        }
    }
}
