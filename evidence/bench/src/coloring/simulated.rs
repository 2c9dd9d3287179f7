// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `simulated` of the colouring benchmark: simulates the machine of paper 3a with the chat and
//! the web workload on 1 to 8 CPUs, with plain and coloured structures and several seeds. The gains
//! in throughput (median over the seeds) are compared with the gains that the paper reports.

use anyhow::{Context, Result};
use serde_json::json;
use usher_coloring::machine::{Colors, SmpMachine, WorkloadKind};
use usher_coloring::{SimulationResult, SimulationSetting, gain_percent, published, simulate};
use usher_report::stats;

use super::chart::{Chart, Line};
use crate::bars::{Bar, Figure, Part, Table};

/// Variants of the structures' positions: at the start of the block, with Usher's colours, with the
/// paper's number of colours, and with the block address modulo the number of lines.
const VARIANTS: [Colors; 4] = [
    Colors::Plain,
    Colors::DEFAULT,
    Colors::Colored(32),
    Colors::MODULO,
];

/// Results of all seeds for one workload, number of CPUs and variant.
#[derive(Debug, Clone)]
struct Point {
    load: WorkloadKind,
    cpus: usize,
    colors: Colors,
    outcomes: Vec<SimulationResult>,
}

impl Point {
    fn median(&self, figure: impl Fn(&SimulationResult) -> f64) -> f64 {
        let all: Vec<f64> = self.outcomes.iter().map(figure).collect();
        stats::median(&all).unwrap_or(f64::NAN)
    }
}

/// Median, minimum and maximum of a figure over the seeds.
#[derive(Debug, Clone, Copy)]
struct SeedRange {
    median: f64,
    least: f64,
    most: f64,
}

impl SeedRange {
    fn of(all: &[f64]) -> Self {
        Self {
            median: stats::median(all).unwrap_or(f64::NAN),
            least: all.iter().copied().fold(f64::NAN, f64::min),
            most: all.iter().copied().fold(f64::NAN, f64::max),
        }
    }

    fn percent(self) -> String {
        format!(
            "{:+.1}\u{a0}% ({:+.1} to {:+.1})",
            self.median, self.least, self.most
        )
    }
}

/// The results of all points.
struct Results(Vec<Point>);

impl Results {
    fn of(&self, load: WorkloadKind, cpus: usize, colors: Colors) -> Option<&Point> {
        let is = |p: &&Point| (p.load, p.cpus, p.colors) == (load, cpus, colors);
        self.0.iter().find(is)
    }

    fn median(
        &self,
        load: WorkloadKind,
        cpus: usize,
        colors: Colors,
        of: fn(&SimulationResult) -> f64,
    ) -> f64 {
        self.of(load, cpus, colors)
            .map_or(f64::NAN, |point| point.median(of))
    }

    /// Returns the gain in throughput over plain structures with the same seed, in per cent.
    fn gain(&self, load: WorkloadKind, cpus: usize, colors: Colors) -> SeedRange {
        let plain = self.of(load, cpus, Colors::Plain);
        let pairs = plain.zip(self.of(load, cpus, colors));
        let pairs = pairs.map(|(plain, colored)| plain.outcomes.iter().zip(&colored.outcomes));
        let gains = pairs.into_iter().flatten();
        let gains = gains.map(|(plain, colored)| gain_percent(plain, colored));
        SeedRange::of(&gains.collect::<Vec<f64>>())
    }

    fn cpus(&self) -> Vec<usize> {
        let mut cpus: Vec<usize> = self.0.iter().map(|point| point.cpus).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }
}

/// Simulates all points, and returns the part with bars, tables and figures.
pub fn part(quick: bool, seeds: u64) -> Result<Part> {
    let machine = SmpMachine::PAPER;
    let times = if quick { 1 } else { 2 };
    let cpus: Vec<usize> = if quick {
        vec![1, 4, 8]
    } else {
        (1..=published::CPUS).collect()
    };
    let mut settings = Vec::new();
    for load in WorkloadKind::ALL {
        for &cpus in &cpus {
            let at_most = cpus == published::CPUS;
            let shown = |colors: &Colors| at_most || BY_CPUS.iter().any(|f| f.colors == *colors);
            for colors in VARIANTS.into_iter().filter(shown) {
                settings.extend((1..=seeds).map(|seed| SimulationSetting {
                    load,
                    cpus,
                    colors,
                    warm: load.warm(),
                    measured: times * load.warm(),
                    seed,
                }));
            }
        }
    }
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let outcomes =
        usher_sim::parallel::each(&settings, workers, &|setting| simulate(&machine, setting));
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>, _>>();
    let outcomes = outcomes.context("simulating the machine of the paper")?;
    let points = outcomes.chunks(seeds as usize).map(|chunk| Point {
        load: chunk[0].setting.load,
        cpus: chunk[0].setting.cpus,
        colors: chunk[0].setting.colors,
        outcomes: chunk.to_vec(),
    });
    Ok(shown(&machine, &Results(points.collect()), times, seeds))
}

fn shown(machine: &SmpMachine, results: &Results, times: u64, seeds: u64) -> Part {
    let mut part = Part::new(
        "simulated",
        "Simulated: the machine of the paper with 1 to 8 CPUs",
    );
    part.bars = bars(results);
    part.figures = vec![gains(results), throughputs(results), misses(results)];
    part.tables = vec![at_eight(results), parameters(machine)];
    for load in WorkloadKind::ALL {
        part.tables.insert(1, by_cpus(results, load));
    }
    part.notes = notes(results, times, seeds);
    let outcomes: Vec<_> = results.0.iter().flat_map(|point| &point.outcomes).collect();
    part.raw = json!({ "machine": machine, "outcomes": outcomes });
    part
}

fn bars(results: &Results) -> Vec<Bar> {
    let cpus = published::CPUS;
    let mut bars = Vec::new();
    for (load, bar, paper) in [
        (WorkloadKind::Chat, 60.0, published::CHAT_GAIN),
        (WorkloadKind::Web, 15.0, published::WEB_GAIN),
    ] {
        let miss = |colors| 100.0 * results.median(load, cpus, colors, |o| o.walk_miss_ratio);
        let name = load.name();
        let what = format!(
            "simulated {name}, {cpus} CPUs: misses of the walk without colouring (paper > 90)"
        );
        bars.push(Bar::at_least(what, miss(Colors::Plain), 90.0, "%"));
        let what = format!("simulated {name}, {cpus} CPUs: misses of the walk with colouring");
        bars.push(Bar::at_most(what, miss(Colors::DEFAULT), 10.0, "%"));
        let gain = results.gain(load, cpus, Colors::DEFAULT);
        let what = format!(
            "simulated {name}, {cpus} CPUs: gain, median over the seeds (paper +{paper}; seeds \
             {:+.1} to {:+.1})",
            gain.least, gain.most
        );
        bars.push(Bar::at_least(what, gain.median, bar, "%"));
    }
    bars
}

fn class(colors: Colors) -> &'static str {
    match colors {
        Colors::Plain => "p5",
        Colors::Modulo(_) => "p1",
        Colors::Colored(32) => "p4",
        Colors::Colored(_) => "p0",
    }
}

fn line(
    results: &Results,
    class: &'static str,
    name: String,
    value: impl Fn(usize) -> f64,
) -> Line {
    let points = results
        .cpus()
        .into_iter()
        .map(|cpus| (cpus as f64, value(cpus)));
    Line {
        class,
        name,
        points: points.collect(),
        compared: false,
    }
}

fn chart(title: &str, y: &'static str, lines: Vec<Line>) -> Figure {
    let chart = Chart {
        title: title.to_owned(),
        x: "CPUs (simulated)",
        y,
        logarithmic: false,
        mark: None,
        lines,
    };
    Figure {
        caption: title.to_owned(),
        svg: chart.svg(),
    }
}

fn gains(results: &Results) -> Figure {
    let web = published::WEB_GAINS.iter().enumerate();
    let mut lines: Vec<Line> = WorkloadKind::ALL
        .iter()
        .zip(["p2", "p6"])
        .map(|(&load, class)| {
            let name = format!("{}, simulated", load.name());
            line(results, class, name, |cpus| {
                results.gain(load, cpus, Colors::DEFAULT).median
            })
        })
        .collect();
    lines.push(Line {
        class: "p2",
        name: "web load, published (table 4)".to_owned(),
        points: web.map(|(n, gain)| (n as f64 + 1.0, *gain)).collect(),
        compared: true,
    });
    lines.push(Line {
        class: "p6",
        name: "chat, published".to_owned(),
        points: vec![(published::CPUS as f64, published::CHAT_GAIN)],
        compared: true,
    });
    chart(
        "Simulated: gain of throughput by colouring",
        "per cent",
        lines,
    )
}

fn throughputs(results: &Results) -> Figure {
    let mut lines = Vec::new();
    for load in WorkloadKind::ALL {
        let one = results.median(load, 1, Colors::Plain, |o| o.throughput);
        for colors in [Colors::Plain, Colors::DEFAULT] {
            let class = match (load, colors) {
                (WorkloadKind::Web, Colors::Plain) => "p2",
                (WorkloadKind::Web, _) => "p10",
                (WorkloadKind::Chat, Colors::Plain) => "p6",
                (WorkloadKind::Chat, _) => "p14",
            };
            let name = format!("{}, {}", load.name(), colors.name());
            lines.push(line(results, class, name, |cpus| {
                results.median(load, cpus, colors, |o| o.throughput) / one
            }));
        }
    }
    let title = "Simulated: throughput relative to one CPU without colouring";
    chart(
        title,
        "throughput / throughput of one CPU without colouring",
        lines,
    )
}

fn misses(results: &Results) -> Figure {
    let mut lines: Vec<Line> = [Colors::Plain, Colors::DEFAULT]
        .into_iter()
        .map(|colors| {
            let name = format!("chat, {}", colors.name());
            line(results, class(colors), name, |cpus| {
                100.0 * results.median(WorkloadKind::Chat, cpus, colors, |o| o.walk_miss_ratio)
            })
        })
        .collect();
    for (class, name, values) in [
        (
            "p5",
            "without colouring, published (table 7)",
            published::CHAT_MISSES_PLAIN,
        ),
        (
            "p0",
            "32 colours, published",
            published::CHAT_MISSES_COLORED,
        ),
    ] {
        let points = values.iter().enumerate().map(|(n, v)| (n as f64 + 1.0, *v));
        lines.push(Line {
            class,
            name: name.to_owned(),
            points: points.collect(),
            compared: true,
        });
    }
    let title = "Simulated: share of the accesses of the chat's walk that miss the second-level \
                 cache";
    chart(title, "per cent of requests", lines)
}

fn row(what: &str, values: impl Iterator<Item = String>) -> Vec<String> {
    std::iter::once(what.to_owned()).chain(values).collect()
}

/// A column of a table: its heading, and the function that formats a result.
type Column = (&'static str, fn(&SimulationResult) -> String);

/// Returns the table of all variants with 8 CPUs.
fn at_eight(results: &Results) -> Table {
    let mut head = vec!["simulated, 8 CPUs".to_owned()];
    let mut rows: Vec<Vec<String>> = Vec::new();
    let figures: [Column; 7] = [
        ("a second", |o| format!("{:.0}", o.throughput)),
        ("walk's misses", |o| {
            format!("{:.1} %", 100.0 * o.walk_miss_ratio)
        }),
        ("structures a walk", |o| format!("{:.0}", o.queue_length)),
        ("lock found taken", |o| {
            format!("{:.1} %", 100.0 * o.contention)
        }),
        ("lock held, mean", |o| format!("{:.1} us", o.hold_us)),
        ("CPU time spinning", |o| {
            format!("{:.1} %", 100.0 * o.spinning)
        }),
        ("CPU time working", |o| {
            format!("{:.1} %", 100.0 * o.working)
        }),
    ];
    head.extend(figures.iter().map(|(name, _)| (*name).to_owned()));
    head.push("gain".to_owned());
    for load in WorkloadKind::ALL {
        for colors in VARIANTS {
            let Some(point) = results.of(load, published::CPUS, colors) else {
                continue;
            };
            // The table shows the result of the seed with the median throughput.
            let mut outcomes = point.outcomes.clone();
            outcomes.sort_by(|a, b| a.throughput.total_cmp(&b.throughput));
            let middle = &outcomes[outcomes.len() / 2];
            let mut cells = row(
                &format!("{}, {}", load.name(), colors.name()),
                figures.iter().map(|(_, show)| show(middle)),
            );
            let gain = results.gain(load, published::CPUS, colors);
            cells.push(gain.percent());
            rows.push(cells);
        }
    }
    Table { head, rows }
}

/// A figure by the number of CPUs. Published values of the chat: the smallest number of CPUs, and
/// one value for it and each following number of CPUs.
struct ByCpus {
    name: &'static str,
    colors: Colors,
    of: fn(&SimulationResult) -> f64,
    unit: &'static str,
    published: (usize, &'static [f64]),
}

const BY_CPUS: [ByCpus; 6] = {
    const fn of(
        name: &'static str,
        colors: Colors,
        of: fn(&SimulationResult) -> f64,
        unit: &'static str,
        published: (usize, &'static [f64]),
    ) -> ByCpus {
        ByCpus {
            name,
            colors,
            of,
            unit,
            published,
        }
    }
    use published as p;
    let missing: fn(&SimulationResult) -> f64 = |o| 100.0 * o.walk_miss_ratio;
    let taken: fn(&SimulationResult) -> f64 = |o| 100.0 * o.contention;
    let held: fn(&SimulationResult) -> f64 = |o| o.hold_us;
    let (plain, ours) = (Colors::Plain, Colors::DEFAULT);
    [
        of(
            "walk's misses, plain",
            plain,
            missing,
            "%",
            (1, &p::CHAT_MISSES_PLAIN),
        ),
        of(
            "walk's misses, coloured",
            ours,
            missing,
            "%",
            (1, &p::CHAT_MISSES_COLORED),
        ),
        of(
            "lock contended without colouring",
            plain,
            taken,
            "%",
            (2, &p::CHAT_CONTENTION_PLAIN),
        ),
        of(
            "lock contended with colouring",
            ours,
            taken,
            "%",
            (2, &p::CHAT_CONTENTION_COLORED),
        ),
        of(
            "lock held, plain",
            plain,
            held,
            "us",
            (2, &p::CHAT_HOLD_US_PLAIN),
        ),
        of(
            "lock held, coloured",
            ours,
            held,
            "us",
            (2, &p::CHAT_HOLD_US_COLORED),
        ),
    ]
};

/// Returns the table of one workload by the number of CPUs, with the published values.
fn by_cpus(results: &Results, load: WorkloadKind) -> Table {
    let cpus = results.cpus();
    let known = |(first, values): (usize, &[f64]), unit: &str| {
        let cell = |n: &usize| match n.checked_sub(first).and_then(|at| values.get(at)) {
            Some(value) => format!("{value} {unit}"),
            None => "–".to_owned(),
        };
        row("· published", cpus.iter().map(cell))
    };
    let gain = |n: &usize| results.gain(load, *n, Colors::DEFAULT).percent();
    let mut rows = vec![row("gain: median (seeds)", cpus.iter().map(gain))];
    if load == WorkloadKind::Web {
        rows.push(known((1, &published::WEB_GAINS), "%"));
    }
    for figure in &BY_CPUS {
        let value = |n: &usize| results.median(load, *n, figure.colors, figure.of);
        let cells = cpus
            .iter()
            .map(|n| format!("{:.1} {}", value(n), figure.unit));
        rows.push(row(figure.name, cells));
        if load == WorkloadKind::Chat {
            rows.push(known(figure.published, figure.unit));
        }
    }
    let title = format!("simulated {} by the number of CPUs", load.name());
    Table {
        head: row(&title, cpus.iter().map(ToString::to_string)),
        rows,
    }
}

fn parameters(machine: &SmpMachine) -> Table {
    let rows = machine.parameters().into_iter().map(|parameter| {
        vec![
            parameter.name.to_owned(),
            parameter.value,
            parameter.source.name().to_owned(),
        ]
    });
    Table {
        head: ["what is simulated", "", "from"]
            .map(str::to_owned)
            .to_vec(),
        rows: rows.collect(),
    }
}

fn notes(results: &Results, times: u64, seeds: u64) -> Vec<String> {
    let rest = |load| {
        let working = results.median(load, 1, Colors::Plain, |o| o.working);
        format!("{:.0} %", 100.0 * working)
    };
    vec![
        format!(
            "All figures of this part are simulated; none is measured. Each point has {} \
             requests or {} messages, after {} or {} that are not counted. Points are medians \
             over the seeds 1 to {seeds}, which determine the addresses of the structures and \
             the CPU on which each task starts. One CPU without colouring executes operations in \
             {} of its time in the web load, and in {} in the chat load.",
            times * WorkloadKind::Web.warm(),
            times * WorkloadKind::Chat.warm(),
            WorkloadKind::Web.warm(),
            WorkloadKind::Chat.warm(),
            rest(WorkloadKind::Web),
            rest(WorkloadKind::Chat)
        ),
        "The published figures are those of Yamamura et al., USENIX 2002, FREENIX track, tables \
         4, 7 and 8 (32 colours of 32 bytes, spinning kernel locks, Apache and a chat over TCP); \
         +86.3 % is from the talk that the project follows. One set of parameters was fitted to \
         both workloads."
            .to_owned(),
        "The model has no first-level cache except for the last line used, no contention on the \
         bus, no other locks and no time of interrupts; time quanta are renewed under the lock."
            .to_owned(),
    ]
}
