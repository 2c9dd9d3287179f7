// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages about other things: a benchmark's tables, notes and figures; one
//! program's curve.

use maud::{Markup, PreEscaped, html};
use usher_model::Curve;

use crate::data::MachineFacts;
use crate::figure::{self, CurveFigure};
use crate::html::frame::{figure as framed, frame};
use crate::html::measured;
use crate::text;

/// A part of a benchmark's page.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// Its heading.
    pub title: String,
    /// What it shows, from top to bottom.
    pub items: Vec<Item>,
}

/// Something in a section.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A paragraph.
    Text(String),
    /// A small print paragraph.
    Note(String),
    /// The section's conclusion, set apart.
    Verdict(String),
    /// A table: headings, then rows of as many cells.
    Table {
        /// Headings.
        head: Vec<String>,
        /// Rows.
        rows: Vec<Vec<Cell>>,
    },
    /// Preformatted lines, such as a command or a log.
    Lines(String),
    /// An SVG element, as the functions of [`crate::figure`] give it; goes
    /// into the page unescaped.
    Figure(String),
    /// Several small ones side by side.
    Panels(Vec<String>),
}

/// A table's cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A number with so many decimals; `None` and not-a-number read "–".
    Number(Option<f64>, usize),
    /// Whether a bar was met.
    Pass(bool),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A page about a benchmark.
pub fn bench_page(title: &str, machine: Option<&MachineFacts>, sections: &[Section]) -> String {
    let content = html! {
        header.top {
            h1 { (title) }
            @if let Some(m) = machine {
                p.soft { (m.host) " · " (m.cpu_model) " · " (measured::topology(&m.topology)) " · " (m.kernel) }
                @for note in &m.notes { p.soft { (note) } }
            }
        }
        main { (drawn(sections)) }
    };
    frame(title, None, &content)
}

/// Sections, one below the other.
pub(crate) fn drawn(sections: &[Section]) -> Markup {
    html! {
        @for section in sections {
            h2 { (section.title) }
            @for item in &section.items { (draw(item)) }
        }
    }
}

fn draw(item: &Item) -> Markup {
    match item {
        Item::Text(text) => html! { p { (text) } },
        Item::Note(text) => html! { p.soft { (text) } },
        Item::Verdict(text) => html! { section.verdict { p.sentence { (text) } } },
        Item::Lines(text) => html! { pre { (text) } },
        Item::Figure(svg) => framed(&PreEscaped(svg.clone())),
        Item::Panels(panels) => html! {
            div.panels { @for svg in panels { div { (PreEscaped(svg)) } } }
        },
        Item::Table { head, rows } => table(head, rows),
    }
}

fn table(head: &[String], rows: &[Vec<Cell>]) -> Markup {
    let numeric = |column: usize| {
        let cell = rows.iter().find_map(|row| row.get(column));
        matches!(cell, Some(Cell::Number(..)))
    };
    html! {
        div.scroll { table {
            thead { tr { @for (i, heading) in head.iter().enumerate() { th.n[numeric(i)] { (heading) } } } }
            tbody { @for row in rows { tr { @for cell in row { (draw_cell(cell)) } } } }
        } }
        @if rows.is_empty() { p.empty { "Nothing was measured." } }
    }
}

fn draw_cell(cell: &Cell) -> Markup {
    match cell {
        Cell::Text(text) => html! { td { (text) } },
        Cell::Number(value, decimals) => html! { td.n { (text::number(*value, *decimals)) } },
        Cell::Pass(true) => html! { td.good { "✓ met" } },
        Cell::Pass(false) => html! { td.good { "✗ missed" } },
    }
}

/// What a profile page shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile<'a> {
    /// The program's name.
    pub name: &'a str,
    /// Its command line.
    pub command: &'a str,
    /// What was measured.
    pub curve: &'a Curve,
    /// How ("3 runs a point, progress from repetitions").
    pub source: &'a str,
    /// Where.
    pub machine: &'a MachineFacts,
    /// Remarks: "falls beyond 8 cores", "busy-waits".
    pub notes: Vec<String>,
}

/// A page about one program's scalability.
pub fn profile_page(profile: &Profile) -> String {
    let title = format!("Scalability of {}", profile.name);
    let cores_max: f64 = profile
        .machine
        .topology
        .cores
        .iter()
        .map(|c| c.capacity)
        .sum();
    let curve = CurveFigure {
        title: "Speed-up over one core",
        class: "p0",
        cores_max,
        seats: Vec::new(),
    };
    let rows = crate::table::curve_rows(profile.curve);
    let content = html! {
        header.top {
            h1 { (title) }
            p.lead { code { (profile.command) } }
            p.soft { (profile.machine.host) " · " (profile.machine.cpu_model) " · " (measured::topology(&profile.machine.topology)) }
        }
        main {
            (framed(&figure::curve_panel(profile.curve, &curve, 1040.0, 430.0)))
            @for note in &profile.notes { p { (note) } }
            h2 { "Figures" }
            p.soft { (profile.source) }
            table {
                thead { tr { @for heading in crate::table::CURVE_HEAD { th.n { (heading) } } } }
                tbody { @for row in rows { tr { @for cell in row { td.n { (cell) } } } } }
            }
        }
    };
    frame(&title, None, &content)
}
