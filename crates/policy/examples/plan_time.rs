// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the time to compute a plan: `cargo run --release -p usher-policy --example plan_time
//! [ROUNDS [CASE]]`. Prints one line per case: programs, machine, median and longest time, steps, ANTT,
//! gap, shared packages.
//!
//! The arguments `1 CASE` compute a single plan, as `valgrind --tool=callgrind` needs; cases are
//! numbered from 0.
#![allow(clippy::unwrap_used)] // every case is well-formed

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use usher_model::{Core, Cpu, CpuSet, Curve, Domain, NumaNode, Package, ProgramId, Topology};
use usher_policy::seating::{Request, Seating, seat};

/// A machine of `packages` packages with `domains` domains each and `cores` cores per domain. The
/// cores of the last `slow` domains have the capacity 0.6.
fn machine(packages: usize, domains: usize, cores: usize, slow: usize) -> Topology {
    let (all_domains, all) = (packages * domains, packages * domains * cores);
    let cpus = |first: usize, count: usize| CpuSet::range(first as u32, (first + count) as u32 - 1);
    Topology {
        name: format!("package:{packages} die:{domains} core:{cores} slow:{slow}"),
        cpus: (0..all)
            .map(|core| Cpu {
                os: core as u32,
                core,
            })
            .collect(),
        cores: (0..all)
            .map(|core| Core {
                cpus: cpus(core, 1),
                domain: core / cores,
                capacity: if core / cores >= all_domains - slow {
                    0.6
                } else {
                    1.0
                },
            })
            .collect(),
        domains: (0..all_domains)
            .map(|d| Domain {
                cpus: cpus(d * cores, cores),
                cores: (d * cores..(d + 1) * cores).collect(),
                package: d / domains,
                nodes: vec![d / domains],
                llc: None,
            })
            .collect(),
        packages: (0..packages)
            .map(|p| Package {
                cpus: cpus(p * domains * cores, domains * cores),
                domains: (p * domains..(p + 1) * domains).collect(),
                model: None,
                dies: Vec::new(),
            })
            .collect(),
        nodes: (0..packages)
            .map(|p| NumaNode {
                os: p as u32,
                cpus: cpus(p * domains * cores, domains * cores),
                bytes: 0,
            })
            .collect(),
    }
}

/// A machine with one package and these domains, each a list of the capacities of its cores.
fn unequal(name: &str, domains: &[Vec<f64>]) -> Topology {
    let mut topology = machine(1, 1, domains.iter().map(Vec::len).sum(), 0);
    topology.name = name.to_owned();
    topology.domains.clear();
    let mut core = 0;
    for (id, capacities) in domains.iter().enumerate() {
        let first = core;
        for &capacity in capacities {
            topology.cores[core].capacity = capacity;
            topology.cores[core].domain = id;
            core += 1;
        }
        topology.domains.push(Domain {
            cpus: CpuSet::range(first as u32, core as u32 - 1),
            cores: (first..core).collect(),
            package: 0,
            nodes: vec![0],
            llc: None,
        });
    }
    topology.packages[0].domains = (0..domains.len()).collect();
    topology
}

/// Machines with several kinds of domains or cores, each with a number of programs.
fn unequal_machines() -> Vec<(usize, Topology)> {
    let sized = |sizes: &dyn Fn(usize) -> usize, count: usize| -> Vec<Vec<f64>> {
        (0..count).map(|d| vec![1.0; sizes(d)]).collect()
    };
    // The capacities of Linux on an NVIDIA GB10: Cortex-A725 and three kinds of Cortex-X925.
    let gb10 = |fast: [f64; 5]| -> Vec<Vec<f64>> {
        let cluster = || [0.7; 5].into_iter().chain(fast).collect();
        vec![cluster(), cluster()]
    };
    let odd = |d: usize| 4 + d % 6 + d / 6;
    vec![
        (
            8,
            unequal("24 domains of 3 sizes", &sized(&|d| 4 + d % 3, 24)),
        ),
        (
            8,
            unequal("24 domains of 4 sizes", &sized(&|d| 4 + d % 4, 24)),
        ),
        (
            8,
            unequal("24 domains of 6 sizes", &sized(&|d| 4 + d % 6, 24)),
        ),
        (8, unequal("24 domains of 9 sizes", &sized(&odd, 24))),
        (8, unequal("24 domains of 24 sizes", &sized(&|d| 2 + d, 24))),
        (9, unequal("GB10, 2 kinds of cores", &gb10([1.0; 5]))),
        (
            9,
            unequal(
                "GB10, 4 kinds of cores",
                &gb10([0.95, 0.95, 0.97, 0.97, 1.0]),
            ),
        ),
        (
            9,
            unequal(
                "GB10, 6 kinds of cores",
                &gb10([0.92, 0.94, 0.96, 0.98, 1.0]),
            ),
        ),
        (
            64,
            unequal("64 domains of 4 sizes", &sized(&|d| 5 + d % 4, 64)),
        ),
        (
            40,
            unequal("64 domains of 4 sizes", &sized(&|d| 5 + d % 4, 64)),
        ),
    ]
}

/// Programs of `kinds` kinds, which scale from perfectly (kind 0) to poorly.
fn requests(programs: usize, kinds: usize, cores: usize) -> Vec<Request> {
    let curve = |kind: usize| {
        let sigma = 0.3 * (kind as f64 / kinds as f64).powi(3);
        let rate = |n: f64| n / (1.0 + sigma * (n - 1.0) + 1e-5 * n * (n - 1.0));
        let rates: BTreeMap<u32, f64> = (0..)
            .map(|i| 1u32 << i)
            .take_while(|&n| n as usize <= cores)
            .map(|n| (n, rate(f64::from(n))))
            .collect();
        Curve::from_rates(&rates).unwrap()
    };
    let request = |i: usize| Request {
        id: ProgramId(i as u64),
        name: format!("program-{i:03}"),
        curve: curve(i % kinds),
        weight: 1.0,
        spinners: 0,
        llc_bytes: None,
        bandwidth_gbps: Some((i % 7) as f64),
        bound_to: None,
        pinned: false,
    };
    (0..programs).map(request).collect()
}

fn shared_packages(machine: &Topology, seating: &Seating) -> usize {
    let inside = |package: usize| {
        let here = |d: &usize| machine.domains[*d].package == package;
        seating
            .plan
            .seats
            .iter()
            .filter(move |s| s.domains.iter().any(here))
            .count()
    };
    let used: BTreeSet<usize> = (0..machine.packages.len())
        .filter(|&p| inside(p) > 1)
        .collect();
    used.len()
}

fn main() {
    let argument = |at: usize| {
        std::env::args()
            .nth(at)
            .and_then(|r| r.parse::<usize>().ok())
    };
    let rounds = argument(1).unwrap_or(21);
    let cases = [
        (4, 4, (4, 2, 6, 0)),
        (8, 8, (4, 2, 6, 0)),
        (8, 8, (1, 8, 8, 0)),
        (8, 3, (2, 8, 8, 0)),
        (64, 64, (16, 8, 8, 0)),
        (64, 5, (16, 8, 8, 0)),
        (64, 64, (2, 64, 8, 0)),
        (64, 64, (128, 1, 8, 0)),
        (100, 100, (16, 8, 8, 0)),
        (8, 8, (2, 8, 8, 8)),
        (64, 64, (16, 8, 8, 64)),
        (12, 12, (2, 4, 6, 0)),
        (130, 130, (16, 8, 8, 0)),
        (1, 1, (128, 8, 8, 0)),
        (8, 8, (128, 8, 8, 0)),
        (1, 1, (1024, 8, 1, 0)),
        (8, 8, (1024, 8, 1, 0)),
        (8, 8, (8192, 1, 1, 0)),
        (64, 64, (8192, 1, 1, 4096)),
        (500, 500, (1024, 8, 1, 0)),
        (1000, 100, (128, 8, 8, 100)),
        (2000, 100, (128, 8, 8, 100)),
        (8192, 100, (8192, 1, 1, 0)),
    ];
    let cases = cases.into_iter();
    let equal = cases.map(|(programs, kinds, (packages, domains, cores, slow))| {
        (programs, kinds, machine(packages, domains, cores, slow))
    });
    let unequal = unequal_machines().into_iter();
    let unequal = unequal.map(|(programs, machine)| (programs, programs, machine));
    for (case, (programs, kinds, machine)) in equal.chain(unequal).enumerate() {
        if argument(2).is_some_and(|only| only != case) {
            continue;
        }
        let requests = requests(programs, kinds, machine.cores.len());
        let mut times_us = Vec::new();
        let mut last = None;
        for _ in 0..rounds {
            let start = Instant::now();
            last = Some(seat(&machine, &requests).unwrap());
            times_us.push(start.elapsed().as_micros());
        }
        times_us.sort_unstable();
        let seating = last.unwrap();
        println!(
            "{programs:>3} programs ({kinds:>3} kinds) {:<36} median {:>7} us, longest {:>7} us, {:>8} steps, ANTT {:.4}, gap {:.4}, shared packages {}",
            machine.name,
            times_us[times_us.len() / 2],
            times_us[times_us.len() - 1],
            seating.steps,
            seating.plan.antt.unwrap(),
            seating.gap,
            shared_packages(&machine, &seating),
        );
    }
}
