// SPDX-License-Identifier: MIT OR Apache-2.0
//! The throughput of configurations of copies, as a table with bars and as a standalone SVG file.
//!
//! Each configuration has one row: copies, CPUs per copy, counted runs, throughput, and the ratio
//! to one copy on all CPUs. A configuration without a completed run has a note instead of a number.
//! Lengths of the SVG file are in CSS pixels; its height grows with the number of configurations.

use comfy_table::Cell;
use maud::{Markup, html};

use crate::figure::style;
use crate::figure::svg::{Scale, c};
use crate::table::{TerminalStyle, lines, table};
use crate::text;

/// The measurement of one configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct CopiesRow {
    /// Number of copies.
    pub copies: u32,
    /// CPUs of each copy.
    pub cpus: u32,
    /// Number of counted runs.
    pub runs: usize,
    /// Copies per second; `None` without a completed run.
    pub throughput: Option<f64>,
    /// Throughput relative to one copy on all CPUs.
    pub ratio: Option<f64>,
    /// Why the configuration has no throughput, or was not measured further; may be empty.
    pub note: String,
    /// Whether the configuration was chosen.
    pub is_chosen: bool,
}

/// Columns of the longest bar of the table.
const BAR_COLUMNS: usize = 24;

/// The configurations as a table with a bar per configuration.
pub fn copies_table(rows: &[CopiesRow], style: TerminalStyle) -> String {
    let head = ["copies", "CPUs each", "runs", "copies/s", "ratio", ""];
    let mut out = table(style, &head, 0..);
    if let Some(column) = out.column_mut(5) {
        column.set_cell_alignment(comfy_table::CellAlignment::Left);
    }
    let most = most(rows);
    for row in rows {
        let chosen = if row.is_chosen { " <- best" } else { "" };
        let bar = row.throughput.map_or_else(String::new, |throughput| {
            let length = (throughput / most * BAR_COLUMNS as f64).round() as usize;
            "█".repeat(length.clamp(1, BAR_COLUMNS))
        });
        let note = match row.note.is_empty() {
            true => String::new(),
            false => format!(" ({})", row.note),
        };
        let cells = [
            row.copies.to_string(),
            row.cpus.to_string(),
            row.runs.to_string(),
            row.throughput
                .map_or(text::NONE.to_owned(), |rate| text::short(rate, 4)),
            row.ratio
                .map_or(text::NONE.to_owned(), |ratio| format!("{ratio:.2}")),
            format!("{bar}{chosen}{note}").trim_start().to_owned(),
        ];
        out.add_row(cells.map(Cell::new));
    }
    lines(&out)
}

fn most(rows: &[CopiesRow]) -> f64 {
    let rates = rows.iter().filter_map(|row| row.throughput);
    rates.fold(f64::MIN_POSITIVE, f64::max)
}

const WIDTH: f64 = 560.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 34.0;
const BAR: f64 = 22.0;
const BOTTOM: f64 = 44.0;

/// The configurations as bars, in a standalone SVG file.
pub fn copies_svg(title: &str, rows: &[CopiesRow]) -> String {
    let base = TOP + BAR * rows.len() as f64;
    let height = base + BOTTOM;
    let x = Scale::new((0.0, most(rows)), (LEFT, WIDTH - RIGHT));
    let (ticks, decimals) = x.ticks(5);
    html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(c(WIDTH)) height=(c(height))
            viewBox={ "0 0 " (c(WIDTH)) " " (c(height)) } role="img" aria-label=(title) {
            style { (maud::PreEscaped(style::CSS)) }
            rect.surface x="0" y="0" width=(c(WIDTH)) height=(c(height)) {}
            text.title x="12" y="20" { (title) }
            @for tick in ticks {
                line.grid x1=(c(x.at(tick))) x2=(c(x.at(tick))) y1=(c(TOP)) y2=(c(base)) {}
                text.small.mid x=(c(x.at(tick))) y=(c(base + 16.0)) { (text::number(tick, decimals)) }
            }
            text.small.mid x=(c((LEFT + WIDTH - RIGHT) / 2.0)) y=(c(base + 34.0)) {
                "throughput in copies per second"
            }
            @for (at, row) in rows.iter().enumerate() {
                (bar(row, &x, TOP + BAR * at as f64))
            }
            line.axis x1=(c(LEFT)) x2=(c(LEFT)) y1=(c(TOP)) y2=(c(base)) {}
        }
    }
    .into_string()
}

fn bar(row: &CopiesRow, x: &Scale, top: f64) -> Markup {
    let label = format!(
        "{} x {}",
        text::copies(row.copies as usize),
        text::count(row.cpus as usize, "CPU")
    );
    let end = x.at(row.throughput.unwrap_or(0.0));
    let class = if row.is_chosen { "p0" } else { "p1" };
    let value = match (row.throughput, row.ratio) {
        (Some(rate), Some(ratio)) => format!("{} ({ratio:.2}x)", text::short(rate, 3)),
        (Some(rate), None) => text::short(rate, 3),
        (None, _) => row.note.clone(),
    };
    html! {
        text.small.end x=(c(LEFT - 6.0)) y=(c(top + 15.0)) { (label) }
        g class=(class) {
            rect style="fill:var(--c)" x=(c(LEFT)) y=(c(top + 3.0)) width=(c((end - LEFT).max(0.0)))
                height=(c(BAR - 6.0)) {}
        }
        text.small x=(c(end + 5.0)) y=(c(top + 15.0)) { (value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<CopiesRow> {
        let row = |copies, cpus, throughput: Option<f64>| CopiesRow {
            copies,
            cpus,
            runs: usize::from(throughput.is_some()),
            throughput,
            ratio: throughput.map(|rate| rate / 2.0),
            note: if throughput.is_none() {
                "a copy failed".to_owned()
            } else {
                String::new()
            },
            is_chosen: copies == 2,
        };
        vec![row(1, 4, Some(2.0)), row(2, 2, Some(4.0)), row(4, 1, None)]
    }

    #[test]
    fn the_table_marks_the_choice_and_names_failures() {
        let text = copies_table(&rows(), TerminalStyle::PLAIN);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let full = "█".repeat(BAR_COLUMNS);
        assert!(lines[2].ends_with(&"█".repeat(BAR_COLUMNS / 2)), "{text}");
        assert!(
            lines[3].ends_with(&format!("2.00  {full} <- best")),
            "{text}"
        );
        assert!(lines[4].ends_with("(a copy failed)"), "{text}");
    }

    #[test]
    fn the_picture_has_a_bar_per_configuration_and_an_axis() {
        let picture = copies_svg("x264", &rows());
        assert_eq!(picture.matches("fill:var(--c)").count(), 3);
        assert!(picture.contains("throughput in copies per second"));
        assert!(picture.contains("2 copies x 2 CPUs") && picture.contains("1 copy x 4 CPUs"));
    }
}
