// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dot plots as SVG: rows of dots on a common axis, one row per subject and one series per
//! condition.
//!
//! The axis starts at 0, or at 0.8 if all values are above 0.8, and ends at the largest value plus
//! 3 % of it. Lengths are in CSS pixels; the height grows with the number of rows, without a limit.
//! Labels are cut to 46 characters. A dot of an unknown series is left out.

use maud::{Markup, html};

use crate::figure::svg::{FigureWidth, Scale, c, in_both_widths, text_width};
use crate::text;

/// A dot.
#[derive(Debug, Clone, PartialEq)]
pub struct Dot {
    /// Index of the dot's series in the figure.
    pub series: usize,
    /// Value of the dot.
    pub value: f64,
}

/// A row of dots.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DotRow {
    /// Label on the left.
    pub label: String,
    /// The dots.
    pub dots: Vec<Dot>,
}

/// A series: name and colour class. A hollow series contains reference values, such as published
/// figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Colour class, for example `q3`.
    pub class: String,
    /// Whether the dots are drawn as rings, which mark reference values.
    pub hollow: bool,
}

/// The content of a dot plot.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Dots {
    /// Text alternative.
    pub title: String,
    /// Label of the axis.
    pub axis: String,
    /// Values marked with a line across all rows.
    pub marks: Vec<f64>,
    /// The series.
    pub series: Vec<Series>,
    /// The rows.
    pub rows: Vec<DotRow>,
}

const LEFT_WIDE: f64 = 320.0;
const RIGHT_WIDE: f64 = 30.0;
/// In a narrow figure, the label of a row is above its dots.
const SIDE_NARROW: f64 = 8.0;
const LEGEND_LINE: f64 = 20.0;
const BOTTOM: f64 = 40.0;
const ROW_WIDE: f64 = 19.0;
const ROW_NARROW: f64 = 36.0;
const RADIUS: f64 = 5.0;

/// Draws the plot. The axis starts at 0, or at 0.8 if all values are above 0.8.
pub fn dots(figure: &Dots) -> Markup {
    in_both_widths(|width| plot(figure, width))
}

fn plot(figure: &Dots, width: FigureWidth) -> Markup {
    let values = || {
        figure
            .rows
            .iter()
            .flat_map(|row| &row.dots)
            .map(|dot| dot.value)
    };
    let marks = || figure.marks.iter().copied();
    let most = values().chain(marks()).fold(f64::NEG_INFINITY, f64::max);
    let least = values().chain(marks()).fold(f64::INFINITY, f64::min);
    let from = if least > 0.8 { 0.8 } else { 0.0 };
    let (left, right) = width.pick((LEFT_WIDE, RIGHT_WIDE), (SIDE_NARROW, SIDE_NARROW));
    let x = Scale::new((from, most * 1.03), (left, width.pixels() - right));
    let legend_places = legend_places(&figure.series, width);
    let lines = legend_places.last().map_or(1.0, |place| place.1 + 1.0);
    let top = 10.0 + LEGEND_LINE * lines;
    let row_height = width.pick(ROW_WIDE, ROW_NARROW);
    let base = top + row_height * figure.rows.len() as f64;
    html! {
        svg class=(width.class()) role="img" aria-label=(figure.title)
            viewBox={ "0 0 " (c(width.pixels())) " " (c(base + BOTTOM)) } {
            @for (one, (at, line)) in figure.series.iter().zip(legend_places) {
                (shape(one, at + 6.0, 10.0 + LEGEND_LINE * line))
                text.label x=(c(at + 16.0)) y=(c(14.0 + LEGEND_LINE * line)) { (one.name) }
            }
            (axis(&x, (top, base), &figure.axis))
            @for mark in &figure.marks {
                line.unit x1=(c(x.at(*mark))) x2=(c(x.at(*mark))) y1=(c(top)) y2=(c(base + 3.0)) {}
            }
            @for (index, row) in figure.rows.iter().enumerate() {
                (draw(figure, row, &x, top + row_height * index as f64, width))
            }
        }
    }
}

/// Returns the coordinate and the line of each series in the legend.
fn legend_places(series: &[Series], width: FigureWidth) -> Vec<(f64, f64)> {
    let (mut at, mut line) = (0.0, 0.0);
    let mut places = Vec::new();
    for one in series {
        let needed = 34.0 + text_width(&one.name, 12.5);
        if at > 0.0 && at + needed > width.pixels() {
            (at, line) = (0.0, line + 1.0);
        }
        places.push((at, line));
        at += needed;
    }
    places
}

fn axis(x: &Scale, (top, base): (f64, f64), title: &str) -> Markup {
    let (start, end) = x.ends();
    let (ticks, decimals) = x.ticks(if end - start > 400.0 { 8 } else { 5 });
    html! {
        @for tick in ticks {
            @let at = c(x.at(tick));
            line.grid x1=(at) x2=(at) y1=(c(top)) y2=(c(base)) {}
            text.small.mid x=(at) y=(c(base + 15.0)) { (text::number(tick, decimals)) }
        }
        text.small.mid x=(c((start + end) / 2.0)) y=(c(base + 33.0)) { (title) }
    }
}

fn draw(figure: &Dots, row: &DotRow, x: &Scale, top: f64, width: FigureWidth) -> Markup {
    let y = top + width.pick(ROW_WIDE / 2.0, 25.0);
    let ends = row.dots.iter().map(|dot| x.at(dot.value));
    let (low, high) = ends.fold((f64::INFINITY, 0.0_f64), |(l, h), at| {
        (l.min(at), h.max(at))
    });
    let values = row.dots.iter().filter_map(|dot| {
        let series = figure.series.get(dot.series)?;
        Some(format!("{} {}", series.name, text::number(dot.value, 2)))
    });
    let values = format!("{}: {}", row.label, values.collect::<Vec<_>>().join(", "));
    html! {
        g {
            title { (values) }
            @match width {
                FigureWidth::Wide => text.label.end x=(c(LEFT_WIDE - 12.0)) y=(c(y + 4.0)) { (text::cut(&row.label, 46)) },
                FigureWidth::Narrow => text.label x="0" y=(c(top + 13.0)) { (text::cut(&row.label, 46)) },
            }
            @if low < high { line.grid x1=(c(low)) x2=(c(high)) y1=(c(y)) y2=(c(y)) {} }
            @for dot in &row.dots {
                @if let Some(series) = figure.series.get(dot.series) { (shape(series, x.at(dot.value), y)) }
            }
        }
    }
}

fn shape(series: &Series, x: f64, y: f64) -> Markup {
    let kind = if series.hollow { "ring" } else { "dot" };
    html! { circle class={ (kind) " " (series.class) } cx=(c(x)) cy=(c(y)) r=(c(RADIUS)) {} }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dot_is_drawn_once_with_a_text_alternative() {
        let series = |name: &str, hollow| Series {
            name: name.to_owned(),
            class: "q3".to_owned(),
            hollow,
        };
        let row = DotRow {
            label: "a & b".to_owned(),
            dots: vec![
                Dot {
                    series: 0,
                    value: 1.0,
                },
                Dot {
                    series: 1,
                    value: 2.0,
                },
            ],
        };
        let figure = Dots {
            series: vec![series("ours", false), series("theirs", true)],
            rows: vec![row.clone(), row],
            ..Dots::default()
        };
        let svg = dots(&figure).into_string();
        assert_eq!(
            svg.matches("class=\"dot q3\"").count(),
            6,
            "with the legend's, in both widths"
        );
        assert_eq!(svg.matches("class=\"ring q3\"").count(), 6);
        assert!(svg.contains("<title>a &amp; b: ours 1.00, theirs 2.00</title>"));
    }
}
