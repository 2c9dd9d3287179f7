// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `reaction`: measures in milliseconds how long the background continues after the
//! foreground's first request (yield), and how long it takes to reach full speed after the
//! foreground's end (resume).
//!
//! 1. The foreground is active for 1 s and pauses for 1 s, repeatedly. The background's units of
//!    work are counted for each millisecond (bins), which limits the resolution to 1 ms.
//! 2. The background has yielded at the start of the first [`SILENCE_MS`] milliseconds of the
//!    active phase in which it did no work. Work later in the phase does not change the result. If
//!    there is no such silence, the length of the whole phase counts. The first phase is ignored.
//! 3. The background has resumed when it reaches 90 % of its speed in the second half of the
//!    foreground's pauses, averaged over 20 ms. If it does not, the length of the whole pause
//!    counts.
//!
//! The bars apply to Usher's policy: to yield, a median of 20 ms and a 99th percentile of 50 ms; to
//! resume, a 99th percentile of 100 ms. A measurement that fails is noted and left out.

use anyhow::Result;
use serde::Serialize;
use usher_report::stats;

use super::treatments::BackgroundMethod;
use super::watch::{HalfLoad, Resource, Trace, Watcher, units};
use crate::bars::{Bar, Part, Table};

/// The background has yielded if it does no work for this number of milliseconds.
const SILENCE_MS: usize = 30;
/// Length of the window over which the speed is averaged, in ms.
const WINDOW_MS: f64 = 20.0;
/// The background has full speed if it reaches this share of its speed in the second half of the
/// foreground's pauses.
const FULL: f64 = 0.9;
const PERIOD_MS: f64 = 2_000.0;

/// Reaction times of one treatment on one resource.
#[derive(Debug, Clone, Serialize)]
struct ReactionTimes {
    resource: Resource,
    treatment: BackgroundMethod,
    /// Time from the foreground's first request to the background's last request before its
    /// silence.
    yielded_ms: Vec<f64>,
    /// Time from the end of the foreground's phase to the background's first unit of work.
    resume_delay_ms: Vec<f64>,
    /// Time from the end of the foreground's phase to the background's full speed.
    resumed_ms: Vec<f64>,
    /// Control value: time from the middle of a pause, long after the end of the foreground's
    /// phase, to the next window with full speed. This time is due to speed variations of the
    /// resource itself.
    control_ms: Vec<f64>,
}

/// Returns the time in ms for which the background continued after `from_ms`, at most until
/// `to_ms`.
pub fn yielded_ms(bins: &[u32], from_ms: f64, to_ms: f64) -> f64 {
    let (first, last) = (from_ms as usize, to_ms as usize);
    let mut last_busy = None;
    for bin in first..last {
        let busy = bins.get(bin).is_some_and(|&n| n > 0);
        if busy {
            last_busy = Some(bin);
        } else if bin + 1 - last_busy.map_or(first, |b| b + 1) >= SILENCE_MS {
            return last_busy.map_or(0.0, |b| (b as f64 + 1.0 - from_ms).max(0.0));
        }
    }
    to_ms - from_ms
}

/// Returns the time in ms from `from_ms` until the background did its next unit of work.
pub fn resume_delay_ms(bins: &[u32], from_ms: f64, to_ms: f64) -> f64 {
    let mut ahead = (from_ms as usize)..(to_ms as usize);
    let first = ahead.find(|&bin| bins.get(bin).is_some_and(|&n| n > 0));
    first.map_or(to_ms - from_ms, |bin| (bin as f64 - from_ms).max(0.0))
}

/// Returns the time in ms from `from_ms` until the background reached the full-speed share of
/// `rate` (units per millisecond) again.
pub fn resumed_ms(bins: &[u32], from_ms: f64, to_ms: f64, rate: f64) -> f64 {
    let mut at = from_ms;
    while at + WINDOW_MS <= to_ms {
        if units(bins, at, at + WINDOW_MS) >= FULL * rate * WINDOW_MS {
            return at - from_ms;
        }
        at += 1.0;
    }
    to_ms - from_ms
}

/// Returns the reaction times in all phases of a trace.
fn times(resource: Resource, treatment: BackgroundMethod, trace: &Trace) -> ReactionTimes {
    let offs: Vec<(f64, f64)> = trace
        .phases
        .windows(2)
        .map(|two| (two[0].1, two[1].0))
        .collect();
    let late = offs.iter().map(|(from, to)| {
        let half = (from + to) / 2.0;
        trace.units(half, *to) / (to - half)
    });
    let rate = stats::median(&late.collect::<Vec<_>>()).unwrap_or(0.0);
    // The first phase is ignored, because the background may not have reached its steady state
    // before that phase.
    let yields = trace
        .phases
        .iter()
        .skip(1)
        .map(|(from, to)| yielded_ms(&trace.bins, *from, *to));
    let resumed_after = offs
        .iter()
        .map(|(from, to)| resume_delay_ms(&trace.bins, *from, *to));
    let resumes = offs
        .iter()
        .map(|(from, to)| resumed_ms(&trace.bins, *from, *to, rate));
    let controls = offs
        .iter()
        .map(|(from, to)| resumed_ms(&trace.bins, (from + to) / 2.0, *to, rate));
    ReactionTimes {
        resource,
        treatment,
        yielded_ms: yields.collect(),
        resume_delay_ms: resumed_after.collect(),
        resumed_ms: resumes.collect(),
        control_ms: controls.collect(),
    }
}

/// Measures `events` reactions for each combination of treatment and resource.
pub fn run(
    watcher: &mut Watcher,
    treatments: &[BackgroundMethod],
    resources: &[Resource],
    events: usize,
) -> Result<Part> {
    let mut part = Part::new("reaction", "Reaction");
    let mut all = Vec::new();
    for &resource in resources {
        if let Err(error) = watcher.prepare(resource) {
            part.notes.push(format!("{}: {error:#}", resource.name()));
            continue;
        }
        for &treatment in treatments.iter().filter(|&&t| t != BackgroundMethod::Alone) {
            eprintln!(
                "background: measuring the reaction, {}, {}",
                resource.name(),
                treatment.name()
            );
            match one(watcher, resource, treatment, events) {
                Ok(times) => all.push(times),
                Err(error) => part.notes.push(format!(
                    "{}, {}: {error:#}",
                    resource.name(),
                    treatment.name()
                )),
            }
        }
    }
    part.bars = all
        .iter()
        .filter(|t| t.treatment == BackgroundMethod::Usher)
        .flat_map(bars)
        .collect();
    part.tables = vec![table(&all)];
    part.notes.push(format!(
        "The foreground works for {0:.0} ms and pauses for {0:.0} ms, alternately. Yielded: time \
         from the first request of the foreground until the last request of the background before \
         {SILENCE_MS} ms without a request of the background; bytes are counted at the receiver, \
         so bytes that waited in the {1} rate limit (at most 10 ms) are included. First again: \
         time from the last request of the foreground until the next request of the background. \
         Resumed: time from the last request of the foreground until the background has run for \
         {2:.0} ms at {3:.0} % of its usual speed. Control: the same as 'resumed', but measured \
         from the middle of the pause, when the background has long resumed; the control shows \
         the variation of the resource itself.",
        PERIOD_MS / 2.0,
        "interface's",
        WINDOW_MS,
        100.0 * FULL
    ));
    part.raw = serde_json::json!(all);
    Ok(part)
}

fn one(
    watcher: &mut Watcher,
    resource: Resource,
    treatment: BackgroundMethod,
    events: usize,
) -> Result<ReactionTimes> {
    let half = HalfLoad {
        period_ms: PERIOD_MS,
        seconds: (events + 2) as f64 * PERIOD_MS / 1e3,
    };
    let trace = watcher.watch(resource, treatment, half)?;
    Ok(times(resource, treatment, &trace))
}

fn quantile(values: &[f64], p: f64) -> f64 {
    stats::quantile(values, p).unwrap_or(f64::NAN)
}

fn bars(times: &ReactionTimes) -> Vec<Bar> {
    let name = |what: &str| {
        format!(
            "{}, usher, {} events: {what}",
            times.resource.name(),
            times.yielded_ms.len()
        )
    };
    vec![
        Bar::at_most(
            name("yielded, median"),
            quantile(&times.yielded_ms, 0.5),
            20.0,
            "ms",
        ),
        Bar::at_most(
            name("background yielded after the start of the foreground, 99th percentile"),
            quantile(&times.yielded_ms, 0.99),
            50.0,
            "ms",
        ),
        Bar::at_most(
            name("background at full speed after the end of the foreground, 99th percentile"),
            quantile(&times.resumed_ms, 0.99),
            100.0,
            "ms",
        ),
    ]
}

fn table(all: &[ReactionTimes]) -> Table {
    let head = [
        "",
        "",
        "events",
        "yielded, median ms",
        "99 %",
        "first again, 99 %",
        "resumed, median ms",
        "99 %",
        "control, 99 %",
    ];
    let row = |t: &ReactionTimes| {
        let at = |values: &[f64], p| usher_report::text::number(quantile(values, p), 1);
        vec![
            t.resource.name().to_owned(),
            t.treatment.label().to_owned(),
            t.yielded_ms.len().to_string(),
            at(&t.yielded_ms, 0.5),
            at(&t.yielded_ms, 0.99),
            at(&t.resume_delay_ms, 0.99),
            at(&t.resumed_ms, 0.5),
            at(&t.resumed_ms, 0.99),
            at(&t.control_ms, 0.99),
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

    /// Returns bins in which each millisecond within one of the spans has work.
    fn bins(spans: &[(usize, usize)]) -> Vec<u32> {
        (0..2_000)
            .map(|i| u32::from(spans.iter().any(|&(a, b)| (a..b).contains(&i))) * 10)
            .collect()
    }

    #[test]
    fn yielding_ends_with_the_last_unit_before_a_silence() {
        assert_eq!(yielded_ms(&bins(&[(0, 107)]), 100.0, 600.0), 7.0);
        assert_eq!(yielded_ms(&bins(&[(0, 90)]), 100.0, 600.0), 0.0);
        let pauses_shorter = bins(&[(0, 105), (105 + SILENCE_MS - 1, 150)]);
        assert_eq!(yielded_ms(&pauses_shorter, 100.0, 600.0), 50.0);
        let resumes = bins(&[(0, 105), (300, 310)]);
        assert_eq!(yielded_ms(&resumes, 100.0, 600.0), 5.0);
    }

    #[test]
    fn a_background_that_never_yields_is_charged_the_whole_phase() {
        assert_eq!(yielded_ms(&bins(&[(0, 2_000)]), 100.0, 600.0), 500.0);
    }

    #[test]
    fn full_speed_is_full() {
        assert_eq!(
            resumed_ms(&bins(&[(640, 2_000)]), 600.0, 1_100.0, 10.0),
            38.0
        );
        assert_eq!(
            resumed_ms(&bins(&[(600, 2_000)]), 600.0, 1_100.0, 10.0),
            0.0
        );
        assert_eq!(resumed_ms(&bins(&[]), 600.0, 1_100.0, 10.0), 500.0);
        assert_eq!(
            resumed_ms(&bins(&[(600, 2_000)]), 600.0, 1_100.0, 20.0),
            500.0
        );
    }

    #[test]
    fn going_on_begins_with_the_first_unit() {
        assert_eq!(
            resume_delay_ms(&bins(&[(0, 90), (130, 140)]), 100.0, 600.0),
            30.0
        );
        assert_eq!(resume_delay_ms(&bins(&[(0, 2_000)]), 100.5, 600.0), 0.0);
        assert_eq!(
            resume_delay_ms(&bins(&[(0, 90), (700, 800)]), 100.0, 600.0),
            500.0
        );
    }

    #[test]
    fn times_are_of_every_phase_but_the_first() {
        let trace = Trace {
            phases: vec![(0.0, 500.0), (1_000.0, 1_500.0)],
            fg_units: 0,
            bins: bins(&[(520, 750), (760, 1_003), (1_510, 2_000)]),
        };
        let times = times(Resource::Disk, BackgroundMethod::Usher, &trace);
        assert_eq!(times.yielded_ms, [3.0]);
        assert_eq!(times.resume_delay_ms, [20.0]);
        assert_eq!(times.resumed_ms, [18.0]);
        assert_eq!(times.control_ms, [8.0]);
    }
}
