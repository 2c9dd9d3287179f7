// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `elapsed`: measures the end times of Erlang's virtual machines in the real time of the
//! emulator (paper 4).
//!
//! Runs under EEVDF and under Usher form pairs of consecutive runs, so that slow changes of the
//! host's load affect both runs of a pair. For each pair, the ratio of the end times, Usher /
//! EEVDF, is computed; the results are the quartiles of the ratios over the pairs. The bar limits
//! the median ratio of the virtual machine with the highest median to 1.02. Limit: the time is that
//! of an emulator, not of hardware.

use anyhow::Result;
use usher_report::stats;

use super::lab::GuestResults;
use super::medians::cell;
use super::messages::Sample;
use super::sample_names;
use super::schedulers::ComparedScheduler;
use crate::bars::{Bar, Part, Table};

pub const NAME: &str = "elapsed";
const TITLE: &str = "Erlang in the real time of the emulator: Usher's scheduler and EEVDF in \
                     pairs of runs";

const AT_MOST: f64 = 1.02;

/// Quartiles over the pairs of the ratio of end times, Usher / EEVDF.
#[derive(Debug, Clone, Copy, PartialEq)]
struct RatioQuartiles {
    low: f64,
    median: f64,
    high: f64,
}

impl RatioQuartiles {
    fn of(ratios: &[f64]) -> Option<Self> {
        let at = |share| stats::quantile(ratios, share);
        Some(Self {
            low: at(0.25)?,
            median: at(0.5)?,
            high: at(0.75)?,
        })
    }

    fn cell(self) -> String {
        let [low, median, high] = [self.low, self.median, self.high].map(|x| cell(Some(x), 3));
        format!("{median} ({low} to {high})")
    }
}

/// Results with `vms` virtual machines at a time.
#[derive(Debug, Clone, PartialEq)]
struct PairsResult {
    vms: usize,
    pairs: usize,
    /// Median over the pairs of the end time of the last virtual machine in seconds: under EEVDF,
    /// under Usher.
    last_s: [Option<f64>; 2],
    last: RatioQuartiles,
    /// Quartiles of the virtual machine with the highest median ratio.
    worst: RatioQuartiles,
}

impl PairsResult {
    fn of(vms: usize, samples: &[Sample]) -> Option<Self> {
        let of = |scheduler: &ComparedScheduler, round| {
            let mut all = samples.iter().filter(|s| s.programs == vms);
            all.find(|s| s.scheduler == *scheduler && s.round == round)
        };
        let rounds = samples.iter().map(|s| s.round).max().map_or(0, |n| n + 1);
        let pairs = (0..rounds).filter_map(|n| {
            Some([
                of(&ComparedScheduler::Eevdf, n)?,
                of(&ComparedScheduler::Usher, n)?,
            ])
        });
        let pairs: Vec<[&Sample; 2]> = pairs.collect();
        let last = |sample: &Sample| sample.ends_s.iter().copied().reduce(f64::max);
        let ratios = |end: &dyn Fn(&Sample) -> Option<f64>| {
            let ratio = |[eevdf, ours]: &[&Sample; 2]| Some(end(ours)? / end(eevdf)?);
            RatioQuartiles::of(&pairs.iter().map(ratio).collect::<Option<Vec<f64>>>()?)
        };
        let each = (0..vms).map(|vm| ratios(&|sample| sample.ends_s.get(vm).copied()));
        let each = each.collect::<Option<Vec<RatioQuartiles>>>()?;
        let median = |at: usize| {
            let all: Option<Vec<f64>> = pairs.iter().map(|pair| last(pair[at])).collect();
            stats::median(&all?)
        };
        Some(Self {
            vms,
            pairs: pairs.len(),
            last_s: [median(0), median(1)],
            last: ratios(&last)?,
            worst: each
                .into_iter()
                .reduce(|a, b| if a.median < b.median { b } else { a })?,
        })
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.vms.to_string(),
            self.pairs.to_string(),
            cell(self.last_s[0], 2),
            cell(self.last_s[1], 2),
            self.last.cell(),
            self.worst.cell(),
        ]
    }
}

/// Computes the part from the samples of the guest.
pub fn part(measured: &GuestResults, kernel: &str, processes: usize) -> Result<Part> {
    let samples: Vec<Sample> = measured
        .samples
        .iter()
        .filter(|sample| sample.part == sample_names::ERLANG)
        .cloned()
        .collect();
    let mut numbers: Vec<usize> = samples.iter().map(|sample| sample.programs).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let rows: Vec<PairsResult> = numbers
        .into_iter()
        .filter_map(|vms| PairsResult::of(vms, &samples))
        .collect();
    let mut part = Part::new(NAME, TITLE);
    let head = [
        "virtual machines",
        "pairs",
        "EEVDF: end of the last machine, s",
        "usher",
        "usher / EEVDF, quartiles",
        "the machine with the worst ratio",
    ];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(PairsResult::cells).collect(),
    }];
    let worst = rows.iter().map(|row| row.worst.median).reduce(f64::max);
    let what = "end of each virtual machine, usher / EEVDF, median over the pairs: worst machine";
    part.bars = vec![Bar::at_most(what, worst, AT_MOST, "")];
    part.notes = vec![
        format!(
            "Each pair consists of one run under EEVDF and one run under Usher's scheduler in \
             the same guest of the lab (core:2, Linux {kernel}), in alternating order; each \
             virtual machine has {processes} processes. The bar applies to the ratio. The \
             seconds are those of the emulator, not of hardware: all CPUs of the guest share one \
             CPU of the host, and a context switch costs more than on hardware."
        ),
        "The part 'erlang' counts events of the same load in virtual time, and compares more \
         schedulers."
            .to_owned(),
    ];
    part.raw = serde_json::to_value(&samples)?;
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::medians::tests::sample;

    fn one(scheduler: ComparedScheduler, round: usize, ends_s: &[f64]) -> Sample {
        Sample {
            round,
            ends_s: ends_s.to_vec(),
            ..sample(scheduler, sample_names::ERLANG, ends_s.len(), [0, 0])
        }
    }

    fn part_of(samples: Vec<Sample>) -> Part {
        let left_out = vec![];
        part(&GuestResults { samples, left_out }, "7", 300).unwrap()
    }

    #[test]
    fn rounds_are_compared_with_themselves() {
        let part = part_of(vec![
            one(ComparedScheduler::Eevdf, 0, &[1.0, 2.0]),
            one(ComparedScheduler::Usher, 0, &[1.5, 2.0]),
            // In this pair, the host has half the speed in both runs.
            one(ComparedScheduler::Usher, 1, &[3.0, 4.0]),
            one(ComparedScheduler::Eevdf, 1, &[2.0, 4.0]),
            // A sample without the second sample of its pair, as after an interruption.
            one(ComparedScheduler::Eevdf, 2, &[2.0, 4.0]),
        ]);
        let bar = &part.bars[0];
        assert_eq!((bar.measured, bar.is_met()), (Some(1.5), false));
        assert_eq!(
            part.tables[0].rows[0],
            [
                "2",
                "2",
                "3.00",
                "3.00",
                "1.000 (1.000 to 1.000)",
                "1.500 (1.500 to 1.500)"
            ]
        );
    }

    #[test]
    fn without_a_pair_no_bar_is_met() {
        let part = part_of(vec![one(ComparedScheduler::Eevdf, 0, &[1.0])]);
        assert!(part.tables[0].rows.is_empty());
        assert!(!part.bars[0].is_met());
    }
}
