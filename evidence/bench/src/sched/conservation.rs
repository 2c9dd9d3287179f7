// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `conservation`: measures how much CPU time is idle although threads wait that may use it,
//! under random loads. `bpf/conservation.bpf.c` defines and counts this time, for any scheduler.
//!
//! Each round has another seed, and with it another load: one to three threads per CPU, which
//! demand 50 to 100 % of the CPUs. Shares are those of the sums over all seeds.
//!
//! Bars: the idle time is at most 0.1 % of the CPU time, and its longest part without interruption
//! at most 4 ms.

use anyhow::Result;
use usher_report::stats::median;

use super::lab::GuestResults;
use super::medians::{cell, ratio, schedulers};
use super::messages::Sample;
use super::sample_names::{
    CONSERVATION as NAME, CPU_MS, EPISODES, IDLE_MS, LONGEST_MS, UNSERVED_MS,
};
use super::schedulers::ComparedScheduler;
use super::versus::range;
use crate::bars::{Bar, Part, Table};

const TITLE: &str = "Idle CPU time although threads wait, under random loads";
/// Bar: largest permitted share of the CPU time, in percent.
const UNSERVED_AT_MOST: f64 = 0.1;
/// Bar: longest permitted time without interruption, in milliseconds.
const LONGEST_AT_MOST_MS: f64 = 4.0;

/// Results of one scheduler.
#[derive(Debug, Clone, PartialEq)]
struct ConservationResult {
    scheduler: ComparedScheduler,
    /// Values of each seed.
    cpu_ms: Vec<f64>,
    idle_ms: Vec<f64>,
    unserved_ms: Vec<f64>,
    longest_ms: Vec<f64>,
    episodes: Vec<f64>,
}

impl ConservationResult {
    fn of(scheduler: &ComparedScheduler, samples: &[&Sample]) -> Self {
        let of_it: Vec<&&Sample> = samples
            .iter()
            .filter(|sample| sample.scheduler == *scheduler)
            .collect();
        let named = |name: &str| {
            let all = of_it.iter().filter_map(|sample| sample.figures.get(name));
            all.copied().collect()
        };
        Self {
            scheduler: scheduler.clone(),
            cpu_ms: named(CPU_MS),
            idle_ms: named(IDLE_MS),
            unserved_ms: named(UNSERVED_MS),
            longest_ms: named(LONGEST_MS),
            episodes: named(EPISODES),
        }
    }

    /// Share of a time in the CPU time, in percent.
    fn percent(&self, time_ms: &[f64]) -> Option<f64> {
        let sum = |values: &[f64]| Some(values.iter().sum::<f64>());
        ratio(sum(time_ms), sum(&self.cpu_ms)).map(|share| 100.0 * share)
    }

    fn unserved_percent(&self) -> Option<f64> {
        self.percent(&self.unserved_ms)
    }

    fn longest_ms(&self) -> Option<f64> {
        range(&self.longest_ms).map(|(_, most)| most)
    }

    fn cells(&self) -> Vec<String> {
        let of_seeds = self.unserved_ms.iter().zip(&self.cpu_ms);
        let of_seeds: Vec<f64> = of_seeds.map(|(ms, cpu_ms)| 100.0 * ms / cpu_ms).collect();
        let worst = range(&of_seeds).map(|(_, most)| most);
        let busy = self.percent(&self.idle_ms).map(|idle| 100.0 - idle);
        vec![
            self.scheduler.label(),
            self.cpu_ms.len().to_string(),
            cell(busy, 0),
            cell(self.unserved_percent(), 3),
            cell(worst, 3),
            cell(median(&self.longest_ms), 2),
            cell(self.longest_ms(), 2),
            cell(Some(self.episodes.iter().sum()), 0),
        ]
    }
}

/// Computes the part from the samples of the guest.
pub fn part(measured: &GuestResults, note: String) -> Result<Part> {
    let samples: Vec<&Sample> = measured.samples.iter().filter(|s| s.part == NAME).collect();
    let each = schedulers(&samples);
    let rows: Vec<ConservationResult> = each
        .iter()
        .map(|scheduler| ConservationResult::of(scheduler, &samples))
        .collect();
    let ours = rows
        .iter()
        .find(|row| row.scheduler == ComparedScheduler::Usher);
    let mut part = Part::new(NAME, TITLE);
    part.bars = vec![
        Bar::at_most(
            "usher: idle CPU time although threads wait, share of the CPU time",
            ours.and_then(ConservationResult::unserved_percent),
            UNSERVED_AT_MOST,
            "%",
        ),
        Bar::at_most(
            "usher: longest time in which a CPU is idle although a thread waits",
            ours.and_then(ConservationResult::longest_ms),
            LONGEST_AT_MOST_MS,
            "ms",
        ),
    ];
    let head = [
        "scheduler",
        "seeds",
        "CPUs busy, %",
        "idle although threads wait, %",
        "of the worst seed, %",
        "longest, median of the seeds, ms",
        "longest, ms",
        "times",
    ];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(ConservationResult::cells).collect(),
    }];
    part.notes = vec![
        note,
        "Seeds from 0. A seed determines the number of threads (one to three per CPU), the \
         demanded share of the CPUs (50 to 100 %) and the times of each thread. The threads may \
         run on all CPUs, and use CPU time and sleep alternately."
            .to_owned(),
        "A CPU that has been requested to reschedule does not count as idle, and one waiting \
         thread does not count for it, because the emulator delivers the interrupt late. The \
         longest time is an upper bound of the longest wait of one thread."
            .to_owned(),
    ];
    part.raw = serde_json::to_value(&samples)?;
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::medians::tests::sample;

    fn seed(scheduler: ComparedScheduler, unserved_ms: f64, longest_ms: f64) -> Sample {
        let mut sample = sample(scheduler, NAME, 1, [0, 0]);
        let figures = [
            (CPU_MS, 1_000.0),
            (IDLE_MS, 300.0),
            (UNSERVED_MS, unserved_ms),
            (LONGEST_MS, longest_ms),
            (EPISODES, 7.0),
        ];
        sample.figures = figures.map(|(name, ms)| (name.to_owned(), ms)).into();
        sample
    }

    #[test]
    fn shares_are_those_of_all_seeds_and_the_longest_time_is_that_of_any_seed() {
        let measured = GuestResults {
            samples: vec![
                seed(ComparedScheduler::Eevdf, 30.0, 9.0),
                seed(ComparedScheduler::Usher, 0.0, 1.0),
                seed(ComparedScheduler::Usher, 1.0, 5.0),
            ],
            left_out: vec![],
        };
        let part = part(&measured, String::new()).unwrap();
        assert_eq!(part.bars[0].measured, Some(0.05));
        assert!(part.bars[0].is_met());
        assert_eq!(part.bars[1].measured, Some(5.0));
        assert!(!part.bars[1].is_met());
        let ours = ["usher", "2", "70", "0.050", "0.100", "3.00", "5.00", "14"];
        assert_eq!(part.tables[0].rows[1], ours);
    }

    #[test]
    fn without_samples_no_bar_is_met() {
        let part = part(&GuestResults::default(), String::new()).unwrap();
        assert!(part.bars.iter().all(|bar| !bar.is_met()));
    }
}
