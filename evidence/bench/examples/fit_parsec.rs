// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fits the simulator's models of the PARSEC programs to published speed-ups: `fit_parsec
//! [PROGRAM]...`; without arguments, all programs.
//!
//! 1. The free parameters are those traits of a program (such as its serial fraction) that its
//!    model lists as fitted.
//! 2. Nelder-Mead, with at most 150 iterations, minimises the mean Huber loss of the speed-ups'
//!    logarithms against the points published for the Xeon. A sigmoid keeps each trait within its
//!    bounds.
//! 3. The program prints the fitted traits. It also prints simulated and published speed-ups for
//!    the Xeon, and for the Xeon Phi, which was not used for fitting.
//!
//! With the environment variable `WRITE=../crates/sim/data/parsec-traits.json`, when started in
//! `evidence/`, the program also writes the traits to that file.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use argmin::core::{CostFunction, Error, Executor};
use argmin::solver::neldermead::NelderMead;
use usher_model::Topology;
use usher_sim::fidelity::{ModelFit, PHI, SpeedupPoints, XEON, machine, published, speedup};
use usher_sim::machine::Machine;
use usher_sim::parsec::{ParsecModel, ParsecTraits, programs};
use usher_topology::Source;

fn topology(spec: &str) -> Topology {
    usher_topology::load(Source::Synthetic(spec.to_owned())).unwrap()
}

/// A trait of a PARSEC model that can be fitted: its name, its bounds and its accessor.
struct Knob {
    name: &'static str,
    low: f64,
    high: f64,
    at: fn(&mut ParsecTraits) -> &mut f64,
}

const KNOBS: [Knob; 11] = [
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
        name: "parallel_overhead",
        low: 0.5,
        high: 2.0,
        at: |t| &mut t.parallel_overhead,
    },
    Knob {
        name: "spread",
        low: 0.0,
        high: 1.0,
        at: |t| &mut t.spread,
    },
    Knob {
        name: "critical_fraction",
        low: 0.0,
        high: 0.2,
        at: |t| &mut t.critical_fraction,
    },
    Knob {
        name: "sync_us",
        low: 0.0,
        high: 30.0,
        at: |t| &mut t.sync_us,
    },
    Knob {
        name: "sync_power",
        low: 1.0,
        high: 4.0,
        at: |t| &mut t.sync_power,
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

/// Largest relative error of a speed-up for which Huber's loss is quadratic.
const KINK: f64 = 0.05;

struct Search<'a> {
    name: &'a str,
    start: ParsecTraits,
    knobs: Vec<&'static Knob>,
    points: &'a [(f64, f64)],
    machine: &'a Machine,
}

fn squash(knob: &Knob, x: f64) -> f64 {
    knob.low + (knob.high - knob.low) / (1.0 + (-x).exp())
}

fn unsquash(knob: &Knob, value: f64) -> f64 {
    let part = ((value - knob.low) / (knob.high - knob.low)).clamp(0.001, 0.98);
    (part / (1.0 - part)).ln()
}

impl Search<'_> {
    fn traits(&self, x: &[f64]) -> ParsecTraits {
        let mut traits = self.start.clone();
        for (knob, x) in self.knobs.iter().zip(x) {
            *(knob.at)(&mut traits) = squash(knob, *x);
        }
        traits
    }
}

impl CostFunction for Search<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, x: &Vec<f64>) -> Result<f64, Error> {
        let traits = self.traits(x);
        let off = |&(threads, want): &(f64, f64)| {
            let got = speedup(self.machine, self.name, &traits, threads).unwrap();
            huber((got / want).ln())
        };
        Ok(self.points.iter().map(off).sum::<f64>() / self.points.len() as f64)
    }
}

/// Huber's loss of one point: quadratic for small errors and linear for large errors. A published
/// point that no model reaches (dedup at 16 threads) therefore does not distort the rest of the
/// fitted curve.
fn huber(error: f64) -> f64 {
    match error.abs() {
        small if small <= KINK => small * small,
        large => KINK * (2.0 * large - KINK),
    }
}

/// Returns the traits with the smallest loss that Nelder-Mead finds in 150 iterations.
fn solve(fit: Search<'_>) -> ParsecTraits {
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

fn show(label: &str, machine: &Machine, model: &ParsecModel, points: &SpeedupPoints) {
    let fit = ModelFit::new(machine, model, points).unwrap();
    print!("  {label}:");
    for (threads, want, got) in &fit.points {
        print!(" {threads}:{got:.2}/{want}");
    }
    let (median, worst) = fit.median_and_worst().unwrap();
    println!(
        "\n    deviation from the published figures: median {:.1} %, worst {:.1} %",
        100.0 * median,
        100.0 * worst
    );
}

fn main() {
    let only: Vec<String> = std::env::args().skip(1).collect();
    let machines = [("xeon", XEON), ("phi", PHI)];
    let machines = machines.map(|(name, spec)| (name, machine(name, &topology(spec)).unwrap()));
    let published = published().unwrap();
    let mut models = programs().unwrap();
    for model in &mut models {
        let name = model.name.clone();
        let Some(points) = published.get(&name) else {
            continue;
        };
        if !(only.is_empty() || only.contains(&name)) {
            continue;
        }
        let is_free = |knob: &&Knob| model.fitted.iter().any(|name| name == knob.name);
        let knobs: Vec<_> = KNOBS.iter().filter(is_free).collect();
        let mut traits = solve(Search {
            name: &name,
            start: model.traits.clone(),
            points: &points["xeon"],
            machine: &machines[0].1,
            knobs: knobs.clone(),
        });
        println!("{name}:");
        for knob in knobs {
            let value = (knob.at)(&mut traits);
            *value = (*value * 1e4).round() / 1e4;
            println!("  {} {value}", knob.name);
        }
        model.traits = traits;
        for (label, machine) in &machines {
            show(label, machine, model, &points[*label]);
        }
    }
    if let Ok(file) = std::env::var("WRITE") {
        let text = serde_json::to_string_pretty(&models).unwrap();
        std::fs::write(file, text + "\n").unwrap();
    }
}
