// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats the results of the matrix as bars, tables and figures. The bars of EII and IPD are the
//! largest slow-downs in paper 2: 16.9 % and 6.7 %. A cell that could not be measured gets a bar
//! without a value, and is not drawn.

use clap::ValueEnum as _;
use usher_report::text;

use super::experiments::{Group, Task};
use super::study::{CellResult, SLOWER_MAX, TreatmentPairs};
use super::treatments::BackgroundMethod;
use crate::bars::{Bar, Figure, Part, Table};
use crate::chart::{self, Bundle};

/// The largest slow-downs in paper 2: time of the foreground beside the background / its time
/// alone.
const PAPER: [(BackgroundMethod, f64); 2] = [
    (BackgroundMethod::Eii, 1.169),
    (BackgroundMethod::Ipd, 1.067),
];

/// Returns the part of the page for a group of cells.
pub fn part(group: Group, results: &[CellResult]) -> Part {
    let name = group
        .to_possible_value()
        .map_or(String::new(), |v| v.get_name().to_owned());
    let mut part = Part::new(&name, group.title());
    let results: Vec<&CellResult> = results.iter().filter(|r| r.cell.group == group).collect();
    for result in &results {
        part.bars.extend(bars(result));
    }
    part.tables = vec![slow_down_table(&results), work_table(&results)];
    // Cells that could not be measured have no bars in the figure.
    let drawn = results.iter().filter(|r| !r.tallies.is_empty());
    let drawn: Vec<&&CellResult> = drawn.collect();
    for (at, result) in drawn.iter().enumerate() {
        let place = result.cell.place;
        if drawn[..at].iter().any(|before| before.cell.place == place) {
            continue;
        }
        let bundles: Vec<Bundle> = drawn
            .iter()
            .filter(|r| r.cell.place == place)
            .map(|r| bundle(r))
            .collect();
        let on = place.map_or(String::new(), |p| format!(", disk: {}", p.name()));
        part.figures.push(Figure {
            caption: format!("{}{on}", group.title()),
            svg: chart::slow_downs(group.title(), &bundles),
        });
    }
    part.notes = notes(&results);
    part.raw = serde_json::json!(results);
    part
}

fn bars(result: &CellResult) -> Vec<Bar> {
    let id = result.cell.id();
    let mut bars = Vec::new();
    if result.tallies.is_empty() {
        let what = format!("experiment {id} was not measured");
        bars.push(Bar::at_most(what, None, 100.0 * SLOWER_MAX, "%"));
    }
    if result.of(BackgroundMethod::Usher).is_some() {
        let unresolved = match result
            .of(BackgroundMethod::Usher)
            .is_some_and(TreatmentPairs::is_resolved)
        {
            true => "",
            false => " (unresolved)",
        };
        let beyond = result.beyond_band(BackgroundMethod::Usher);
        bars.push(Bar::at_most(
            format!("{id}, usher{unresolved}: upper bound of the slow-down beyond the A/A band"),
            beyond.map(|beyond| 100.0 * beyond),
            100.0 * SLOWER_MAX,
            "%",
        ));
    }
    for (treatment, limit) in PAPER {
        let Some(tally) = result.of(treatment) else {
            continue;
        };
        bars.push(Bar::at_most(
            format!(
                "{id}, {}: slow-down of the foreground; the bar is the largest slow-down in the \
                 paper",
                treatment.name()
            ),
            tally.slow_down().map(|e| 100.0 * (e.value - 1.0)),
            (1_000.0 * (limit - 1.0_f64)).round() / 10.0,
            "%",
        ));
    }
    bars
}

fn bundle(result: &CellResult) -> Bundle {
    let bar = |tally: &TreatmentPairs| {
        let estimate = tally.slow_down()?;
        let number = BackgroundMethod::value_variants()
            .iter()
            .position(|&t| t == tally.treatment)?;
        Some(chart::Bar {
            class: format!("p{number}"),
            name: tally.treatment.label().to_owned(),
            value: estimate.value,
            interval: estimate.low.zip(estimate.high),
            is_least: tally.is_cut(),
        })
    };
    Bundle {
        label: result.cell.id(),
        bars: result.tallies.iter().filter_map(bar).collect(),
    }
}

fn treatments_of(results: &[&CellResult]) -> Vec<BackgroundMethod> {
    let all = BackgroundMethod::value_variants().iter();
    all.filter(|&&t| results.iter().any(|r| r.of(t).is_some()))
        .copied()
        .collect()
}

fn table(
    title: &str,
    results: &[&CellResult],
    show: impl Fn(&CellResult, BackgroundMethod) -> String,
) -> Table {
    let treatments = treatments_of(results);
    let head =
        std::iter::once(title.to_owned()).chain(treatments.iter().map(|t| t.label().to_owned()));
    let row = |result: &&CellResult| {
        let cells = treatments.iter().map(|&t| show(result, t));
        std::iter::once(result.cell.id()).chain(cells).collect()
    };
    Table {
        head: head.collect(),
        rows: results.iter().map(row).collect(),
    }
}

fn slow_down_table(results: &[&CellResult]) -> Table {
    table("foreground slow-down", results, |result, treatment| {
        let Some(tally) = result.of(treatment) else {
            return text::NONE.to_owned();
        };
        if let (BackgroundMethod::Alone, Some(band)) = (treatment, result.band()) {
            return format!("{:.2}..{:.2}", band.low, band.high);
        }
        let Some(e) = tally.slow_down() else {
            return "failed".to_owned();
        };
        let more = if tally.is_cut() { ">" } else { "" };
        match e.low.zip(e.high) {
            Some((low, high)) => format!("{more}{:.2} [{low:.2}, {high:.2}]", e.value),
            None => format!("{more}{:.2}", e.value),
        }
    })
}

fn work_table(results: &[&CellResult]) -> Table {
    table(
        "progress of the background while the foreground ran",
        results,
        |result, treatment| {
            let done: Vec<_> = result
                .of(treatment)
                .into_iter()
                .flat_map(|t| &t.pairs)
                .map(|p| p.done)
                .collect();
            let median = |of: fn(&super::study::BackgroundWork) -> f64| {
                usher_report::stats::median(&done.iter().map(of).collect::<Vec<_>>())
            };
            match median(|d| d.units_per_s) {
                _ if treatment == BackgroundMethod::Alone => text::NONE.to_owned(),
                Some(bytes) if result.cell.bg == Task::Net => {
                    format!("{:.1} MiB/s", bytes / 1048576.0)
                }
                Some(units) if units > 0.0 => format!("{units:.1} units/s"),
                Some(_) => {
                    let mib = median(|d| d.read_bytes_per_s.max(d.write_bytes_per_s))
                        .unwrap_or(0.0)
                        / 1048576.0;
                    format!(
                        "{:.2} CPU, {mib:.1} MiB/s",
                        median(|d| d.cpu).unwrap_or(0.0)
                    )
                }
                None => text::NONE.to_owned(),
            }
        },
    )
}

fn notes(results: &[&CellResult]) -> Vec<String> {
    let mut notes = vec![
        "Each figure is the median of the ratios of pairs of runs, with its 95 % bootstrap \
         interval. A pair consists of the foreground alone and the foreground beside the \
         background, directly one after the other, in alternating order. The A/A band is the \
         middle 95 % of pairs in which both runs are the foreground alone. Foreground and \
         background run in separate sessions, except for 'same session'. At a usage degree u \
         below 100 % the foreground works for that share of each 100 ms (measured alone), and \
         pauses for the remaining share, as an interactive program does between two inputs; a \
         sender then waits for a reply. The pauses have a fixed length, so a delay of the work \
         lengthens the run only by that delay. The background works and pauses at fixed times."
            .to_owned(),
    ];
    for result in results {
        if result.tallies.is_empty() {
            notes.push(format!("{}: {}", result.cell.id(), result.notes.join("; ")));
        }
        for tally in &result.tallies {
            let id = result.cell.id();
            if let Some(error) = &tally.error {
                notes.push(format!("{id}, {}: {error}", tally.treatment.name()));
            } else if tally.slow_down().is_some_and(|e| !e.reaches_level())
                && tally.treatment == BackgroundMethod::Usher
            {
                notes.push(format!(
                    "{id}: {} pairs of runs are too few for a 95 % interval",
                    tally.pairs.len()
                ));
            }
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::experiments::matrix;
    use super::*;

    #[test]
    fn each_disk_is_drawn_once_and_unmeasured_cells_are_not_drawn() {
        let result = |cell, tallies| CellResult {
            cell,
            tallies,
            notes: vec![],
        };
        let alone = TreatmentPairs::new(BackgroundMethod::Alone);
        let mut results: Vec<CellResult> = matrix(true)
            .into_iter()
            .map(|cell| result(cell, vec![alone.clone()]))
            .collect();
        let figures = |results: &[CellResult]| part(Group::Cpu, results).figures;
        let captions: Vec<String> = figures(&results).into_iter().map(|f| f.caption).collect();
        let title = Group::Cpu.title();
        assert_eq!(
            captions,
            [title.to_owned(), format!("{title}, disk: deadline")]
        );
        results.iter_mut().for_each(|one| one.tallies.clear());
        assert!(figures(&results).is_empty());
    }
}
