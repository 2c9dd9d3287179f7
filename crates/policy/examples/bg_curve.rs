// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the cost and the throughput of background work beside a foreground that alternates
//! between work and pauses: `cargo run --release -p usher-policy --example bg_curve
//! [usher|eii|ipd]`.
//!
//! The foreground works for half of each period. For each length of the period, the program prints
//! the additional run time of the foreground, the background share of the idle time, and the stops
//! and samples per second. The machine is the simulated machine of the tests
//! (`tests/background/world.rs`).
#![allow(clippy::unwrap_used)] // every case is well-formed

#[path = "../tests/background/compare.rs"]
mod compare;
#[path = "../tests/background/fixtures.rs"]
mod fixtures;
#[path = "../tests/background/world.rs"]
mod world;

use compare::{Outcome, compare};
use usher_model::{Regulation, Resource};
use world::{DISK, Foreground, LINK, MS, S, Step, World};

struct Case {
    name: &'static str,
    resource: Resource,
    service_ns: u64,
    depth: u32,
    leak: f64,
}

const CASES: [Case; 7] = [
    case("fast disk", DISK, 200_000, 1, 0.0),
    case("fast disk with queue depth 8", DISK, 200_000, 8, 0.0),
    case("slow disk", DISK, 8 * MS, 1, 0.0),
    case("slow disk with queue depth 8", DISK, 8 * MS, 8, 0.0),
    case("link with a queue of 5 ms", LINK, 100_000, 50, 0.0),
    case(
        "CPU, 0.5 % of foreground time leaks",
        Resource::Cpu,
        0,
        2,
        0.005,
    ),
    case(
        "CPU, 50 % of foreground time leaks",
        Resource::Cpu,
        0,
        2,
        0.5,
    ),
];

const fn case(
    name: &'static str,
    resource: Resource,
    service_ns: u64,
    depth: u32,
    leak: f64,
) -> Case {
    Case {
        name,
        resource,
        service_ns,
        depth,
        leak,
    }
}

/// Measures a case in which the foreground works for half of the period.
fn run(case: &Case, period_ms: u64, regulation: Regulation) -> Outcome {
    let on_ns = period_ms * MS / 2;
    let is_cpu = case.resource == Resource::Cpu;
    let make = || {
        let mut world = World::new(2).device(case.resource, case.service_ns);
        if is_cpu {
            world = World::new(2);
        }
        world.leak = case.leak;
        let work = if is_cpu {
            period_ms / 2
        } else {
            (on_ns / case.service_ns.max(1)).max(1)
        };
        let step = Step {
            work,
            pause_ns: on_ns,
        };
        let mut foreground = Foreground::new(case.resource, vec![step]);
        foreground.threads = 2;
        world.foreground.push(foreground);
        world.arrive(1, regulation, case.resource, case.depth);
        world
    };
    compare(make, 60 * S)
}

fn main() {
    let named = std::env::args().nth(1).unwrap_or_default();
    let mut all = Regulation::ALL.into_iter();
    let regulation = all.find(|r| r.name() == named).unwrap_or_default();
    println!(
        "{}: delay of the foreground in % / share of the idle time that background work uses in \
         % / stops per second / samples per second",
        regulation.name()
    );
    let periods = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000];
    for case in &CASES {
        println!("{}", case.name);
        for period_ms in periods {
            let o = run(case, period_ms, regulation);
            println!(
                "  {period_ms:>6} ms  {:6.2}  {:6.1}  {:6.2}  {:6.1}",
                o.delay * 100.0,
                o.idle_used * 100.0,
                o.stops_per_s,
                o.samples_per_s
            );
        }
    }
}
