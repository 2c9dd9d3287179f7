// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `cores`: measures whether a scheduler spreads threads over idle cores (paper 3b). Two short
//! loops and two long loops run on two cores with two hardware threads each.
//!
//! When the short loops end, a scheduler that ignores SMT may leave both long loops on one core.
//! The compared figure is the time in ms in which two loops share a core while the other core is
//! idle, summed over the repetitions of a run. The result is the median over the runs. Limit: the
//! guest does not model that loops on a shared core are slower. A second table shows this cost from
//! the simulator (`usher sim smt`, 100 seeds).
//!
//! Bars: Usher's figure is at most 1 % of the figure of `--fifo`, which ignores SMT, and at most
//! EEVDF's figure.

use anyhow::Result;
use usher_sim::smt::CompletionTimes;

use super::lab::GuestResults;
use super::medians::{cell, counted, figure, ratio, schedulers};
use super::messages::Sample;
use super::sample_names::CORES as NAME;
use super::schedulers::ComparedScheduler;
use crate::bars::{Bar, Part, Table};
use crate::sim::{SmtResult, smt};

const TITLE: &str = "Two short loops and two long loops on two cores with two hardware threads \
                     each";

/// Bar: largest permitted ratio of Usher's figure to the figure of a scheduler that ignores
/// hardware threads.
const OF_BLIND_AT_MOST: f64 = 0.01;
/// Number of seeds of the simulation.
const SEEDS: u64 = 100;

/// Results of one scheduler: medians over rounds.
#[derive(Debug, Clone, PartialEq)]
struct CoresResult {
    scheduler: ComparedScheduler,
    shared_ms: Option<f64>,
    needless_ms: Option<f64>,
    /// Total time of all repetitions in seconds.
    took_s: Option<f64>,
}

impl CoresResult {
    fn of(scheduler: &ComparedScheduler, samples: &[&Sample]) -> Self {
        let is_it = |sample: &&Sample| sample.scheduler == *scheduler;
        let of_it: Vec<&Sample> = samples.iter().copied().filter(is_it).collect();
        let took: Vec<f64> = of_it.iter().map(|s| s.ends_s.iter().sum()).collect();
        Self {
            scheduler: scheduler.clone(),
            shared_ms: counted(&of_it, |c| c.shared_ns as f64 / 1e6),
            needless_ms: counted(&of_it, |c| c.needless_ns as f64 / 1e6),
            took_s: usher_report::stats::median(&took),
        }
    }

    fn cells(&self) -> Vec<String> {
        let took_ms = self.took_s.map(|s| s * 1e3);
        let share = ratio(self.needless_ms, took_ms).map(|share| share * 100.0);
        vec![
            self.scheduler.label(),
            cell(took_ms, 0),
            cell(self.shared_ms, 0),
            cell(self.needless_ms, 1),
            cell(share, 2),
        ]
    }
}

/// Computes the part from the samples of the guest.
pub fn part(measured: &GuestResults, note: String) -> Result<Part> {
    let samples: Vec<&Sample> = measured.samples.iter().filter(|s| s.part == NAME).collect();
    let each = schedulers(&samples);
    let rows: Vec<CoresResult> = each
        .iter()
        .map(|scheduler| CoresResult::of(scheduler, &samples))
        .collect();
    let mut part = Part::new(NAME, TITLE);
    let needless = rows.iter();
    let needless = needless.filter_map(|row| Some((row.scheduler.clone(), row.needless_ms?)));
    part.figures = figure(
        "Time in which two loops share a core while the other core is idle",
        "time in ms in which two loops share one core while the other core is idle",
        1,
        &needless.collect::<Vec<_>>(),
    )
    .into_iter()
    .collect();
    let head = [
        "scheduler",
        "took, ms",
        "two loops on one core, ms",
        "of that time with the other core idle, ms",
        "share of the run time, %",
    ];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(CoresResult::cells).collect(),
    }];
    part.bars = bars(&rows);
    let simulated = smt(SEEDS)?;
    part.tables.push(table(&simulated));
    part.bars.extend(simulated.bars.into_iter().map(|bar| Bar {
        what: format!("simulated: {}", bar.what),
        ..bar
    }));
    part.notes = vec![
        note,
        "Four single-threaded loops start at the same time on two cores with two hardware \
         threads each. Two loops have a fifth of the work of the other two; when the short loops \
         end, the long loops may be on one core, while the other core is idle. Times are summed \
         over the repetitions of a run; the table shows medians over runs. The emulator runs \
         each CPU in slices of half a millisecond, so no scheduler can react faster. The second \
         table shows the cost of a shared core on hardware, simulated by 'usher sim smt': loops \
         of 2 and 10 s, which slow down on a shared core as in the paper."
            .to_owned(),
    ];
    part.raw = serde_json::to_value(&samples)?;
    Ok(part)
}

fn bars(rows: &[CoresResult]) -> Vec<Bar> {
    let of = |scheduler: &ComparedScheduler| {
        let row = rows.iter().find(|row| row.scheduler == *scheduler)?;
        row.needless_ms
    };
    let ours = of(&ComparedScheduler::Usher);
    let bar = |(name, scheduler, limit)| {
        let what = format!(
            "two loops on one core while the other core is idle: time under usher / time under \
             {name}"
        );
        Bar::at_most(what, ratio(ours, of(&scheduler)), limit, "")
    };
    let fifo = (
        "--fifo, which ignores SMT",
        ComparedScheduler::Fifo,
        OF_BLIND_AT_MOST,
    );
    let eevdf = ("EEVDF", ComparedScheduler::Eevdf, 1.0);
    [fifo, eevdf].map(bar).to_vec()
}

/// Returns the table with the simulated results under the two kernels of the paper and under Usher.
fn table(simulated: &SmtResult) -> Table {
    let head = [
        "simulated time until all loops have ended",
        "least, s",
        "most, s",
        "mean, s",
        "paper 3b",
    ];
    let row = |name: &str, spread: CompletionTimes, paper: &str| {
        let CompletionTimes { min, max, mean } = spread;
        let figures = [min, max, mean].map(|value| cell(Some(value), 1));
        let cells = [name.to_owned()].into_iter().chain(figures);
        cells.chain([paper.to_owned()]).collect()
    };
    Table {
        head: head.map(str::to_owned).to_vec(),
        rows: vec![
            row("blind to SMT", simulated.blind, "12.6, 19.8, 15.5"),
            row("idle cores first", simulated.aware, "12.6, 12.7, 12.6"),
            row("usher", simulated.ours, ""),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::medians::tests::sample;

    #[test]
    fn ours_is_held_against_the_blind_one_and_the_kernels_own() {
        let one = |scheduler, needless_ns| {
            let mut sample = sample(scheduler, NAME, 4, [0, 0]);
            if let Some(counted) = &mut sample.counted {
                counted.needless_ns = needless_ns;
            }
            sample
        };
        let measured = GuestResults {
            samples: vec![
                one(ComparedScheduler::Eevdf, 100_000_000),
                one(ComparedScheduler::Usher, 20_000_000),
                one(ComparedScheduler::Fifo, 800_000_000),
            ],
            left_out: vec![],
        };
        let part = part(&measured, String::new()).unwrap();
        let bars: Vec<(f64, bool)> = part
            .bars
            .iter()
            .map(|bar| (bar.measured.unwrap(), bar.is_met()))
            .collect();
        assert_eq!(bars[..2], [(0.025, false), (0.2, true)]);
        assert!(bars[2..].len() == 6 && bars[2..].iter().all(|bar| bar.1));
        let most_s = |row: usize| part.tables[1].rows[row][2].parse::<f64>().unwrap();
        assert!(most_s(0) > 1.5 * most_s(1));
        assert_eq!(part.tables[0].rows[1][1..], ["3000", "0", "20.0", "0.67"]);
    }
}
