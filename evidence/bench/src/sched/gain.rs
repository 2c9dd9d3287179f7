// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `gain`: estimates how much CPU time Usher's scheduler saves by fewer switches between
//! address spaces.
//!
//! Saving = (switches per second and CPU under EEVDF - switches per second and CPU under Usher) x
//! cost of a switch. The parts `spaces` and `erlang` count the switches in the guest. The part
//! `switches` measures the cost on this machine for several working sets. The part is left out
//! without samples of EEVDF and Usher or without a measured cost. Limit: the saving is an estimate,
//! because neither load was timed on this machine.

use anyhow::Result;
use usher_report::text;

use super::lab::GuestResults;
use super::schedulers::ComparedScheduler;
use super::{erlang, sample_names, spaces, switches};
use crate::bars::{Part, Table};

const NAME: &str = "gain";
const TITLE: &str = "Expected saving by fewer switches between address spaces";

/// Address-space switches per second and CPU under the two schedulers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct SwitchRates {
    /// The rates were counted with the load of this part.
    part: &'static str,
    eevdf: f64,
    ours: f64,
}

impl SwitchRates {
    fn of(part: &'static str, rates: &[(ComparedScheduler, f64)]) -> Option<Self> {
        let rate = |scheduler: &ComparedScheduler| {
            let found = rates.iter().find(|(of, _)| of == scheduler);
            found.map(|(_, rate)| *rate)
        };
        Some(Self {
            part,
            eevdf: rate(&ComparedScheduler::Eevdf)?,
            ours: rate(&ComparedScheduler::Usher)?,
        })
    }

    /// Returns the saved share of a CPU's time in per cent if a switch costs `cost_ns` nanoseconds.
    fn saved_percent(&self, cost_ns: f64) -> f64 {
        (self.eevdf - self.ours) * cost_ns / 1e7
    }
}

/// Computes the gain from the part `switches` and from the existing samples of `spaces` and
/// `erlang`. Returns `None` if there are no samples or no measured cost.
pub fn part(switches: &Part, measured: &GuestResults) -> Result<Option<Part>> {
    let costs = switches::costs(&switches.raw);
    let rates = [
        SwitchRates::of(sample_names::ADDRESS_SPACES, &spaces::rates(measured)),
        SwitchRates::of(sample_names::ERLANG, &erlang::rates(measured)),
    ];
    let rates: Vec<SwitchRates> = rates.into_iter().flatten().collect();
    if costs.is_empty() || rates.is_empty() {
        return Ok(None);
    }
    let mut part = Part::new(NAME, TITLE);
    part.tables = vec![table(&costs, &rates)];
    part.notes = notes(&rates);
    let raw = rates.iter().map(|rate| {
        let of = serde_json::json!({ "eevdf_a_second": rate.eevdf, "ours_a_second": rate.ours });
        (rate.part.to_owned(), of)
    });
    part.raw = raw.collect::<serde_json::Map<_, _>>().into();
    Ok(Some(part))
}

fn table(costs: &[(usize, f64)], rates: &[SwitchRates]) -> Table {
    let saved = |rate: &SwitchRates| format!("CPU time saved under the load of '{}', %", rate.part);
    let head = ["memory that each thread reads", "cost of a switch, ns"].map(str::to_owned);
    let row = |(bytes, cost_ns): &(usize, f64)| {
        let cost = [text::bytes(*bytes as u64), text::number(*cost_ns, 0)];
        let saved = rates.iter().map(|rate| rate.saved_percent(*cost_ns));
        let saved = saved.map(|percent| text::number(percent, 3));
        cost.into_iter().chain(saved).collect()
    };
    Table {
        head: head.into_iter().chain(rates.iter().map(saved)).collect(),
        rows: costs.iter().map(row).collect(),
    }
}

fn notes(rates: &[SwitchRates]) -> Vec<String> {
    let each = rates.iter().map(|SwitchRates { part, eevdf, ours }| {
        let most = if *part == sample_names::ERLANG {
            " with the most virtual machines"
        } else {
            ""
        };
        format!("{eevdf:.0} and {ours:.0} under the load of '{part}'{most}")
    });
    let each = text::list(&each.collect::<Vec<_>>());
    vec![
        format!(
            "Switches to another address space per second and CPU under EEVDF and under Usher's \
             scheduler: {each}. The expected saving is the difference times the cost of a switch, \
             which the part 'switches' measured on this machine. The total saving is not \
             measured, because no emulator has caches and the kernel of this machine has no \
             sched_ext."
        ),
        "Paper 4 measured a gain of 4.9 to 11.1 %. A cost whose quartiles are on both sides of 0 \
         is smaller than the noise of this machine."
            .to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::medians::tests::sample;

    #[test]
    fn gain_is_saved_switches_times_their_cost() {
        let of =
            |scheduler, count| sample(scheduler, sample_names::ADDRESS_SPACES, 7, [count, count]);
        let mut measured = GuestResults {
            samples: vec![
                of(ComparedScheduler::Eevdf, 4400),
                of(ComparedScheduler::Usher, 400),
            ],
            left_out: vec![],
        };
        let mut switches = Part::new(switches::NAME, "");
        let pair = serde_json::json!({ "threads_ns": 1000.0, "processes_ns": 3000.0 });
        switches.raw = serde_json::json!([[4096, [pair]]]);
        let part = part(&switches, &measured).unwrap().unwrap();
        // Usher saves 1,000 switches per second and CPU, which cost 2 us each.
        assert_eq!(part.tables[0].rows[0][1..], ["2000", "0.200"]);
        let of = |scheduler, count| sample(scheduler, sample_names::ERLANG, 7, [count, count]);
        let erlang = [
            of(ComparedScheduler::Eevdf, 8400),
            of(ComparedScheduler::Usher, 400),
        ];
        let mut both = measured.clone();
        both.samples.extend(erlang.clone());
        let part = super::part(&switches, &both).unwrap().unwrap();
        assert_eq!(part.tables[0].rows[0][1..], ["2000", "0.200", "0.400"]);
        assert_eq!(part.raw["erlang"]["eevdf_a_second"], 2100.0);
        both.samples = erlang.to_vec();
        let part = super::part(&switches, &both).unwrap().unwrap();
        assert_eq!(part.tables[0].head.len(), 3);
        measured.samples.pop();
        assert!(super::part(&switches, &measured).unwrap().is_none());
    }
}
