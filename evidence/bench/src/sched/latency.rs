// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `latency`: wake-up latencies of interactive threads while other work uses all CPUs. Two
//! programs measure latencies (message threads with workers after schbench, and cyclictest), each
//! beside two kinds of other work (`make -j` and a fork storm).
//!
//! Quantiles are computed over the wake-ups of all rounds; the table also shows the 99th percentile
//! of each round. cyclictest reports only its largest latency.
//!
//! Bars: the 99th and 99.9th percentile of the wake-ups, and the largest latency of cyclictest, are
//! at most those of the best other scheduler.

use anyhow::Result;
use usher_report::stats::quantile;

use super::lab::GuestResults;
use super::medians::{cell, late_ms, ratio, schedulers};
use super::messages::Sample;
use super::sample_names::{LATENCY as NAME, MAX_MS, MEAN_MS};
use super::schedulers::ComparedScheduler;
use super::versus::spread;
use super::workloads::{LATENCIES, OtherWork, Probe};
use crate::bars::{Bar, Part, Table};

const TITLE: &str = "Wake-up latencies beside other work";
/// Shares of the wake-ups with a bar.
const SHARES: [(f64, &str); 2] = [(0.99, "99 %"), (0.999, "99.9 %")];

/// Latencies of one probe beside one kind of other work, under one scheduler.
#[derive(Debug, Clone, PartialEq)]
struct LatencyResult {
    probe: Probe,
    beside: OtherWork,
    scheduler: ComparedScheduler,
    /// All latencies of the wake-ups; empty for cyclictest.
    late_ms: Vec<f64>,
    /// 99th percentile of each round.
    rounds_ms: Vec<f64>,
    /// Mean and largest latency of cyclictest in each round.
    means_ms: Vec<f64>,
    maxima_ms: Vec<f64>,
}

impl LatencyResult {
    fn of(
        (probe, beside): (Probe, OtherWork),
        scheduler: &ComparedScheduler,
        samples: &[&Sample],
    ) -> Self {
        let of_it: Vec<&&Sample> = samples
            .iter()
            .filter(|sample| sample.scheduler == *scheduler)
            .filter(|sample| sample.part == probe.sample_name(beside))
            .collect();
        let named = |name: &str| {
            let all = of_it.iter().filter_map(|sample| sample.figures.get(name));
            all.copied().collect()
        };
        Self {
            probe,
            beside,
            scheduler: scheduler.clone(),
            late_ms: of_it.iter().flat_map(|s| s.late_ms.clone()).collect(),
            rounds_ms: of_it
                .iter()
                .filter_map(|s| quantile(&s.late_ms, 0.99))
                .collect(),
            means_ms: named(MEAN_MS),
            maxima_ms: named(MAX_MS),
        }
    }

    fn of_wakeups(&self, share: f64) -> Option<f64> {
        quantile(&self.late_ms, share)
    }

    fn max_ms(&self) -> Option<f64> {
        let all = self.late_ms.iter().chain(&self.maxima_ms);
        all.copied().reduce(f64::max)
    }

    fn cells(&self) -> Vec<String> {
        let rounds = match self.probe {
            Probe::Wakeup => spread(&self.rounds_ms, 2),
            Probe::Cyclictest => spread(&self.maxima_ms, 2),
        };
        vec![
            self.probe.title().to_owned(),
            self.beside.title().to_owned(),
            self.scheduler.label(),
            cell(self.of_wakeups(0.5), 3),
            cell(self.of_wakeups(0.99), 2),
            cell(self.of_wakeups(0.999), 2),
            cell(self.max_ms(), 2),
            rounds,
        ]
    }
}

/// Computes the part from the samples of the guest.
pub fn part(measured: &GuestResults, note: String) -> Result<Part> {
    let names = LATENCIES.map(|(probe, beside)| probe.sample_name(beside));
    let is_it = |sample: &&Sample| names.contains(&sample.part.as_str());
    let samples: Vec<&Sample> = measured.samples.iter().filter(is_it).collect();
    let each = schedulers(&samples);
    let mut part = Part::new(NAME, TITLE);
    let mut rows = Vec::new();
    for case in LATENCIES {
        let results: Vec<LatencyResult> = each
            .iter()
            .map(|scheduler| LatencyResult::of(case, scheduler, &samples))
            .collect();
        part.bars.extend(bars(case, &results));
        rows.extend(results.iter().map(LatencyResult::cells));
    }
    let head = [
        "probe",
        "beside",
        "scheduler",
        "half, ms",
        "99 %, ms",
        "99.9 %, ms",
        "largest, ms",
        "per round: 99 % of the wake-ups, or largest of cyclictest",
    ];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows,
    }];
    part.notes = vec![
        note,
        format!(
            "Wake-ups: a message thread wakes one worker per CPU; a worker sleeps 2 to 6 ms and \
             computes 0.2 to 0.6 ms of CPU time after each wake-up (seed: the number of the round, \
             from 0). cyclictest: one thread per CPU of the normal scheduling class, a wake-up \
             each millisecond. Other work: {} with two jobs per CPU, again and again, or two \
             threads per CPU that start one short program after another.",
            OtherWork::Make.title()
        ),
        "The emulator delivers an interrupt to another CPU up to half a millisecond late, under \
         all schedulers."
            .to_owned(),
    ];
    part.raw = raw(&samples);
    Ok(part)
}

/// Returns the bars of a probe beside one kind of other work.
fn bars((probe, beside): (Probe, OtherWork), results: &[LatencyResult]) -> Vec<Bar> {
    let bar = |what: &str, figure: &dyn Fn(&LatencyResult) -> Option<f64>| {
        let is_ours = |result: &&LatencyResult| result.scheduler == ComparedScheduler::Usher;
        let ours = results.iter().find(is_ours).and_then(figure);
        let others = results.iter().filter(|result| !is_ours(result));
        let best = others
            .filter_map(|result| Some((figure(result)?, result.scheduler.label())))
            .min_by(|a, b| a.0.total_cmp(&b.0));
        let (best, name) = best.map_or((None, "the others".to_owned()), |(ms, name)| {
            (Some(ms), name)
        });
        let what = format!(
            "{} beside {}, {what}: usher ({} ms) / best other, {name} ({} ms)",
            probe.title(),
            beside.title(),
            cell(ours, 3),
            cell(best, 3)
        );
        Bar::at_most(what, ratio(ours, best), 1.0, "")
    };
    match probe {
        Probe::Wakeup => SHARES
            .map(|(share, name)| bar(name, &|result| result.of_wakeups(share)))
            .to_vec(),
        Probe::Cyclictest => vec![bar("largest", &LatencyResult::max_ms)],
    }
}

/// Returns the samples with quantiles instead of all latencies.
fn raw(samples: &[&Sample]) -> serde_json::Value {
    let one = |sample: &&Sample| {
        let [half, p99, max] = late_ms(&[sample]);
        serde_json::json!({
            "part": sample.part,
            "scheduler": sample.scheduler.label(),
            "seed": sample.round,
            "wakeups": sample.late_ms.len(),
            "half_ms": half,
            "p99_ms": p99,
            "max_ms": max,
            "figures": sample.figures,
        })
    };
    samples.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::medians::tests::sample;

    fn wakeups(scheduler: ComparedScheduler, late_ms: Vec<f64>) -> Sample {
        let name = Probe::Wakeup.sample_name(OtherWork::Make);
        let mut sample = sample(scheduler, name, 1, [0, 0]);
        sample.late_ms = late_ms;
        sample
    }

    fn cyclic(scheduler: ComparedScheduler, max_ms: f64) -> Sample {
        let name = Probe::Cyclictest.sample_name(OtherWork::ForkStorm);
        let mut sample = sample(scheduler, name, 1, [0, 0]);
        sample.figures.insert(MAX_MS.to_owned(), max_ms);
        sample
    }

    #[test]
    fn usher_is_compared_with_the_best_other() {
        let off = ComparedScheduler::EevdfCacheOff;
        let measured = GuestResults {
            samples: vec![
                wakeups(ComparedScheduler::Eevdf, vec![4.0; 9]),
                wakeups(off.clone(), vec![2.0; 9]),
                wakeups(ComparedScheduler::Usher, vec![1.0; 9]),
                cyclic(ComparedScheduler::Usher, 6.0),
                cyclic(ComparedScheduler::Usher, 8.0),
                cyclic(off, 4.0),
            ],
            left_out: vec![],
        };
        let part = part(&measured, String::new()).unwrap();
        assert_eq!(part.bars.len(), 6);
        assert_eq!(part.bars[0].measured, Some(0.5));
        assert!(part.bars[0].is_met() && part.bars[1].is_met());
        assert!(
            part.bars[0]
                .what
                .contains("best other, EEVDF, not cache-aware (2.000 ms)")
        );
        // The two cases without samples, and the largest latency of all rounds.
        assert_eq!(part.bars[2].measured, None);
        assert_eq!(part.bars[5].measured, Some(2.0));
        assert!(!part.bars[5].is_met());
        assert_eq!(part.tables[0].rows.len(), 4 * 3);
    }
}
