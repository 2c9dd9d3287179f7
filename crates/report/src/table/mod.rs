// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables and small pictures for terminals. The caller determines the terminal's properties: colour
//! support (none with `NO_COLOR` or without a terminal) and width in columns. A table that is wider
//! than the terminal wraps its cells; without a width, lines have no limit.

mod mix;
mod picture;
mod profile;
mod status;

use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, LineStyle, Table, TableStyle};

pub use mix::{mixes, ntt, summary};
pub use picture::{curve, seats};
pub use profile::{CURVE_HEAD, curve_rows, profile};
pub use status::{StatusRow, status};

/// Capabilities of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalStyle {
    /// Whether ANSI colours may be written.
    pub colour: bool,
    /// Number of columns; longer cells are wrapped. `None`: unlimited.
    pub width: Option<u16>,
}

impl TerminalStyle {
    /// No colour and no limit: for files, pipes and tests.
    pub const PLAIN: Self = Self {
        colour: false,
        width: None,
    };
}

// The table has one rule, below the headings.
const LINES: TableStyle = TableStyle::new().header_separator(LineStyle::new('─', '─', '─', '─'));

/// A table with these headings; the columns in `right` are right-aligned.
pub(crate) fn table(
    style: TerminalStyle,
    head: &[&str],
    right: std::ops::RangeFrom<usize>,
) -> Table {
    let mut table = Table::new();
    table.load_style(LINES);
    match style.width {
        Some(width) => table
            .set_width(width)
            .set_content_arrangement(ContentArrangement::Dynamic),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    match style.colour {
        true => table.enforce_styling(),
        false => table.force_no_tty(),
    };
    table.set_header(head.iter().map(Cell::new));
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if index >= right.start {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn coloured(text: impl ToString, style: TerminalStyle, color: Option<Color>) -> Cell {
    let cell = Cell::new(text.to_string());
    match color.filter(|_| style.colour) {
        Some(color) => cell.fg(color),
        None => cell,
    }
}

/// Returns green if the interval of the ratio lies below 1, and red if the interval lies above 1.
fn verdict_colour(ratio: Option<crate::stats::Estimate>) -> Option<Color> {
    let ratio = ratio?;
    if ratio.is_below(1.0) {
        Some(Color::Green)
    } else {
        ratio.is_above(1.0).then_some(Color::Red)
    }
}

/// The table's lines without surrounding spaces.
pub(crate) fn lines(table: &Table) -> String {
    let lines = table.lines().map(|line| {
        let line = line.strip_prefix(' ').unwrap_or(&line);
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}
