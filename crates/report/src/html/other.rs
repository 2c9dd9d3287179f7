// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages of benchmarks, made of sections with tables, notes and figures, and the page of one
//! program's scalability curve. The cost is proportional to the content. Figures are inserted
//! unescaped, so they must come from [`crate::figure`]; all other texts are escaped.

use maud::{Markup, PreEscaped, html};
use usher_model::Curve;

use crate::data::MachineFacts;
use crate::figure::{self, CurveFigure};
use crate::html::frame::{figure as framed, frame};
use crate::html::measured;
use crate::text;

/// A section of a benchmark page.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// Heading.
    pub title: String,
    /// Content from top to bottom.
    pub items: Vec<Item>,
}

/// An element of a section.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A paragraph.
    Text(String),
    /// A paragraph in small print.
    Note(String),
    /// The conclusion of the section, emphasised.
    Verdict(String),
    /// A table: headings, then rows with the same number of cells.
    Table {
        /// Headings.
        head: Vec<String>,
        /// Rows.
        rows: Vec<Vec<Cell>>,
    },
    /// Preformatted lines, such as a command or a log.
    Lines(String),
    /// An SVG element from a function of [`crate::figure`]; it is inserted unescaped.
    Figure(String),
    /// Several small figures side by side.
    Panels(Vec<String>),
}

/// A cell of a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Text.
    Text(String),
    /// A number with its decimals; `None` and non-finite numbers become "–".
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

/// The sections in order.
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
            tbody { @for row in rows { tr { @for (i, cell) in row.iter().enumerate() { (draw_cell(cell, head.get(i).map_or("", String::as_str))) } } } }
        } }
        @if rows.is_empty() { p.empty { "This part of the report has no measurements." } }
    }
}

fn draw_cell(cell: &Cell, heading: &str) -> Markup {
    match cell {
        Cell::Text(text) => html! { td data-label=(heading) { (text) } },
        Cell::Number(value, decimals) => {
            html! { td.n data-label=(heading) { (text::number(*value, *decimals)) } }
        }
        Cell::Pass(true) => html! { td.good data-label=(heading) { "✓ met" } },
        Cell::Pass(false) => html! { td.good data-label=(heading) { "✗ missed" } },
    }
}

/// The content of a profile page.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile<'a> {
    /// Name of the program.
    pub name: &'a str,
    /// Command line.
    pub command: &'a str,
    /// The measured curve.
    pub curve: &'a Curve,
    /// Method of the measurement ("3 runs a point, progress from repetitions").
    pub source: &'a str,
    /// The machine.
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
        title: "Speed-up of the program over one core",
        class: "p0",
        cores_max,
        ..CurveFigure::default()
    };
    let rows = crate::table::curve_rows(profile.curve);
    let content = html! {
        header.top {
            h1 { (title) }
            p.lead { code { (profile.command) } }
            p.soft { (profile.machine.host) " · " (profile.machine.cpu_model) " · " (measured::topology(&profile.machine.topology)) }
        }
        main {
            (framed(&figure::curve_figure(profile.curve, &curve)))
            @for note in &profile.notes { p { (note) } }
            h2 { "Figures" }
            p.soft { (profile.source) }
            div.scroll { table {
                thead { tr { @for heading in crate::table::CURVE_HEAD { th.n { (heading) } } } }
                tbody { @for row in rows { tr {
                    @for (heading, cell) in crate::table::CURVE_HEAD.iter().zip(row) { td.n data-label=(heading) { (cell) } }
                } } }
            } }
        }
    };
    frame(&title, None, &content)
}
