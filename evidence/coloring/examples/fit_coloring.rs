// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fits the parameters of the simulation that paper 3a does not give to published figures: times
//! for which the lock is held, lock contention, cache misses of the chat, and the gain of the web
//! workload on one CPU. All other published gains are not used, because the model has to predict
//! them.
//!
//! `fit_coloring [ROUNDS] [NAME=VALUE]...`:
//!
//! 1. Each round multiplies and divides each of four parameters by a factor, and keeps a change
//!    that reduces the distance: the mean of the squared deviations from the published figures, in
//!    units of their tolerances.
//! 2. At the end, the program prints simulated and published figures, and the predicted gains. With
//!    0 rounds, it only prints the results of the start values.
//!
//! The environment variables `CPUS=2,4,8` and `SEEDS=2` (their default values) set the numbers of
//! CPUs and the number of seeds.

#![allow(clippy::unwrap_used)]

use usher_coloring::machine::{
    CHAT_AHEAD, Colors, SmpMachine, WEB_NETWORK_NS, WEB_OPERATIONS, WorkloadKind,
};
use usher_coloring::workload::{Chat, Web, Workload};
use usher_coloring::{
    SimulationResult, SimulationSetting, gain_percent, published, simulate_workload,
};
use usher_sim::parallel;

/// Names of the fitted parameters, with the factor of a step.
const KNOBS: [(&str, f64); 4] = [
    ("miss_cycles", 1.12),
    ("operation_cycles", 1.25),
    ("ahead", 1.4),
    ("operations", 1.15),
];

/// The values of all parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Chosen {
    machine: SmpMachine,
    ahead: u64,
    operations: u32,
}

impl Chosen {
    fn value(&mut self, name: &str) -> &mut dyn Value {
        match name {
            "miss_cycles" => &mut self.machine.miss_cycles,
            "operation_cycles" => &mut self.machine.operation_cycles,
            "switch_cycles" => &mut self.machine.switch_cycles,
            "wake_cycles" => &mut self.machine.wake_cycles,
            "visit_cycles" => &mut self.machine.visit_cycles,
            "ahead" => &mut self.ahead,
            "operations" => &mut self.operations,
            _ => panic!("no parameter {name}"),
        }
    }

    fn workload(&self, load: WorkloadKind) -> Box<dyn Workload> {
        match load {
            WorkloadKind::Web => Box::new(Web::new(256, self.operations, WEB_NETWORK_NS)),
            WorkloadKind::Chat => Box::new(Chat::new(30, 20, self.ahead)),
        }
    }
}

/// Access to a parameter of any integer type.
trait Value {
    fn get(&self) -> f64;
    fn set(&mut self, to: f64);
}

impl Value for u64 {
    fn get(&self) -> f64 {
        *self as f64
    }

    fn set(&mut self, to: f64) {
        *self = to.round().max(1.0) as u64;
    }
}

impl Value for u32 {
    fn get(&self) -> f64 {
        f64::from(*self)
    }

    fn set(&mut self, to: f64) {
        *self = to.round().max(1.0) as u32;
    }
}

/// Results of a workload on a number of CPUs: for each seed, with plain and with coloured
/// structures.
struct Point {
    load: WorkloadKind,
    cpus: usize,
    pairs: Vec<[SimulationResult; 2]>,
}

impl Point {
    fn mean(&self, of: impl Fn(&[SimulationResult; 2]) -> f64) -> f64 {
        self.pairs.iter().map(of).sum::<f64>() / self.pairs.len() as f64
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn run(chosen: &Chosen, places: &[(WorkloadKind, usize)]) -> Vec<Point> {
    let (seeds, times) = (number("SEEDS", 2), number("TIMES", 1));
    let settings: Vec<SimulationSetting> = places
        .iter()
        .flat_map(|&(load, cpus)| {
            (1..=seeds).flat_map(move |seed| {
                [Colors::Plain, Colors::DEFAULT].map(|colors| SimulationSetting {
                    load,
                    cpus,
                    colors,
                    warm: times * load.warm(),
                    measured: times * load.warm(),
                    seed,
                })
            })
        })
        .collect();
    let one = |setting: &SimulationSetting| {
        let workload = chosen.workload(setting.load);
        simulate_workload(&chosen.machine, setting, workload.as_ref()).unwrap()
    };
    let outcomes = parallel::each(&settings, 2, &one);
    outcomes
        .chunks(2 * seeds as usize)
        .map(|chunk| Point {
            load: chunk[0].setting.load,
            cpus: chunk[0].setting.cpus,
            pairs: chunk.chunks(2).map(|pair| [pair[0], pair[1]]).collect(),
        })
        .collect()
}

/// A published figure and the simulated figure.
struct Target {
    what: String,
    published: f64,
    simulated: f64,
    /// Deviation of the simulated figure in units of the tolerance.
    off: f64,
}

fn targets(points: &[Point]) -> Vec<Target> {
    use published as p;
    let mut targets = Vec::new();
    for point in points {
        let at = point.cpus;
        let mut add = |what: &str, published: f64, simulated: f64, off: f64| {
            targets.push(Target {
                what: format!("{} {at} CPUs: {what}", point.load.name()),
                published,
                simulated,
                off,
            });
        };
        if point.load == WorkloadKind::Web {
            if at == 1 {
                let gain = point.mean(|[plain, colored]| gain_percent(plain, colored));
                add("gain %", p::WEB_GAINS[0], gain, gain - p::WEB_GAINS[0]);
            }
            continue;
        }
        let names = ["plain", "coloured"];
        let misses = [p::CHAT_MISSES_PLAIN, p::CHAT_MISSES_COLORED];
        let holds = [p::CHAT_HOLD_US_PLAIN, p::CHAT_HOLD_US_COLORED];
        let taken = [p::CHAT_CONTENTION_PLAIN, p::CHAT_CONTENTION_COLORED];
        for of in 0..2 {
            let name = names[of];
            let miss = point.mean(|pair| 100.0 * pair[of].walk_miss_ratio);
            let there = misses[of][at - 1];
            add(
                &format!("misses % {name}"),
                there,
                miss,
                (miss - there) / 10.0,
            );
            if at == 1 {
                continue;
            }
            let (hold, there) = (point.mean(|pair| pair[of].hold_us), holds[of][at - 2]);
            add(
                &format!("held us {name}"),
                there,
                hold,
                (hold / there).ln() / 0.2,
            );
            let there = taken[of][at - 2];
            let contention = point.mean(|pair| 100.0 * pair[of].contention);
            let off = (contention - there) / 10.0;
            add(&format!("taken % {name}"), there, contention, off);
        }
    }
    targets
}

/// Returns the mean of the squared deviations. Deviations are clamped to four tolerances, so that
/// an outlier does not dominate.
fn distance(targets: &[Target]) -> f64 {
    let sum: f64 = targets.iter().map(|t| t.off.clamp(-4.0, 4.0).powi(2)).sum();
    sum / targets.len() as f64
}

fn show(points: &[Point]) {
    for target in targets(points) {
        println!(
            "{:<32} {:>7.1} published {:>7.1} deviation {:>+6.1}",
            target.what, target.simulated, target.published, target.off
        );
    }
    println!(
        "distance {:.3}; the following figures are predicted, not fitted:",
        distance(&targets(points))
    );
    for point in points {
        let gains = point.pairs.iter().map(|[a, b]| gain_percent(a, b));
        let gains: Vec<String> = gains.map(|gain| format!("{gain:+.1}")).collect();
        let median =
            |of: usize, figure: fn(&SimulationResult) -> f64| point.mean(|p| figure(&p[of]));
        println!(
            "  {:>4} {} CPUs, plain and coloured: gains {} %; operations per second {:.0} {:.0}, \
             queue length {:.0} {:.0}, decisions {:.0} {:.0}, time share in operations {:.2} \
             {:.2}, in spinning {:.2} {:.2}",
            point.load.name(),
            point.cpus,
            gains.join(" "),
            median(0, |o| o.throughput),
            median(1, |o| o.throughput),
            median(0, |o| o.queue_length),
            median(1, |o| o.queue_length),
            median(0, |o| o.decisions),
            median(1, |o| o.decisions),
            median(0, |o| o.working),
            median(1, |o| o.working),
            median(0, |o| o.spinning),
            median(1, |o| o.spinning),
        );
    }
}

fn main() {
    let mut chosen = Chosen {
        machine: SmpMachine::PAPER,
        ahead: CHAT_AHEAD,
        operations: WEB_OPERATIONS,
    };
    let mut rounds = 0;
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some((name, value)) => chosen.value(name).set(value.parse().unwrap()),
            None => rounds = argument.parse().unwrap(),
        }
    }
    let cpus = std::env::var("CPUS").unwrap_or_else(|_| "2,4,8".to_owned());
    let cpus = cpus.split(',').map(|word| word.parse::<usize>().unwrap());
    let chat: Vec<_> = cpus.map(|cpus| (WorkloadKind::Chat, cpus)).collect();
    let fitted_to = [&[(WorkloadKind::Web, 1)], chat.as_slice()].concat();
    let cost = |chosen: &Chosen| distance(&targets(&run(chosen, &fitted_to)));
    let mut best = if rounds > 0 { cost(&chosen) } else { 0.0 };
    for round in 0..rounds {
        for (name, factor) in KNOBS {
            for factor in [factor, 1.0 / factor] {
                let mut other = chosen;
                let value = other.value(name);
                value.set(value.get() * factor);
                let now = cost(&other);
                if now < best {
                    (chosen, best) = (other, now);
                    println!("{best:.4} {name} = {}", chosen.value(name).get());
                    break;
                }
            }
        }
        println!("round {round}: {best:.4}");
    }
    let web = chat.iter().map(|&(_, cpus)| (WorkloadKind::Web, cpus));
    let all: Vec<_> = fitted_to.iter().copied().chain(web).collect();
    show(&run(&chosen, &all));
    let mut shown = chosen;
    for (name, _) in KNOBS {
        println!("{name}={}", shown.value(name).get());
    }
}
