// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bars, tables and figures of the chip simulation beside the figures of paper 5: Table 2, Table 3
//! and the schedules of Figure 4.

use usher_chip::published::{Figures, Table3Column};
use usher_chip::study::{
    CellComparison, FrameCounts, HEADLINE, Ratio, peaks, ratios, share_within,
};
use usher_chip::{CycleTotals, FittedParameters, Pattern};

use super::chart;
use crate::bars::{Bar, Figure, Table};

/// A compared column of Table 2: its heading, the figure, the factor for its unit, and the number
/// of decimals.
type Column = (&'static str, fn(&Figures) -> Option<f64>, f64, usize);

const COLUMNS: [Column; 4] = [
    ("pictures a second", |figures| Some(figures.fps), 1.0, 2),
    (
        "millions of L2 misses in 128 pictures",
        |figures| figures.l2_misses,
        1e-6,
        2,
    ),
    (
        "millions of L1 misses in 128 pictures",
        |figures| figures.l1_misses,
        1e-6,
        0,
    ),
    (
        "thousand cycles per task",
        |figures| Some(figures.cycles_a_task),
        1e-3,
        2,
    ),
];

fn fps(figures: &Figures) -> Option<f64> {
    Some(figures.fps)
}

/// Returns the bars of Table 2.
pub fn bars(rows: &[CellComparison]) -> Vec<Bar> {
    let speed = ratios(rows, fps);
    let misses = ratios(rows, |figures| figures.l2_misses);
    let mut bars = Vec::new();
    let headline = |ratio: &&Ratio| ratio.cell == HEADLINE && ratio.pattern == Pattern::B;
    if let Some(b) = speed.iter().find(headline) {
        bars.push(Bar {
            at_least: Some(1.4),
            ..Bar::at_most(
                "speed-up of pattern B over FCFS, WVGA, 128 KB, 4 cores (paper: 1.50)",
                b.simulated,
                1.6,
                "x",
            )
        });
    }
    let count = |ratios: &[Ratio]| ratios.len();
    bars.push(Bar::at_least(
        format!(
            "share of {} FPS ratios to FCFS within 0.10 of the paper",
            count(&speed)
        ),
        share_within(&speed, 0.10),
        0.8,
        "",
    ));
    bars.push(Bar::at_least(
        format!(
            "share of {} L2-miss ratios to FCFS within 0.15 of the paper",
            count(&misses)
        ),
        share_within(&misses, 0.15),
        0.8,
        "",
    ));
    let peaks = peaks(rows);
    let off = peaks
        .iter()
        .filter(|peak| peak.simulated.abs_diff(peak.published) > 1);
    bars.push(Bar::none(
        format!(
            "curves with an FPS peak more than one core away from the peak in the paper, of {}",
            peaks.len()
        ),
        off.count(),
    ));
    bars
}

/// Returns Table 2 as one table for each compared figure.
pub fn tables(rows: &[CellComparison]) -> Vec<Table> {
    COLUMNS.map(|column| table(rows, column)).into()
}

fn table(rows: &[CellComparison], (name, of, scale, decimals): Column) -> Table {
    let mut head = vec![name.to_owned(), "cores".to_owned()];
    for pattern in Pattern::ALL {
        if pattern != Pattern::Usher {
            head.push(format!("{} paper", pattern.name()));
        }
        head.push(format!("{} simulated", pattern.name()));
    }
    let show = |value: Option<f64>| {
        value.map_or("garbled".to_owned(), |value| {
            format!("{:.decimals$}", value * scale)
        })
    };
    let line = |of_cell: &[CellComparison]| {
        let cell = of_cell[0].cell;
        let mut line = vec![
            format!("{}, {} KB", cell.input.name(), cell.l2_kb),
            cell.cores.to_string(),
        ];
        for row in of_cell {
            if let Some(published) = &row.published {
                line.push(show(of(published)));
            }
            line.push(show(of(&row.simulated)));
        }
        line
    };
    Table {
        head,
        rows: rows.chunk_by(|a, b| a.cell == b.cell).map(line).collect(),
    }
}

/// Draws FPS against the number of cores.
pub fn figures(rows: &[CellComparison]) -> Vec<Figure> {
    let mut panels = Vec::new();
    let same = |a: &&CellComparison, b: &CellComparison| {
        a.cell.input == b.cell.input && a.cell.l2_kb == b.cell.l2_kb
    };
    for first in rows
        .iter()
        .filter(|row| row.cell.cores == 1 && row.pattern == Pattern::Fcfs)
    {
        let of_panel = rows.iter().filter(|row| same(row, first));
        let mut curves = Vec::new();
        for pattern in Pattern::ALL {
            let of_pattern = of_panel.clone().filter(|row| row.pattern == pattern);
            let simulated = of_pattern
                .clone()
                .map(|row| (row.cell.cores, row.simulated.fps));
            let published =
                of_pattern.filter_map(|row| Some((row.cell.cores, row.published.as_ref()?.fps)));
            curves.push(chart::Curve {
                class: class(pattern),
                simulated: simulated.collect(),
                published: published.collect(),
            });
        }
        let title = format!(
            "{}, {} KB",
            first.cell.input.name().to_uppercase(),
            first.cell.l2_kb
        );
        panels.push(chart::Panel { title, curves });
    }
    let legend = Pattern::ALL.map(|pattern| (class(pattern), pattern.name()));
    vec![Figure {
        caption: "Pictures per second by the number of cores that decode. Lines and dots are \
                  simulated; dashes and rings are the paper's measurements on a board."
            .to_owned(),
        svg: chart::panels(
            "Pictures per second by the number of cores",
            &legend,
            &panels,
        ),
    }]
}

fn class(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Fcfs => "p0",
        Pattern::A => "p1",
        Pattern::B => "p2",
        Pattern::Usher => "p5",
    }
}

/// Returns the notes: the method, and the cells that deviate from the paper.
pub fn notes(rows: &[CellComparison], fitted: &FittedParameters) -> Vec<String> {
    let off_peaks = peaks(rows)
        .into_iter()
        .filter(|peak| peak.simulated.abs_diff(peak.published) > 1)
        .map(|peak| {
            let (input, pattern) = (peak.input.name(), peak.pattern.name());
            format!(
                "{input} {} KB {pattern}: peak at {} cores (paper {})",
                peak.l2_kb, peak.simulated, peak.published
            )
        });
    vec![
        format!(
            "FPS ratios that deviate from the paper by more than 0.10: {}.",
            outside(&ratios(rows, fps), 0.10)
        ),
        format!(
            "L2-miss ratios that deviate from the paper by more than 0.15: {}.",
            outside(&ratios(rows, |figures| figures.l2_misses), 0.15)
        ),
        format!(
            "FPS peaks more than one core away from the peak in the paper: {}.",
            listed(off_peaks.collect())
        ),
        "Three figures are garbled in the available text of the paper and left out: wvga 64 KB 1 \
         core B (L1), vga 3 cores FCFS (L1), 720p 2 cores A (L2)."
            .to_owned(),
        format!(
            "All cells use one set of parameters, fitted by evidence/chip/examples/fit_chip.rs: \
             {fitted:?}. docs/chip.md describes the synthetic addresses."
        ),
    ]
}

fn listed(names: Vec<String>) -> String {
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.join("; "),
    }
}

/// Returns the ratios of simulated to published figures that deviate from 1 by more than `limit`,
/// as text.
fn outside(ratios: &[Ratio], limit: f64) -> String {
    let name = |ratio: &Ratio| {
        let (input, l2_kb, cores) = (ratio.cell.input.name(), ratio.cell.l2_kb, ratio.cell.cores);
        format!(
            "{input} {l2_kb} KB {cores} cores {} {:.2} (paper {:.2})",
            ratio.pattern.name(),
            ratio.simulated,
            ratio.published
        )
    };
    let off = ratios.iter().filter(|ratio| ratio.off() > limit);
    listed(off.map(name).collect())
}

/// A line of Table 3: its name, the published figure, the simulated figure, and the number of
/// decimals.
type Line<'a> = (
    &'a str,
    fn(&Table3Column) -> f64,
    &'a dyn Fn(&CycleTotals) -> f64,
    usize,
);

/// Returns Table 3.
pub fn table_3(
    published: &[Table3Column; 2],
    tallies: &[CycleTotals; 2],
    extent: FrameCounts,
) -> Table {
    let frames = f64::from(extent.measured);
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    let cores = HEADLINE.cores as u64;
    let lines: [Line; 7] = [
        (
            "cycles per frame",
            |row| row.cycles,
            &|t| t.cycles as f64 / frames,
            0,
        ),
        (
            "cycles a task",
            |row| row.cycles_a_task,
            &CycleTotals::cycles_a_task,
            0,
        ),
        (
            "scheduling, cycles per task",
            |row| row.scheduling_a_task,
            &|t| t.scheduling as f64 / t.tasks.max(1) as f64,
            0,
        ),
        (
            "time of cores in tasks, %",
            |row| 100.0 * row.busy,
            &|t| share(t.compute + t.stalled, t.cycles * cores),
            2,
        ),
        (
            "L1 instruction misses, %",
            |row| 100.0 * row.l1_fetch_miss,
            &|t| share(t.counts.l1_fetch_misses, t.counts.fetched_words),
            2,
        ),
        (
            "L1 data misses, %",
            |row| 100.0 * row.l1_data_miss,
            &|t| share(t.counts.l1_data_misses, t.counts.data_words),
            2,
        ),
        (
            "L2 misses, % of L1 misses",
            |row| 100.0 * row.l2_miss,
            &|t| share(t.counts.l2_misses, t.counts.l1_misses()),
            2,
        ),
    ];
    let rows = lines.iter().map(|(name, of_paper, of_ours, decimals)| {
        let decimals = *decimals;
        let mut line = vec![(*name).to_owned()];
        for (paper, ours) in published.iter().zip(tallies) {
            line.push(format!("{:.decimals$}", of_paper(paper)));
            line.push(format!("{:.decimals$}", of_ours(ours)));
        }
        line
    });
    Table {
        head: ["", "FCFS paper", "FCFS simulated", "A paper", "A simulated"]
            .map(str::to_owned)
            .into(),
        rows: rows.collect(),
    }
}

/// Returns a table of the task that runs on each core in each unit of time, for several scheduling
/// orders on equal numbers of cores.
pub fn schedules(orders: &[(&str, &Vec<Vec<Option<usize>>>)]) -> Table {
    let lengths = orders.iter().map(|(_, cores)| cores[0].len());
    let units = lengths.max().unwrap_or(0);
    let cores = orders.first().map_or(0, |(_, cores)| cores.len());
    let row = |name: &str, core: usize, tasks: &[Option<usize>]| {
        let mut row = vec![format!("{name}, core {}", core + 1)];
        row.extend((0..units).map(|unit| match tasks.get(unit) {
            Some(Some(task)) => (task + 1).to_string(),
            Some(None) => "idle".to_owned(),
            None => String::new(),
        }));
        row
    };
    let mut head = vec![format!("{cores} cores, unit of time")];
    head.extend((1..=units).map(|unit| unit.to_string()));
    let rows = orders.iter().flat_map(|(name, cores)| {
        let cores = cores.iter().enumerate();
        cores.map(|(core, tasks)| row(name, core, tasks))
    });
    Table {
        head,
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use usher_chip::study::compare;

    use super::*;

    #[test]
    fn a_cell_has_its_line_in_each_table_and_its_bars() {
        let extent = FrameCounts {
            warm_up: 0,
            measured: 1,
        };
        let cell = usher_chip::published::TableCell {
            input: usher_chip::h264::Input::Qvga,
            l2_kb: 128,
            cores: 1,
        };
        let rows = compare(
            &[cell],
            &Pattern::ALL,
            &FittedParameters::default(),
            extent,
            1,
        )
        .unwrap();
        let tables = tables(&rows);
        for table in &tables {
            assert_eq!(table.rows.len(), 1);
            assert_eq!(table.rows[0].len(), table.head.len());
        }
        assert_eq!(tables[0].rows[0][2], "78.59");
        assert_eq!(bars(&rows).len(), 3, "no headline without its cell");
        assert!(figures(&rows)[0].svg.contains("QVGA, 128 KB"));
    }
}
