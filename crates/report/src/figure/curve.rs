// SPDX-License-Identifier: MIT OR Apache-2.0
//! A scalability curve as SVG, standalone or as a panel of a page: speed-up over one core against
//! cores, with the ideal line and marked core counts. Points whose speed-up is not a number are
//! left out. Lengths are in CSS pixels; a standalone figure has 560 x 380. The cost is proportional
//! to the number of points, plus the square of the number of marks.

use maud::{Markup, html};
use usher_model::Curve;

use crate::figure::style;
use crate::figure::svg::{Scale, c, points};
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
    /// Marked core counts: colour class, label, number of cores.
    pub seats: Vec<(String, String, f64)>,
}

const LEFT: f64 = 38.0;
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

/// The curve as a standalone SVG file.
pub fn curve_svg(curve: &Curve, figure: &CurveFigure) -> String {
    let (width, height) = (560.0, 380.0);
    html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(c(width)) height=(c(height))
            viewBox={ "0 0 " (c(width)) " " (c(height)) } role="img" aria-label=(figure.title) {
            style { (maud::PreEscaped(style::CSS)) }
            rect.surface x="0" y="0" width=(c(width)) height=(c(height)) {}
            g transform="translate(10 6)" { (body(curve, figure, width - 24.0, height - 14.0)) }
        }
    }
    .into_string()
}

/// The curve as a panel of a page.
pub fn panel(curve: &Curve, figure: &CurveFigure, width: f64, height: f64) -> Markup {
    html! {
        svg.panel role="img" aria-label={ "Scalability of " (figure.title) }
            viewBox={ "0 0 " (c(width)) " " (c(height)) } {
            (body(curve, figure, width, height))
        }
    }
}

fn body(curve: &Curve, figure: &CurveFigure, width: f64, height: f64) -> Markup {
    let last = curve.points().last().map_or(1.0, |p| p.cores);
    let cores_max = figure.cores_max.max(last).max(1.0);
    let measured: Vec<(f64, f64, f64)> = curve
        .points()
        .iter()
        .filter_map(|p| Some((p.cores, speed_up(curve, p.cores)?, p.relative_error)))
        .collect();
    let most = measured
        .iter()
        .map(|p| p.1 * (1.0 + p.2))
        .fold(1.0, f64::max);
    let x = Scale::new((0.0, cores_max), (LEFT, width - RIGHT));
    let y = Scale::new((0.0, most * 1.15), (height - BOTTOM, TOP));
    let ideal = cores_max.min(most * 1.15);
    let line = measured.iter().map(|p| (x.at(p.0), y.at(p.1)));
    let origin = measured
        .first()
        .map(|p| [(x.at(0.0), y.at(0.0)), (x.at(p.0), y.at(p.1))]);
    html! {
        text.title x="0" y="13" { (figure.title) }
        (axes(&x, &y, (width, height)))
        line.ideal x1=(c(x.at(0.0))) y1=(c(y.at(0.0))) x2=(c(x.at(ideal))) y2=(c(y.at(ideal))) {
            title { "ideal scaling: n cores are n times as fast as one core" }
        }
        (seats(curve, figure, &x, &y))
        g class=(figure.class) {
            @if let Some(origin) = origin { polyline.guess points=(points(origin)) {} }
            polyline.curve points=(points(line)) {}
            @for (cores, speed, error) in measured { (dot(cores, speed, error, &x, &y)) }
        }
    }
}

fn axes(x: &Scale, y: &Scale, (width, height): (f64, f64)) -> Markup {
    let (xs, _) = x.ticks(((width / 55.0) as usize).max(2));
    let (ys, decimals) = y.ticks(((height / 45.0) as usize).max(2));
    let base = height - BOTTOM;
    html! {
        @for tick in ys {
            @let at = y.at(tick);
            line.grid x1=(c(LEFT)) x2=(c(width - RIGHT)) y1=(c(at)) y2=(c(at)) {}
            text.small.end x=(c(LEFT - 5.0)) y=(c(at + 4.0)) { (text::number(tick, decimals)) }
        }
        @for tick in xs.into_iter().filter(|t| t.fract() == 0.0) {
            text.small.mid x=(c(x.at(tick))) y=(c(base + 20.0)) { (text::number(tick, 0)) }
        }
        line.axis x1=(c(LEFT)) x2=(c(width - RIGHT)) y1=(c(base)) y2=(c(base)) {}
        text.small.mid x=(c((LEFT + width - RIGHT) / 2.0)) y=(c(base + 35.0)) { "cores" }
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
                line.seat x1=(c(at)) x2=(c(at)) y1=(c(base)) y2=(c(top)) {}
                polygon.seathead points=(points([(at - 4.5, base + 7.0), (at + 4.5, base + 7.0), (at, base)])) {}
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
            @if low - high >= 1.0 { line.whisker x1=(c(cx)) x2=(c(cx)) y1=(c(low)) y2=(c(high)) {} }
            circle.dot cx=(c(cx)) cy=(c(cy)) r="3.6" {}
        }
    }
}
