// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fits the traits of the PARSEC models to the speed-ups published for one
//! machine, and shows what they give on another: `fit_parsec [PROGRAM]...`.
//! `WRITE=crates/sim/data/parsec-traits.json` puts them there.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use argmin::core::{CostFunction, Error, Executor};
use argmin::solver::neldermead::NelderMead;
use usher_model::Topology;
use usher_sim::alone::alone_seconds;
use usher_sim::kernel::Kernel;
use usher_sim::machine::{Costs, Machine};
use usher_sim::parsec::{Traits, programs};
use usher_topology::Source;

fn topology(spec: &str) -> Topology {
    usher_topology::load(Source::Synthetic(spec.to_owned())).unwrap()
}

fn published() -> BTreeMap<String, BTreeMap<String, Vec<(f64, f64)>>> {
    let text = include_str!("../data/parsec-speedup.json");
    let all: serde_json::Value = serde_json::from_str(text).unwrap();
    serde_json::from_value(all["speedup"].clone()).unwrap()
}

/// Frames of a run: enough for a mean.
const FRAMES: u32 = 12;

/// A trait that may be fitted: its bounds, and how it is read and set.
struct Knob {
    name: &'static str,
    low: f64,
    high: f64,
    at: fn(&mut Traits) -> &mut f64,
}

const KNOBS: [Knob; 10] = [
    Knob {
        name: "serial",
        low: 0.0,
        high: 0.3,
        at: |t| &mut t.serial,
    },
    Knob {
        name: "writer",
        low: 0.0,
        high: 0.3,
        at: |t| &mut t.writer,
    },
    Knob {
        name: "extra",
        low: 0.5,
        high: 2.0,
        at: |t| &mut t.extra,
    },
    Knob {
        name: "spread",
        low: 0.0,
        high: 1.0,
        at: |t| &mut t.spread,
    },
    Knob {
        name: "locked",
        low: 0.0,
        high: 0.2,
        at: |t| &mut t.locked,
    },
    Knob {
        name: "sync_us",
        low: 0.0,
        high: 30.0,
        at: |t| &mut t.sync_us,
    },
    Knob {
        name: "stall",
        low: 0.0,
        high: 0.9,
        at: |t| &mut t.memory.stall,
    },
    Knob {
        name: "gbps",
        low: 0.0,
        high: 8.0,
        at: |t| &mut t.memory.gbps,
    },
    Knob {
        name: "sensitivity",
        low: 0.0,
        high: 5.0,
        at: |t| &mut t.memory.sensitivity,
    },
    Knob {
        name: "smt",
        low: 1.0,
        high: 1.9,
        at: |t| &mut t.memory.smt,
    },
];

struct Fit<'a> {
    name: &'a str,
    start: Traits,
    knobs: Vec<&'static Knob>,
    points: &'a [(f64, f64)],
    machine: &'a Machine,
    frames: u32,
}

fn squash(knob: &Knob, x: f64) -> f64 {
    knob.low + (knob.high - knob.low) / (1.0 + (-x).exp())
}

fn unsquash(knob: &Knob, value: f64) -> f64 {
    let part = ((value - knob.low) / (knob.high - knob.low)).clamp(0.001, 0.98);
    (part / (1.0 - part)).ln()
}

impl Fit<'_> {
    fn traits(&self, x: &[f64]) -> Traits {
        let mut traits = self.start.clone();
        for (knob, x) in self.knobs.iter().zip(x) {
            *(knob.at)(&mut traits) = squash(knob, *x);
        }
        traits
    }
}

fn speedup(machine: &Machine, name: &str, traits: &Traits, threads: f64, frames: u32) -> f64 {
    let here = traits.on(machine.costs());
    let script = Arc::new(here.script(name, threads as u32, frames));
    let seconds = alone_seconds(machine, &Kernel::default(), script, None, 1).unwrap();
    traits.sequential_seconds(frames) / seconds
}

impl CostFunction for Fit<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, x: &Vec<f64>) -> Result<f64, Error> {
        let traits = self.traits(x);
        let off = |&(threads, want): &(f64, f64)| {
            let got = speedup(self.machine, self.name, &traits, threads, self.frames);
            (got / want).ln().powi(2)
        };
        Ok(self.points.iter().map(off).sum::<f64>() / self.points.len() as f64)
    }
}

/// The traits with the least error.
fn solve(fit: Fit<'_>) -> Traits {
    let start: Vec<f64> = fit
        .knobs
        .iter()
        .map(|knob| unsquash(knob, *(knob.at)(&mut fit.start.clone())))
        .collect();
    let corner = |i: usize| {
        let mut x = start.clone();
        if i > 0 {
            x[i - 1] += 1.0;
        }
        x
    };
    let simplex = (0..=start.len()).map(corner).collect();
    let solver = NelderMead::new(simplex).with_sd_tolerance(1e-6).unwrap();
    let solved = Executor::new(fit, solver)
        .configure(|state| state.max_iters(150))
        .run()
        .unwrap();
    let best = solved.state.best_param.unwrap();
    solved.problem.problem.unwrap().traits(&best)
}

fn show(label: &str, machine: &Machine, name: &str, traits: &Traits, points: &[(f64, f64)]) {
    let mut errors = Vec::new();
    print!("  {label}:");
    for &(threads, want) in points {
        let got = speedup(machine, name, traits, threads, FRAMES);
        errors.push((got / want - 1.0).abs());
        print!(" {threads}:{got:.2}/{want}");
    }
    errors.sort_by(f64::total_cmp);
    println!(
        "\n    median {:.1} %, worst {:.1} %",
        100.0 * errors[errors.len() / 2],
        100.0 * errors[errors.len() - 1]
    );
}

fn main() {
    let only: Vec<String> = std::env::args().skip(1).collect();
    let xeon = Machine::new(topology("package:2 numa:1 core:12 pu:2"), Costs::xeon());
    let phi = Machine::new(topology("package:1 core:64 pu:4"), Costs::phi());
    let published = published();
    let mut models = programs().unwrap();
    if let Ok(f) = std::env::var("READ") {
        models = serde_json::from_str(&std::fs::read_to_string(f).unwrap()).unwrap();
    }
    for model in &mut models {
        let name = model.name.clone();
        let name = name.as_str();
        let Some(points) = published.get(name) else {
            continue;
        };
        if !(only.is_empty() || only.iter().any(|o| o == name)) {
            continue;
        }
        let is_free = |knob: &&Knob| model.fitted.iter().any(|name| name == knob.name);
        let knobs: Vec<_> = KNOBS.iter().filter(is_free).collect();
        let mut traits = if std::env::var("ONLY_SHOW").is_ok() {
            model.traits.clone()
        } else {
            solve(Fit {
                name,
                start: model.traits.clone(),
                points: &points["xeon"],
                machine: &xeon,
                frames: FRAMES,
                knobs: knobs.clone(),
            })
        };
        println!("{name}:");
        for knob in &knobs {
            println!("  {} {:.4}", knob.name, (knob.at)(&mut traits));
        }
        show("xeon", &xeon, name, &traits, &points["xeon"]);
        show("phi", &phi, name, &traits, &points["phi"]);
        for knob in knobs {
            let value = (knob.at)(&mut traits);
            *value = (*value * 1e4).round() / 1e4;
        }
        model.traits = traits;
    }
    if let Ok(file) = std::env::var("WRITE") {
        let text = serde_json::to_string_pretty(&models).unwrap();
        std::fs::write(file, text + "\n").unwrap();
    }
}
