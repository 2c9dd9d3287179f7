// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `peers`: eight workloads under all schedulers. Each workload has one measure, whose smaller
//! values are better, and one value per round.
//!
//! For each workload and each other scheduler, [`super::versus`] determines whether Usher wins,
//! ties or loses. The bar requires that Usher loses against no other scheduler, including EEVDF, in
//! at least six of the eight workloads.

use anyhow::Result;
use usher_report::stats::median;

use super::lab::GuestResults;
use super::medians::{cell, ratio, schedulers};
use super::messages::Sample;
use super::sample_names::{MEASURE, PEERS as NAME, PEERS_ERLANG};
use super::schedulers::ComparedScheduler;
use super::versus::{Outcome, compare, spread};
use super::workloads::{WORKLOADS, Workload};
use crate::bars::{Bar, Part, Table};

const TITLE: &str = "Eight workloads under all schedulers";
/// Bar: smallest number of workloads in which Usher loses against no other scheduler.
const NOT_WORSE_AT_LEAST: f64 = 6.0;

/// A workload of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TableWorkload {
    Own(Workload),
    Erlang,
}

impl TableWorkload {
    /// All eight workloads.
    fn all() -> Vec<Self> {
        let own = WORKLOADS.into_iter().map(Self::Own);
        own.chain([Self::Erlang]).collect()
    }

    fn sample_name(self) -> &'static str {
        match self {
            Self::Own(workload) => workload.sample_name(),
            Self::Erlang => PEERS_ERLANG,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Own(workload) => workload.title(),
            Self::Erlang => "Erlang (paper 4)",
        }
    }

    fn measure(self) -> &'static str {
        match self {
            Self::Own(workload) => workload.measure(),
            Self::Erlang => "address-space switches",
        }
    }

    fn decimals(self) -> usize {
        match self {
            Self::Own(Workload::Wakeup | Workload::Requests | Workload::Pairs) => 2,
            Self::Own(_) | Self::Erlang => 0,
        }
    }

    /// Values of a scheduler, one per round.
    fn values(self, scheduler: &ComparedScheduler, samples: &[&Sample]) -> Vec<f64> {
        let of_it = samples
            .iter()
            .filter(|sample| sample.scheduler == *scheduler)
            .filter(|sample| sample.part == self.sample_name());
        let value = |sample: &&Sample| match self {
            Self::Own(_) => sample.figures.get(MEASURE).copied(),
            Self::Erlang => Some(sample.counted.as_ref()?.space_switches as f64),
        };
        of_it.filter_map(value).collect()
    }
}

/// All values of a workload.
#[derive(Debug, Clone, PartialEq)]
struct WorkloadResult {
    workload: TableWorkload,
    ours: Vec<f64>,
    /// The other schedulers with their values.
    others: Vec<(ComparedScheduler, Vec<f64>)>,
}

impl WorkloadResult {
    fn of(workload: TableWorkload, each: &[ComparedScheduler], samples: &[&Sample]) -> Self {
        let values = |scheduler: &ComparedScheduler| workload.values(scheduler, samples);
        let others = each.iter().filter(|it| **it != ComparedScheduler::Usher);
        Self {
            workload,
            ours: values(&ComparedScheduler::Usher),
            others: others.map(|it| (it.clone(), values(it))).collect(),
        }
    }

    fn outcomes(&self) -> Vec<Outcome> {
        let outcomes = self.others.iter();
        outcomes
            .filter_map(|(_, theirs)| compare(&self.ours, theirs))
            .collect()
    }

    /// Whether Usher was measured and loses against no other measured scheduler.
    fn is_not_worse(&self) -> bool {
        let outcomes = self.outcomes();
        !outcomes.is_empty() && !outcomes.contains(&Outcome::Loss)
    }

    /// Returns Usher's ratio to a scheduler, and the outcome: `0.85 win`.
    fn versus(&self, theirs: &[f64]) -> String {
        let factor = ratio(median(&self.ours), median(theirs));
        match compare(&self.ours, theirs) {
            Some(outcome) => format!("{} {}", cell(factor, 2), outcome.name()),
            None => cell(None, 0),
        }
    }

    fn summary(&self) -> Vec<String> {
        let outcomes = self.outcomes();
        let count = |of: Outcome| outcomes.iter().filter(|it| **it == of).count().to_string();
        let best = self
            .others
            .iter()
            .filter_map(|(scheduler, values)| Some((median(values)?, scheduler.label())));
        let best = best.min_by(|a, b| a.0.total_cmp(&b.0));
        let (value, name) = best.map_or((None, String::new()), |(value, name)| (Some(value), name));
        vec![
            self.workload.title().to_owned(),
            self.workload.measure().to_owned(),
            spread(&self.ours, self.workload.decimals()),
            format!("{} {name}", cell(value, self.workload.decimals())),
            count(Outcome::Win),
            count(Outcome::Tie),
            count(Outcome::Loss),
        ]
    }
}

/// Computes the part from the samples of the guest.
pub fn part(measured: &GuestResults, note: String) -> Result<Part> {
    let all = TableWorkload::all();
    let is_it = |sample: &&Sample| all.iter().any(|it| it.sample_name() == sample.part);
    let samples: Vec<&Sample> = measured.samples.iter().filter(is_it).collect();
    let each = schedulers(&samples);
    let results: Vec<WorkloadResult> = all
        .iter()
        .map(|&workload| WorkloadResult::of(workload, &each, &samples))
        .collect();
    let mut part = Part::new(NAME, TITLE);
    let not_worse = results.iter().filter(|result| result.is_not_worse());
    part.bars = vec![Bar::at_least(
        format!(
            "workloads, of {}, in which usher is not worse than any other scheduler",
            all.len()
        ),
        not_worse.count() as f64,
        NOT_WORSE_AT_LEAST,
        "",
    )];
    part.tables = vec![
        summary(&results),
        outcomes(&results),
        values(&results, &each),
    ];
    part.notes = vec![
        note,
        "Smaller values are better. Usher wins if each of its rounds is better than each round of \
         the other scheduler, and the medians differ by more than 1 % and more than 0.1 ms (0.1 \
         switches); it loses in the opposite case. The second table has the ratio of Usher's \
         median to the median of the other scheduler."
            .to_owned(),
        "make, hackbench and Erlang have a fixed number of instructions, and the CPUs of the guest \
         execute them one after another: their elapsed times show the cost of the scheduler and \
         idle time, but not parallel speed. In the other workloads, work is CPU time, so that CPUs \
         work at the same time. Caches and the slowdown of a shared core are not modelled."
            .to_owned(),
        "The number of the round, from 0, is the seed of all random times.".to_owned(),
    ];
    part.raw = serde_json::to_value(&samples)?;
    Ok(part)
}

/// Returns the table with a row for each workload.
fn summary(results: &[WorkloadResult]) -> Table {
    let head = [
        "workload",
        "measure",
        "usher: median (range)",
        "best other: median",
        "wins",
        "ties",
        "losses",
    ];
    Table {
        head: head.map(str::to_owned).to_vec(),
        rows: results.iter().map(WorkloadResult::summary).collect(),
    }
}

/// Returns the head of a table with a column for each workload.
fn head(first: &str, results: &[WorkloadResult]) -> Vec<String> {
    let titles = results
        .iter()
        .map(|result| result.workload.title().to_owned());
    [first.to_owned()].into_iter().chain(titles).collect()
}

/// Returns the table with a row for each other scheduler, and Usher's outcomes against it.
fn outcomes(results: &[WorkloadResult]) -> Table {
    let count = results.first().map_or(0, |result| result.others.len());
    let row = |at: usize| {
        let (scheduler, _) = &results[0].others[at];
        let versus = results
            .iter()
            .map(|result| result.versus(&result.others[at].1));
        let label = format!("usher against {}", scheduler.label());
        [label].into_iter().chain(versus).collect()
    };
    Table {
        head: head("", results),
        rows: (0..count).map(row).collect(),
    }
}

/// Returns the table with the values of all schedulers.
fn values(results: &[WorkloadResult], each: &[ComparedScheduler]) -> Table {
    let cells = |scheduler: &ComparedScheduler| {
        let cells = results.iter().map(|result| {
            let other = result.others.iter().find(|(it, _)| it == scheduler);
            let values = other.map_or(&result.ours, |(_, values)| values);
            spread(values, result.workload.decimals())
        });
        [scheduler.label()].into_iter().chain(cells).collect()
    };
    Table {
        head: head("scheduler", results),
        rows: each.iter().map(cells).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::medians::tests::sample;

    fn measured(scheduler: ComparedScheduler, workload: Workload, values: [f64; 2]) -> Vec<Sample> {
        let one = |value| {
            let mut sample = sample(scheduler.clone(), workload.sample_name(), 1, [0, 0]);
            sample.figures.insert(MEASURE.to_owned(), value);
            sample
        };
        values.map(one).to_vec()
    }

    #[test]
    fn a_loss_against_one_scheduler_counts() {
        let (eevdf, ours) = (ComparedScheduler::Eevdf, ComparedScheduler::Usher);
        let off = ComparedScheduler::EevdfCacheOff;
        let mut samples = Vec::new();
        for workload in WORKLOADS {
            samples.extend(measured(eevdf.clone(), workload, [20.0, 22.0]));
            samples.extend(measured(ours.clone(), workload, [10.0, 12.0]));
        }
        samples.extend(measured(off.clone(), Workload::Spin, [4.0, 5.0]));
        // Address-space switches; Usher has more than EEVDF.
        samples.push(sample(eevdf, PEERS_ERLANG, 4, [0, 100]));
        samples.push(sample(ours, PEERS_ERLANG, 4, [0, 200]));
        let measured = GuestResults {
            samples,
            left_out: vec![],
        };
        let part = part(&measured, String::new()).unwrap();
        assert_eq!(part.bars[0].measured, Some(6.0));
        assert!(part.bars[0].is_met());
        let row = |table: usize, at: usize| &part.tables[table].rows[at];
        assert_eq!(row(0, 0)[2..], ["11 (10 to 12)", "21 EEVDF", "1", "0", "0"]);
        assert_eq!(row(0, 5)[3..], ["4 EEVDF, not cache-aware", "1", "0", "1"]);
        assert_eq!(row(0, 7)[4..], ["0", "0", "1"]);
        assert_eq!(row(1, 0)[0], "usher against EEVDF");
        assert_eq!(row(1, 0)[1], "0.52 win");
        assert_eq!(row(1, 0)[8], "2.00 LOSS");
        assert_eq!(row(1, 1)[1], "–");
        assert_eq!(row(2, 1)[0], "usher");
        assert_eq!(row(2, 1)[3], "11.00 (10.00 to 12.00)");
    }

    #[test]
    fn without_samples_the_bar_is_not_met() {
        let part = part(&GuestResults::default(), String::new()).unwrap();
        assert!(!part.bars[0].is_met());
        assert_eq!(part.tables[0].rows.len(), 8);
    }
}
