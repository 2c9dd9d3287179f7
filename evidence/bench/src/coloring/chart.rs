// SPDX-License-Identifier: MIT OR Apache-2.0
//! Draws line charts as SVG for the colouring benchmark. The x axis is linear or logarithmic; the y
//! axis begins at 0. Lines of compared figures are dashed.

use maud::{Markup, html};
use usher_report::text;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 40.0;
const BASE: f64 = 310.0;

/// A line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// CSS class of the colour, such as `p3`.
    pub class: &'static str,
    /// Name in the legend.
    pub name: String,
    /// Points (x, y), in the order of x.
    pub points: Vec<(f64, f64)>,
    /// Whether the line shows figures of others for comparison; such a line is dashed.
    pub compared: bool,
}

/// Content of a figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Title, for screen readers.
    pub title: String,
    /// Label of the x axis.
    pub x: &'static str,
    /// Label of the y axis.
    pub y: &'static str,
    /// Whether x is logarithmic.
    pub logarithmic: bool,
    /// A value of y at which a reference line is drawn.
    pub mark: Option<f64>,
    /// Lines.
    pub lines: Vec<Line>,
}

fn c(value: f64) -> String {
    format!("{value:.1}")
}

impl Chart {
    fn xs(&self) -> Vec<f64> {
        let mut xs: Vec<f64> = self.points().map(|(x, _)| x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        xs
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        let all = self.lines.iter().flat_map(|line| &line.points).copied();
        all.filter(|(x, y)| x.is_finite() && y.is_finite() && (*x > 0.0 || !self.logarithmic))
    }

    /// Returns the chart as SVG; an empty text if there are no points.
    pub fn svg(&self) -> String {
        let xs = self.xs();
        let (Some(&from), Some(&to)) = (xs.first(), xs.last()) else {
            return String::new();
        };
        let scale = |x: f64| if self.logarithmic { x.ln() } else { x };
        let span = (scale(to) - scale(from)).max(1e-9);
        let at_x = |x: f64| LEFT + (scale(x) - scale(from)) / span * (WIDTH - LEFT - RIGHT);
        let most = self
            .points()
            .map(|(_, y)| y)
            .fold(self.mark.unwrap_or(0.0), f64::max);
        let (step, top) = (round_step(most / 5.0), 30.0 + self.legend_rows() * 18.0);
        let most = (most / step).ceil() * step;
        let at_y = |y: f64| BASE - y.max(0.0) / most * (BASE - top);
        let ticks = (0..=(most / step).round() as u32).map(|n| f64::from(n) * step);
        let decimals = usize::from(step < 1.0) + usize::from(step < 0.1);
        html! {
            svg.figure role="img" aria-label=(self.title) viewBox={ "0 0 " (c(WIDTH)) " 350" } {
                (self.legend())
                text.small x="0" y=(c(top - 12.0)) { (self.y) }
                @for tick in ticks {
                    line.grid x1=(c(LEFT)) x2=(c(WIDTH - RIGHT)) y1=(c(at_y(tick))) y2=(c(at_y(tick))) {}
                    text.small.end x=(c(LEFT - 8.0)) y=(c(at_y(tick) + 4.0)) { (text::number(tick, decimals)) }
                }
                @if let Some(mark) = self.mark {
                    line.unit x1=(c(LEFT)) x2=(c(WIDTH - RIGHT)) y1=(c(at_y(mark))) y2=(c(at_y(mark))) {}
                }
                @for x in &xs { text.small.mid x=(c(at_x(*x))) y=(c(BASE + 16.0)) { (text::number(*x, 0)) } }
                text.small.mid x=(c((LEFT + WIDTH - RIGHT) / 2.0)) y=(c(BASE + 34.0)) { (self.x) }
                @for line in &self.lines { (draw(line, &at_x, &at_y)) }
            }
        }
        .into_string()
    }

    fn places(&self) -> Vec<(f64, f64)> {
        let (mut x, mut y) = (0.0, 4.0);
        let place = |line: &Line| {
            let width = 34.0 + 6.4 * line.name.chars().count() as f64;
            if x + width > WIDTH {
                (x, y) = (0.0, y + 18.0);
            }
            let here = (x, y);
            x += width;
            here
        };
        self.lines.iter().map(place).collect()
    }

    fn legend_rows(&self) -> f64 {
        self.places().last().map_or(0.0, |(_, y)| y / 18.0 + 1.0)
    }

    fn legend(&self) -> Markup {
        html! {
            @for (line, (x, y)) in self.lines.iter().zip(self.places()) {
                g class=(line.class) {
                    line class=(stroke(line)) x1=(c(x)) x2=(c(x + 16.0)) y1=(c(y + 6.0)) y2=(c(y + 6.0)) {}
                    text.small x=(c(x + 20.0)) y=(c(y + 10.0)) { (line.name) }
                }
            }
        }
    }
}

fn stroke(line: &Line) -> &'static str {
    if line.compared { "guess" } else { "curve" }
}

fn draw(line: &Line, at_x: &impl Fn(f64) -> f64, at_y: &impl Fn(f64) -> f64) -> Markup {
    let path: String = line
        .points
        .iter()
        .filter(|(_, y)| y.is_finite())
        .map(|(x, y)| format!("{},{} ", c(at_x(*x)), c(at_y(*y))))
        .collect();
    let radius = if line.compared { "2.4" } else { "3.6" };
    html! {
        g class=(line.class) {
            polyline class=(stroke(line)) points=(path.trim_end()) {}
            @for (x, y) in line.points.iter().filter(|(_, y)| y.is_finite()) {
                circle.dot cx=(c(at_x(*x))) cy=(c(at_y(*y))) r=(radius) {
                    title { (line.name) ", " (text::number(*x, 0)) ": " (text::number(*y, 2)) }
                }
            }
        }
    }
}

/// Rounds up to the next number that is 1, 2 or 5 times a power of ten.
fn round_step(raw: f64) -> f64 {
    let raw = if raw.is_finite() && raw > 0.0 {
        raw
    } else {
        1.0
    };
    let power = 10_f64.powf(raw.log10().floor());
    let round = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|&d| d * power >= raw * (1.0 - 1e-9));
    round.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        let line = Line {
            class: "p0",
            name: "plain".to_owned(),
            points,
            compared: false,
        };
        Chart {
            title: "t".to_owned(),
            x: "structures",
            y: "ns",
            logarithmic: true,
            mark: None,
            lines: vec![line],
        }
    }

    #[test]
    fn every_point_is_drawn_inside() {
        let svg = chart(vec![(64.0, 5.0), (8192.0, 43.0), (1024.0, f64::NAN)]).svg();
        assert_eq!(svg.matches("<circle").count(), 2);
        let heights = svg.split("cy=\"").skip(1);
        let heights = heights.map(|rest| rest.split('"').next().unwrap().parse::<f64>().unwrap());
        assert!(heights.into_iter().all(|y| (30.0..=BASE).contains(&y)));
    }

    #[test]
    fn charts_without_data_have_no_points() {
        assert_eq!(chart(vec![]).svg(), "");
        assert_eq!(chart(vec![(0.0, 1.0)]).svg(), "", "no logarithm of 0");
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(
            [0.9, 1.0, 3.0, 7.3, 43.0].map(round_step),
            [1.0, 1.0, 5.0, 10.0, 50.0]
        );
        assert_eq!(round_step(f64::NAN), 1.0);
    }
}
