// SPDX-License-Identifier: MIT OR Apache-2.0
//! The present seats as a table: one row per managed program with its CPUs, loans, progress and
//! predicted NTT. Missing values become "–"; without programs, a sentence replaces the table.

use comfy_table::{Cell, Color};
use usher_model::{CpuSet, Progress};

use crate::data::SpanMode;
use crate::table::{TerminalStyle, coloured, lines, table};
use crate::text;

/// The present state of a managed program.
#[derive(Debug, Clone, PartialEq)]
pub struct StatusRow {
    /// Number of the program.
    pub id: u64,
    /// Name of the program.
    pub name: String,
    /// Pid of the first process of the program's tree.
    pub pid: i32,
    /// Number of threads of the program's tree.
    pub threads: u32,
    /// Mode of the program.
    pub mode: SpanMode,
    /// CPUs of the program, or CPUs that it shares.
    pub cpus: CpuSet,
    /// CPUs borrowed from other programs.
    pub borrowed: CpuSet,
    /// CPUs lent to other programs.
    pub lent: CpuSet,
    /// Progress per second, if known.
    pub rate: Option<f64>,
    /// Source of progress with its confidence.
    pub progress: Option<Progress>,
    /// Predicted NTT, if known.
    pub ntt: Option<f64>,
}

/// Returns the table with one row per program, or a sentence if there are no programs.
pub fn status(rows: &[StatusRow], style: TerminalStyle) -> String {
    if rows.is_empty() {
        return "The daemon manages no program.".to_owned();
    }
    let head = [
        "id",
        "program",
        "mode",
        "CPUs",
        "progress from",
        "pid",
        "threads",
        "cores",
        "borrowed",
        "lent",
        "progress/s",
        "NTT",
    ];
    let mut out = table(style, &head, 5..);
    for row in rows {
        let (mode, colour) = match row.mode {
            SpanMode::Seated => ("seated", Color::Green),
            SpanMode::Shared => ("shared", Color::Yellow),
            SpanMode::InTurn => ("in turn", Color::Green),
            SpanMode::Frozen => ("stopped", Color::Red),
        };
        out.add_row(vec![
            Cell::new(row.id),
            Cell::new(&row.name),
            coloured(mode, style, Some(colour)),
            Cell::new(&row.cpus),
            Cell::new(source(row.progress)),
            Cell::new(row.pid),
            Cell::new(row.threads),
            Cell::new(row.cpus.len()),
            Cell::new(or_none(&row.borrowed)),
            Cell::new(or_none(&row.lent)),
            Cell::new(text::number(row.rate, 2)),
            Cell::new(text::number(row.ntt, 2)),
        ]);
    }
    lines(&out)
}

fn source(progress: Option<Progress>) -> String {
    match progress {
        Some(p) => format!("{} ({})", p.source, text::percent(p.confidence)),
        None => text::NONE.to_owned(),
    }
}

fn or_none(cpus: &CpuSet) -> String {
    match cpus.is_empty() {
        true => text::NONE.to_owned(),
        false => cpus.to_string(),
    }
}
