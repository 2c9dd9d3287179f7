// SPDX-License-Identifier: MIT OR Apache-2.0
//! What paper 5 published: Table 2, measured on its board, and Table 3, from its
//! simulator.

use serde::{Deserialize, Serialize};

use super::h264::Input;
use super::pattern::Pattern;

/// Pictures that Table 2 counts misses over.
pub const PICTURES: f64 = 128.0;

/// A row of Table 2 without its pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// The pictures.
    pub input: Input,
    /// Size of the second level.
    pub l2_kb: usize,
    /// Cores that decode.
    pub cores: usize,
}

/// What Table 2 has of a cell and a pattern; measured there, simulated here.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Pictures a second.
    pub fps: f64,
    /// Mean cycles of a task.
    pub cycles_a_task: f64,
    /// Misses of the first level over 128 pictures; none where garbled.
    pub l1_misses: Option<f64>,
    /// Misses of the second level over 128 pictures; none where garbled.
    pub l2_misses: Option<f64>,
}

/// Table 2, line by line.
///
/// # Errors
/// Where the data that came with this crate are not what they were.
pub fn table_2() -> Result<Vec<(Cell, Pattern, Figures)>, String> {
    let text = include_str!("../../data/paper5-table2.csv");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .skip(1)
        .map(|line| parse(line).ok_or_else(|| format!("paper5-table2.csv: {line}")))
        .collect()
}

fn parse(line: &str) -> Option<(Cell, Pattern, Figures)> {
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
    let cell = Cell {
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

/// A row of Table 3: the paper's simulator, WVGA, 128 KB, four cores, one frame.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Simulated {
    /// All cycles of the frame.
    pub cycles: f64,
    /// Mean cycles of a task.
    pub cycles_a_task: f64,
    /// Mean cycles of scheduling a task.
    pub scheduling_a_task: f64,
    /// Share of the cores' time in tasks.
    pub busy: f64,
    /// Misses of the instruction caches by accesses.
    pub l1_fetch_miss: f64,
    /// Misses of the data caches by accesses.
    pub l1_data_miss: f64,
    /// Misses of the second level by those of the first.
    pub l2_miss: f64,
}

/// Table 3: FCFS and pattern A.
pub const TABLE_3: [Simulated; 2] = [
    Simulated {
        cycles: 14_794_509.0,
        cycles_a_task: 20_716.0,
        scheduling_a_task: 1_578.0,
        busy: 0.8401,
        l1_fetch_miss: 0.0138,
        l1_data_miss: 0.0186,
        l2_miss: 0.0635,
    },
    Simulated {
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
    fn table_2_is_whole_but_for_three_cells() {
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
        let headline = Cell {
            input: Input::Wvga,
            l2_kb: 128,
            cores: 4,
        };
        let fps = |pattern| {
            let of = |row: &&(Cell, Pattern, Figures)| row.0 == headline && row.1 == pattern;
            table.iter().find(of).unwrap().2.fps
        };
        assert_eq!(Pattern::PAPER.map(fps), [22.10, 30.87, 33.09]);
        assert!(
            (fps(Pattern::A) / fps(Pattern::Fcfs) - 1.3968).abs() < 1e-4,
            "39.68 %"
        );
    }

    /// Cores x cycles x busy share are the cycles of all tasks: 2,400 of them, of
    /// five macroblocks each.
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
