// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `time`: runs each program alternately with its own pool and with usher-tasks, and compares
//! the times and the outputs.
//!
//! A round runs both pools once with each case and number of threads; the pool that is first
//! changes from round to round. The ratio of the two times of a round is not affected by changes of
//! other load that last for longer than a round. The bar is the upper 95 % bound of the median
//! ratio.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;
use usher_report::stats::{self, Estimate, Statistic};
use usher_report::text;

use super::{Case, Pool, output};
use crate::bars::{Bar, Part, Table};

const THREADS: [u32; 2] = [1, 2];
const SEED: u64 = 1;
/// Bar: largest permitted upper bound of time on usher-tasks / time on the own pool.
const LIMIT: f64 = 1.02;

/// The times of a case with a number of threads.
#[derive(Debug, Clone, Serialize)]
struct Times {
    case: &'static str,
    threads: u32,
    /// Times in seconds with the own pool and with usher-tasks, for each round.
    rounds: Vec<[f64; 2]>,
    /// Number of rounds in which the output of usher-tasks differs from that of the own pool.
    wrong: usize,
}

impl Times {
    fn ratio(&self) -> Option<Estimate> {
        let ratios: Vec<f64> = self.rounds.iter().map(|[own, ours]| ours / own).collect();
        stats::estimate(&ratios, Statistic::Median, SEED)
    }

    fn median(&self, pool: usize) -> Option<f64> {
        let times: Vec<f64> = self.rounds.iter().map(|times| times[pool]).collect();
        stats::median(&times)
    }
}

/// Runs the rounds, and computes the part.
///
/// # Errors
/// A program fails.
pub fn run(cases: &[Case], rounds: u32, scratch: &Path) -> Result<Part> {
    let mut all = Vec::new();
    for case in cases {
        for threads in THREADS {
            eprintln!("media: {}, {threads} threads", case.label);
            all.push(measure(case, threads, rounds, scratch)?);
        }
    }
    Ok(format(&all))
}

fn measure(case: &Case, threads: u32, rounds: u32, scratch: &Path) -> Result<Times> {
    let mut times = Times {
        case: case.label,
        threads,
        rounds: Vec::new(),
        wrong: 0,
    };
    let expected = written(case, Pool::Own, threads, scratch)?;
    for round in 0..rounds {
        let mut seconds = [0.0; 2];
        for turn in 0..2 {
            let which = (turn + round as usize) % 2;
            let pool = [Pool::Own, Pool::Usher][which];
            let start = Instant::now();
            run_once(case, pool, threads, None)?;
            seconds[which] = start.elapsed().as_secs_f64();
        }
        times.rounds.push(seconds);
        let is_right = written(case, Pool::Usher, threads, scratch)? == expected;
        times.wrong += usize::from(!is_right);
    }
    Ok(times)
}

fn run_once(case: &Case, pool: Pool, threads: u32, file: Option<&Path>) -> Result<String> {
    let mut command = case.command(&[], pool, threads, None, file);
    output(&mut command, &format!("{}, {}", case.label, pool.label()))
}

/// Returns the output of a run that is not timed.
fn written(case: &Case, pool: Pool, threads: u32, scratch: &Path) -> Result<Vec<u8>> {
    let file = scratch.join("output");
    run_once(case, pool, threads, Some(&file))?;
    Ok(std::fs::read(&file)?)
}

fn format(all: &[Times]) -> Part {
    let mut part = Part::new("time", "Times and outputs");
    let wrong = all.iter().map(|times| times.wrong).sum();
    part.bars
        .push(Bar::none("rounds with different outputs", wrong));
    for times in all {
        let bound = times.ratio().and_then(|ratio| ratio.high);
        let what = format!(
            "{}, threads: {}: upper bound of time on usher-tasks / own pool",
            times.case, times.threads
        );
        part.bars.push(Bar::at_most(what, bound, LIMIT, "times"));
    }
    let row = |times: &Times| {
        let ratio = times.ratio();
        let end =
            |pick: fn(&Estimate) -> Option<f64>| text::number(ratio.and_then(|r| pick(&r)), 3);
        vec![
            times.case.to_owned(),
            times.threads.to_string(),
            text::number(times.median(0), 3),
            text::number(times.median(1), 3),
            end(|ratio| Some(ratio.value)),
            format!("{} to {}", end(|ratio| ratio.low), end(|ratio| ratio.high)),
        ]
    };
    let head = [
        "",
        "threads",
        "own pool, s",
        "usher-tasks, s",
        "ratio",
        "95 % interval",
    ];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: all.iter().map(row).collect(),
    }];
    part.notes = vec![
        "Both pools run in alternation; the timed runs drop their output. Each round also compares \
         the output of a run with usher-tasks. The ratio is the median over the rounds of the ratio of \
         times. With one thread, FFmpeg's own executor uses no thread besides the caller; \
         usher-tasks then uses one worker."
            .to_owned(),
    ];
    part.raw = json!(all);
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(ours: f64, wrong: usize) -> Times {
        Times {
            case: "a",
            threads: 2,
            rounds: vec![[1.0, ours]; 8],
            wrong,
        }
    }

    #[test]
    fn slower_runs_and_different_outputs_miss_their_bars() {
        let met = |part: &Part| part.bars.iter().map(Bar::is_met).collect::<Vec<_>>();
        assert_eq!(met(&format(&[times(1.01, 0)])), [true, true]);
        assert_eq!(met(&format(&[times(1.03, 0)])), [true, false]);
        assert_eq!(met(&format(&[times(1.01, 1)])), [false, true]);
    }
}
