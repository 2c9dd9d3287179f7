// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `seats`: three programs have seats on 48 CPUs, and one of them (the owner) rests half of
//! the time (paper 1). The part compares soft seats of Usher's scheduler with seats by affinity
//! masks under other schedulers.
//!
//! Figures, as medians over runs in virtual time:
//!
//! - busy CPUs in per cent (bar: at least 98 %);
//! - waiting time of the owner's threads in per cent of their runnable time (bar: at most 1 %);
//! - time until the owner ran on a lent CPU again, 99th percentile in a run (bar: at most 4 ms).
//!
//! Bars apply to soft seats only.

use anyhow::Result;

use super::lab::GuestResults;
use super::medians::{cell, figure, named, schedulers};
use super::messages::Sample;
use super::sample_names::{AS_GUESTS, BACK_MS, LOST, OWN_CPUS, RETURNS, SEATS as NAME, USED};
use super::schedulers::ComparedScheduler;
use crate::bars::{Bar, Part, Table};

const TITLE: &str = "Three programs with seats; one of them pauses half of the time";

/// Bar: smallest permitted busy share of the time of all CPUs, in per cent.
const USED_AT_LEAST: f64 = 98.0;
/// Bar: largest permitted waiting time of the owner's threads, in per cent of their runnable time.
const LOST_AT_MOST: f64 = 1.0;
/// Bar: largest permitted time until a lent CPU is reclaimed, in ms: a tick of Debian's kernel,
/// which has 250 ticks per second.
const TICK_MS: f64 = 4.0;

/// Results of one scheduler: medians over the rounds.
#[derive(Debug, Clone, PartialEq)]
struct SeatsResult {
    scheduler: ComparedScheduler,
    own_cpus: Option<f64>,
    used_percent: Option<f64>,
    lost_percent: Option<f64>,
    returns: Option<f64>,
    back_ms: Option<f64>,
    guests_percent: Option<f64>,
}

impl SeatsResult {
    fn of(scheduler: &ComparedScheduler, samples: &[&Sample]) -> Self {
        let of = |name: &str| named(samples, scheduler, name);
        let percent = |name: &str| of(name).map(|share| share * 100.0);
        Self {
            scheduler: scheduler.clone(),
            own_cpus: of(OWN_CPUS),
            used_percent: percent(USED),
            lost_percent: percent(LOST),
            returns: of(RETURNS),
            back_ms: of(BACK_MS),
            guests_percent: percent(AS_GUESTS),
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            kept_by(&self.scheduler),
            cell(self.own_cpus, 0),
            cell(self.used_percent, 1),
            cell(self.lost_percent, 2),
            cell(self.returns, 0),
            cell(self.back_ms, 2),
            cell(self.guests_percent, 1),
        ]
    }
}

/// Returns the mechanism that implements seats under a scheduler, as text.
fn kept_by(scheduler: &ComparedScheduler) -> String {
    match scheduler {
        ComparedScheduler::Usher => "soft seats, usher".to_owned(),
        other => format!("affinity masks, {}", other.label()),
    }
}

/// Computes the part from the samples of the guest.
pub fn part(measured: &GuestResults, note: String) -> Result<Part> {
    let samples: Vec<&Sample> = measured.samples.iter().filter(|s| s.part == NAME).collect();
    let each = schedulers(&samples);
    let rows: Vec<SeatsResult> = each
        .iter()
        .map(|scheduler| SeatsResult::of(scheduler, &samples))
        .collect();
    let mut part = Part::new(NAME, TITLE);
    let used = rows.iter();
    let used = used.filter_map(|row| Some((row.scheduler.clone(), row.used_percent?)));
    part.figures = figure(
        "Busy CPUs with affinity masks and with soft seats",
        "share of the time of all CPUs, %",
        1,
        &used.collect::<Vec<_>>(),
    )
    .into_iter()
    .collect();
    let head = [
        "seats",
        "CPUs of the owner",
        "busy CPUs, %",
        "time the owner waited, %",
        "CPUs reclaimed",
        "time until a reclaimed CPU runs the owner, 99th percentile, ms",
        "time of others on the owner's CPUs, %",
    ];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(SeatsResult::cells).collect(),
    }];
    part.bars = bars(&rows);
    part.notes = vec![
        note,
        "A daemon with the policy 'equal' gives seats to three programs. One program, the owner, \
         has one thread per three CPUs; the owner works and pauses for the same time, \
         alternately. The other two programs together have one thread per CPU and always work. \
         The owner waited: share of the time in which its threads were runnable but had no CPU, \
         whether or not a borrower used a CPU of the owner. CPUs reclaimed: number of wake-ups at \
         which the owner reclaimed a CPU from a borrower, and the time until the woken thread \
         ran, rounded up to a quarter of a power of two. Others on the owner's CPUs: share of \
         their CPU time that the other two programs spent there."
            .to_owned(),
        "Under affinity masks the threads of the owner wait mostly for one another. One run \
         under EEVDF was traced: in three quarters of the waiting time a thread waited for \
         another thread of the owner on the same CPU, although another CPU of the mask was idle, \
         mostly one with another L3 cache. A tenth of the waiting time was due to the emulator, \
         which had not yet run an idle CPU."
            .to_owned(),
    ];
    part.raw = serde_json::to_value(&samples)?;
    Ok(part)
}

fn bars(rows: &[SeatsResult]) -> Vec<Bar> {
    let ours = rows
        .iter()
        .find(|row| row.scheduler == ComparedScheduler::Usher);
    let of = |value: fn(&SeatsResult) -> Option<f64>| ours.and_then(value);
    vec![
        Bar::at_least(
            "busy CPUs with soft seats",
            of(|row| row.used_percent),
            USED_AT_LEAST,
            "%",
        ),
        Bar::at_most(
            "time in which the owner waited for its CPUs",
            of(|row| row.lost_percent),
            LOST_AT_MOST,
            "%",
        ),
        Bar::at_most(
            "time until the owner runs on a reclaimed CPU, 99th percentile (bar: one tick)",
            of(|row| row.back_ms),
            TICK_MS,
            "ms",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::medians::tests::sample;

    #[test]
    fn soft_seats_are_held_against_their_bars() {
        let one = |scheduler, used: f64, lost: f64, back: Option<f64>| {
            let mut sample = sample(scheduler, NAME, 3, [0, 0]);
            sample.figures.extend([
                (OWN_CPUS.to_owned(), 16.0),
                (USED.to_owned(), used),
                (LOST.to_owned(), lost),
            ]);
            sample
                .figures
                .extend(back.map(|ms| (BACK_MS.to_owned(), ms)));
            sample
        };
        let measured = GuestResults {
            samples: vec![
                one(ComparedScheduler::Eevdf, 0.83, 0.0, None),
                one(ComparedScheduler::Usher, 0.99, 0.02, Some(2.0)),
            ],
            left_out: vec![],
        };
        let part = part(&measured, String::new()).unwrap();
        let met: Vec<bool> = part.bars.iter().map(Bar::is_met).collect();
        assert_eq!(met, [true, false, true]);
        assert_eq!(
            part.tables[0].rows[0][..3],
            ["affinity masks, EEVDF", "16", "83.0"]
        );
        assert!(bars(&[]).iter().all(|bar| !bar.is_met()));
    }
}
