// SPDX-License-Identifier: MIT OR Apache-2.0
//! Draws the figures of result pages as SVG: bars on a logarithmic axis (as in figures 2 to 5 of
//! paper 2), heat maps (as in figure 1 of paper 2), and curves.

use maud::{Markup, html};
use usher_report::text;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 250.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 44.0;
const BAR: f64 = 11.0;
const GAP: f64 = 12.0;

/// A bar of a figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// CSS class of the colour, such as `p3`.
    pub class: String,
    /// Name in the legend.
    pub name: String,
    /// The value that the bar's length shows.
    pub value: f64,
    /// Confidence interval of the value.
    pub interval: Option<(f64, f64)>,
    /// Whether the value is a lower bound, because a run was stopped at its limit.
    pub is_least: bool,
}

/// A group of bars with one label.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle {
    /// Label at the left.
    pub label: String,
    /// Bars from top to bottom.
    pub bars: Vec<Bar>,
}

fn c(value: f64) -> String {
    format!("{value:.1}")
}

/// A logarithmic axis.
struct Axis {
    from: f64,
    to: f64,
}

impl Axis {
    /// Returns an axis for ratios, which begins at 1 or at the smallest value if it is below 1.
    fn of_ratios(bundles: &[Bundle]) -> Self {
        let (least, most) = Self::range(bundles);
        Self {
            from: least.clamp(0.2, 1.0),
            to: most.max(1.25) * 1.05,
        }
    }

    /// Returns an axis for times, which begins slightly below the smallest value so that each bar
    /// has a visible length.
    fn of_times(bundles: &[Bundle]) -> Self {
        let (least, most) = Self::range(bundles);
        let (least, most) = if least < f64::INFINITY {
            (least, most)
        } else {
            (1.0, 1.0)
        };
        Self {
            from: least * 0.7,
            to: most.max(least * 1.25) * 1.05,
        }
    }

    /// The smallest and the largest value, including the ends of intervals.
    fn range(bundles: &[Bundle]) -> (f64, f64) {
        let values = bundles.iter().flat_map(|b| &b.bars).flat_map(|bar| {
            let (low, high) = bar.interval.unwrap_or((bar.value, bar.value));
            [bar.value, low, high]
        });
        let usable = values.filter(|v| v.is_finite() && *v > 0.0);
        usable.fold((f64::INFINITY, 0.0), |(least, most), v| {
            (v.min(least), v.max(most))
        })
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.max(self.from) / self.from).ln() / (self.to / self.from).ln();
        LEFT + share.min(1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let all = [
            0.25, 0.5, 0.75, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0,
            500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5,
        ];
        let (from, to) = (self.from, self.to);
        let wide = to / from > 4.0;
        all.into_iter()
            .filter(move |&t| t >= from && t <= to && !(wide && [1.1, 1.25, 0.75].contains(&t)))
    }
}

/// Draws slow-downs on a logarithmic axis; 1 is no slow-down.
pub fn slow_downs(title: &str, bundles: &[Bundle]) -> String {
    let about = "time of the foreground beside the background / its time alone (1: no slow-down; \
                 whiskers: 95 % interval)";
    bars(title, about, bundles, &Axis::of_ratios(bundles), Some(1.0))
}

/// Draws times on a logarithmic axis.
pub fn times(about: &str, title: &str, bundles: &[Bundle]) -> String {
    bars(title, about, bundles, &Axis::of_times(bundles), None)
}

/// Draws the bars on the axis `axis`, with a reference line at the value `mark`.
fn bars(title: &str, about: &str, bundles: &[Bundle], axis: &Axis, mark: Option<f64>) -> String {
    let height = |bundle: &Bundle| BAR * bundle.bars.len() as f64 + GAP;
    let base = TOP + bundles.iter().map(height).sum::<f64>();
    let mut top = TOP;
    let tops: Vec<f64> = bundles
        .iter()
        .map(|bundle| {
            let here = top;
            top += height(bundle);
            here
        })
        .collect();
    html! {
        svg.figure role="img" aria-label=(title) viewBox={ "0 0 " (c(WIDTH)) " " (c(base + 42.0)) } {
            (legend(bundles))
            @for tick in axis.ticks() {
                line.grid x1=(c(axis.at(tick))) x2=(c(axis.at(tick))) y1=(c(TOP)) y2=(c(base)) {}
                text.small.mid x=(c(axis.at(tick))) y=(c(base + 16.0)) { (text::short(tick, 2)) }
            }
            @if let Some(mark) = mark {
                line.unit x1=(c(axis.at(mark))) x2=(c(axis.at(mark))) y1=(c(TOP)) y2=(c(base)) {}
            }
            text.small.mid x=(c((LEFT + WIDTH - RIGHT) / 2.0)) y=(c(base + 34.0)) { (about) }
            @for (bundle, top) in bundles.iter().zip(tops) {
                text.small.end x=(c(LEFT - 8.0)) y=(c(top + height(bundle) / 2.0 + 4.0)) { (bundle.label) }
                @for (i, bar) in bundle.bars.iter().enumerate() { (draw(bar, axis, top + GAP / 2.0 + BAR * i as f64)) }
            }
        }
    }
    .into_string()
}

fn draw(bar: &Bar, axis: &Axis, top: f64) -> Markup {
    let (from, to) = (axis.at(axis.from), axis.at(bar.value));
    let end = bar.interval.map_or(to, |(_, high)| axis.at(high).max(to));
    let middle = top + (BAR - 2.0) / 2.0;
    let more = if bar.is_least { ">" } else { "" };
    html! {
        g class=(bar.class) {
            title { (bar.name) ": " (more) (text::number(bar.value, 3)) }
            rect.solid x=(c(from)) y=(c(top)) width=(c((to - from).max(1.0))) height=(c(BAR - 2.0)) {}
            @if let Some((low, high)) = bar.interval {
                line.whisker x1=(c(axis.at(low))) x2=(c(axis.at(high))) y1=(c(middle)) y2=(c(middle)) {}
            }
            text.small x=(c(end + 5.0)) y=(c(top + BAR - 2.5)) { (more) (text::number(bar.value, 2)) }
        }
    }
}

fn legend(bundles: &[Bundle]) -> Markup {
    let mut names: Vec<(&str, &str)> = vec![];
    for bar in bundles.iter().flat_map(|b| &b.bars) {
        if !names.contains(&(&bar.class, &bar.name)) {
            names.push((&bar.class, &bar.name));
        }
    }
    let (mut x, mut y) = (0.0, 4.0);
    let places: Vec<(f64, f64)> = names
        .iter()
        .map(|(_, name)| {
            let width = 26.0 + 6.2 * name.chars().count() as f64;
            if x + width > WIDTH {
                (x, y) = (0.0, y + 18.0);
            }
            let here = (x, y);
            x += width;
            here
        })
        .collect();
    html! {
        @for ((class, name), (x, y)) in names.iter().zip(places) {
            g class=(class) {
                rect.solid x=(c(x)) y=(c(y)) width="11" height="11" {}
                text.small x=(c(x + 15.0)) y=(c(y + 10.0)) { (name) }
            }
        }
    }
}

/// Draws a heat map: a grid of shares from 0 to 1 with axes in per cent. Darker cells have higher
/// shares.
pub fn heat_map(
    title: &str,
    x_axis: &str,
    y_axis: &str,
    steps: &[f64],
    value: impl Fn(usize, usize) -> f64,
) -> String {
    let side = 420.0 / steps.len() as f64;
    let (left, top) = (60.0, 26.0);
    let n = steps.len();
    let base = top + side * n as f64;
    html! {
        svg.panel role="img" aria-label=(title) viewBox={ "0 0 500 " (c(base + 44.0)) } {
            text.title x=(c(left)) y="14" { (title) }
            @for (i, x) in steps.iter().enumerate() {
                @for (j, y) in steps.iter().enumerate() {
                    rect fill="var(--q3)" fill-opacity=(format!("{:.3}", value(i, j).clamp(0.0, 1.0).powi(3)))
                        x=(c(left + side * i as f64)) y=(c(base - side * (j + 1) as f64)) width=(c(side)) height=(c(side)) {
                        title { (x_axis) " " (text::percent(*x)) ", " (y_axis) " " (text::percent(*y)) ": " (text::percent(value(i, j))) }
                    }
                }
                @if i % 4 == 0 {
                    text.small.mid x=(c(left + side * (i as f64 + 0.5))) y=(c(base + 14.0)) { (text::percent(*x)) }
                    text.small.end x=(c(left - 4.0)) y=(c(base - side * i as f64 - 2.0)) { (text::percent(*x)) }
                }
            }
            text.small.mid x=(c(left + 210.0)) y=(c(base + 34.0)) { "threshold " (x_axis) " (up: " (y_axis) "); darker cells are more accurate" }
        }
    }
    .into_string()
}

/// Converts the lines to bars, from which the legend is drawn.
fn names(lines: &[Line]) -> Vec<Bundle> {
    let bar = |line: &Line| Bar {
        class: line.class.clone(),
        name: line.name.clone(),
        value: 1.0,
        interval: None,
        is_least: false,
    };
    vec![Bundle {
        label: String::new(),
        bars: lines.iter().map(bar).collect(),
    }]
}

/// A curve through points. The x axis is logarithmic; the y axis begins at 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// CSS class of the colour.
    pub class: String,
    /// Name in the legend.
    pub name: String,
    /// Points (x, y), in the order of x.
    pub points: Vec<(f64, f64)>,
}

/// Draws curves, with a reference line at y = `mark`.
pub fn lines(title: &str, x_axis: &str, lines: &[Line], mark: f64) -> String {
    let all = || {
        lines
            .iter()
            .flat_map(|line| &line.points)
            .filter(|(x, y)| *x > 0.0 && y.is_finite())
    };
    let (from, to) = all().fold((f64::INFINITY, 0.0_f64), |(a, b), (x, _)| {
        (a.min(*x), b.max(*x))
    });
    if !from.is_finite() {
        return String::new();
    }
    let most = all().map(|(_, y)| *y).fold(mark, f64::max) * 1.08;
    let (left, top, base) = (50.0, 44.0, 300.0);
    let span = (to / from).ln().max(1e-9);
    let x = |v: f64| left + (v / from).ln() / span * (WIDTH - left - 40.0);
    let y = |v: f64| base - v / most * (base - top);
    let path = |line: &Line| {
        line.points
            .iter()
            .map(|(a, b)| format!("{},{} ", c(x(*a)), c(y(*b))))
            .collect::<String>()
    };
    let mut ticks: Vec<f64> = all().map(|(x, _)| *x).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    html! {
        svg.figure role="img" aria-label=(title) viewBox={ "0 0 " (c(WIDTH)) " 340" } {
            (legend(&names(lines)))
            @for tick in [0.0, 0.25, 0.5, 0.75, 1.0] {
                line.grid x1=(c(left)) x2=(c(WIDTH - 40.0)) y1=(c(y(tick))) y2=(c(y(tick))) {}
                text.small.end x=(c(left - 5.0)) y=(c(y(tick) + 4.0)) { (text::percent(tick)) }
            }
            line.unit x1=(c(left)) x2=(c(WIDTH - 40.0)) y1=(c(y(mark))) y2=(c(y(mark))) {}
            @for tick in &ticks { text.small.mid x=(c(x(*tick))) y=(c(base + 16.0)) { (text::short(*tick, 0)) } }
            text.small.mid x=(c(WIDTH / 2.0)) y=(c(base + 34.0)) { (x_axis) }
            @for line in lines {
                g class=(line.class) {
                    polyline.curve points=(path(line)) {}
                    @for (a, b) in &line.points { circle.dot cx=(c(x(*a))) cy=(c(y(*b))) r="3.6" { title { (line.name) } } }
                }
            }
        }
    }
    .into_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lies_within_the_axis_and_more_lies_further_right() {
        let bar = |value| Bar {
            class: "p0".to_owned(),
            name: "nice".to_owned(),
            value,
            interval: None,
            is_least: false,
        };
        let bundles = [Bundle {
            label: "cell".to_owned(),
            bars: vec![bar(0.9), bar(50.0)],
        }];
        let axis = Axis::of_ratios(&bundles);
        assert!(axis.at(0.9) == LEFT && axis.at(1.0) > LEFT);
        assert!(axis.at(10.0) < axis.at(50.0) && axis.at(50.0) < WIDTH - RIGHT);
        let svg = slow_downs("title", &bundles);
        assert_eq!(
            svg.matches("class=\"solid\"").count(),
            3,
            "two bars, one name"
        );
    }

    #[test]
    fn charts_without_data_have_no_points() {
        assert_eq!(lines("t", "x", &[], 0.9), "");
        assert!(slow_downs("t", &[]).starts_with("<svg"));
        assert!(times("ns", "t", &[]).starts_with("<svg"));
    }
}
