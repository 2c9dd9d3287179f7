// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats the parts of a result for a terminal: bars, notes and tables. Notes are wrapped at the
//! width of the terminal, or at 100 columns if the width is unknown. A line of a note has room for at
//! least 20 characters, and a longer word is not divided. Tables are not wrapped.

use std::io;

use crate::bars::{Bar, Part, Table};

/// Width in columns if standard output is no terminal.
const WIDTH: usize = 100;
/// Indentation of notes.
const INDENT: usize = 10;
/// Smallest width at which notes are wrapped, in characters, even on a narrower terminal.
const NOTE_AT_LEAST: usize = 20;

/// Returns the number of columns of the terminal.
pub fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stdout());
    match size.map_or(0, |size| usize::from(size.ws_col)) {
        0 => WIDTH,
        columns => columns,
    }
}

/// Formats a part for a terminal of `width` columns: bars, notes, tables.
pub fn terminal(part: &Part, width: usize) -> String {
    let bars = Part {
        bars: part.bars.clone(),
        ..Part::new(&part.name, &part.title)
    };
    let notes = part.notes.iter().map(|note| wrapped(note, width));
    format!(
        "{}{}{}",
        bars.lines(),
        notes.collect::<String>(),
        tables(part)
    )
}

fn wrapped(note: &str, width: usize) -> String {
    let room = width.saturating_sub(INDENT).max(NOTE_AT_LEAST);
    let mut lines = String::new();
    let mut line = String::new();
    let mut end = |line: &str| lines.push_str(&format!("{:INDENT$}{line}\n", ""));
    for word in note.split(' ') {
        let long = line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && long > room {
            end(&std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    end(&line);
    lines
}

fn tables(part: &Part) -> String {
    let table = |table: &Table| {
        let lines: Vec<&Vec<String>> = [&table.head].into_iter().chain(&table.rows).collect();
        let width = |at: usize| {
            let cells = lines.iter().filter_map(|line| line.get(at));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..table.head.len()).map(width).collect();
        let line = |line: &&Vec<String>| {
            let cells = line.iter().zip(&widths);
            let cells = cells.map(|(cell, &width)| format!("  {cell:>width$}"));
            cells.collect::<String>() + "\n"
        };
        lines.iter().map(line).collect::<String>()
    };
    part.tables.iter().map(table).collect()
}

/// Returns whether every bar of the parts was met.
pub fn are_met(parts: &[Part]) -> bool {
    parts.iter().all(|part| part.bars.iter().all(Bar::is_met))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> Part {
        let mut part = Part::new("x", "A part");
        part.bars = vec![
            Bar::at_most("less", 1.0, 2.0, "ms"),
            Bar::at_most("none", None, 2.0, ""),
        ];
        part.tables = vec![Table {
            head: ["a", "long", "range"].map(str::to_owned).to_vec(),
            rows: [["ours", "1.20", "1 to 2"], ["others", "–", "3"]]
                .map(|row| row.map(str::to_owned).to_vec())
                .to_vec(),
        }];
        part.notes = vec!["one two three four".to_owned()];
        part
    }

    #[test]
    fn columns_are_as_wide_as_their_widest() {
        let expected = "       a  long   range\n    ours  1.20  1 to 2\n  others     –       3\n";
        assert_eq!(tables(&part()), expected);
    }

    #[test]
    fn notes_are_no_wider_than_the_terminal() {
        let indent = " ".repeat(INDENT);
        let of = |width| wrapped("one two three four five", width);
        assert_eq!(of(80), format!("{indent}one two three four five\n"));
        let two = format!("{indent}one two three four\n{indent}five\n");
        assert_eq!([of(INDENT + 22), of(0)], [two.clone(), two]);
        let long = wrapped(&"x".repeat(50), 30);
        assert_eq!(long, format!("{indent}{}\n", "x".repeat(50)));
        let shown = terminal(&part(), 80);
        assert!(shown.starts_with("A part\n  met     less"), "{shown}");
        let order = ["MISSED", "one two three", "ours  1.20"].map(|at| shown.find(at).unwrap());
        assert!(order.is_sorted(), "{shown}");
    }
}
