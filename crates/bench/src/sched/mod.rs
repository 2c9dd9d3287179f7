// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench sched`: what choosing threads with their address spaces in mind can
//! save (paper 4).

mod turns;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use usher_report::{stats, text};

pub use turns::{PARTNER, PartnerArgs, partner};

use crate::bars::{Bar, Figure, Part, Table};
use crate::coloring::chart::{Chart, Line};
use crate::machine;
use turns::{Pair, WORKING_SETS};

/// What a switch to another address space costs on this machine (paper 4)
///
/// Two take turns on one CPU, each going through memory of its own, once as threads
/// of one process and once as two processes. The difference is what a scheduler saves
/// for each switch between address spaces that it avoids, by running threads of one
/// process back to back.
///
/// Exit status: 0, or 125 when it could not run.
#[derive(Debug, Clone, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:
  usher bench sched                 half a minute
  usher bench sched --quick --json"
)]
pub struct SchedArgs {
    /// Fewer pairs, shorter runs
    #[arg(long)]
    quick: bool,
    /// Pairs of runs of each working set; 21, or 5 where it is to be quick
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..))]
    pairs: Option<u32>,
    /// Prints the saved result instead of lines
    #[arg(long)]
    json: bool,
    /// Where the dated folder of results is made
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: PathBuf,
}

/// Measures, saves and shows it; whether every bar was met.
pub fn run(args: &SchedArgs) -> Result<bool> {
    let folder = machine::run_folder(&args.out, "sched")?;
    let (pairs, time) = match args.quick {
        true => (5, Duration::from_millis(20)),
        false => (21, Duration::from_millis(100)),
    };
    let pairs = args.pairs.map_or(pairs, |pairs| pairs as usize);
    let mut measured = Vec::new();
    for bytes in WORKING_SETS {
        eprintln!("  {} each", text::bytes(bytes as u64));
        measured.push((bytes, turns::measure(bytes, pairs, time)?));
    }
    let parts = [part(&measured)?];
    if args.json {
        machine::save(&folder, TITLE, &machine::facts()?, &parts)?;
        print!("{}", std::fs::read_to_string(folder.join("result.json"))?);
        return Ok(parts.iter().all(|part| part.bars.iter().all(Bar::is_met)));
    }
    println!("{}", lines(&parts[0]));
    machine::finish(&folder, TITLE, &parts)
}

const TITLE: &str = "Switches between address spaces";

/// Medians, and quartiles of what another address space costs.
#[derive(Debug, PartialEq)]
struct Row {
    bytes: usize,
    threads_ns: f64,
    processes_ns: f64,
    cost_ns: [f64; 3],
}

impl Row {
    /// `None` without pairs.
    fn of(bytes: usize, pairs: &[Pair]) -> Option<Self> {
        let all = |value: fn(&Pair) -> f64| pairs.iter().map(value).collect::<Vec<f64>>();
        let costs = all(Pair::cost_ns);
        let quartile = |at| stats::quantile(&costs, at);
        Some(Self {
            bytes,
            threads_ns: stats::median(&all(|pair| pair.threads_ns))?,
            processes_ns: stats::median(&all(|pair| pair.processes_ns))?,
            cost_ns: [quartile(0.25)?, quartile(0.5)?, quartile(0.75)?],
        })
    }

    /// Beside what a turn takes without it.
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
            format!("{} %", text::number(self.share() * 100.0, 1)),
        ]
    }
}

fn part(measured: &[(usize, Vec<Pair>)]) -> Result<Part> {
    let rows = measured.iter();
    let rows: Vec<Row> = rows.filter_map(|(b, pairs)| Row::of(*b, pairs)).collect();
    let head = [
        "memory of each",
        "between threads, ns",
        "between processes, ns",
        "difference, ns [quartiles]",
        "of a turn between threads",
    ];
    let mut part = Part::new("switches", TITLE);
    part.figures = vec![figure(&rows)];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(Row::cells).collect(),
    }];
    part.notes = vec![
        "A turn is a switch (one byte through a pipe, on one CPU) and a walk through memory \
         of one's own, a byte in each cache line. Medians; differences of pairs of runs, one \
         right after the other, in alternating order."
            .to_owned(),
        "What differs is whose page tables are loaded: the switch itself, and address \
         translations and cache lines that are not there any more. Both walk through as \
         much memory, so what does not fit into a cache misses it either way."
            .to_owned(),
    ];
    part.raw = serde_json::to_value(measured)?;
    Ok(part)
}

fn figure(rows: &[Row]) -> Figure {
    let title = "What another address space costs a switch, ns";
    let line = |name: &str, class, value: fn(&Row) -> f64| Line {
        class,
        name: name.to_owned(),
        points: (rows.iter())
            .map(|row| (row.bytes as f64 / 1024.0, value(row)))
            .collect(),
        compared: false,
    };
    let chart = Chart {
        title: title.to_owned(),
        x: "KiB that each goes through",
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

/// For a terminal, a line a working set.
fn lines(part: &Part) -> String {
    let table = &part.tables[0];
    let rows = std::iter::once(&table.head).chain(&table.rows);
    let each = rows.map(|row| {
        format!(
            "  {:>14} {:>20} {:>22} {:>27} {:>30}\n",
            row[0], row[1], row[2], row[3], row[4]
        )
    });
    let notes = part.notes.iter().map(|note| format!("  {note}\n"));
    format!("{}\n{}", part.title, each.chain(notes).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_the_median_of_differences() {
        let pair = |threads_ns, processes_ns| Pair {
            threads_ns,
            processes_ns,
        };
        let pairs = [
            pair(1000.0, 1300.0),
            pair(2000.0, 2100.0),
            pair(900.0, 1150.0),
        ];
        let row = Row::of(4096, &pairs).unwrap();
        assert_eq!((row.threads_ns, row.processes_ns), (1000.0, 1300.0));
        assert_eq!(row.cost_ns[1], 250.0);
        assert_eq!(row.share(), 0.25);
        assert_eq!(Row::of(4096, &[]), None);
        let part = part(&[(4096, pairs.to_vec())]).unwrap();
        assert!(lines(&part).contains("250 [175, 275]"), "{}", lines(&part));
        assert!(part.figures[0].svg.contains("another address space"));
    }
}
