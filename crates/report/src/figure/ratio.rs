// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figure of the ratios of ANTT (mean normalised turnaround time) of policies to that of the
//! baseline: one row per policy, with its confidence interval, and the band of the noise (ratios of
//! the baseline to itself).
//!
//! The axis covers at least 0.95 to 1.05, and all values and intervals. A policy without a
//! comparison gets no row, and a mix without a comparison a sentence instead of the figure. Lengths
//! are in CSS pixels.

use maud::{Markup, html};

use crate::data::{MixResult, PolicyResult, PolicyRole};
use crate::figure::svg::{FigureWidth, Scale, c, in_both_widths, policy_class};
use crate::stats::{Estimate, NoiseBand};
use crate::summary;
use crate::text;

const LEFT_WIDE: f64 = 190.0;
const RIGHT_WIDE: f64 = 250.0;
/// In a narrow figure, the label and the figures of a row are above its interval.
const SIDE_NARROW: f64 = 12.0;
const TOP: f64 = 8.0;
const STEP_WIDE: f64 = 28.0;
const STEP_NARROW: f64 = 46.0;
const BOTTOM: f64 = 40.0;

/// Draws the ratio of each policy's ANTT to the baseline's ANTT, for each policy with a comparison.
pub fn ratio(mix: &MixResult) -> Markup {
    let Some(baseline) = mix.baseline() else {
        return html! { p.empty { "There is no comparison to draw, because no policy is the \
        baseline." } };
    };
    let judged = mix
        .policies
        .iter()
        .filter(|p| p.role != PolicyRole::Baseline);
    let rows: Vec<_> = judged
        .filter_map(|p| Some((p, p.comparison.as_ref()?.antt?)))
        .collect();
    if rows.is_empty() {
        return html! { p.empty {
            "There is no comparison to draw, because no other policy finished a round to compare with " (baseline.label) "."
        } };
    }
    let title = format!(
        "ANTT / ANTT of {} (left of 1 is better)",
        text::cut(&baseline.label, 20)
    );
    in_both_widths(|width| draw(mix, &rows, &title, width))
}

/// A policy with the ratio of its ANTT.
type RatioRow<'a> = (&'a PolicyResult, Estimate);

fn draw(mix: &MixResult, rows: &[RatioRow], title: &str, width: FigureWidth) -> Markup {
    let band = summary::aa_band(mix);
    let x = axis(rows.iter().map(|(_, e)| e), band.as_ref(), width);
    let step = width.pick(STEP_WIDE, STEP_NARROW);
    let base = TOP + step * rows.len() as f64;
    html! {
        svg class=(width.class()) role="img" aria-label=(title)
            viewBox={ "0 0 " (c(width.pixels())) " " (c(base + BOTTOM)) } {
            @if let Some(band) = band { (noise(&x, &band, base)) }
            (grid(&x, base, title))
            @for (i, (policy, estimate)) in rows.iter().enumerate() {
                @let top = TOP + step * i as f64;
                (row_labels(&policy.label, estimate, top, width))
                (point(&policy_class(mix, &policy.name), estimate, &x, top + width.pick(step / 2.0, 32.0)))
            }
        }
    }
}

fn axis<'a>(
    rows: impl Iterator<Item = &'a Estimate>,
    band: Option<&NoiseBand>,
    width: FigureWidth,
) -> Scale {
    let (mut low, mut high) = (0.95_f64, 1.05_f64);
    for e in rows {
        low = low.min(e.low.unwrap_or(e.value)).min(e.value);
        high = high.max(e.high.unwrap_or(e.value)).max(e.value);
    }
    if let Some(band) = band {
        (low, high) = (low.min(band.low), high.max(band.high));
    }
    let margin = (high - low) * 0.05;
    let (left, right) = width.pick((LEFT_WIDE, RIGHT_WIDE), (SIDE_NARROW, SIDE_NARROW));
    Scale::new(
        (low - margin, high + margin),
        (left, width.pixels() - right),
    )
}

fn noise(x: &Scale, band: &NoiseBand, base: f64) -> Markup {
    let (left, right) = (x.at(band.low), x.at(band.high));
    html! {
        rect.band x=(c(left)) y=(c(TOP)) width=(c(right - left)) height=(c(base - TOP)) {
            title { "A/A band: 95 % of the pairs of rounds of one policy have a ratio within the band" }
        }
    }
}

fn grid(x: &Scale, base: f64, title: &str) -> Markup {
    let (start, end) = x.ends();
    let (ticks, decimals) = x.ticks(6);
    html! {
        @for tick in ticks {
            @let at = c(x.at(tick));
            line.grid x1=(at) x2=(at) y1=(c(TOP)) y2=(c(base)) {}
            text.small.mid x=(at) y=(c(base + 15.0)) { (text::number(tick, decimals)) }
        }
        line.unit x1=(c(x.at(1.0))) x2=(c(x.at(1.0))) y1=(c(TOP)) y2=(c(base + 3.0)) {}
        text.small.mid x=(c((start + end) / 2.0)) y=(c(base + 33.0)) { (title) }
    }
}

/// Draws the name and the figures of a row.
fn row_labels(label: &str, e: &Estimate, top: f64, width: FigureWidth) -> Markup {
    let figures = match e.low.zip(e.high) {
        Some((low, high)) => format!(
            "{} [{}, {}]",
            text::number(e.value, 3),
            text::number(low, 3),
            text::number(high, 3)
        ),
        None => format!("{} (no interval)", text::number(e.value, 3)),
    };
    let values = html! { tspan.value { (figures) } " " (text::change(e.value)) };
    html! {
        @match width {
            FigureWidth::Wide => {
                @let y = c(top + STEP_WIDE / 2.0 + 4.0);
                text.label.end x=(c(LEFT_WIDE - 10.0)) y=(y) { (text::cut(label, 26)) }
                text.small x=(c(width.pixels() - RIGHT_WIDE + 16.0)) y=(y) { (values) }
            }
            FigureWidth::Narrow => {
                @let y = c(top + 16.0);
                text.label.over x="0" y=(y) { (text::cut(label, 18)) }
                text.small.end.over x=(c(width.pixels())) y=(y) { (values) }
            }
        }
    }
}

fn point(class: &str, e: &Estimate, x: &Scale, y: f64) -> Markup {
    html! {
        @if let Some((low, high)) = e.low.zip(e.high) {
            line class={ (class) " interval" } x1=(c(x.at(low))) x2=(c(x.at(high))) y1=(c(y)) y2=(c(y)) {}
        }
        circle class={ (class) " dot" } cx=(c(x.at(e.value))) cy=(c(y)) r="6" {}
    }
}
