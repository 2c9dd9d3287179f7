// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is seated where, now.

use comfy_table::{Cell, Color};
use usher_model::{CpuSet, Progress};

use crate::data::SpanMode;
use crate::table::{Style, coloured, lines, table};
use crate::text;

/// A managed program at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct StatusRow {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Pid of the first process of its tree.
    pub pid: i32,
    /// Threads of the tree.
    pub threads: u32,
    /// How it runs.
    pub mode: SpanMode,
    /// Its own CPUs, or those that it shares.
    pub cpus: CpuSet,
    /// CPUs borrowed from others.
    pub borrowed: CpuSet,
    /// CPUs lent to others.
    pub lent: CpuSet,
    /// Progress a second, where it is known.
    pub rate: Option<f64>,
    /// Where progress comes from and how far it is trusted.
    pub progress: Option<Progress>,
    /// Predicted NTT, where it is known.
    pub ntt: Option<f64>,
}

/// One line a program.
pub fn status(rows: &[StatusRow], style: Style) -> String {
    if rows.is_empty() {
        return "No program is managed.".to_owned();
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
