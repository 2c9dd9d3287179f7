// SPDX-License-Identifier: MIT OR Apache-2.0
//! A scalability curve as SVG, standalone or as a panel of a page: speed-up over one core against
//! cores, with the measured points, the fitted curve, the ideal line and marked core counts. Points
//! whose speed-up is not a number are left out. Lengths are in CSS pixels; a standalone figure has
//! 560 x 400. The cost is proportional to the number of points, plus the square of the number of
//! marks.
//!
//! A standalone figure is readable in programs without CSS: each element has presentation
//! attributes for a light background. Programs with CSS use the colours of a dark background where
//! the reader prefers dark pages.

use maud::{Markup, html};
use usher_model::Curve;

use crate::figure::svg::{Scale, c, in_both_widths, points};
use crate::text;

/// Additional elements of a curve figure.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CurveFigure<'a> {
    /// Title above the figure; may be empty.
    pub title: &'a str,
    /// Colour class of the curve, for example `p0`.
    pub class: &'a str,
    /// End of the core axis; 0: the last point.
    pub cores_max: f64,
    /// The fitted curve; `None`: lines connect the measured points.
    pub fitted: Option<&'a Curve>,
    /// Marked core counts: colour class, label, number of cores.
    pub seats: Vec<(String, String, f64)>,
}

const LEFT: f64 = 50.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 42.0;

/// Returns the rate at this number of cores, divided by the rate on one core; `None` if the result
/// is not a number. If the first point of the curve has more than one core, the rate on one core is
/// extrapolated proportionally.
pub fn speed_up(curve: &Curve, cores: f64) -> Option<f64> {
    let ratio = curve.rate(cores) / curve.rate(1.0);
    ratio.is_finite().then_some(ratio)
}

/// Returns the same ratio, but `None` if the curve has fewer than two points: the speed-up of a
/// single point is the assumption of proportional scaling.
pub fn measured_speed_up(curve: &Curve, cores: f64) -> Option<f64> {
    speed_up(curve, cores).filter(|_| curve.points().len() >= 2)
}

/// Width and height of a standalone figure.
const STANDALONE: (f64, f64) = (560.0, 400.0);
/// Space above the curve of a standalone figure for the title and the legend.
const LEGEND_HEIGHT: f64 = 22.0;

/// Colours of a standalone figure on a light background, for programs without CSS.
const INK: &str = "#1a1d22";
const SOFT: &str = "#565d68";
const RULE: &str = "#dfe2e7";
const SURFACE: &str = "#ffffff";
const CURVE: &str = "#0072b2";
const FONT: &str = "system-ui, 'Segoe UI', 'Liberation Sans', 'DejaVu Sans', sans-serif";

/// Style sheet of a standalone figure: only the differences on a dark background.
const DARK_CSS: &str = "@media (prefers-color-scheme: dark) { .surface { fill: #14171b; } \
    text { fill: #e9ebee; } text.small { fill: #a4acb8; } .grid { stroke: #333942; } \
    .axis, .ideal { stroke: #a4acb8; } .curve, .guess, .seat { stroke: #3d9fdb; } \
    .dot { fill: #3d9fdb; stroke: #14171b; } .seathead { fill: #3d9fdb; } \
    .whisker { stroke: #e9ebee; } }";

/// The curve as a standalone SVG file, with a legend.
pub fn curve_svg(curve: &Curve, figure: &CurveFigure) -> String {
    let (width, height) = STANDALONE;
    html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(c(width)) height=(c(height))
            viewBox={ "0 0 " (c(width)) " " (c(height)) } role="img" font-family=(FONT)
            aria-label={ "Scalability of " (figure.title) } {
            style { (maud::PreEscaped(DARK_CSS)) }
            rect.surface x="0" y="0" width=(c(width)) height=(c(height)) fill=(SURFACE) {}
            g transform="translate(12 8)" {
                text.title x="0" y="13" font-size="13" font-weight="600" fill=(INK) { (figure.title) }
                (legend(curve, figure))
                (body(curve, figure, (width - 24.0, height - 16.0), TOP + LEGEND_HEIGHT))
            }
        }
    }
    .into_string()
}

/// A sample and a text for each kind of line and point in the figure.
fn legend(curve: &Curve, figure: &CurveFigure) -> Markup {
    let has_errors = curve.points().iter().any(|p| p.relative_error > 0.0);
    let measured = match has_errors {
        true => "measured, \u{b1} standard error",
        false => "measured",
    };
    let line = match figure.fitted {
        Some(_) => "fitted curve",
        None => "interpolated",
    };
    let y = 36.0;
    html! {
        g class=(figure.class) {
            circle.dot cx="6" cy=(c(y - 4.0)) r="3.6" fill=(CURVE) stroke=(SURFACE) stroke-width="1.4" {}
            (legend_text(16.0, measured))
            line.curve x1="222" x2="242" y1=(c(y - 4.0)) y2=(c(y - 4.0)) stroke=(CURVE) stroke-width="2" {}
            (legend_text(248.0, line))
        }
        line.ideal x1="340" x2="360" y1=(c(y - 4.0)) y2=(c(y - 4.0)) stroke=(SOFT) stroke-width="1.2" stroke-dasharray="2 4" {}
        (legend_text(366.0, "ideal: n cores, n times"))
    }
}

fn legend_text(x: f64, what: &str) -> Markup {
    html! { text.small x=(c(x)) y="36" font-size="11" fill=(SOFT) { (what) } }
}

/// The curve as a panel of a page.
pub fn panel(curve: &Curve, figure: &CurveFigure, width: f64, height: f64) -> Markup {
    panel_of_class("panel", curve, figure, (width, height))
}

/// The curve as a figure of a page, in both widths.
pub fn full(curve: &Curve, figure: &CurveFigure) -> Markup {
    in_both_widths(|width| {
        let size = (width.pixels(), width.pick(430.0, 280.0));
        panel_of_class(width.class(), curve, figure, size)
    })
}

fn panel_of_class(
    class: &str,
    curve: &Curve,
    figure: &CurveFigure,
    (width, height): (f64, f64),
) -> Markup {
    html! {
        svg class=(class) role="img" aria-label={ "Scalability of " (figure.title) }
            viewBox={ "0 0 " (c(width)) " " (c(height)) } {
            text.title x="0" y="13" { (figure.title) }
            (body(curve, figure, (width, height), TOP))
        }
    }
}

/// Draws axes, lines and points below `top`.
fn body(curve: &Curve, figure: &CurveFigure, (width, height): (f64, f64), top: f64) -> Markup {
    let last = curve.points().last().map_or(1.0, |p| p.cores);
    let cores_max = figure.cores_max.max(last).max(1.0);
    let measured: Vec<(f64, f64, f64)> = curve
        .points()
        .iter()
        .filter_map(|p| Some((p.cores, speed_up(curve, p.cores)?, p.relative_error)))
        .collect();
    let line = line(curve, figure, cores_max);
    let highest = measured.iter().map(|p| p.1 * (1.0 + p.2));
    let most = highest.chain(line.iter().map(|p| p.1)).fold(1.0, f64::max);
    let x = Scale::new((0.0, cores_max), (LEFT, width - RIGHT));
    let y = Scale::new((0.0, most * 1.15), (height - BOTTOM, top));
    let ideal = cores_max.min(most * 1.15);
    let origin = line
        .first()
        .map(|p| [(x.at(0.0), y.at(0.0)), (x.at(p.0), y.at(p.1))]);
    let line = line.iter().map(|p| (x.at(p.0), y.at(p.1)));
    html! {
        (axes(&x, &y, (width, height), top))
        line.ideal x1=(c(x.at(0.0))) y1=(c(y.at(0.0))) x2=(c(x.at(ideal))) y2=(c(y.at(ideal)))
            stroke=(SOFT) stroke-width="1.2" stroke-dasharray="2 4" {
            title { "ideal scaling: n cores are n times as fast as one core" }
        }
        (seats(curve, figure, &x, &y))
        g class=(figure.class) {
            @if let Some(origin) = origin { polyline.guess points=(points(origin)) fill="none" stroke=(CURVE) stroke-width="1.4" stroke-dasharray="3 3" {} }
            polyline.curve points=(points(line)) fill="none" stroke=(CURVE) stroke-width="2" {}
            @for (cores, speed, error) in measured { (dot(cores, speed, error, &x, &y)) }
        }
    }
}

/// Returns the points of the drawn line: the fitted curve, or else the measured points.
fn line(curve: &Curve, figure: &CurveFigure, cores_max: f64) -> Vec<(f64, f64)> {
    let drawn = figure.fitted.unwrap_or(curve);
    let unit = curve.rate(1.0);
    let points = drawn.points().iter().filter(|p| p.cores <= cores_max);
    let points = points.map(|p| (p.cores, p.rate / unit));
    points.filter(|p| p.1.is_finite()).collect()
}

fn axes(x: &Scale, y: &Scale, (width, height): (f64, f64), top: f64) -> Markup {
    let middle = c((top + height - BOTTOM) / 2.0);
    let (xs, _) = x.ticks(((width / 55.0) as usize).max(2));
    let (ys, decimals) = y.ticks(((height / 45.0) as usize).max(2));
    let base = height - BOTTOM;
    html! {
        @for tick in ys {
            @let at = y.at(tick);
            line.grid x1=(c(LEFT)) x2=(c(width - RIGHT)) y1=(c(at)) y2=(c(at)) stroke=(RULE) {}
            text.small.end x=(c(LEFT - 5.0)) y=(c(at + 4.0)) font-size="11" text-anchor="end" fill=(SOFT) { (text::number(tick, decimals)) }
        }
        @for tick in xs.into_iter().filter(|t| t.fract() == 0.0) {
            text.small.mid x=(c(x.at(tick))) y=(c(base + 20.0)) font-size="11" text-anchor="middle" fill=(SOFT) { (text::number(tick, 0)) }
        }
        line.axis x1=(c(LEFT)) x2=(c(width - RIGHT)) y1=(c(base)) y2=(c(base)) stroke=(SOFT) {}
        text.small.mid x=(c((LEFT + width - RIGHT) / 2.0)) y=(c(base + 35.0)) font-size="11" text-anchor="middle" fill=(SOFT) { "cores" }
        text.small.mid.turned x="9" y=(middle) transform={ "rotate(-90 9 " (middle) ")" }
            font-size="11" text-anchor="middle" fill=(SOFT) { "speed-up (times one core)" }
    }
}

/// Draws a line from the axis to the curve at every marked core count. Lines at the same count are
/// drawn side by side.
fn seats(curve: &Curve, figure: &CurveFigure, x: &Scale, y: &Scale) -> Markup {
    let known = figure.seats.iter().filter(|s| s.2.is_finite() && s.2 > 0.0);
    let mut taken: Vec<f64> = Vec::new();
    let placed: Vec<_> = known
        .map(|seat| {
            let beside = taken.iter().filter(|&&t| (t - x.at(seat.2)).abs() < 5.0);
            let at = x.at(seat.2) + 5.0 * beside.count() as f64;
            taken.push(x.at(seat.2));
            (seat, at)
        })
        .collect();
    html! {
        @for ((class, program, cores), at) in placed {
            @let (base, top) = (y.at(0.0), y.at(speed_up(curve, *cores).unwrap_or(0.0)));
            g class=(class) {
                title { (program) ": " (text::short(*cores, 2)) " cores" }
                line.seat x1=(c(at)) x2=(c(at)) y1=(c(base)) y2=(c(top)) stroke=(CURVE) stroke-width="1.6" {}
                polygon.seathead points=(points([(at - 4.5, base + 7.0), (at + 4.5, base + 7.0), (at, base)])) fill=(CURVE) {}
            }
        }
    }
}

fn dot(cores: f64, speed: f64, error: f64, x: &Scale, y: &Scale) -> Markup {
    let (cx, cy) = (x.at(cores), y.at(speed));
    let (low, high) = (y.at(speed * (1.0 - error)), y.at(speed * (1.0 + error)));
    html! {
        g {
            title {
                (text::short(cores, 2)) " cores: " (text::number(speed, 2)) " times as fast as one core"
                @if error > 0.0 { ", standard error " (text::percent(error)) }
            }
            @if low - high >= 1.0 { line.whisker x1=(c(cx)) x2=(c(cx)) y1=(c(low)) y2=(c(high)) stroke=(INK) stroke-width="1.3" {} }
            circle.dot cx=(c(cx)) cy=(c(cy)) r="3.6" fill=(CURVE) stroke=(SURFACE) stroke-width="1.4" {}
        }
    }
}
