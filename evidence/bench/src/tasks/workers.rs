// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `workers`: measures what workers beyond the number of CPUs cost. The same short tasks are
//! registered from outside on runtimes of 2, 256 and 1,024 workers.
//!
//! A hidden command of this program (`inside::workers`) runs the tasks and prints the CPU time of
//! its process. A round runs it once with each number of workers. Bar: 256 workers, and
//! 1,024 workers, use at most 1.5 times the CPU time of 2 workers (median over the rounds of the
//! ratio).

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;
use usher_report::stats::{self, Statistic};
use usher_report::text;

use super::rounds::{self, RoundSettings};
use super::study::ratio_text;
use super::{inside, numbers};
use crate::bars::{Bar, Part, Table};

/// Numbers of workers. The first is the base of the ratios.
const WORKERS: [u32; 3] = [2, 256, 1024];
/// Bar: largest permitted ratio of the CPU time of more workers to that of 2 workers.
const LIMIT: f64 = 1.5;
/// Number of tasks of a run.
const TASKS: u32 = 1_000_000;
/// Seed of the random samples for bootstrap intervals.
const SEED: u64 = 1;

/// CPU time and duration of a run in seconds.
#[derive(Debug, Clone, Copy, serde::Serialize)]
struct Run {
    cpu: f64,
    elapsed: f64,
}

/// Runs the rounds, and computes the part.
///
/// # Errors
/// A run fails.
pub fn run(settings: &RoundSettings) -> Result<Part> {
    let mut runs = WORKERS.map(|_| Vec::new());
    for round in 0..settings.rounds {
        eprintln!("tasks: workers, round {} of {}", round + 1, settings.rounds);
        for turn in 0..WORKERS.len() {
            // The order rotates, so that no number of workers is always first.
            let at = (turn + round as usize) % WORKERS.len();
            let measured = measure(WORKERS[at]);
            runs[at].push(measured.with_context(|| format!("{} workers", WORKERS[at]))?);
        }
    }
    Ok(format(&runs))
}

fn measure(workers: u32) -> Result<Run> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(inside::COMMAND).arg("workers");
    command.args([workers, TASKS].map(|number| number.to_string()));
    let text = rounds::output(&mut command)?;
    let printed = numbers(&text);
    let of = |name: &str| {
        let value = printed.get(name).copied();
        value.with_context(|| format!("the program printed no {name}"))
    };
    Ok(Run {
        cpu: of("cpu")?,
        elapsed: of("elapsed")?,
    })
}

fn format(runs: &[Vec<Run>; WORKERS.len()]) -> Part {
    let mut part = Part::new("workers", "More workers than CPUs");
    let cpu_ratio = |at: usize| {
        let pairs = runs[at].iter().zip(&runs[0]);
        let ratios: Vec<f64> = pairs.map(|(many, few)| many.cpu / few.cpu).collect();
        stats::estimate(&ratios, Statistic::Median, SEED)
    };
    for (at, workers) in WORKERS.iter().enumerate().skip(1) {
        let ratio = cpu_ratio(at);
        let what = format!(
            "CPU time of {workers} workers / of {} workers ({})",
            WORKERS[0],
            ratio_text(ratio)
        );
        let value = ratio.map(|ratio| ratio.value);
        part.bars.push(Bar::at_most(what, value, LIMIT, "times"));
    }
    let median = |at: usize, of: fn(&Run) -> f64| {
        let values: Vec<f64> = runs[at].iter().map(of).collect();
        text::number(stats::median(&values), 3)
    };
    let row = |(at, workers): (usize, &u32)| {
        vec![
            workers.to_string(),
            median(at, |run| run.cpu),
            median(at, |run| run.elapsed),
        ]
    };
    part.tables = vec![Table {
        head: ["workers", "CPU time, s", "time, s"]
            .map(str::to_owned)
            .to_vec(),
        rows: WORKERS.iter().enumerate().map(row).collect(),
    }];
    part.notes = vec![format!(
        "{} empty tasks without dependencies, registered by token from one thread outside the \
         runtime, on {} CPUs. The times contain the start and the end of the workers; medians over \
         {} rounds.",
        text::number(f64::from(TASKS), 0),
        std::thread::available_parallelism().map_or(1, usize::from),
        runs[0].len(),
    )];
    part.raw = json!({ "workers": WORKERS, "runs": runs });
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_formed_within_rounds() {
        let runs = |cpus: [f64; 3]| cpus.map(|cpu| Run { cpu, elapsed: 0.5 }).to_vec();
        let part = format(&[
            runs([1.0, 2.0, 4.0]),
            runs([1.5, 2.8, 6.0]),
            runs([1.6, 3.2, 8.0]),
        ]);
        let measured: Vec<_> = part.bars.iter().map(|bar| bar.measured).collect();
        assert_eq!(measured, [Some(1.5), Some(1.6)]);
        assert!(part.bars[0].is_met() && !part.bars[1].is_met());
        assert_eq!(part.tables[0].rows[2], ["1024", "3.200", "0.500"]);
    }
}
