// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts as a terminal and a page show them: all bars first on the page, numbers below one
//! another, notes no wider than the terminal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use usher_report::data::MachineFacts;
use usher_report::html::{Cell, Item, Section, bench_page};
use usher_report::text;

use crate::bars::{Bar, Part, Table};
use crate::machine;

/// Columns where standard output is no terminal.
const WIDTH: usize = 100;
/// What notes are indented by.
const INDENT: usize = 10;
/// Characters of a note's line, however narrow the terminal is.
const NOTE_AT_LEAST: usize = 20;

/// Columns of the terminal.
pub fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stdout());
    match size.map_or(0, |size| usize::from(size.ws_col)) {
        0 => WIDTH,
        columns => columns,
    }
}

/// A part for a terminal of so many columns: bars, notes, tables.
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

/// Saves what was measured on this machine and the page made of it; where that is.
pub fn save(folder: &Path, title: &str, facts: &MachineFacts, parts: &[Part]) -> Result<PathBuf> {
    let page = machine::save(folder, title, facts, parts).context("saving the results")?;
    let html = bench_page(title, Some(facts), &sections(parts));
    fs::write(&page, html).with_context(|| format!("writing {}", page.display()))?;
    Ok(page)
}

/// What the page shows: all bars, then part by part.
fn sections(parts: &[Part]) -> Vec<Section> {
    let each = parts.iter().map(|part| {
        let section = part.section();
        let items = section.items.into_iter().map(aligned);
        Section {
            items: items.collect(),
            ..section
        }
    });
    summary(parts).into_iter().chain(each).collect()
}

/// All bars; `None` where nothing is asked.
fn summary(parts: &[Part]) -> Option<Section> {
    let bars = || parts.iter().flat_map(|part| &part.bars);
    let (all, met) = (bars().count(), bars().filter(|bar| bar.is_met()).count());
    let rows = parts.iter().flat_map(|part| {
        let items = part.section().items;
        let of_bars = items.into_iter().filter_map(rows_of_bars).flatten();
        of_bars.map(|row| [Cell::from(part.name.as_str())].into_iter().chain(row))
    });
    let rows: Vec<Vec<Cell>> = rows.map(Iterator::collect).collect();
    let head = ["part", "", "measured", "asked", "unit", ""];
    (all > 0).then(|| Section {
        title: "What is asked, and what was measured".to_owned(),
        items: vec![
            Item::Verdict(format!("{met} of {} met.", text::count(all, "bar"))),
            Item::Table {
                head: head.map(str::to_owned).to_vec(),
                rows,
            },
        ],
    })
}

/// The rows of a section's table of bars.
fn rows_of_bars(item: Item) -> Option<Vec<Vec<Cell>>> {
    let Item::Table { rows, .. } = item else {
        return None;
    };
    let is_bar = |row: &Vec<Cell>| matches!(row.last(), Some(Cell::Pass(_)));
    rows.first().is_some_and(is_bar).then_some(rows)
}

/// Columns of a table that hold nothing but numbers, as such.
fn aligned(item: Item) -> Item {
    let Item::Table { head, mut rows } = item else {
        return item;
    };
    for column in 0..head.len() {
        let cells = rows.iter().map(|row| number(row.get(column)?));
        let Some(numbers) = cells.collect::<Option<Vec<Cell>>>() else {
            continue;
        };
        for (row, number) in rows.iter_mut().zip(numbers) {
            row[column] = number;
        }
    }
    Item::Table { head, rows }
}

/// A cell that reads as a number, as one that reads the same.
fn number(cell: &Cell) -> Option<Cell> {
    let Cell::Text(text) = cell else {
        return None;
    };
    if text == text::NONE {
        return Some(Cell::Number(None, 0));
    }
    let value = text.replace('\u{2212}', "-").parse::<f64>().ok();
    let decimals = text.split_once('.').map_or(0, |(_, after)| after.len());
    let reads_the_same = |value: &f64| text::number(*value, decimals) == *text;
    let value = value.filter(reads_the_same)?;
    Some(Cell::Number(Some(value), decimals))
}

/// Whether every bar was met.
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

    #[test]
    fn all_bars_are_at_the_top_of_the_page() {
        let all = sections(&[part(), Part::new("y", "No bars")]);
        assert_eq!(all.len(), 3);
        assert_eq!(
            all[0].items[0],
            Item::Verdict("1 of 2 bars met.".to_owned())
        );
        let Item::Table { rows, .. } = &all[0].items[1] else {
            unreachable!()
        };
        let cells = [Cell::from("x"), "less".into(), Cell::Number(Some(1.0), 3)];
        assert_eq!(rows[0][..3], cells);
        assert_eq!(rows[1][5], Cell::Pass(false));
        assert!(sections(&[Part::new("y", "No bars")]).len() == 1);
    }

    #[test]
    fn columns_of_numbers_are_aligned() {
        let section = &sections(&[part()])[1];
        let Item::Table { rows, .. } = &section.items[0] else {
            unreachable!()
        };
        let numbers = [Cell::Number(Some(1.2), 2), Cell::Number(None, 0)];
        assert_eq!(
            rows.iter().map(|row| &row[1]).collect::<Vec<_>>(),
            [&numbers[0], &numbers[1]]
        );
        assert_eq!(
            rows[1][2],
            Cell::from("3"),
            "one range makes all of them text"
        );
        let reads = |text: &str| number(&text.into());
        assert_eq!(reads("\u{2212}3.0"), Some(Cell::Number(Some(-3.0), 1)));
        for words in ["", "ours", "inf", "1e3", "007", "+5"] {
            assert_eq!(reads(words), None, "{words}");
        }
    }

    #[test]
    fn the_page_is_made_of_what_was_saved() {
        let folder = tempfile::tempdir().unwrap();
        let facts = machine::facts().unwrap();
        let page = save(folder.path(), "T", &facts, &[part()]).unwrap();
        let html = fs::read_to_string(page).unwrap();
        let at = |text: &str| html.find(text).unwrap();
        assert!(at("1 of 2 bars met.") < at("A part"));
        assert!(html.contains(r#"<td class="n">1.20</td>"#), "{html}");
        assert!(folder.path().join("result.json").is_file());
        assert!(!are_met(&[part()]) && are_met(&[]));
    }
}
