// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `erlang`: runs several virtual machines of Erlang at the same time; in each of them, all
//! Erlang processes send messages to one another (paper 4). For each scheduler and number of
//! virtual machines, the part compares the switches between address spaces, the end times, and the
//! wake-up delays of a thread that mostly sleeps (the *sleeper*).
//!
//! The guest has two CPUs and runs in virtual time. Figures are medians over the rounds; quantiles
//! of delays are computed over the wake-ups of all rounds. Bars apply to the highest number of
//! virtual machines only. Usher's switches are at most 0.25 times those under EEVDF, and at most
//! those under any peer. The 99th percentile of the sleeper's delays is at most 1.1 times that
//! under EEVDF.

use std::path::Path;

use anyhow::Result;

use super::lab::GuestResults;
use super::medians::{LATE_AT_MOST, cell, counted, ends_s, late_ms, ratio, schedulers};
use super::messages::{GuestLoad, Sample};
use super::otp::{Erlang, VmSize};
use super::run_lengths::{self, CPUS, RunLengths};
use super::sample_names::{ERLANG as NAME, ERLANG_BESIDE_SLEEPER as BESIDE_SLEEPER};
use super::schedulers::ComparedScheduler;
use crate::bars::{Bar, Figure, Part, Table};
use crate::coloring::chart::{Chart, Line};

const TITLE: &str = "Erlang: all processes exchange messages, in 4 to 7 virtual machines";

const SWITCHES_AT_MOST: f64 = 0.25;

/// Returns two loads: each number of virtual machines without the sleeper, and the highest number
/// of virtual machines beside the sleeper.
pub fn loads(folder: &Path, vms: Vec<usize>, processes: usize) -> Result<Vec<GuestLoad>> {
    let most = vms.iter().copied().max();
    let alone = Erlang::fetched()?.load(folder, vms, VmSize::of_paper(processes))?;
    let mut beside = alone.clone();
    if let GuestLoad::Erlang { vms, sleeper, .. } = &mut beside {
        *vms = most.into_iter().collect();
        *sleeper = true;
    }
    Ok(vec![alone, beside])
}

/// Returns the load of the part `peers`: four virtual machines with a scheduler thread for each of
/// the guest's CPUs.
pub fn load_of_peers(folder: &Path, cpus: usize) -> Result<GuestLoad> {
    let size = VmSize {
        schedulers: cpus,
        processes: 150,
    };
    let mut load = Erlang::fetched()?.load(folder, vec![4], size)?;
    if let GuestLoad::Erlang { of_peers, .. } = &mut load {
        *of_peers = true;
    }
    Ok(load)
}

/// Results of one scheduler with `vms` virtual machines.
#[derive(Debug, Clone, PartialEq)]
struct ErlangResult {
    scheduler: ComparedScheduler,
    vms: usize,
    switches: Option<f64>,
    spaces: Option<f64>,
    first_s: Option<f64>,
    last_s: Option<f64>,
    /// Wake-up delays of the sleeper in ms: median, 99th percentile, maximum; `None` in runs
    /// without the sleeper.
    late_ms: [Option<f64>; 3],
    wakeups: usize,
}

impl ErlangResult {
    fn of(scheduler: &ComparedScheduler, vms: usize, samples: &[&Sample]) -> Self {
        let is_it = |sample: &&Sample| sample.scheduler == *scheduler && sample.programs == vms;
        let of_it: Vec<&Sample> = samples.iter().copied().filter(is_it).collect();
        let ends = ends_s(&of_it);
        Self {
            scheduler: scheduler.clone(),
            vms,
            switches: counted(&of_it, |c| c.switches as f64),
            spaces: counted(&of_it, |c| c.space_switches as f64),
            first_s: ends.map(|(first, _)| first),
            last_s: ends.map(|(_, last)| last),
            late_ms: late_ms(&of_it),
            wakeups: of_it.iter().map(|sample| sample.late_ms.len()).sum(),
        }
    }

    /// Mean time for which a thread runs until another thread runs on its CPU.
    fn run_ms(&self) -> Option<f64> {
        run_lengths::mean_ms(self.last_s, self.switches)
    }

    fn cells(&self, eevdf: Option<&Self>) -> Vec<String> {
        let spaces = ratio(self.spaces, eevdf.and_then(|row| row.spaces));
        let elapsed = ratio(self.last_s, eevdf.and_then(|row| row.last_s));
        vec![
            self.vms.to_string(),
            self.scheduler.label(),
            cell(self.switches, 0),
            cell(self.spaces, 0),
            cell(spaces, 2),
            cell(self.run_ms(), 2),
            cell(self.first_s, 2),
            cell(self.last_s, 2),
            cell(elapsed, 3),
        ]
    }

    fn sleepers_cells(&self, eevdf: Option<&Self>) -> Vec<String> {
        let [half, most_of_them, most] = self.late_ms;
        let beside = ratio(most_of_them, eevdf.and_then(|row| row.late_ms[1]));
        vec![
            self.scheduler.label(),
            self.wakeups.to_string(),
            cell(half, 2),
            cell(most_of_them, 1),
            cell(most, 1),
            cell(beside, 2),
            cell(self.spaces, 0),
            cell(self.last_s, 2),
        ]
    }
}

fn rows(measured: &GuestResults, name: &str) -> Vec<ErlangResult> {
    let samples: Vec<&Sample> = measured.samples.iter().filter(|s| s.part == name).collect();
    let mut numbers: Vec<usize> = samples.iter().map(|sample| sample.programs).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let each = schedulers(&samples);
    let of_number = |&vms: &usize| {
        let rows = each
            .iter()
            .map(|scheduler| ErlangResult::of(scheduler, vms, &samples));
        rows.filter(|row| row.spaces.is_some()).collect::<Vec<_>>()
    };
    numbers.iter().flat_map(of_number).collect()
}

fn find<'a>(
    rows: &'a [ErlangResult],
    scheduler: &ComparedScheduler,
    vms: usize,
) -> Option<&'a ErlangResult> {
    rows.iter()
        .find(|row| row.scheduler == *scheduler && row.vms == vms)
}

/// Returns the rows with the highest number of virtual machines.
fn of_the_most(rows: &[ErlangResult]) -> impl Iterator<Item = &ErlangResult> {
    let most = rows.iter().map(|row| row.vms).max();
    rows.iter().filter(move |row| Some(row.vms) == most)
}

/// Returns for each scheduler the address-space switches per second and CPU with the highest number
/// of virtual machines.
pub fn rates(measured: &GuestResults) -> Vec<(ComparedScheduler, f64)> {
    let rows = rows(measured, NAME);
    let rate =
        |row: &ErlangResult| Some((row.scheduler.clone(), ratio(row.spaces, row.last_s)? / CPUS));
    of_the_most(&rows).filter_map(rate).collect()
}

/// Computes the part from the samples of the guest.
pub fn part(measured: &GuestResults, notes: Vec<String>) -> Result<Part> {
    let rows = rows(measured, NAME);
    let beside = self::rows(measured, BESIDE_SLEEPER);
    let mut part = Part::new(NAME, TITLE);
    part.figures = vec![figure(&rows)];
    part.figures.retain(|figure| !figure.svg.is_empty());
    part.tables = vec![table(&rows), sleepers_table(&beside)];
    part.bars = bars(&rows);
    part.bars.push(sleepers_bar(&beside));
    part.notes = notes;
    part.notes.push(
        "A run is the mean time for which a thread runs before another thread runs; the figure is \
         an upper bound if CPUs are idle at times. The end times of the virtual machines are in \
         virtual time and have no bar here; the part 'elapsed' compares end times in pairs of \
         runs."
            .to_owned(),
    );
    part.notes.push(
        "The second table shows separate runs, with the largest number of virtual machines and \
         the sleeper of the part 'spaces', a thread that sleeps for 5 ms and computes for 0.3 ms \
         until the machines have ended. The delays of the sleeper are those of all runs. The \
         context switches of the sleeper are in no other figure."
            .to_owned(),
    );
    part.notes.extend(nearest(&rows));
    let is_of_it = |sample: &&Sample| [NAME, BESIDE_SLEEPER].contains(&sample.part.as_str());
    let samples: Vec<&Sample> = measured.samples.iter().filter(is_of_it).collect();
    part.raw = serde_json::to_value(samples)?;
    Ok(part)
}

fn table(rows: &[ErlangResult]) -> Table {
    let head = [
        "virtual machines",
        "scheduler",
        "switches",
        "of address spaces",
        "to EEVDF's",
        "a run, ms",
        "end of the first machine, s",
        "last",
        "end of the last machine / EEVDF's",
    ];
    let cells = |row: &ErlangResult| row.cells(find(rows, &ComparedScheduler::Eevdf, row.vms));
    Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(cells).collect(),
    }
}

fn sleepers_table(rows: &[ErlangResult]) -> Table {
    let head = [
        "beside the sleeper",
        "its wake-ups",
        "late, ms: half",
        "99 %",
        "most",
        "99th percentile / EEVDF's",
        "switches to another address space",
        "end of the last machine, s",
    ];
    let cells =
        |row: &ErlangResult| row.sleepers_cells(find(rows, &ComparedScheduler::Eevdf, row.vms));
    Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(cells).collect(),
    }
}

/// Returns a sentence that compares Usher with EEVDF at the base slice with the most similar length
/// of runs, for the highest number of virtual machines.
fn nearest(rows: &[ErlangResult]) -> Option<String> {
    let runs = of_the_most(rows).map(|row| RunLengths {
        scheduler: &row.scheduler,
        run_ms: row.run_ms(),
        spaces: row.spaces,
        late_ms: None,
    });
    let most = of_the_most(rows).next()?.vms;
    let begin = format!("With {most} virtual machines, of");
    run_lengths::nearest(&begin, &runs.collect::<Vec<_>>())
}

fn figure(rows: &[ErlangResult]) -> Figure {
    let caption = "Switches to another address space, by the number of virtual machines";
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let Some(spaces) = row.spaces else { continue };
        let (name, point) = (row.scheduler.label(), (row.vms as f64, spaces));
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                class: row.scheduler.class(),
                name,
                points: vec![point],
                compared: row.scheduler != ComparedScheduler::Usher,
            }),
        }
    }
    let chart = Chart {
        title: caption.to_owned(),
        x: "virtual machines",
        y: "switches",
        logarithmic: false,
        mark: None,
        lines,
    };
    Figure {
        caption: caption.to_owned(),
        svg: chart.svg(),
    }
}

/// Returns the bars for the highest number of virtual machines.
fn bars(rows: &[ErlangResult]) -> Vec<Bar> {
    let most: Vec<&ErlangResult> = of_the_most(rows).collect();
    let of =
        |scheduler: &ComparedScheduler| most.iter().find(|row| row.scheduler == *scheduler)?.spaces;
    let ours = of(&ComparedScheduler::Usher);
    let against = |name: &str, scheduler: &ComparedScheduler, limit| {
        let machines = most.first().map_or(0, |row| row.vms);
        let what = format!(
            "{machines} virtual machines: switches to another address space, usher / {name}"
        );
        Bar::at_most(what, ratio(ours, of(scheduler)), limit, "")
    };
    let eevdf = against("EEVDF", &ComparedScheduler::Eevdf, SWITCHES_AT_MOST);
    let peers = most.iter().filter(|row| row.scheduler.is_peer());
    let peers = peers.map(|peer| against(&peer.scheduler.label(), &peer.scheduler, 1.0));
    [eevdf].into_iter().chain(peers).collect()
}

/// Returns the bar of the sleeper's wake-up delays.
fn sleepers_bar(beside: &[ErlangResult]) -> Bar {
    let of =
        |scheduler: &ComparedScheduler| of_the_most(beside).find(|row| row.scheduler == *scheduler);
    let late = |scheduler: &ComparedScheduler| of(scheduler).and_then(|row| row.late_ms[1]);
    let machines = of_the_most(beside).next().map_or(0, |row| row.vms);
    let what = format!(
        "{machines} virtual machines: wake-up delay of the sleeper, 99th percentile, usher / EEVDF"
    );
    let beside = ratio(
        late(&ComparedScheduler::Usher),
        late(&ComparedScheduler::Eevdf),
    );
    Bar::at_most(what, beside, LATE_AT_MOST, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::medians::tests::sample;

    fn measured() -> GuestResults {
        let one = |scheduler, vms, spaces| sample(scheduler, NAME, vms, [2 * spaces, spaces]);
        let beside = |scheduler, late: f64| Sample {
            late_ms: (0..=100).map(|n| late * f64::from(n)).collect(),
            ..sample(scheduler, BESIDE_SLEEPER, 7, [9000, 9000])
        };
        let mut late = one(ComparedScheduler::Usher, 7, 100);
        late.ends_s = vec![1.0, 2.1];
        GuestResults {
            samples: vec![
                one(ComparedScheduler::Eevdf, 4, 400),
                one(ComparedScheduler::Eevdf, 7, 1000),
                beside(ComparedScheduler::Eevdf, 0.1),
                one(ComparedScheduler::Usher, 4, 300),
                late,
                beside(ComparedScheduler::Usher, 0.2),
            ],
            left_out: vec![],
        }
    }

    #[test]
    fn the_most_machines_are_held_against_the_bars() {
        let part = part(&measured(), vec![]).unwrap();
        let bars: Vec<(f64, bool)> = part
            .bars
            .iter()
            .map(|bar| (bar.measured.unwrap(), bar.is_met()))
            .collect();
        assert_eq!(bars, [(0.1, true), (2.0, false)]);
        let rows = &part.tables[0].rows;
        assert_eq!(rows.len(), 4, "those beside the sleeper are apart");
        assert_eq!(rows[1][..5], ["4", "usher", "600", "300", "0.75"]);
        assert_eq!(rows[3][4..], ["0.10", "21.00", "1.00", "2.10", "1.050"]);
        let beside = &part.tables[1].rows;
        assert_eq!(
            beside[1][..6],
            ["usher", "101", "10.00", "19.8", "20.0", "2.00"]
        );
        assert_eq!(part.figures[0].svg.matches("<circle").count(), 4);
        let same = part.notes.last().unwrap();
        let begins = "With 7 virtual machines, of the measured slices of EEVDF";
        assert!(same.starts_with(begins), "{same}");
        assert!(
            same.contains("0.10 times as often as EEVDF with that slice."),
            "{same}"
        );
        assert_eq!(part.raw.as_array().unwrap().len(), 6);
    }

    #[test]
    fn without_samples_no_bar_is_met() {
        let none = part(&GuestResults::default(), vec![]).unwrap();
        assert_eq!(none.bars.len(), 2);
        assert!(none.bars.iter().all(|bar| !bar.is_met()));
        let mut alone = measured();
        alone.samples.retain(|sample| sample.part == NAME);
        let part = part(&alone, vec![]).unwrap();
        let met: Vec<bool> = part.bars.iter().map(Bar::is_met).collect();
        assert_eq!(met, [true, false]);
    }

    #[test]
    fn rates_are_those_of_the_most_machines() {
        assert_eq!(rates(&measured())[0], (ComparedScheduler::Eevdf, 250.0));
    }
}
