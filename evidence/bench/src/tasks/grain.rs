// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `grain`: measures the minimum effective task granularity, METG(50 %), which is the shortest
//! task length at which the threads reach half of their possible throughput. Source: Slaughter et
//! al., "Task Bench: a parameterized benchmark for evaluating parallel runtime performance" (SC
//! 2020).
//!
//! 1. For each of 14 task lengths, efficiency = time of a plain loop on one thread / (time of the
//!    runtime x number of threads). The number of threads is the highest selected number.
//! 2. In each round, METG is interpolated between the two neighbouring lengths with an efficiency
//!    below and above 50 %. If even the shortest tasks reach 50 %, their length is an upper bound
//!    of METG.
//! 3. The result is the median over the rounds.

use serde_json::json;
use usher_report::text;

use super::contestants::{Contestant, ORDER_TS, Runtime, WAVEFRONT_PEERS};
use super::overhead::{FRAME_720P, OURS};
use super::rounds::{self, RoundSettings};
use super::show::{self, ns};
use super::study::{Samples, forms_of};
use super::toolchain::Programs;
use crate::bars::{Bar, Figure, Part, Table};
use crate::chart::{self, Line};

/// Numbers of arithmetic steps of a task. A step takes about a nanosecond.
const STEPS: [u32; 14] = [
    4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096,
];
/// Efficiency that a task length must reach.
const EFFICIENCY: f64 = 0.5;
/// Bar: largest permitted METG of usher-tasks, in microseconds.
const LIMIT_US: f64 = 0.06;

fn cases() -> Vec<String> {
    STEPS
        .iter()
        .map(|steps| format!("compute:{steps}"))
        .collect()
}

/// Runs the rounds with the highest selected number of threads, and computes the part.
pub fn run(programs: &Programs, settings: &RoundSettings) -> Part {
    let most = settings.threads_max();
    let settings = RoundSettings {
        threads: vec![most],
        ..settings.clone()
    };
    let workload: Vec<String> = FRAME_720P
        .into_iter()
        .map(str::to_owned)
        .chain(cases())
        .collect();
    let contestants: Vec<Contestant> = contestants().into_iter().chain([ORDER_TS]).collect();
    let samples = rounds::run("grain", programs, &contestants, &settings, &workload);
    format(&samples, most)
}

fn contestants() -> Vec<Contestant> {
    OURS.into_iter().chain(WAVEFRONT_PEERS).collect()
}

/// Returns the length of a task in nanoseconds and the efficiency with this length, measured in one
/// round.
fn point(
    samples: &Samples,
    one: Contestant,
    threads: u32,
    case: &str,
    round: u32,
) -> Option<(f64, f64)> {
    let length_ns = samples.in_round((ORDER_TS, 1), case, round)?;
    let taken_ns = samples.in_round((one, threads), case, round)?;
    Some((length_ns, length_ns / taken_ns / f64::from(threads)))
}

/// The minimum effective task granularity (METG) of a contestant, in ns.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Granularity {
    ns: f64,
    /// Whether `ns` is only an upper bound, because even the shortest tasks reach 50 %.
    is_bound: bool,
}

/// Returns the length from which on all longer tasks reach the efficiency; `None` if the longest
/// tasks do not reach it. Points are (length, efficiency), sorted by length.
fn grain_of(points: &[(f64, f64)]) -> Option<Granularity> {
    let Some(last) = points.iter().rposition(|&(_, e)| e < EFFICIENCY) else {
        return points
            .first()
            .map(|&(ns, _)| Granularity { ns, is_bound: true });
    };
    let (&(below, e_below), &(above, e_above)) = (&points[last], points.get(last + 1)?);
    let share = (EFFICIENCY - e_below) / (e_above - e_below);
    Some(Granularity {
        ns: below * (above / below).powf(share),
        is_bound: false,
    })
}

fn grain_in(samples: &Samples, one: Contestant, threads: u32, round: u32) -> Option<Granularity> {
    let cases = cases();
    let points = cases
        .iter()
        .filter_map(|case| point(samples, one, threads, case, round));
    grain_of(&by_length(points.collect()))
}

/// Returns the median of the granularity over the rounds.
fn grain(samples: &Samples, one: Contestant, threads: u32) -> Option<Granularity> {
    let in_round = |round| grain_in(samples, one, threads, round);
    let ns = samples
        .over_rounds(|round| Some(in_round(round)?.ns))?
        .value;
    let bounds = (0..samples.rounds())
        .filter_map(in_round)
        .filter(|g| g.is_bound);
    Some(Granularity {
        ns,
        is_bound: 2 * bounds.count() > samples.rounds() as usize,
    })
}

/// Returns the median length and the median efficiency over the rounds, for each number of steps.
fn curve(samples: &Samples, one: Contestant, threads: u32) -> Vec<(f64, f64)> {
    let median = |case: &str| {
        let of = |pick: fn((f64, f64)) -> f64| {
            samples.over_rounds(|round| point(samples, one, threads, case, round).map(pick))
        };
        let length_ns = samples.figure((ORDER_TS, 1), case)?.median_ns;
        Some((length_ns, of(|(_, efficiency)| efficiency)?.value))
    };
    by_length(cases().iter().filter_map(|case| median(case)).collect())
}

/// Sorts points by measured length, because noise may make tasks with more steps shorter than tasks
/// with fewer steps.
fn by_length(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// Returns for each runtime the form with the smallest granularity.
fn best_forms(samples: &Samples, threads: u32) -> Vec<Contestant> {
    let best = |runtime: Runtime| {
        let grains = forms_of(&contestants(), runtime)
            .into_iter()
            .filter_map(|one| Some((one, grain(samples, one, threads)?.ns)));
        grains
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(one, _)| one)
    };
    let all = [Runtime::Usher].into_iter().chain(Runtime::PEERS);
    all.filter_map(best).collect()
}

fn format(samples: &Samples, threads: u32) -> Part {
    let mut part = Part::new("grain", "Efficiency of short tasks");
    let best = best_forms(samples, threads);
    let ours = best.iter().find(|one| one.runtime == Runtime::Usher);
    let metg_us = ours
        .and_then(|&one| grain(samples, one, threads))
        .map(|g| g.ns / 1e3);
    part.bars.push(Bar::at_most(
        format!("METG(50 %), {}", show::threads_text(threads)),
        metg_us,
        LIMIT_US,
        "us",
    ));
    let lines: Vec<Line> = best
        .iter()
        .zip(0..)
        .map(|(&one, number)| Line {
            class: format!("p{}", [5, 0, 2, 3, 1, 4][number % 6]),
            name: one.label.to_owned(),
            points: curve(samples, one, threads),
        })
        .collect();
    let caption = format!("Efficiency by task length, {}", show::threads_text(threads));
    part.figures = vec![Figure {
        svg: chart::lines(&caption, "task length, ns", &lines, EFFICIENCY),
        caption,
    }];
    part.tables = vec![table(samples, threads)];
    part.notes = vec![
        show::method(samples),
        "The length of a task is its time in a plain loop over all tasks, in the same round. \
         Efficiency is this length divided by the time per task of all threads together. METG(50 \
         %) is the least length from which on the efficiency stays at 50 % or more; it is \
         interpolated between two measured lengths by their logarithms."
            .to_owned(),
    ];
    show::failures(&mut part, samples);
    part.raw = json!(samples);
    part
}

fn table(samples: &Samples, threads: u32) -> Table {
    let shown = [
        "compute:24",
        "compute:64",
        "compute:256",
        "compute:1024",
        "compute:4096",
    ];
    let mut head = vec![show::threads_text(threads), "METG(50 %)".to_owned()];
    for case in shown {
        let length = samples.figure((ORDER_TS, 1), case);
        let length = length.map_or(text::NONE.to_owned(), |figure| ns(figure.median_ns));
        head.push(format!("at {length} ns"));
    }
    let row = |one: Contestant| {
        let metg = match grain(samples, one, threads) {
            Some(grain) if grain.is_bound => format!("< {} ns", ns(grain.ns)),
            Some(grain) => format!("{} ns", ns(grain.ns)),
            None => "not reached".to_owned(),
        };
        let efficiency = |case: &str| {
            let of = |round| Some(point(samples, one, threads, case, round)?.1);
            text::percent(samples.over_rounds(of).map(|estimate| estimate.value))
        };
        [one.label.to_owned(), metg]
            .into_iter()
            .chain(shown.into_iter().map(efficiency))
            .collect()
    };
    let measured = |one: &Contestant| samples.figure((*one, threads), shown[0]).is_some();
    Table {
        head,
        rows: contestants()
            .into_iter()
            .filter(measured)
            .map(row)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::contestants::PLAIN;
    use crate::tasks::study::tests::samples;

    #[test]
    fn the_granularity_lies_where_half_is_reached_for_good() {
        let points = [(10.0, 0.6), (20.0, 0.4), (40.0, 0.6), (80.0, 0.8)];
        let grain = grain_of(&points).unwrap();
        assert!((grain.ns - 20.0 * 2_f64.sqrt()).abs() < 1e-9 && !grain.is_bound);
        assert_eq!(grain_of(&points[..2]), None, "never for good");
        let all = grain_of(&points[2..]).unwrap();
        assert_eq!((all.ns, all.is_bound), (40.0, true));
        assert_eq!(grain_of(&[]), None);
    }

    #[test]
    fn two_threads_that_take_as_long_as_a_loop_are_half_efficient() {
        let samples = samples(&[
            ((ORDER_TS, 1), "compute:24", &[30.0, 60.0, 30.0]),
            ((PLAIN, 2), "compute:24", &[30.0, 60.0, 33.0]),
        ]);
        let at = |round| point(&samples, PLAIN, 2, "compute:24", round);
        assert_eq!(at(0), Some((30.0, 0.5)));
        assert_eq!(at(1), Some((60.0, 0.5)));
        assert!(at(2).unwrap().1 < 0.5);
        assert_eq!(curve(&samples, PLAIN, 2), [(30.0, 0.5)]);
    }
}
