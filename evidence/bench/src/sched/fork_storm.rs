// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `fork-storm`: measures whether four loops keep their fair share of two CPUs beside a
//! process with 16 threads that each start one short program after another.
//!
//! 1. The four loops run alone.
//! 2. The loops run beside the storm. If the storm gets the share of one further thread, the loops
//!    take 5/4 of their time alone (the fair end time).
//! 3. The kept part of the fair share is the fair end time / the measured end time of the last
//!    loop. Both times are medians over the rounds, in virtual time. The bar for Usher is 0.9.

use anyhow::Result;

use super::lab::GuestResults;
use super::medians::{cell, named, ratio, schedulers};
use super::messages::{LOOPS, Sample};
use super::sample_names::{ALONE_S, FORK_STORM as NAME, FORKED};
use super::schedulers::ComparedScheduler;
use crate::bars::{Bar, Part, Table};

const TITLE: &str = "Loops beside a fork storm";

/// Bar: smallest part of its fair share that each loop must keep.
const KEPT_AT_LEAST: f64 = 0.9;

/// Returns the end time of the loops in seconds if the storm gets the CPU share of one further
/// thread.
fn fair_s(alone_s: f64) -> f64 {
    alone_s * (LOOPS + 1) as f64 / LOOPS as f64
}

/// Results of one scheduler: medians over rounds.
#[derive(Debug, Clone, PartialEq)]
struct ForkStormResult {
    scheduler: ComparedScheduler,
    /// Part of its fair share that the loop that ended last got, from 0 to 1.
    kept: Option<f64>,
    forked: Option<f64>,
    last_s: Option<f64>,
}

impl ForkStormResult {
    fn of(scheduler: &ComparedScheduler, samples: &[&Sample]) -> Self {
        let of_it = samples
            .iter()
            .filter(|sample| sample.scheduler == *scheduler);
        let lasts = of_it.filter_map(|sample| sample.ends_s.iter().copied().reduce(f64::max));
        let last_s = usher_report::stats::median(&lasts.collect::<Vec<f64>>());
        Self {
            scheduler: scheduler.clone(),
            kept: ratio(named(samples, scheduler, ALONE_S).map(fair_s), last_s),
            forked: named(samples, scheduler, FORKED),
            last_s,
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.scheduler.label(),
            cell(self.last_s, 2),
            cell(self.kept, 3),
            cell(ratio(self.forked, self.last_s), 0),
        ]
    }
}

/// Computes the part from the samples of the guest.
pub fn part(measured: &GuestResults, note: String) -> Result<Part> {
    let samples: Vec<&Sample> = measured.samples.iter().filter(|s| s.part == NAME).collect();
    let each = schedulers(&samples);
    let rows: Vec<ForkStormResult> = each
        .iter()
        .map(|scheduler| ForkStormResult::of(scheduler, &samples))
        .collect();
    let mut part = Part::new(NAME, TITLE);
    let head = [
        "scheduler",
        "last loop ended after, s",
        "part of its fair share that the last loop gets",
        "short programs per second",
    ];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(ForkStormResult::cells).collect(),
    }];
    let ours = rows
        .iter()
        .find(|row| row.scheduler == ComparedScheduler::Usher);
    part.bars = vec![Bar::at_least(
        "part of its fair share that each loop keeps beside a fork storm",
        ours.and_then(|row| row.kept),
        KEPT_AT_LEAST,
        "",
    )];
    part.notes = vec![
        note,
        "Four loops with equal work run on two CPUs, first alone and then beside sixteen threads \
         of another process, each of which starts one short program after another and waits for \
         its end. The fair share of a loop is its share of CPU time beside one more thread, \
         computed from the run without the storm, because all emulated CPUs share one CPU of the \
         host. The figures are those of the loop that ends last."
            .to_owned(),
    ];
    part.raw = serde_json::to_value(&samples)?;
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::medians::tests::sample;

    #[test]
    fn last_loop_decides() {
        let mut sample = sample(ComparedScheduler::Usher, NAME, 4, [0, 0]);
        sample.ends_s = vec![2.0, 2.5, 2.2, 2.1];
        sample.figures = [(ALONE_S, 1.6), (FORKED, 500.0)]
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        let measured = GuestResults {
            samples: vec![sample],
            left_out: vec![],
        };
        let part = part(&measured, String::new()).unwrap();
        assert_eq!(part.bars[0].measured, Some(0.8));
        assert!(!part.bars[0].is_met());
        assert_eq!(part.tables[0].rows[0][1..], ["2.50", "0.800", "200"]);
    }
}
