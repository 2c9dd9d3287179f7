// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that several parts of the scheduler benchmark use: medians over the rounds of a
//! scheduler's samples, ratios between schedulers, table cells, and figures with a bar for each
//! scheduler.
//!
//! A figure that was not measured is `None`. A ratio with such a figure is `None`, its table cell
//! shows a dash, and its bar is not met.

use maud::html;
use usher_report::{stats, text};

use super::messages::{Sample, SwitchCounts};
use super::schedulers::ComparedScheduler;
use crate::bars::Figure;

/// Returns the schedulers of the samples, in the order in which they ran.
pub fn schedulers(samples: &[&Sample]) -> Vec<ComparedScheduler> {
    let mut schedulers: Vec<ComparedScheduler> = Vec::new();
    for sample in samples {
        if !schedulers.contains(&sample.scheduler) {
            schedulers.push(sample.scheduler.clone());
        }
    }
    schedulers
}

/// Median over the samples of a figure that is computed from the counts of context switches and
/// wake-ups.
pub fn counted(samples: &[&Sample], figure: impl Fn(&SwitchCounts) -> f64) -> Option<f64> {
    let counted = samples.iter().filter_map(|sample| sample.counted.as_ref());
    stats::median(&counted.map(figure).collect::<Vec<f64>>())
}

/// Median over the rounds of the figure `name` under one scheduler.
pub fn named(samples: &[&Sample], scheduler: &ComparedScheduler, name: &str) -> Option<f64> {
    let of_it = samples
        .iter()
        .filter(|sample| sample.scheduler == *scheduler);
    let all: Vec<f64> = of_it.filter_map(|s| s.figures.get(name).copied()).collect();
    stats::median(&all)
}

/// Medians over the rounds of the end time of the first program and of the last program, in
/// seconds.
pub fn ends_s(samples: &[&Sample]) -> Option<(f64, f64)> {
    let ends = |pick: fn(f64, f64) -> f64| {
        let of_round = |sample: &&Sample| sample.ends_s.iter().copied().reduce(pick);
        let all: Option<Vec<f64>> = samples.iter().map(of_round).collect();
        stats::median(&all?)
    };
    Some((ends(f64::min)?, ends(f64::max)?))
}

/// Bar: largest permitted ratio of the 99th percentile of the sleeping thread's wake-up delay under
/// Usher to that under EEVDF.
pub const LATE_AT_MOST: f64 = 1.1;

/// Wake-up delays of the sleeping thread over all samples, in milliseconds: median, 99th
/// percentile, maximum.
pub fn late_ms(samples: &[&Sample]) -> [Option<f64>; 3] {
    let late = samples.iter().flat_map(|sample| &sample.late_ms).copied();
    let late: Vec<f64> = late.collect();
    [0.5, 0.99, 1.0].map(|share| stats::quantile(&late, share))
}

/// Returns the ratio `of / to`; `None` if a value is missing or `to` is 0.
pub fn ratio(of: Option<f64>, to: Option<f64>) -> Option<f64> {
    let (of, to) = (of?, to?);
    (to > 0.0).then(|| of / to)
}

const WIDTH: f64 = 960.0;
const LEFT: f64 = 250.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 30.0;
const STEP: f64 = 22.0;

/// Draws a figure with a bar for each scheduler on an axis from 0. Returns `None` without values.
pub fn figure(
    caption: &str,
    about: &str,
    decimals: usize,
    values: &[(ComparedScheduler, f64)],
) -> Option<Figure> {
    let most = values.iter().map(|(_, value)| *value).reduce(f64::max)?;
    let long = |value: f64| (value / most.max(1e-9)).max(0.0) * (WIDTH - LEFT - RIGHT);
    let base = TOP + STEP * values.len() as f64;
    let at = |number: f64| format!("{number:.1}");
    let svg = html! {
        svg.figure role="img" aria-label=(caption) viewBox={ "0 0 " (at(WIDTH)) " " (at(base + 24.0)) } {
            @for (n, (label, class)) in [("usher", OURS), ("others", OTHERS)].iter().enumerate() {
                g class=(class) {
                    rect.solid x=(at(70.0 * n as f64)) y="4" width="11" height="11" {}
                    text.small x=(at(70.0 * n as f64 + 15.0)) y="14" { (label) }
                }
            }
            @for (n, (scheduler, value)) in values.iter().enumerate() {
                @let y = TOP + STEP * n as f64;
                text.small.end x=(at(LEFT - 8.0)) y=(at(y + 11.0)) { (scheduler.label()) }
                g class=(if *scheduler == ComparedScheduler::Usher { OURS } else { OTHERS }) {
                    rect.solid x=(at(LEFT)) y=(at(y)) width=(at(long(*value).max(1.0))) height="14" {}
                    text.small x=(at(LEFT + long(*value) + 5.0)) y=(at(y + 11.0)) { (cell(Some(*value), decimals)) }
                }
            }
            text.small.mid x=(at((LEFT + WIDTH - RIGHT) / 2.0)) y=(at(base + 14.0)) { (about) }
        }
    };
    Some(Figure {
        caption: caption.to_owned(),
        svg: svg.into_string(),
    })
}

/// CSS classes of the colours of Usher's bars and of other bars.
const OURS: &str = "p1";
const OTHERS: &str = "p0";

/// Formats a table cell; a missing value is shown as "–".
pub fn cell(value: Option<f64>, decimals: usize) -> String {
    text::number(value, decimals)
}

/// Returns the note for a part that was measured in virtual time.
pub fn virtual_time(kernel: &str, topology: &str, rounds: usize) -> String {
    let rounds = text::count(rounds, "run");
    format!(
        "{rounds} in a guest of the lab ({topology}, Linux {kernel}), in virtual time: every \
         instruction takes 1 ns, and all CPUs of the guest share one CPU of the host. Counts, \
         waiting times, fairness and placement are valid. Caches, contention between hardware \
         threads and parallel capacity are not modelled, so the times do not predict the speed \
         of programs on hardware."
    )
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::bars::Bar;

    /// Returns a sample with the given counts of address-space switches and end times.
    pub fn sample(
        scheduler: ComparedScheduler,
        part: &str,
        programs: usize,
        counts: [u64; 2],
    ) -> Sample {
        Sample {
            part: part.to_owned(),
            scheduler,
            programs,
            round: 0,
            counted: Some(SwitchCounts {
                switches: counts[0],
                space_switches: counts[1],
                ..SwitchCounts::default()
            }),
            ends_s: vec![2.0, 1.0],
            late_ms: vec![],
            figures: Default::default(),
        }
    }

    #[test]
    fn rounds_come_to_medians() {
        let mut all = [1, 5, 9].map(|n| sample(ComparedScheduler::Usher, "spaces", 7, [n, 0]));
        all[2].ends_s = vec![7.0, 8.0];
        let all: Vec<&Sample> = all.iter().collect();
        assert_eq!(schedulers(&all), [ComparedScheduler::Usher]);
        assert_eq!(counted(&all, |c| c.switches as f64), Some(5.0));
        assert_eq!(ends_s(&all), Some((1.0, 2.0)));
        assert_eq!(counted(&[], |c| c.switches as f64), None);
        assert_eq!(ends_s(&[]), None);
    }

    #[test]
    fn missing_figures_meet_no_bar() {
        assert!(Bar::at_most("x", ratio(Some(1.0), Some(4.0)), 0.25, "").is_met());
        assert!(!Bar::at_most("x", ratio(Some(1.0), None), 0.25, "").is_met());
        assert_eq!(ratio(Some(1.0), Some(0.0)), None);
    }

    #[test]
    fn bars_begin_at_zero() {
        assert!(figure("x", "y", 0, &[]).is_none());
        let values = [
            (ComparedScheduler::Eevdf, 200.0),
            (ComparedScheduler::Usher, 50.0),
        ];
        let svg = figure("x", "y", 0, &values).unwrap().svg;
        let drawn = svg
            .split("width=\"")
            .filter(|rest| rest.contains("height=\"14\""));
        let widths: Vec<&str> = drawn.filter_map(|rest| rest.split('"').next()).collect();
        assert!(widths.ends_with(&["620.0", "155.0"]), "{widths:?}");
    }
}
