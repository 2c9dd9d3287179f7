// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figure of the ratios of ANTT (mean normalised turnaround time) of policies to that of the
//! baseline: one row per policy, with its confidence interval, and the band of the noise (ratios of
//! the baseline to itself).
//!
//! The axis covers at least 0.95 to 1.05, and all values and intervals. A policy without a
//! comparison gets no row, and a mix without a comparison a sentence instead of the figure. Lengths
//! are in CSS pixels.

use maud::{Markup, html};

use crate::data::{MixResult, PolicyRole};
use crate::figure::svg::{Scale, WIDTH, c, policy_class};
use crate::stats::{Estimate, NoiseBand};
use crate::summary;
use crate::text;

const LEFT: f64 = 190.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 8.0;
const STEP: f64 = 28.0;
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
    let band = summary::aa_band(mix);
    let x = axis(rows.iter().map(|(_, e)| e), band.as_ref());
    let base = TOP + STEP * rows.len() as f64;
    let title = format!("ANTT / ANTT of {} (left of 1 is better)", baseline.label);
    html! {
        svg.figure role="img" aria-label=(title) viewBox={ "0 0 " (c(WIDTH)) " " (c(base + BOTTOM)) } {
            @if let Some(band) = band { (noise(&x, &band, base)) }
            (grid(&x, base, &title))
            @for (i, (policy, estimate)) in rows.iter().enumerate() {
                @let y = TOP + STEP * (i as f64 + 0.5);
                text.label.end x=(c(LEFT - 10.0)) y=(c(y + 4.0)) { (text::cut(&policy.label, 26)) }
                (point(&policy_class(mix, &policy.name), estimate, &x, y))
            }
        }
    }
}

fn axis<'a>(rows: impl Iterator<Item = &'a Estimate>, band: Option<&NoiseBand>) -> Scale {
    let (mut low, mut high) = (0.95_f64, 1.05_f64);
    for e in rows {
        low = low.min(e.low.unwrap_or(e.value)).min(e.value);
        high = high.max(e.high.unwrap_or(e.value)).max(e.value);
    }
    if let Some(band) = band {
        (low, high) = (low.min(band.low), high.max(band.high));
    }
    let margin = (high - low) * 0.05;
    Scale::new((low - margin, high + margin), (LEFT, WIDTH - RIGHT))
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
    let (ticks, decimals) = x.ticks(6);
    html! {
        @for tick in ticks {
            @let at = c(x.at(tick));
            line.grid x1=(at) x2=(at) y1=(c(TOP)) y2=(c(base)) {}
            text.small.mid x=(at) y=(c(base + 15.0)) { (text::number(tick, decimals)) }
        }
        line.unit x1=(c(x.at(1.0))) x2=(c(x.at(1.0))) y1=(c(TOP)) y2=(c(base + 3.0)) {}
        text.small.mid x=(c((LEFT + WIDTH - RIGHT) / 2.0)) y=(c(base + 33.0)) { (title) }
    }
}

fn point(class: &str, e: &Estimate, x: &Scale, y: f64) -> Markup {
    let ends = e.low.zip(e.high);
    let figures = match ends {
        Some((low, high)) => format!(
            "{} [{}, {}]",
            text::number(e.value, 3),
            text::number(low, 3),
            text::number(high, 3)
        ),
        None => format!("{} (no interval)", text::number(e.value, 3)),
    };
    html! {
        @if let Some((low, high)) = ends {
            line class={ (class) " interval" } x1=(c(x.at(low))) x2=(c(x.at(high))) y1=(c(y)) y2=(c(y)) {}
        }
        circle class={ (class) " dot" } cx=(c(x.at(e.value))) cy=(c(y)) r="6" {}
        text.small x=(c(WIDTH - RIGHT + 16.0)) y=(c(y + 4.0)) {
            tspan.value { (figures) } " " (text::change(e.value))
        }
    }
}
