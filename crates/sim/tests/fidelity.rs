// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far the models are from what was published of the programs.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use usher_sim::alone::alone_seconds;
use usher_sim::kernel::Kernel;
use usher_sim::machine::{Costs, Machine};
use usher_sim::parsec::{Traits, programs};
use usher_topology::Source;

type Points = Vec<(f64, f64)>;

fn published() -> BTreeMap<String, BTreeMap<String, Points>> {
    let text = include_str!("../data/parsec-speedup.json");
    let all: serde_json::Value = serde_json::from_str(text).unwrap();
    serde_json::from_value(all["speedup"].clone()).unwrap()
}

fn machine(spec: &str, costs: Costs) -> Machine {
    let topology = usher_topology::load(Source::Synthetic(spec.to_owned())).unwrap();
    Machine::new(topology, costs)
}

/// Relative errors of the speed-up with so many threads, sorted.
fn errors(machine: &Machine, name: &str, traits: &Traits, points: &Points) -> Vec<f64> {
    let frames = 12;
    let error = |&(threads, want): &(f64, f64)| {
        let here = traits.on(machine.costs());
        let script = Arc::new(here.script(name, threads as u32, frames));
        let seconds = alone_seconds(machine, &Kernel::default(), script, None, 1).unwrap();
        (traits.sequential_seconds(frames) / seconds / want - 1.0).abs()
    };
    let mut errors: Vec<f64> = points.iter().map(error).collect();
    errors.sort_by(f64::total_cmp);
    errors
}

#[test]
fn models_give_the_speedups_that_they_were_fitted_to() {
    let xeon = machine("package:2 numa:1 core:12 pu:2", Costs::xeon());
    let published = published();
    for model in programs().unwrap() {
        let name = model.name.as_str();
        let Some(points) = published.get(name) else {
            continue;
        };
        let errors = errors(&xeon, name, &model.traits, &points["xeon"]);
        let median = errors[errors.len() / 2];
        eprintln!(
            "{name}: median {median:.3}, worst {:.3}",
            errors[errors.len() - 1]
        );
        assert!(median <= 0.10, "{name}: {median}");
    }
}

#[test]
fn four_loops_take_what_paper_3b_measured() {
    let topology = usher_topology::load(Source::Synthetic("package:2 core:1 pu:2".into())).unwrap();
    let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() <= 0.05, "{got} {want}");
    let blind = usher_sim::smt::test(&topology, false, 100);
    near(blind.min, 12.6);
    near(blind.max, 19.8);
    let aware = usher_sim::smt::test(&topology, true, 100);
    near(aware.min, 12.6);
    near(aware.max, 12.7);
}
