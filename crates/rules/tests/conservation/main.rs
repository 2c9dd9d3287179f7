// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work conservation on the host build of the scheduler: no thread waits while a CPU that it may use
//! is idle.
//!
//! Random loads demand 50 to 100 % of three machines with SMT. Requests to schedule arrive late, and
//! CPUs become idle in steps, so that races occur. `USHER_CONSERVATION_SEEDS=FROM..TO` selects other
//! seeds.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod idle_time;
mod load;
mod machine;

use std::sync::atomic::{AtomicU64, Ordering};

use common::MS;
use common::rig::Shape;
use machine::{DelayedMachine, Delays, settings};
use oorandom::Rand64;
use usher_rules::sched::{HostSched, HostVariant};

/// Machines with 8 CPUs, with 48 CPUs in two LLCs, and with 24 CPUs on each of two nodes.
const SHAPES: [Shape; 3] = [Shape(1, 1, 4, 2), Shape(1, 2, 12, 2), Shape(2, 1, 12, 2)];
/// Simulated time of a seed.
const RUN_NS: u64 = 400 * MS;
/// Largest idle time although threads wait, in millionths of the CPU time.
const UNSERVED_PPM_MAX: u64 = 1_000;
const LONGEST_NS_MAX: u64 = 4 * MS;

/// Idle time of one load.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    unserved_ns: u64,
    longest_ns: u64,
    cpu_ns: u64,
}

impl Outcome {
    fn ppm(self) -> u64 {
        self.unserved_ns * 1_000_000 / self.cpu_ns
    }

    fn is_within_bars(self) -> bool {
        self.ppm() <= UNSERVED_PPM_MAX && self.longest_ns <= LONGEST_NS_MAX
    }
}

/// Runs the load of a seed on a machine. `change` changes the simulated kernel before.
fn run(seed: u64, shape: Shape, change: impl Fn(&mut HostSched)) -> Outcome {
    let at = SHAPES.iter().position(|&of| of == shape).unwrap();
    let mut random = Rand64::new((seed * SHAPES.len() as u64 + at as u64).into());
    let has_node_masks = random.rand_range(0..2) == 1;
    let variant = HostVariant {
        nodes: if has_node_masks {
            (1 << shape.0) - 1
        } else {
            0
        },
        ..HostVariant::default()
    };
    let places = shape.places();
    let mut sched = HostSched::with_variant(&places, &settings(shape), variant, seed);
    sched.split_idle(random.rand_range(0..2) == 1);
    sched.set_immediate(random.rand_range(0..2) == 1);
    change(&mut sched);
    let delays = Delays {
        kick_ns: 2_000 << random.rand_range(0..7),
        step_ns: 1_000 << random.rand_range(0..6),
    };
    let threads = load::draw(&mut random, shape);
    let mut machine = DelayedMachine::new(sched, shape, delays, random);
    for thread in threads {
        machine.add(thread, None);
    }
    machine.run(RUN_NS);
    Outcome {
        unserved_ns: machine.idle_time.unserved_ns,
        longest_ns: machine.idle_time.longest_ns,
        cpu_ns: RUN_NS * shape.cpus() as u64,
    }
}

fn seeds() -> (u64, u64) {
    let range = std::env::var("USHER_CONSERVATION_SEEDS").unwrap_or_else(|_| "0..12".to_owned());
    let (from, to) = range.split_once("..").unwrap();
    (from.parse().unwrap(), to.parse().unwrap())
}

#[test]
fn no_thread_waits_while_its_cpus_are_idle() {
    let (from, to) = seeds();
    let next = AtomicU64::new(from);
    let work = || {
        let seeds = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        let cases = seeds
            .take_while(|&seed| seed < to)
            .flat_map(|seed| SHAPES.map(|shape| (seed, shape)));
        cases
            .map(|(seed, shape)| (seed, shape, run(seed, shape, |_| ())))
            .collect::<Vec<_>>()
    };
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get());
    let outcomes: Vec<(u64, Shape, Outcome)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let outcomes = workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap());
        outcomes.collect()
    });
    for shape in SHAPES {
        let of_shape = outcomes.iter().filter(|(_, of, _)| *of == shape);
        let of_shape: Vec<Outcome> = of_shape.map(|(.., outcome)| *outcome).collect();
        let unserved_ns: u64 = of_shape.iter().map(|outcome| outcome.unserved_ns).sum();
        let cpu_ns: u64 = of_shape.iter().map(|outcome| outcome.cpu_ns).sum();
        let longest_ns = of_shape.iter().map(|outcome| outcome.longest_ns).max();
        println!(
            "{shape:?}: {} of 1,000,000; longest {longest_ns:?} ns",
            unserved_ns * 1_000_000 / cpu_ns.max(1)
        );
    }
    let failed: Vec<_> = outcomes
        .iter()
        .filter(|(.., outcome)| !outcome.is_within_bars())
        .collect();
    for (seed, shape, outcome) in &failed {
        eprintln!(
            "seed {seed}, {shape:?}: {} millionths, {outcome:?}",
            outcome.ppm()
        );
    }
    assert!(
        failed.is_empty(),
        "{} of {} runs",
        failed.len(),
        outcomes.len()
    );
}

/// Without kicks of idle CPUs, the measure exceeds the bars: it finds a scheduler that does not wake
/// idle CPUs.
#[test]
fn lost_kicks_of_idle_cpus_exceed_the_bars() {
    let cases = (0..4).flat_map(|seed| SHAPES.map(|shape| (seed, shape)));
    let outcomes = cases.map(|(seed, shape)| run(seed, shape, |sched| sched.lose_idle_kicks(true)));
    let outcomes: Vec<Outcome> = outcomes.collect();
    let exceed = outcomes.iter().filter(|outcome| !outcome.is_within_bars());
    assert!(exceed.count() >= outcomes.len() / 4, "{outcomes:?}");
}
