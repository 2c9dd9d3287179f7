// SPDX-License-Identifier: MIT OR Apache-2.0
//! Draws small figures (panels) side by side as one SVG: frames per second (FPS) against the number
//! of cores, for each pattern by which tasks are scheduled. Simulated values are lines, published
//! values are rings.

use maud::{Markup, html};
use usher_report::text;

const WIDTH: f64 = 960.0;
const COLUMNS: usize = 4;
const PANEL: (f64, f64) = (WIDTH / COLUMNS as f64, 214.0);
const TOP: f64 = 26.0;

/// The curves of one scheduling pattern in a panel, by the number of cores.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// CSS class of the colour.
    pub class: &'static str,
    /// Simulated points (cores, FPS), drawn as lines and dots.
    pub simulated: Vec<(usize, f64)>,
    /// Published points (cores, FPS), drawn as dashes and rings.
    pub published: Vec<(usize, f64)>,
}

/// One small figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// Title that is shown above the panel.
    pub title: String,
    /// The curves in the panel.
    pub curves: Vec<Curve>,
}

fn c(value: f64) -> String {
    format!("{value:.1}")
}

/// Position and scale of a panel in the figure.
struct Frame {
    left: f64,
    base: f64,
    width: f64,
    height: f64,
    cores: f64,
    most: f64,
}

impl Frame {
    fn at(&self, (cores, value): (usize, f64)) -> (f64, f64) {
        let step = self.width / (self.cores - 1.0).max(1.0);
        let x = self.left + (cores as f64 - 1.0) * step;
        (x, self.base - value / self.most * self.height)
    }

    fn path(&self, points: &[(usize, f64)]) -> String {
        let place = |&point: &(usize, f64)| {
            let (x, y) = self.at(point);
            format!("{},{} ", c(x), c(y))
        };
        points.iter().map(place).collect()
    }
}

/// Returns the distance between grid lines: a round number, about a third of the axis.
fn step(most: f64) -> f64 {
    let rough = most / 3.5;
    let power = 10_f64.powf(rough.max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps
        .into_iter()
        .find(|&step| step >= rough)
        .unwrap_or(rough)
}

/// Draws all panels in rows, with a legend above.
pub fn panels(title: &str, legend: &[(&str, &str)], panels: &[Panel]) -> String {
    let rows = panels.len().div_ceil(COLUMNS);
    let height = TOP + PANEL.1 * rows as f64;
    html! {
        svg.figure role="img" aria-label=(title) viewBox={ "0 0 " (c(WIDTH)) " " (c(height)) } {
            @for (number, (class, name)) in legend.iter().enumerate() {
                g class=(class) {
                    rect.solid x=(c(80.0 * number as f64)) y="4" width="11" height="11" {}
                    text.small x=(c(80.0 * number as f64 + 16.0)) y="14" { (name) }
                }
            }
            @for (number, panel) in panels.iter().enumerate() {
                (draw(panel, (number % COLUMNS) as f64 * PANEL.0, TOP + (number / COLUMNS) as f64 * PANEL.1))
            }
        }
    }
    .into_string()
}

fn draw(panel: &Panel, left: f64, top: f64) -> Markup {
    let points = || {
        panel
            .curves
            .iter()
            .flat_map(|curve| curve.simulated.iter().chain(&curve.published))
    };
    let frame = Frame {
        left: left + 34.0,
        base: top + PANEL.1 - 34.0,
        width: PANEL.0 - 56.0,
        height: PANEL.1 - 64.0,
        cores: points().map(|point| point.0 as f64).fold(1.0, f64::max),
        most: points().map(|point| point.1).fold(1e-9, f64::max),
    };
    let step = step(frame.most);
    let ticks = (0..=(frame.most / step) as usize).map(|tick| tick as f64 * step);
    let right = frame.left + frame.width;
    html! {
        text.title x=(c(frame.left)) y=(c(top + 16.0)) { (panel.title) }
        @for tick in ticks {
            line.grid x1=(c(frame.left)) x2=(c(right)) y1=(c(frame.at((1, tick)).1)) y2=(c(frame.at((1, tick)).1)) {}
            text.small.end x=(c(frame.left - 6.0)) y=(c(frame.at((1, tick)).1 + 4.0)) { (text::short(tick, 0)) }
        }
        @for cores in 1..=frame.cores as usize {
            text.small.mid x=(c(frame.at((cores, 0.0)).0)) y=(c(frame.base + 15.0)) { (cores) }
        }
        @for curve in &panel.curves {
            g class=(curve.class) {
                polyline.guess points=(frame.path(&curve.published)) {}
                @for &point in &curve.published {
                    circle.ring cx=(c(frame.at(point).0)) cy=(c(frame.at(point).1)) r="3" {}
                }
                polyline.curve points=(frame.path(&curve.simulated)) {}
                @for &point in &curve.simulated {
                    circle.dot cx=(c(frame.at(point).0)) cy=(c(frame.at(point).1)) r="3" {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_point_is_at_the_top_and_the_last_at_the_right() {
        let curve = Curve {
            class: "p0",
            simulated: vec![(1, 10.0), (6, 40.0)],
            published: vec![(1, 20.0)],
        };
        let panel = Panel {
            title: "QVGA".to_owned(),
            curves: vec![curve],
        };
        let svg = panels("title", &[("p0", "FCFS")], &[panel]);
        assert_eq!(svg.matches("class=\"dot\"").count(), 2);
        assert_eq!(svg.matches("class=\"ring\"").count(), 1);
        let top = format!("cx=\"{}\" cy=\"{}\"", c(PANEL.0 - 22.0), c(TOP + 30.0));
        assert!(svg.contains(&top), "{top} in {svg}");
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(
            [12.0, 33.0, 67.0, 200.0].map(step),
            [5.0, 10.0, 20.0, 100.0]
        );
    }
}
