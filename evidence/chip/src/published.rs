// SPDX-License-Identifier: MIT OR Apache-2.0
//! The published figures of paper 5: Table 2, which was measured on the paper's board, and Table 3,
//! which is from the paper's simulator. Figures that are illegible in the print are missing.

use serde::{Deserialize, Serialize};

use crate::h264::Input;
use crate::pattern::Pattern;

/// Number of pictures over which Table 2 counts misses.
pub const PICTURES: f64 = 128.0;

/// A cell of Table 2: picture size, size of the second-level cache and number of cores. Each cell
/// has figures for several patterns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TableCell {
    /// Size of the pictures.
    pub input: Input,
    /// Size of the second-level cache in KiB.
    pub l2_kb: usize,
    /// Number of decoding cores.
    pub cores: usize,
}

/// Figures of Table 2 for a cell and a pattern; either the published figures or simulated figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Pictures per second.
    pub fps: f64,
    /// Mean cycles of a task.
    pub cycles_a_task: f64,
    /// First-level misses in 128 pictures; `None` if the printed figure is illegible.
    pub l1_misses: Option<f64>,
    /// Second-level misses in 128 pictures; `None` if the printed figure is illegible.
    pub l2_misses: Option<f64>,
}

/// Returns Table 2, line by line.
///
/// # Errors
/// The data in the executable are malformed, which is a bug.
pub fn table_2() -> Result<Vec<(TableCell, Pattern, Figures)>, String> {
    let text = include_str!("../data/paper5-table2.csv");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .skip(1)
        .map(|line| parse(line).ok_or_else(|| format!("paper5-table2.csv: {line}")))
        .collect()
}

fn parse(line: &str) -> Option<(TableCell, Pattern, Figures)> {
    let fields: Vec<&str> = line.split(',').collect();
    let [input, l2_kb, cores, pattern, fps, cycles_a_task, l1, l2] = fields[..] else {
        return None;
    };
    let misses = |text: &str| match text {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    };
    let input = Input::ALL.into_iter().find(|other| other.name() == input)?;
    let mut patterns = Pattern::PAPER.into_iter();
    let cell = TableCell {
        input,
        l2_kb: l2_kb.parse().ok()?,
        cores: cores.parse().ok()?,
    };
    let figures = Figures {
        fps: fps.parse().ok()?,
        cycles_a_task: cycles_a_task.parse().ok()?,
        l1_misses: misses(l1)?,
        l2_misses: misses(l2)?,
    };
    Some((
        cell,
        patterns.find(|other| other.name().eq_ignore_ascii_case(pattern))?,
        figures,
    ))
}

/// A column of Table 3, which shows one WVGA frame on four cores with a second-level cache of 128
/// KB in the paper's simulator.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Table3Column {
    /// Cycles that the frame takes.
    pub cycles: f64,
    /// Mean cycles of a task.
    pub cycles_a_task: f64,
    /// Mean cycles of scheduling a task.
    pub scheduling_a_task: f64,
    /// Share of the cores' time spent in tasks.
    pub busy: f64,
    /// Miss ratio of the instruction caches.
    pub l1_fetch_miss: f64,
    /// Miss ratio of the data caches.
    pub l1_data_miss: f64,
    /// Second-level misses divided by first-level misses.
    pub l2_miss: f64,
}

/// Table 3: FCFS and pattern A.
pub const TABLE_3: [Table3Column; 2] = [
    Table3Column {
        cycles: 14_794_509.0,
        cycles_a_task: 20_716.0,
        scheduling_a_task: 1_578.0,
        busy: 0.8401,
        l1_fetch_miss: 0.0138,
        l1_data_miss: 0.0186,
        l2_miss: 0.0635,
    },
    Table3Column {
        cycles: 13_333_567.0,
        cycles_a_task: 17_784.0,
        scheduling_a_task: 1_816.0,
        busy: 0.8002,
        l1_fetch_miss: 0.0084,
        l1_data_miss: 0.0183,
        l2_miss: 0.0587,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_2_is_complete_except_for_three_cells() {
        let table = table_2().unwrap();
        assert_eq!(table.len(), 42 * 3);
        let garbled = |figures: &Figures| {
            usize::from(figures.l1_misses.is_none()) + usize::from(figures.l2_misses.is_none())
        };
        assert_eq!(
            table
                .iter()
                .map(|(_, _, figures)| garbled(figures))
                .sum::<usize>(),
            3
        );
        let headline = TableCell {
            input: Input::Wvga,
            l2_kb: 128,
            cores: 4,
        };
        let fps = |pattern| {
            let of = |row: &&(TableCell, Pattern, Figures)| row.0 == headline && row.1 == pattern;
            table.iter().find(of).unwrap().2.fps
        };
        assert_eq!(Pattern::PAPER.map(fps), [22.10, 30.87, 33.09]);
        assert!(
            (fps(Pattern::A) / fps(Pattern::Fcfs) - 1.3968).abs() < 1e-4,
            "39.68 %"
        );
    }

    /// Cores x cycles x busy share are the cycles of all tasks. Divided by the cycles of a task,
    /// they give 2,400 tasks of five macroblocks each.
    #[test]
    fn table_3_implies_2400_tasks() {
        for column in TABLE_3 {
            let tasks = 4.0 * column.cycles * column.busy / column.cycles_a_task;
            assert!((tasks - 2400.0).abs() < 1.0, "{tasks}");
        }
        let gain = TABLE_3[0].cycles / TABLE_3[1].cycles;
        assert!((gain - 1.1096).abs() < 1e-4);
    }
}
