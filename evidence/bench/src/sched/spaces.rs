// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `spaces`: seven programs with two threads each compute the same work on two CPUs, beside a
//! thread that mostly sleeps (paper 4). For each scheduler, the part compares the number of
//! address-space switches, the lengths of runs, the end times, and the wake-up delays of the
//! sleeping thread.
//!
//! Bars limit Usher's figures as multiples of EEVDF's:
//!
//! - switches without those of the sleeping thread: 0.25;
//! - 99th percentile of the delays: 1.1;
//! - end of the last program: 1.02.
//!
//! With `--peers`, Usher may also not have more switches than any peer.
//!
//! Counts and end times are medians over the rounds, in virtual time. Quantiles of delays are
//! computed over the wake-ups of all rounds. Limit: caches are not modelled; end times therefore do
//! not contain the gain from fewer switches.

use anyhow::Result;
use usher_report::stats;

use super::lab::GuestResults;
use super::medians::{LATE_AT_MOST, cell, counted, ends_s, figure, late_ms, ratio, schedulers};
use super::messages::Sample;
use super::run_lengths::{self, CPUS, RunLengths};
use super::sample_names::ADDRESS_SPACES as NAME;
use super::schedulers::ComparedScheduler;
use crate::bars::{Bar, Part, Table};

const TITLE: &str = "Seven programs with equal work beside a thread that mostly sleeps";

const SWITCHES_AT_MOST: f64 = 0.25;
const ELAPSED_AT_MOST: f64 = 1.02;

/// Results of one scheduler: medians over the rounds, but wake-up delays of all rounds.
#[derive(Debug, Clone, PartialEq)]
struct SpacesResult {
    scheduler: ComparedScheduler,
    switches: Option<f64>,
    spaces: Option<f64>,
    /// Address-space switches without those of the sleeping thread, which causes two switches with
    /// each wake-up.
    others: Option<f64>,
    /// Wake-up delays of the sleeping thread in milliseconds: median, 99th percentile, maximum.
    late_ms: [Option<f64>; 3],
    /// 99th percentile of the latency of all wake-ups in milliseconds, rounded up to the end of a
    /// histogram bucket.
    latency_ms: Option<f64>,
    first_s: Option<f64>,
    last_s: Option<f64>,
}

impl SpacesResult {
    fn of(scheduler: &ComparedScheduler, samples: &[&Sample]) -> Self {
        let samples = samples.iter().copied();
        let of_it: Vec<&Sample> = samples.filter(|s| s.scheduler == *scheduler).collect();
        let ends = ends_s(&of_it);
        let latency = of_it
            .iter()
            .filter_map(|s| s.counted.as_ref()?.latency_below_ms(0.99));
        let others = of_it.iter().filter_map(|s| {
            let spaces = s.counted.as_ref()?.space_switches;
            Some(spaces.saturating_sub(2 * s.late_ms.len() as u64) as f64)
        });
        Self {
            scheduler: scheduler.clone(),
            switches: counted(&of_it, |c| c.switches as f64),
            spaces: counted(&of_it, |c| c.space_switches as f64),
            others: stats::median(&others.collect::<Vec<f64>>()),
            late_ms: late_ms(&of_it),
            latency_ms: stats::median(&latency.collect::<Vec<f64>>()),
            first_s: ends.map(|(first, _)| first),
            last_s: ends.map(|(_, last)| last),
        }
    }

    /// Mean time for which a thread runs until another thread runs on its CPU.
    fn run_ms(&self) -> Option<f64> {
        run_lengths::mean_ms(self.last_s, self.switches)
    }

    fn runs(&self) -> RunLengths<'_> {
        RunLengths {
            scheduler: &self.scheduler,
            run_ms: self.run_ms(),
            spaces: self.spaces,
            late_ms: self.late_ms[1],
        }
    }

    fn cells(&self) -> Vec<String> {
        let [half, most_of_them, most] = self.late_ms;
        vec![
            self.scheduler.label(),
            cell(self.switches, 0),
            cell(self.spaces, 0),
            cell(self.others, 0),
            cell(self.run_ms(), 2),
            cell(half, 2),
            cell(most_of_them, 1),
            cell(most, 1),
            cell(self.latency_ms, 1),
            cell(self.first_s, 2),
            cell(self.last_s, 2),
        ]
    }
}

/// Returns for each scheduler the address-space switches per second and CPU.
pub fn rates(measured: &GuestResults) -> Vec<(ComparedScheduler, f64)> {
    let rows = rows(measured, NAME).into_iter();
    rows.filter_map(|row| Some((row.scheduler.clone(), ratio(row.spaces, row.last_s)? / CPUS)))
        .collect()
}

fn rows(measured: &GuestResults, name: &str) -> Vec<SpacesResult> {
    let samples: Vec<&Sample> = measured.samples.iter().filter(|s| s.part == name).collect();
    let each = schedulers(&samples);
    each.iter()
        .map(|scheduler| SpacesResult::of(scheduler, &samples))
        .collect()
}

/// Computes the part from the samples of the guest.
pub fn part(measured: &GuestResults, note: String) -> Result<Part> {
    let rows = rows(measured, NAME);
    let mut part = shown(NAME, TITLE, measured)?;
    part.bars = bars(&rows);
    part.notes = vec![
        note,
        "Seven programs with two threads each run on two CPUs; each thread has the same amount \
         of arithmetic. Beside them the sleeper, a thread that sleeps for 5 ms and computes for \
         0.3 ms, runs until the programs have ended. Switches and end times are medians over \
         runs; the delays of the sleeper are those of all runs. A run is the mean time for which \
         a thread runs before another thread runs. Switches 'without the sleeper's' are reduced \
         by two for each wake-up of the sleeper, which wakes more often if it is served sooner. \
         Delays of the wake-ups of all threads are rounded up to a quarter of a power of two."
            .to_owned(),
    ];
    let runs: Vec<RunLengths> = rows.iter().map(SpacesResult::runs).collect();
    part.notes.extend(run_lengths::nearest("Of", &runs));
    Ok(part)
}

/// Returns a part with the figures and the table of programs that run beside a thread that mostly
/// sleeps.
pub fn shown(name: &str, title: &str, measured: &GuestResults) -> Result<Part> {
    let rows = rows(measured, name);
    let mut part = Part::new(name, title);
    let values = |value: fn(&SpacesResult) -> Option<f64>| -> Vec<(ComparedScheduler, f64)> {
        let each = rows.iter();
        each.filter_map(|row| Some((row.scheduler.clone(), value(row)?)))
            .collect()
    };
    part.figures = [
        figure(
            "Switches to another address space",
            "switches to another address space until all programs have ended",
            0,
            &values(|row| row.spaces),
        ),
        figure(
            "Delay of the wake-ups of the sleeper",
            "99th percentile of the sleeper's wake-up delay, ms",
            1,
            &values(|row| row.late_ms[1]),
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    let head = [
        "scheduler",
        "switches",
        "of address spaces",
        "without the sleeper's",
        "a run, ms",
        "delay of the sleeper, ms: median",
        "99 %",
        "most",
        "delay of all wake-ups, ms: 99th percentile",
        "end of the first program, s",
        "last",
    ];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(SpacesResult::cells).collect(),
    }];
    let samples = measured.samples.iter().filter(|s| s.part == name);
    part.raw = serde_json::to_value(samples.collect::<Vec<_>>())?;
    Ok(part)
}

fn bars(rows: &[SpacesResult]) -> Vec<Bar> {
    let find = |scheduler: &ComparedScheduler| rows.iter().find(|row| row.scheduler == *scheduler);
    let (ours, eevdf) = (
        find(&ComparedScheduler::Usher),
        find(&ComparedScheduler::Eevdf),
    );
    let beside = |value: fn(&SpacesResult) -> Option<f64>| {
        let (ours, eevdf) = (ours.and_then(value), eevdf.and_then(value));
        ratio(ours, eevdf)
    };
    let mut bars = vec![
        Bar::at_most(
            "switches to another address space without the sleeper's, usher / EEVDF",
            beside(|row| row.others),
            SWITCHES_AT_MOST,
            "",
        ),
        Bar::at_most(
            "wake-up delay of the sleeper, 99th percentile, usher / EEVDF",
            beside(|row| row.late_ms[1]),
            LATE_AT_MOST,
            "",
        ),
        Bar::at_most(
            "end of the last program, usher / EEVDF",
            beside(|row| row.last_s),
            ELAPSED_AT_MOST,
            "",
        ),
    ];
    let spaces = ours.and_then(|row| row.spaces);
    let peers = rows.iter().filter(|row| row.scheduler.is_peer());
    bars.extend(peers.map(|peer| {
        let what = format!(
            "switches to another address space, usher / {}",
            peer.scheduler.label()
        );
        Bar::at_most(what, ratio(spaces, peer.spaces), 1.0, "")
    }));
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::medians::tests::sample;
    use crate::sched::schedulers::Peer;

    fn measured() -> GuestResults {
        let peer = ComparedScheduler::Peer(Peer {
            name: "scx_x".to_owned(),
            version: "1".to_owned(),
            program: "x".into(),
            options: vec![],
        });
        let one = |scheduler, counts, late: f64| Sample {
            late_ms: (0..100).map(|n| late * f64::from(n)).collect(),
            ..sample(scheduler, NAME, 7, counts)
        };
        GuestResults {
            samples: vec![
                one(ComparedScheduler::Eevdf, [2000, 1000], 0.1),
                one(ComparedScheduler::EevdfSlice { ms: 8 }, [1000, 800], 0.2),
                one(ComparedScheduler::Usher, [1000, 400], 0.1),
                one(peer, [500, 200], 0.1),
            ],
            left_out: vec![],
        }
    }

    #[test]
    fn ours_is_held_against_the_kernels_own_and_peers() {
        let part = part(&measured(), String::new()).unwrap();
        let met: Vec<(f64, bool)> = part
            .bars
            .iter()
            .map(|bar| (bar.measured.unwrap(), bar.is_met()))
            .collect();
        assert_eq!(met, [(0.25, true), (1.0, true), (1.0, true), (2.0, false)]);
        let cells = &part.tables[0].rows[2][..5];
        assert_eq!(cells, ["usher", "1000", "400", "200", "4.00"]);
        assert_eq!(part.figures.len(), 2);
        let same = part.notes.last().unwrap();
        assert!(
            same.contains("slices of 8 ms (4.0 ms): usher switches"),
            "{same}"
        );
        assert!(
            same.contains("wake-up delay is 0.50 times as long"),
            "{same}"
        );
        assert!(same.contains("0.50 times as often"), "{same}");
    }

    #[test]
    fn rates_are_of_a_second_of_a_cpu() {
        assert_eq!(rates(&measured())[0], (ComparedScheduler::Eevdf, 250.0));
    }

    #[test]
    fn without_usher_no_bar_is_met() {
        let mut measured = measured();
        measured
            .samples
            .retain(|s| s.scheduler != ComparedScheduler::Usher);
        let part = part(&measured, String::new()).unwrap();
        assert!(part.bars.iter().all(|bar| !bar.is_met()));
    }
}
