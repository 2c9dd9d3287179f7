// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `switches`: measures the cost of a switch to another address space on this machine, for
//! several working sets (paper 4). The cost is the time of a turn between two processes minus the
//! time of a turn between two threads (`turns`), in nanoseconds. The results are the median and the
//! quartiles over pairs of runs.
//!
//! Each partner has a working set of 4 KiB to 4 MiB (six sizes). By default, each size has 21 pairs
//! of runs of 100 ms each; in quick runs, 5 pairs of 20 ms.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use usher_report::{stats, text};

use super::turns::{self, PairTimes, WORKING_SETS};
use crate::bars::{Figure, Part, Table};
use crate::coloring::chart::{Chart, Line};

pub const NAME: &str = "switches";
const TITLE: &str = "Cost of a switch to another address space, measured on this machine";

/// Measures `pairs` pairs of runs for each working set. Each run takes the time `time`.
pub fn measure(pairs: usize, time: Duration) -> Result<Part> {
    let mut measured = Vec::new();
    for bytes in WORKING_SETS {
        eprintln!(
            "sched: measuring switches, {} for each size",
            text::bytes(bytes as u64)
        );
        measured.push((bytes, turns::measure(bytes, pairs, time)?));
    }
    part(&measured)
}

/// Reads the median costs from a saved part: working set in bytes, cost of a switch in nanoseconds.
pub fn costs(raw: &Value) -> Vec<(usize, f64)> {
    let measured: Option<Vec<(usize, Vec<PairTimes>)>> = serde_json::from_value(raw.clone()).ok();
    let rows = measured.into_iter().flatten();
    rows.filter_map(|(bytes, pairs)| Some((bytes, SwitchCosts::of(bytes, &pairs)?.cost_ns[1])))
        .collect()
}

/// Results with one working set: median times of a turn, and quartiles of the cost of a switch to
/// another address space.
#[derive(Debug, PartialEq)]
struct SwitchCosts {
    bytes: usize,
    threads_ns: f64,
    processes_ns: f64,
    cost_ns: [f64; 3],
}

impl SwitchCosts {
    /// Computes the results from the pairs; `None` without pairs.
    fn of(bytes: usize, pairs: &[PairTimes]) -> Option<Self> {
        let all = |value: fn(&PairTimes) -> f64| pairs.iter().map(value).collect::<Vec<f64>>();
        let costs = all(PairTimes::cost_ns);
        let quartile = |at| stats::quantile(&costs, at);
        Some(Self {
            bytes,
            threads_ns: stats::median(&all(|pair| pair.threads_ns))?,
            processes_ns: stats::median(&all(|pair| pair.processes_ns))?,
            cost_ns: [quartile(0.25)?, quartile(0.5)?, quartile(0.75)?],
        })
    }

    /// Cost of a switch / time of a turn between threads.
    fn share(&self) -> f64 {
        self.cost_ns[1] / self.threads_ns
    }

    fn cells(&self) -> Vec<String> {
        let [low, cost, high] = self.cost_ns;
        vec![
            text::bytes(self.bytes as u64),
            text::number(self.threads_ns, 0),
            text::number(self.processes_ns, 0),
            format!("{cost:.0} [{low:.0}, {high:.0}]"),
            text::number(self.share() * 100.0, 1),
        ]
    }
}

fn part(measured: &[(usize, Vec<PairTimes>)]) -> Result<Part> {
    let rows = measured.iter();
    let rows: Vec<SwitchCosts> = rows
        .filter_map(|(b, pairs)| SwitchCosts::of(*b, pairs))
        .collect();
    let head = [
        "memory of each",
        "between threads, ns",
        "between processes, ns",
        "difference, ns [quartiles]",
        "share of a turn between threads, %",
    ];
    let mut part = Part::new(NAME, TITLE);
    part.figures = vec![figure(&rows)];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(SwitchCosts::cells).collect(),
    }];
    part.notes = vec![
        "In a turn, a thread receives one byte through a pipe (a context switch on the same CPU) \
         and reads one byte of each cache line of its own memory. Figures are medians; \
         differences are those of pairs of runs, directly one after the other, in alternating \
         order."
            .to_owned(),
        "The difference between processes and threads is the cost of another address space: the \
         change of the page tables, and the address translations and cache lines that this change \
         evicts. Threads and processes read equal amounts of memory, so data that exceed a cache \
         miss the cache in threads and in processes."
            .to_owned(),
    ];
    part.raw = serde_json::to_value(measured)?;
    Ok(part)
}

fn figure(rows: &[SwitchCosts]) -> Figure {
    let title = "Additional cost of a switch to another address space, ns";
    let line = |name: &str, class, value: fn(&SwitchCosts) -> f64| Line {
        class,
        name: name.to_owned(),
        points: (rows.iter())
            .map(|row| (row.bytes as f64 / 1024.0, value(row)))
            .collect(),
        compared: false,
    };
    let chart = Chart {
        title: title.to_owned(),
        x: "KiB that each thread reads",
        y: "difference, ns",
        logarithmic: true,
        mark: None,
        lines: vec![line("another address space", "p1", |row| row.cost_ns[1])],
    };
    Figure {
        caption: title.to_owned(),
        svg: chart.svg(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_is_the_median_of_differences() {
        let pair = |threads_ns, processes_ns| PairTimes {
            threads_ns,
            processes_ns,
        };
        let pairs = [
            pair(1000.0, 1300.0),
            pair(2000.0, 2100.0),
            pair(900.0, 1150.0),
        ];
        let row = SwitchCosts::of(4096, &pairs).unwrap();
        assert_eq!((row.threads_ns, row.processes_ns), (1000.0, 1300.0));
        assert_eq!(row.cost_ns[1], 250.0);
        assert_eq!(row.share(), 0.25);
        assert_eq!(SwitchCosts::of(4096, &[]), None);
        let part = part(&[(4096, pairs.to_vec())]).unwrap();
        assert_eq!(part.tables[0].rows[0][3], "250 [175, 275]");
        assert_eq!(costs(&part.raw), [(4096, 250.0)]);
        assert!(costs(&Value::Null).is_empty());
        assert!(part.figures[0].svg.contains("another address space"));
    }
}
