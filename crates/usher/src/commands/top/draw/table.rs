// SPDX-License-Identifier: GPL-2.0-only
//! Draws the table of the programs: the columns that fit, their titles, a row for each program, and
//! the sparkline of its history.
//!
//! Columns that do not fit are left out, the least important first ([`Column::BY_IMPORTANCE`]). The
//! column that sorts the rows, except ID, precedes all columns but the name in importance. The rest
//! of the line is the command. Text of programs is escaped by [`shown`].

use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Style};
use ratatui_core::widgets::Widget;
use ratatui_widgets::sparkline::Sparkline;
use unicode_width::UnicodeWidthStr;

use super::{FAINT, Lines, REVERSED, STRONG};
use crate::commands::status;
use crate::commands::top::sort_key::SortKey;
use crate::commands::top::view::{Row, View};
use crate::output::{self, shown};

/// Width of a sparkline in columns.
const HISTORY_WIDTH: usize = 16;
/// Minimum width of the command in columns.
const COMMAND_WIDTH_MIN: usize = 12;

/// A column of the table, except the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Letter,
    Id,
    Name,
    User,
    Pid,
    Seats,
    Ntt,
    Busy,
    Time,
    Progress,
    History,
}

impl Column {
    /// In the order of the table.
    pub const ALL: [Self; 11] = [
        Self::Letter,
        Self::Id,
        Self::Name,
        Self::User,
        Self::Pid,
        Self::Seats,
        Self::Ntt,
        Self::Busy,
        Self::Time,
        Self::Progress,
        Self::History,
    ];
    /// The most important column first.
    const BY_IMPORTANCE: [Self; 11] = [
        Self::Letter,
        Self::Name,
        Self::Seats,
        Self::Busy,
        Self::History,
        Self::Progress,
        Self::Ntt,
        Self::Time,
        Self::User,
        Self::Id,
        Self::Pid,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::Letter => "",
            Self::Id => "ID",
            Self::Name => "PROGRAM",
            Self::User => "USER",
            Self::Pid => "PID",
            Self::Seats => "SEATS",
            Self::Ntt => "NTT",
            Self::Busy => "BUSY",
            Self::Time => "TIME",
            Self::Progress => "PROGRESS",
            Self::History => "HISTORY",
        }
    }

    /// Maximum width; longer texts are shortened.
    fn width_max(self) -> usize {
        match self {
            Self::Name => 16,
            Self::User => 10,
            Self::Seats => 24,
            _ => 20,
        }
    }

    fn text(self, row: &Row) -> String {
        let program = row.program;
        match self {
            Self::Letter => row.letter.to_string(),
            Self::Id => program.id.to_string(),
            Self::Name => shown(&program.name),
            Self::User => shown(row.user),
            Self::Pid => program.pid.to_string(),
            Self::Seats => status::seats(program),
            Self::Ntt => program
                .ntt
                .map_or("–".to_owned(), |ntt| format!("{ntt:.2}")),
            Self::Busy => format!("{:.1}", program.busy_cpus),
            Self::Time => status::cpu_time(program.cpu_seconds),
            Self::Progress => program
                .progress
                .as_ref()
                .map_or("–".to_owned(), status::rate),
            // The sparkline is drawn over the cell.
            Self::History => " ".repeat(HISTORY_WIDTH),
        }
    }
}

/// Draws the titles and the rows, or the reason why there are no rows. Rows that do not fit above
/// `bottom` are left out.
pub fn table(view: &View, rows: &[Row], lines: &mut Lines, bottom: usize) {
    if rows.is_empty() {
        let text = match view.filter.is_empty() {
            true => "'usher run -- CMD' or 'usher attach PID' adds a program",
            false => "no program matches the filter",
        };
        lines.line(text, Style::new());
        return;
    }
    let width = usize::from(lines.area.width);
    let columns = columns(rows, view.sort, width);
    titles(view, &columns, lines);
    let room = bottom.saturating_sub(lines.y);
    let selected = rows.iter().position(|row| Some(row.key) == view.selected);
    // The selected row is the last one that is visible, if it would not be visible otherwise.
    let skipped = selected.map_or(0, |at| (at + 1).saturating_sub(room));
    for (at, row) in rows.iter().enumerate().skip(skipped).take(room) {
        draw_row(row, &columns, lines);
        if Some(at) == selected {
            lines.styled(REVERSED);
            lines.part(1, ">", REVERSED);
        }
        lines.y += 1;
    }
}

/// Returns the columns that fit, with their widths, in the order of the table.
fn columns(rows: &[Row], sort: SortKey, width: usize) -> Vec<(Column, usize)> {
    let wide = |column: Column| {
        let texts = rows.iter().map(|row| column.text(row).width());
        let widest = texts.max().unwrap_or(0).max(column.title().width());
        (column, widest.min(column.width_max()))
    };
    let mut chosen: Vec<(Column, usize)> = Vec::new();
    let mut used = 0;
    // ID is excluded: rows in the order of ID are in the order of arrival, which needs no column.
    let sort = Some(sort).filter(|&sort| sort != SortKey::Number);
    let is_sort = |column: Column| sort.is_some_and(|sort| sort.title() == column.title());
    let first =
        |&column: &Column| matches!(column, Column::Letter | Column::Name) || is_sort(column);
    let (first, rest): (Vec<_>, Vec<_>) = Column::BY_IMPORTANCE.into_iter().partition(first);
    for column in first.into_iter().chain(rest) {
        let (column, wide) = wide(column);
        if used + wide <= width {
            used += wide + 2;
            chosen.push((column, wide));
        }
    }
    let place = |column: Column| Column::ALL.iter().position(|&other| other == column);
    chosen.sort_by_key(|&(column, _)| place(column));
    chosen
}

fn titles(view: &View, columns: &[(Column, usize)], lines: &mut Lines) {
    let mut x = 0;
    for &(column, wide) in columns {
        let sorted = column.title() == view.sort.title();
        let style = if sorted { REVERSED } else { STRONG };
        lines.part(x, column.title(), style);
        x += wide + 2;
    }
    if has_command(x, lines.area) {
        lines.part(x, "COMMAND", STRONG);
    }
    lines.y += 1;
}

fn has_command(x: usize, area: Rect) -> bool {
    x + COMMAND_WIDTH_MIN <= usize::from(area.width)
}

fn draw_row(row: &Row, columns: &[(Column, usize)], lines: &mut Lines) {
    let mut x = 0;
    for &(column, wide) in columns {
        let style = match column {
            Column::Letter => Style::new().fg(Color::Cyan),
            _ => Style::new(),
        };
        lines.part(x, &output::cut(&column.text(row), wide), style);
        if column == Column::History {
            sparkline(row, x, lines);
        }
        x += wide + 2;
    }
    if has_command(x, lines.area) {
        lines.part(x, &shown(&row.program.command), FAINT);
    }
}

/// Draws the latest values of the history, scaled to their maximum.
fn sparkline(row: &Row, x: usize, lines: &mut Lines) {
    let Some(history) = row.history else {
        return;
    };
    let values = history
        .iter()
        .skip(history.len().saturating_sub(HISTORY_WIDTH));
    let values: Vec<f64> = values.map(|value| value.max(0.0)).collect();
    let max = values.iter().copied().fold(0.0, f64::max);
    // The widget draws whole numbers: 0 to 800, of which 100 is the lowest bar.
    let scaled = values.iter().map(|value| match max > 0.0 {
        true => (value / max * 800.0) as u64,
        false => 0,
    });
    let scaled: Vec<u64> = scaled.collect();
    let place = Rect::new(x as u16, lines.y as u16, HISTORY_WIDTH as u16, 1);
    let place = place.intersection(lines.area);
    if !place.is_empty() {
        let bars = Sparkline::default().data(&scaled).max(800);
        bars.style(Style::new().fg(Color::Green))
            .render(place, lines.picture);
    }
}
