// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts `overhead`, `overhead-8` and `overhead-48`: measure the cost of a context switch in
//! instructions, in a guest with one CPU, or with 8 or 48 CPUs with SMT.
//!
//! 1. Two partners alternately send a byte to each other through pipes. A turn is one such
//!    transfer: a write, a wake-up, a blocking read and a context switch.
//! 2. In virtual time, each instruction takes 1 ns. The time of a turn in ns is therefore its
//!    number of instructions.
//! 3. The instructions of a write and a read without a partner are subtracted.
//!
//! The bar limits the cost on one CPU to 1.15 times the cost under a minimal sched_ext scheduler.
//! With `--peers`, it may also not exceed the cost under any peer. On several CPUs, a turn also
//! contains the transition of a CPU to idle and back, and there is no bar. Limit: the number of
//! instructions is not the time on hardware, because caches are not modelled.

use anyhow::Result;

use super::lab::{GuestResults, INSTRUCTION_NS};
use super::medians::{cell, figure, named, ratio, schedulers};
use super::messages::Sample;
use super::sample_names::{OVERHEAD, TURN_ALONE, TURN_OF_PROCESSES, TURN_OF_THREADS};
use super::schedulers::ComparedScheduler;
use crate::bars::{Bar, Part, Table};

const TITLE: &str = "Guest instructions of a context switch";

/// Bar: largest permitted ratio of Usher's cost to the cost of a minimal sched_ext scheduler.
const OF_LEAST_AT_MOST: f64 = 1.15;

/// Results of one scheduler, in instructions: medians over rounds.
#[derive(Debug, Clone, PartialEq)]
struct OverheadResult {
    scheduler: ComparedScheduler,
    /// Instructions of a write and a read without a partner.
    alone: Option<f64>,
    threads: Option<f64>,
    processes: Option<f64>,
}

impl OverheadResult {
    fn of(scheduler: &ComparedScheduler, samples: &[&Sample]) -> Self {
        let of = |name: &str| Some(named(samples, scheduler, name)? / f64::from(INSTRUCTION_NS));
        Self {
            scheduler: scheduler.clone(),
            alone: of(TURN_ALONE),
            threads: of(TURN_OF_THREADS),
            processes: of(TURN_OF_PROCESSES),
        }
    }

    /// Returns the instructions of a turn without those of its two system calls.
    fn switch(&self, turn: Option<f64>) -> Option<f64> {
        Some(turn? - self.alone?)
    }

    fn cells(&self, least: Option<f64>) -> Vec<String> {
        let threads = self.switch(self.threads);
        vec![
            self.scheduler.label(),
            cell(self.alone, 0),
            cell(threads, 0),
            cell(self.switch(self.processes), 0),
            cell(ratio(threads, least), 2),
        ]
    }
}

/// Computes the part from the samples of the guest.
pub fn part(name: &str, measured: &GuestResults, note: String) -> Result<Part> {
    let samples: Vec<&Sample> = measured.samples.iter().filter(|s| s.part == name).collect();
    let each = schedulers(&samples);
    let rows: Vec<OverheadResult> = each
        .iter()
        .map(|scheduler| OverheadResult::of(scheduler, &samples))
        .collect();
    let mut part = Part::new(name, TITLE);
    let switches = rows.iter();
    let switches =
        switches.filter_map(|row| Some((row.scheduler.clone(), row.switch(row.threads)?)));
    part.figures = figure(
        "A wake-up and a switch between threads",
        "instructions without those of the two system calls",
        0,
        &switches.collect::<Vec<_>>(),
    )
    .into_iter()
    .collect();
    let head = [
        "scheduler",
        "system calls alone",
        "a switch between threads",
        "between processes",
        "to minimal FIFO's",
    ];
    let least = threads_of(&rows, &ComparedScheduler::FifoMinimal);
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(|row| row.cells(least)).collect(),
    }];
    if name == OVERHEAD {
        part.bars = bars(&rows);
    } else {
        part.notes.push(
            "On several CPUs, each partner wakes the other partner on an idle CPU, and its own \
             CPU then becomes idle. The figures include the end and the start of idle time, and \
             no bar applies."
                .to_owned(),
        );
    }
    part.notes.extend([
        note,
        "Two threads send one byte to and fro through pipes, and may run on any CPU of the \
         guest. In virtual time one nanosecond is one instruction. A turn consists of a write, a \
         wake-up, a blocking read and a context switch; the instructions of a write and a read \
         without a waiting reader are subtracted."
            .to_owned(),
        "The minimal FIFO is the smallest sched_ext scheduler: a separate BPF \
         program with one queue, the kernel's selection of idle CPUs and no state per thread. \
         --fifo is Usher's scheduler with first-come, first-served order; it executes most of \
         the code of Usher's scheduler at a wake-up and a switch, so it is shown without a bar."
            .to_owned(),
    ]);
    part.raw = serde_json::to_value(&samples)?;
    Ok(part)
}

fn threads_of(rows: &[OverheadResult], scheduler: &ComparedScheduler) -> Option<f64> {
    let row = rows.iter().find(|row| row.scheduler == *scheduler)?;
    row.switch(row.threads)
}

fn bars(rows: &[OverheadResult]) -> Vec<Bar> {
    let ours = threads_of(rows, &ComparedScheduler::Usher);
    let least = threads_of(rows, &ComparedScheduler::FifoMinimal);
    let mut bars = vec![Bar::at_most(
        "instructions per switch, usher / minimal FIFO",
        ratio(ours, least),
        OF_LEAST_AT_MOST,
        "",
    )];
    let peers = rows.iter().filter(|row| row.scheduler.is_peer());
    bars.extend(peers.map(|peer| {
        let what = format!(
            "instructions per switch, usher / {}",
            peer.scheduler.label()
        );
        Bar::at_most(what, ratio(ours, peer.switch(peer.threads)), 1.0, "")
    }));
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::medians::tests::sample;

    #[test]
    fn system_calls_are_taken_off() {
        let one = |scheduler, threads: f64| {
            let mut sample = sample(scheduler, OVERHEAD, 2, [0, 0]);
            let turns = [
                (TURN_ALONE, 1000.0),
                (TURN_OF_THREADS, threads),
                (TURN_OF_PROCESSES, 6000.0),
            ];
            sample.figures = turns.map(|(name, ns)| (name.to_owned(), ns)).into();
            sample
        };
        let measured = GuestResults {
            samples: vec![
                one(ComparedScheduler::Fifo, 3400.0),
                one(ComparedScheduler::FifoMinimal, 3000.0),
                one(ComparedScheduler::Usher, 3500.0),
            ],
            left_out: vec![],
        };
        let part = part(OVERHEAD, &measured, String::new()).unwrap();
        assert_eq!(part.bars[0].measured, Some(1.25));
        assert!(!part.bars[0].is_met());
        let rows = &part.tables[0].rows;
        assert_eq!(rows[0][0..3], ["usher --fifo", "1000", "2400"]);
        assert_eq!(rows[2], ["usher", "1000", "2500", "5000", "1.25"]);
    }

    #[test]
    fn without_the_least_the_bar_is_not_met() {
        assert!(bars(&[]).iter().all(|bar| !bar.is_met()));
    }
}
