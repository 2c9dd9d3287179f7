// SPDX-License-Identifier: MIT OR Apache-2.0
//! Result types of all benchmarks. A result consists of parts; a part consists of bars, notes,
//! tables, figures and raw data. A bar is a measured figure with its upper or lower limit. A figure
//! that could not be measured does not meet its bar.

use serde::{Deserialize, Serialize};
use usher_report::html::{Cell, Item, Section as PageSection};

/// A measured figure and its limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// Label of the figure.
    pub what: String,
    /// The figure; `None` if it could not be measured.
    pub measured: Option<f64>,
    /// Unit of the figure.
    pub unit: String,
    /// The largest value of the figure that meets the bar.
    pub at_most: f64,
    /// The smallest value of the figure that meets the bar; `None`: no lower limit.
    pub at_least: Option<f64>,
}

impl Bar {
    /// Returns a bar for a figure that must not exceed a limit. Without a figure (`None`), the bar
    /// is not met.
    pub fn at_most(
        what: impl Into<String>,
        measured: impl Into<Option<f64>>,
        limit: f64,
        unit: &str,
    ) -> Self {
        Self {
            what: what.into(),
            measured: measured.into(),
            unit: unit.to_owned(),
            at_most: limit,
            at_least: None,
        }
    }

    /// Returns a bar for a figure that must reach a limit. Without a figure (`None`), the bar is
    /// not met.
    pub fn at_least(
        what: impl Into<String>,
        measured: impl Into<Option<f64>>,
        limit: f64,
        unit: &str,
    ) -> Self {
        Self {
            at_least: Some(limit),
            ..Self::at_most(what, measured, f64::MAX, unit)
        }
    }

    /// Returns a bar for a count that must be 0.
    pub fn none(what: impl Into<String>, count: usize) -> Self {
        Self::at_most(what, count as f64, 0.0, "")
    }

    /// Whether the bar is met. A bar without a measured figure is not met.
    pub fn is_met(&self) -> bool {
        let above = |least: f64| self.measured.is_some_and(|m| m >= least);
        self.measured.is_some_and(|m| m <= self.at_most) && self.at_least.is_none_or(above)
    }

    /// The limits of the bar, as text.
    fn limit(&self) -> String {
        match self.at_least {
            Some(least) if self.at_most == f64::MAX => format!(">= {least}"),
            Some(least) => format!("{least} .. {}", self.at_most),
            None => format!("<= {}", self.at_most),
        }
    }

    /// The cells of the bar's row in a table.
    pub fn row(&self) -> Vec<Cell> {
        vec![
            Cell::Text(self.what.clone()),
            Cell::Number(self.measured, 3),
            Cell::Text(self.limit()),
            Cell::Text(self.unit.clone()),
            Cell::Pass(self.is_met()),
        ]
    }
}

/// One part of a benchmark's result: bars, notes, tables, figures, and the raw data from which they
/// were computed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Name of the part on the command line.
    pub name: String,
    /// Heading of the part on the page.
    pub title: String,
    /// The measured figures with their limits.
    pub bars: Vec<Bar>,
    /// The method and remarks, one paragraph each.
    pub notes: Vec<String>,
    /// Tables in addition to the table of bars.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<Table>,
    /// Figures of the page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
    /// All measured data of the part.
    pub raw: serde_json::Value,
}

/// A table of a page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Headings.
    pub head: Vec<String>,
    /// Rows with the same number of cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns the table as text with aligned columns.
    fn lines(&self) -> String {
        let rows = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column: usize| {
            let cells = rows().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths);
            let padded = cells.map(|(cell, width)| format!("  {cell:<width$}"));
            format!("{}\n", padded.collect::<String>().trim_end())
        };
        rows().map(line).collect()
    }
}

/// A figure of a page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Caption of the figure.
    pub caption: String,
    /// The figure, an SVG element.
    pub svg: String,
}

impl Part {
    /// Returns a part with a name and a heading, without results.
    pub fn new(name: &str, title: &str) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            bars: vec![],
            notes: vec![],
            tables: vec![],
            figures: vec![],
            raw: serde_json::Value::Null,
        }
    }

    /// Returns the section of the page that shows the part.
    pub fn section(&self) -> PageSection {
        let head = ["", "measured", "bar", "unit", ""]
            .map(str::to_owned)
            .to_vec();
        let table = (!self.bars.is_empty()).then(|| Item::Table {
            head,
            rows: self.bars.iter().map(Bar::row).collect(),
        });
        let figures = self.figures.iter().flat_map(|figure| {
            let caption = Item::Text(figure.caption.clone());
            [caption, Item::Figure(figure.svg.clone())]
        });
        let tables = self.tables.iter().map(|table| Item::Table {
            head: table.head.clone(),
            rows: table
                .rows
                .iter()
                .map(|row| row.iter().cloned().map(Cell::Text).collect())
                .collect(),
        });
        let notes = self.notes.iter().cloned().map(Item::Note);
        PageSection {
            title: self.title.clone(),
            items: figures.chain(tables).chain(table).chain(notes).collect(),
        }
    }

    /// Returns the tables and the bars as text for a terminal, one row or bar per line.
    pub fn lines(&self) -> String {
        let line = |bar: &Bar| {
            let mark = if bar.is_met() { "met   " } else { "MISSED" };
            let measured = bar.measured.map_or("-".to_owned(), |m| format!("{m:.3}"));
            format!(
                "  {mark}  {:<58} {measured:>10} {:<11} {}\n",
                bar.what,
                bar.limit(),
                bar.unit
            )
        };
        let bars: String = self.bars.iter().map(line).collect();
        let notes: String = self
            .notes
            .iter()
            .map(|note| format!("          {note}\n"))
            .collect();
        let tables: String = self.tables.iter().map(Table::lines).collect();
        format!("{}\n{tables}{bars}{notes}", self.title)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_table_are_aligned() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let table = Table {
            head: row(["case", "s"]),
            rows: vec![row(["pytest", "4.1"]), row(["é", ""])],
        };
        assert_eq!(table.lines(), "  case    s\n  pytest  4.1\n  é\n");
    }

    #[test]
    fn a_bar_is_met_only_by_a_figure_within_its_limits() {
        let bar = Bar::at_most("x", 2.0, 2.0, "ms");
        assert!(bar.is_met());
        assert!(
            !Bar {
                measured: Some(2.1),
                ..bar.clone()
            }
            .is_met()
        );
        assert!(
            !Bar {
                measured: None,
                ..bar.clone()
            }
            .is_met()
        );
        assert!(
            !Bar {
                measured: Some(f64::NAN),
                ..bar.clone()
            }
            .is_met()
        );
        assert!(
            !Bar {
                at_least: Some(3.0),
                ..bar
            }
            .is_met()
        );
        assert_eq!(Bar::at_most("x", None, 2.0, "ms").measured, None);
        let least = Bar::at_least("x", 2.0, 2.0, "times");
        assert!(least.is_met());
        assert_eq!(least.limit(), ">= 2");
        assert!(!Bar::at_least("x", 1.9, 2.0, "times").is_met());
        assert!(!Bar::at_least("x", None, 2.0, "times").is_met());
    }
}
