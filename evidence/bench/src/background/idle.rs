// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `idle`: measures how much of the foreground's pauses the background uses, and how much the
//! background slows the foreground down. The foreground is active for the first half of each
//! period. Periods are from 10 ms to 10 s (2 s in quick runs). The bar of 90 % applies to the
//! period of 2 s.
//!
//! Each round measures a run with the background alone, the foreground alone, and both together:
//!
//! - idle time used = background's work beside the foreground / (background's rate alone x total
//!   length of the foreground's pauses);
//! - foreground kept = foreground's work beside the background / foreground's work alone.
//!
//! The result is the median of each figure over the rounds. A run lasts at least five periods and
//! at least 10 s (4 s in quick runs). The background alone runs for 4 s (1 s in quick runs).
//!
//! A round that fails is noted on the page and adds no further values. A resource that cannot be
//! prepared is noted and left out.

use anyhow::Result;
use clap::ValueEnum as _;
use serde::Serialize;
use usher_report::stats;

use super::treatments::BackgroundMethod;
use super::watch::{HalfLoad, Resource, Trace, Watcher};
use crate::bars::{Bar, Figure, Part, Table};
use crate::chart::{self, Line};

/// Period in ms to which the bar applies: 1 s of activity, then 1 s of pause.
const BAR_PERIOD_MS: f64 = 2_000.0;
const PERIODS_MS: [f64; 8] = [
    10.0,
    30.0,
    100.0,
    300.0,
    1_000.0,
    BAR_PERIOD_MS,
    5_000.0,
    10_000.0,
];
const QUICK_MS: [f64; 4] = [10.0, 100.0, 1_000.0, BAR_PERIOD_MS];
const AT_LEAST: f64 = 0.9;

/// Measured shares of one treatment for one resource and one period.
#[derive(Debug, Clone, Serialize)]
struct IdleShares {
    resource: Resource,
    treatment: BackgroundMethod,
    period_ms: f64,
    /// Work of the background, divided by the work that it could do in the foreground's pauses; one
    /// value per round.
    idle_got: Vec<f64>,
    /// Work of the foreground beside the background, divided by its work alone; one value per
    /// round.
    fg_kept: Vec<f64>,
}

impl IdleShares {
    fn new(resource: Resource, treatment: BackgroundMethod, period_ms: f64) -> Self {
        Self {
            resource,
            treatment,
            period_ms,
            idle_got: vec![],
            fg_kept: vec![],
        }
    }
}

/// Returns the background's work, divided by its possible work: its rate alone (`alone_per_ms`)
/// times the length of the foreground's pauses in ms.
pub fn idle_got(trace: &Trace, alone_per_ms: f64) -> Option<f64> {
    let (first, last) = (trace.phases.first()?.0, trace.phases.last()?.0);
    let on: f64 = trace
        .phases
        .iter()
        .map(|(from, to)| to.min(last) - from.min(last))
        .sum();
    let off = last - first - on;
    (off > 0.0).then(|| trace.units(first, last) / (alone_per_ms * off))
}

/// Length of a run in seconds: whole periods, at least five, and at least 10 s (4 s in quick runs),
/// plus half a period.
fn seconds(period_ms: f64, quick: bool) -> f64 {
    let least_s = if quick { 4.0 } else { 10.0 };
    let periods = (least_s * 1e3 / period_ms).ceil().max(5.0);
    // The measured time ends with a further active phase of half a period.
    (periods + 0.5) * period_ms / 1e3
}

/// Measures `rounds` rounds for each combination of treatment, resource and period.
pub fn run(
    watcher: &mut Watcher,
    treatments: &[BackgroundMethod],
    resources: &[Resource],
    rounds: u32,
    quick: bool,
) -> Result<Part> {
    let mut part = Part::new("idle", "Use of idle resources by background work");
    let periods: &[f64] = if quick { &QUICK_MS } else { &PERIODS_MS };
    let mut all: Vec<IdleShares> = Vec::new();
    for &resource in resources {
        if let Err(error) = watcher.prepare(resource) {
            part.notes.push(format!("{}: {error:#}", resource.name()));
            continue;
        }
        for &period_ms in periods {
            eprintln!(
                "background: measuring the use of idle resources, {}, period {period_ms} ms",
                resource.name()
            );
            let beside = treatments.iter().filter(|&&t| t != BackgroundMethod::Alone);
            let share = |&treatment| IdleShares::new(resource, treatment, period_ms);
            let mut shares: Vec<IdleShares> = beside.map(share).collect();
            for _ in 0..rounds {
                if let Err(error) = round(watcher, &mut shares, resource, period_ms, quick) {
                    part.notes
                        .push(format!("{}, {period_ms} ms: {error:#}", resource.name()));
                }
            }
            all.extend(shares);
        }
    }
    part.bars = all
        .iter()
        .filter(|s| s.treatment == BackgroundMethod::Usher && s.period_ms == BAR_PERIOD_MS)
        .map(bar)
        .collect();
    part.figures = resources
        .iter()
        .map(|&r| figure(r, &all))
        .filter(|f| !f.svg.is_empty())
        .collect();
    part.tables = vec![table(&all)];
    part.notes.push(
        "100 % means that background work runs at its speed alone during all pauses of the \
         foreground work. Figures are medians over the rounds. Each round measures the background \
         alone, the foreground alone, and foreground and background together under each \
         treatment."
            .to_owned(),
    );
    part.raw = serde_json::json!(all);
    Ok(part)
}

fn round(
    watcher: &mut Watcher,
    shares: &mut [IdleShares],
    resource: Resource,
    period_ms: f64,
    quick: bool,
) -> Result<()> {
    let half = HalfLoad {
        period_ms,
        seconds: seconds(period_ms, quick),
    };
    let alone_per_ms = watcher.alone(resource, if quick { 1.0 } else { 4.0 })?;
    let fg_alone = watcher
        .watch(resource, BackgroundMethod::Alone, half)?
        .fg_units as f64;
    for share in shares {
        let trace = watcher.watch(resource, share.treatment, half)?;
        share.idle_got.extend(idle_got(&trace, alone_per_ms));
        share.fg_kept.push(trace.fg_units as f64 / fg_alone);
    }
    Ok(())
}

fn bar(share: &IdleShares) -> Bar {
    let what = format!(
        "{}, usher, foreground works and pauses 1 s each: share of the idle resource that the \
         background uses",
        share.resource.name()
    );
    let got = stats::median(&share.idle_got).map(|got| 100.0 * got);
    Bar::at_least(what, got, 100.0 * AT_LEAST, "%")
}

fn figure(resource: Resource, all: &[IdleShares]) -> Figure {
    let line = |(number, &treatment): (usize, &BackgroundMethod)| {
        let of = all
            .iter()
            .filter(|s| s.resource == resource && s.treatment == treatment);
        let points: Vec<(f64, f64)> = of
            .filter_map(|s| Some((s.period_ms, stats::median(&s.idle_got)?)))
            .collect();
        (!points.is_empty()).then(|| Line {
            class: format!("p{number}"),
            name: treatment.label().to_owned(),
            points,
        })
    };
    let lines: Vec<Line> = BackgroundMethod::value_variants()
        .iter()
        .enumerate()
        .filter_map(line)
        .collect();
    let caption = format!(
        "{}: share of the idle resource that the background uses, by the period of the foreground \
         (the foreground works for half of each period)",
        resource.name()
    );
    Figure {
        svg: chart::lines(&caption, "period, ms", &lines, AT_LEAST),
        caption,
    }
}

fn table(all: &[IdleShares]) -> Table {
    let head = [
        "",
        "",
        "period, ms",
        "idle share used by the background",
        "foreground kept",
    ];
    let row = |s: &IdleShares| {
        let percent = |values: &[f64]| usher_report::text::percent(stats::median(values));
        vec![
            s.resource.name().to_owned(),
            s.treatment.label().to_owned(),
            usher_report::text::short(s.period_ms, 0),
            percent(&s.idle_got),
            percent(&s.fg_kept),
        ]
    };
    Table {
        head: head.map(str::to_owned).to_vec(),
        rows: all.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(busy: impl Fn(usize) -> bool) -> Trace {
        Trace {
            phases: vec![(100.0, 200.0), (300.0, 400.0), (500.0, 600.0)],
            fg_units: 0,
            bins: (0..800).map(|i| u32::from(busy(i)) * 4).collect(),
        }
    }

    #[test]
    fn a_perfect_arbiter_gives_all_that_is_idle() {
        let off = |i: usize| (i / 100).is_multiple_of(2);
        assert_eq!(idle_got(&trace(off), 4.0), Some(1.0));
        let late = |i: usize| off(i) && i % 100 >= 50;
        assert_eq!(idle_got(&trace(late), 4.0), Some(0.5));
        assert_eq!(idle_got(&Trace::default(), 4.0), None);
    }

    #[test]
    fn whole_periods_and_their_last_phase_are_measured() {
        assert_eq!(seconds(2_000.0, false), 11.0);
        assert_eq!(seconds(10.0, true), 4.005);
        assert_eq!(seconds(10_000.0, false), 55.0);
    }
}
