// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated gains and lock times for several values of the figures that were
//! fitted (`coloring::machine`), beside what was published.
//!
//! `cargo run --release --example fit_coloring [MISS_CYCLES[,MORE]] [OPERATION_CYCLES[,MORE]] [AHEAD[,MORE]]`

use usher_sim::coloring::machine::{CHAT_AHEAD, Colors, Load, Machine};
use usher_sim::coloring::workload::Chat;
use usher_sim::coloring::{
    Outcome, Setting, SimulationError, gain_percent, published, simulate, simulate_workload,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let list = |at: usize, default: u64| -> Result<Vec<u64>, std::num::ParseIntError> {
        match std::env::args().nth(at) {
            Some(words) => words.split(',').map(str::parse).collect(),
            None => Ok(vec![default]),
        }
    };
    for miss_cycles in list(1, Machine::PAPER.miss_cycles)? {
        for operation_cycles in list(2, Machine::PAPER.operation_cycles)? {
            let machine = Machine {
                miss_cycles,
                operation_cycles,
                ..Machine::PAPER
            };
            for ahead in list(3, CHAT_AHEAD)? {
                println!(
                    "a miss {miss_cycles}, an operation {operation_cycles} cycles, {ahead} ahead; simulated:"
                );
                show(&machine, ahead)?;
            }
        }
    }
    Ok(())
}

fn show(machine: &Machine, ahead: u64) -> Result<(), SimulationError> {
    for load in Load::ALL {
        for cpus in [1, 4, 8] {
            let run = |colors| {
                let setting = Setting {
                    load,
                    cpus,
                    colors,
                    warm: load.warm(),
                    measured: 2 * load.warm(),
                    seed: 1,
                };
                match load {
                    Load::Web => simulate(machine, &setting),
                    Load::Chat => simulate_workload(machine, &setting, &Chat::new(30, 20, ahead)),
                }
            };
            let (plain, colored) = (run(Colors::Plain)?, run(Colors::OURS)?);
            let gain = gain_percent(&plain, &colored);
            let paper = match load {
                Load::Web => published::WEB_GAINS[cpus - 1],
                Load::Chat if cpus == published::CPUS => published::CHAT_GAIN,
                Load::Chat => f64::NAN,
            };
            println!(
                "{:>4} {cpus} CPUs: gain {gain:+6.1} % (published {paper:+})",
                load.name()
            );
            line("plain", &plain);
            line("coloured", &colored);
        }
    }
    Ok(())
}

fn line(name: &str, o: &Outcome) {
    println!(
        "     {name:<8} {:>8.0}/s, queue {:>6.1}, misses {:>5.1} % (work {:>4.1} %), lock taken {:>4.1} %, held {:>6.1} us, spinning {:>4.1} %, working {:>4.1} %",
        o.throughput,
        o.queue_length,
        100.0 * o.walk_miss_ratio,
        100.0 * o.work_miss_ratio,
        100.0 * o.contention,
        o.hold_us,
        100.0 * o.spinning,
        100.0 * o.working
    );
}
