// SPDX-License-Identifier: MIT OR Apache-2.0
//! Composes the sections of a benchmark's page: first a table of all bars, then a section for each
//! part. In tables, columns that contain only numbers become number columns, which are
//! right-aligned.

use usher_report::html::{Cell, Item, Section};
use usher_report::text;

use crate::bars::Part;

/// Returns the sections of the page: all bars, then each part.
pub fn sections(parts: &[Part]) -> Vec<Section> {
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

/// Returns the section with all bars; `None` if no part has a bar.
fn summary(parts: &[Part]) -> Option<Section> {
    let bars = || parts.iter().flat_map(|part| &part.bars);
    let (all, met) = (bars().count(), bars().filter(|bar| bar.is_met()).count());
    let rows = parts.iter().flat_map(|part| {
        let name = || [Cell::from(part.name.as_str())].into_iter();
        part.bars
            .iter()
            .map(move |bar| name().chain(bar.row()).collect())
    });
    let head = ["part", "", "measured", "bar", "unit", ""];
    (all > 0).then(|| Section {
        title: "Bars and measured figures".to_owned(),
        items: vec![
            Item::Verdict(format!("{met} of {} met.", text::count(all, "bar"))),
            Item::Table {
                head: head.map(str::to_owned).to_vec(),
                rows: rows.collect(),
            },
        ],
    })
}

/// Converts the cells of a table's columns that contain only numbers to number cells.
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

/// Converts a text cell that contains a number to a number cell with the same display.
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::bars::{Bar, Table};
    use crate::machine;

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
        part
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
    fn the_page_is_made_from_the_saved_result() {
        let folder = tempfile::tempdir().unwrap();
        let facts = machine::facts().unwrap();
        let page = machine::save(folder.path(), "T", &facts, &[part()]).unwrap();
        let html = fs::read_to_string(page).unwrap();
        let at = |text: &str| html.find(text).unwrap();
        assert!(at("1 of 2 bars met.") < at("A part"));
        assert!(
            html.contains(r#"<td class="n" data-label="long">1.20</td>"#),
            "{html}"
        );
        assert!(folder.path().join("result.json").is_file());
    }
}
