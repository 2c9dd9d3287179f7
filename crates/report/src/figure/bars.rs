// SPDX-License-Identifier: MIT OR Apache-2.0
//! Horizontal bars as SVG: the NTT of every program and the ANTT under every policy, as geometric
//! means over rounds with whiskers for the range or the 95 % interval.
//!
//! Lengths are in CSS pixels. The height grows with programs times policies, without a limit. A bar
//! without a value is replaced by the words "no result"; a figure without any value by a sentence.
//! Labels are cut to 14 to 26 characters.

use maud::{Markup, html};

use crate::data::{MixResult, PolicyResult};
use crate::figure::svg::{FigureWidth, Scale, c, in_both_widths, policy_class, program_class};
use crate::summary::{self, Spread};
use crate::text;

/// Space for the labels on the left of a wide figure. In a narrow figure, the labels are above or
/// behind the bars.
const LEFT_WIDE: f64 = 190.0;
const LEFT_NARROW: f64 = 12.0;
const RIGHT: f64 = 130.0;
/// Height of a program's label above its bars in a narrow figure.
const HEADING: f64 = 22.0;
const BAR: f64 = 15.0;
const GROUP_GAP: f64 = 12.0;
const TOP: f64 = 6.0;
const BOTTOM: f64 = 40.0;

/// One bar: a mean with its whisker.
struct Bar<'a> {
    class: String,
    label: &'a str,
    value: Option<Spread>,
    what: String,
}

/// NTT bars, one group per program and one bar per policy: the geometric mean over the rounds, with
/// whiskers from the lowest to the highest round.
pub fn ntt(mix: &MixResult) -> Markup {
    let groups: Vec<Vec<Bar>> = mix
        .programs
        .iter()
        .map(|program| {
            let bar = |policy| program_bar(mix, policy, &program.name);
            mix.policies.iter().map(bar).collect()
        })
        .collect();
    if groups.iter().flatten().all(|bar| bar.value.is_none()) {
        return html! { p.empty { "There is no NTT to draw, because each program finished no \
        repetition or has no known time alone." } };
    }
    in_both_widths(|width| ntt_figure(mix, &groups, width))
}

fn ntt_figure(mix: &MixResult, groups: &[Vec<Bar>], width: FigureWidth) -> Markup {
    let heading = width.pick(0.0, HEADING);
    let bars_height = BAR * mix.policies.len() as f64;
    let group_height = heading + bars_height + GROUP_GAP;
    let base = TOP + group_height * groups.len() as f64;
    let x = axis(groups.iter().flatten(), width);
    let title = width.pick(
        "NTT: time in the mix / best time alone (lower is better, 1 is as fast as alone)",
        "NTT (lower is better, 1 is as fast as alone)",
    );
    html! {
        svg class=(width.class()) role="img" aria-label="NTT of each program under each policy"
            viewBox={ "0 0 " (c(width.pixels())) " " (c(base + BOTTOM)) } {
            (grid(&x, base, title))
            @for (i, (program, bars)) in mix.programs.iter().zip(groups).enumerate() {
                @let top = TOP + group_height * i as f64 + GROUP_GAP / 2.0;
                @match width {
                    FigureWidth::Wide => (program_label(i, &program.name, &program.class, top, bars_height)),
                    FigureWidth::Narrow => (program_label(i, &program.name, "", top, HEADING - 4.0)),
                }
                @for (j, bar) in bars.iter().enumerate() { (draw(bar, &x, top + heading + BAR * j as f64)) }
            }
        }
    }
}

fn program_bar<'a>(mix: &MixResult, policy: &'a PolicyResult, program: &str) -> Bar<'a> {
    let value = summary::spread(&policy.ntts(program));
    Bar {
        class: policy_class(mix, &policy.name),
        label: &policy.label,
        value,
        what: format!(
            "{program} under the policy {}: NTT {}",
            policy.label,
            describe(value, "lowest and highest value among the rounds")
        ),
    }
}

/// ANTT bars, one per policy: the geometric mean over the rounds. Whiskers show the 95 % interval
/// if there is one, else the range.
pub fn antt(mix: &MixResult) -> Markup {
    let bars: Vec<Bar> = mix.policies.iter().map(|p| antt_bar(mix, p)).collect();
    if bars.iter().all(|bar| bar.value.is_none()) {
        return html! { p.empty { "There is no ANTT to draw: in each round, some program did not \
        finish, or its time alone is unknown." } };
    }
    in_both_widths(|width| antt_figure(&bars, width))
}

fn antt_figure(bars: &[Bar], width: FigureWidth) -> Markup {
    let step = 26.0;
    let base = TOP + step * bars.len() as f64;
    let x = axis(bars.iter(), width);
    html! {
        svg class=(width.class()) role="img" aria-label="ANTT under each policy"
            viewBox={ "0 0 " (c(width.pixels())) " " (c(base + BOTTOM)) } {
            (grid(&x, base, "ANTT: mean NTT of the programs (lower is better)"))
            @for (i, bar) in bars.iter().enumerate() {
                @let top = TOP + step * i as f64 + 4.0;
                @if width == FigureWidth::Wide {
                    text.label.end x=(c(LEFT_WIDE - 10.0)) y=(c(top + 13.0)) { (text::cut(bar.label, 26)) }
                }
                (shape(bar, &x, top, 18.0, width == FigureWidth::Narrow))
            }
        }
    }
}

fn antt_bar<'a>(mix: &MixResult, policy: &'a PolicyResult) -> Bar<'a> {
    let range = summary::spread(&policy.antts());
    let interval = summary::antt(mix, policy).and_then(|e| Some((e.low?, e.high?)));
    let value = range.map(|r| match interval {
        Some((low, high)) => Spread { low, high, ..r },
        None => r,
    });
    let kind = if interval.is_some() {
        "95 % interval"
    } else {
        "range"
    };
    Bar {
        class: policy_class(mix, &policy.name),
        label: &policy.label,
        value,
        what: format!("{}: ANTT {}", policy.label, describe(value, kind)),
    }
}

fn describe(value: Option<Spread>, kind: &str) -> String {
    match value {
        Some(s) => format!(
            "{} ({kind} {} to {}, {})",
            text::number(s.mean, 3),
            text::number(s.low, 3),
            text::number(s.high, 3),
            text::count(s.n, "round")
        ),
        None => "unknown".to_owned(),
    }
}

fn axis<'a>(bars: impl Iterator<Item = &'a Bar<'a>>, width: FigureWidth) -> Scale {
    let most = bars
        .filter_map(|b| b.value)
        .map(|s| s.high)
        .fold(1.0, f64::max);
    let left = width.pick(LEFT_WIDE, LEFT_NARROW);
    Scale::new((0.0, most * 1.02), (left, width.pixels() - RIGHT))
}

fn grid(x: &Scale, base: f64, title: &str) -> Markup {
    let (start, end) = x.ends();
    let (ticks, decimals) = x.ticks(if end - start > 400.0 { 7 } else { 4 });
    // A narrow axis has no room for the whole title around its middle.
    let middle = ((start + end) / 2.0).max(150.0);
    html! {
        @for tick in ticks {
            @let at = c(x.at(tick));
            line.grid x1=(at) x2=(at) y1=(c(TOP)) y2=(c(base)) {}
            text.small.mid x=(at) y=(c(base + 15.0)) { (text::number(tick, decimals)) }
        }
        line.unit x1=(c(x.at(1.0))) x2=(c(x.at(1.0))) y1=(c(TOP)) y2=(c(base + 3.0)) {}
        text.small.mid x=(c(middle)) y=(c(base + 33.0)) { (title) }
    }
}

fn program_label(index: usize, name: &str, class: &str, top: f64, height: f64) -> Markup {
    let middle = top + height / 2.0;
    let (y, second) = match height >= 28.0 && !class.is_empty() {
        true => (middle - 2.0, Some(middle + 13.0)),
        false => (middle + 4.0, None),
    };
    html! {
        rect class={ (program_class(index)) " solid" } x="0" y=(c(y - 11.0)) width="18" height="14" rx="3" {}
        text class={ "key ink " (program_class(index)) } x="9" y=(c(y)) { (text::key(index)) }
        text.label x="24" y=(c(y)) { (text::cut(name, 22)) }
        @if let Some(second) = second {
            text.small x="24" y=(c(second)) { (text::cut(class, 26)) }
        }
    }
}

fn draw(bar: &Bar, x: &Scale, top: f64) -> Markup {
    shape(bar, x, top, BAR - 2.0, true)
}

/// Draws one bar; if `named`, the policy's name follows the bar.
fn shape(bar: &Bar, x: &Scale, top: f64, height: f64, named: bool) -> Markup {
    let Some(s) = bar.value else {
        return html! {
            text.small x=(c(x.at(0.0) + 4.0)) y=(c(top + height / 2.0 + 4.0)) { (bar.label) ": no result" }
        };
    };
    let (start, end, low, high) = (x.at(0.0), x.at(s.mean), x.at(s.low), x.at(s.high));
    let middle = top + height / 2.0;
    let (above, below) = (c(middle - 3.5), c(middle + 3.5));
    let (l, h, m) = (c(low), c(high), c(middle));
    let whisker = format!("M{l} {above}V{below}M{l} {m}H{h}M{h} {above}V{below}");
    html! {
        g {
            title { (bar.what) }
            rect class={ (bar.class) " solid" } x=(c(start)) y=(c(top)) width=(c((end - start).max(0.5))) height=(c(height)) {}
            path.whiskback d=(whisker) {}
            path.whisker d=(whisker) {}
        }
        text.small x=(c(high.max(end) + 6.0)) y=(c(middle + 4.0)) {
            tspan.value { (text::number(s.mean, 2)) }
            @if named { " " (text::cut(bar.label, 14)) }
        }
    }
}
