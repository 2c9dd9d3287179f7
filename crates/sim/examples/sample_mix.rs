// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sample mix of paper 1 (its figure 4) and the schedulers:
//! `sample_mix [PROGRAM]...`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use usher_model::CpuSet;
use usher_policy::Policy;
use usher_policy::rivals::Fixed;
use usher_sim::campaign::Scheduler;
use usher_sim::kernel::{Fair, Kernel};
use usher_sim::machine::{Costs, Machine};
use usher_sim::mix::{Entrant, run};
use usher_sim::parsec::programs;
use usher_topology::Source;

const SAMPLE: [&str; 4] = ["canneal", "dedup", "ferret", "streamcluster"];
const APART: [&str; 4] = ["0-11", "12-23", "24-41", "42-47"];
const TOGETHER: [&str; 4] = [
    "0-2,6-8,12-14,18-20",
    "3-5,9-11,15-17,21-23",
    "24-27,30-33,36-40,42-46",
    "28-29,34-35,41,47",
];

fn seats(cpus: [&str; 4]) -> BTreeMap<String, CpuSet> {
    let pair = |(name, cpus): (&str, &str)| (name.to_owned(), cpus.parse().unwrap());
    SAMPLE.into_iter().zip(cpus).map(pair).collect()
}

fn main() {
    let seconds: f64 = std::env::var("SECONDS_ALONE").map_or(60.0, |s| s.parse().unwrap());
    let names: Vec<String> = std::env::args().skip(1).collect();
    let chosen = match names.is_empty() {
        true => SAMPLE.map(str::to_owned).to_vec(),
        false => names,
    };
    let spec = "package:4 die:2 numa:1 core:6 pu:1".to_owned();
    let topology = usher_topology::load(Source::Synthetic(spec)).unwrap();
    let number =
        |name: &str, default: f64| std::env::var(name).map_or(default, |s| s.parse().unwrap());
    let mut costs = Costs::default();
    costs.node_gbps = number("NODE", costs.node_gbps);
    costs.near_factor = number("NEAR", costs.near_factor);
    costs.far_factor = number("FAR", costs.far_factor);
    let machine = Machine::new(topology.clone(), costs);
    let kernel = if std::env::var("EEVDF").is_ok() {
        Kernel {
            fair: Fair::Threads,
            ..Kernel::default()
        }
    } else {
        Kernel::cfs()
    };
    let kernel = Kernel {
        slice_ns: number("SLICE", kernel.slice_ns as f64) as u64,
        sleeper_credit_ns: number("CREDIT", kernel.sleeper_credit_ns as f64) as u64,
        preempt_margin_ns: number("MARGIN", kernel.preempt_margin_ns as f64) as u64,
        protect_ns: number("PROTECT", kernel.protect_ns as f64) as u64,
        balance_ns: number("BALANCE", kernel.balance_ns as f64) as u64,
        busy_balance_ns: number("BUSY", kernel.busy_balance_ns as f64) as u64,
        ..kernel
    };

    let all = programs().unwrap();
    let mut entrants = Vec::new();
    for name in &chosen {
        let model = all.iter().find(|model| model.name == *name).expect(name);
        let frames = (seconds * 1e3 / model.traits.frame_ms).ceil() as u32;
        let here = model.traits.on(machine.costs());
        let script = Arc::new(here.script(name, 48, frames));
        let entrant = Entrant::measure(name, script, &machine, &kernel, 1).unwrap();
        print!("{name}:");
        for point in entrant.alone.points() {
            let speedup = point.rate * model.traits.sequential_seconds(frames);
            print!(" {}:{speedup:.2}", point.cores);
        }
        println!(" best {:.2} s", entrant.alone_best_seconds(&machine));
        entrants.push(entrant);
    }
    let show = |name: &str, entrants: &[Entrant], policy: Box<dyn Policy>| {
        let began = std::time::Instant::now();
        let out = run(entrants, &machine, &kernel, policy, 3, 1);
        let ntt: Vec<String> = out.ntt.iter().map(|ntt| format!("{ntt:.2}")).collect();
        let speed = out.events as f64 / began.elapsed().as_secs_f64() / 1e6;
        println!(
            "{name:15} ANTT {:.3} ({}), {:.0} s simulated, {:.1} M events/s",
            out.antt(),
            ntt.join(" "),
            out.virtual_seconds,
            speed
        );
    };
    if chosen == SAMPLE {
        for (name, cpus) in [("apart", APART), ("together", TOGETHER)] {
            show(
                name,
                &entrants,
                Box::new(Fixed::new(topology.clone(), seats(cpus))),
            );
        }
    }
    for scheduler in Scheduler::ALL {
        if std::env::var("FEW").is_ok() && scheduler != Scheduler::Linux {
            continue;
        }
        for entrant in &mut entrants {
            entrant.known = scheduler.knows();
        }
        let policy = scheduler.policy(&machine, &entrants);
        show(scheduler.name(), &entrants, policy);
    }
}
