// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the table, the figure, the bars and the notes of a case from its runs.

use usher_report::figure::{Dot, DotRow, Dots, Series, dots};
use usher_report::stats::{self, Estimate, Statistic};

use super::CaseRuns;
use super::file::{Case, ConfigurationKind};
use super::measure::RunResult;
use crate::bars::{Bar, Figure, Part, Table};

/// Adds the results of a case to the part. Returns the raw data of the case.
pub fn add(
    part: &mut Part,
    case: &Case,
    measured: &CaseRuns,
    seed: u64,
    quick: bool,
) -> serde_json::Value {
    let rows = (0..case.configuration.len()).map(|at| row(case, measured, at, seed));
    let rows: Vec<Vec<String>> = rows.collect();
    match part.tables.last_mut() {
        Some(table) => table.rows.extend(rows),
        None => {
            let head = [
                "case",
                "configuration",
                "median",
                "range",
                "ratio",
                "95 % interval",
                "other figures",
            ];
            let head = head.map(str::to_owned).to_vec();
            part.tables.push(Table { head, rows });
        }
    }
    part.figures.push(Figure {
        caption: format!("{}: {}", case.name, conclusion(case, measured)),
        svg: dots(&plot(case, measured)).into_string(),
    });
    part.notes.push(note(case, measured));
    if !quick {
        part.bars.extend(bars(case, measured, seed));
    }
    serde_json::json!({
        "case": case.name,
        "reference": case.configuration[measured.reference].name,
        "configurations": case.configuration.iter().map(|one| &one.name).collect::<Vec<_>>(),
        "rounds": measured.runs,
        "reference_again": measured.again,
    })
}

/// The ratios of a configuration to the reference, one of each round.
fn ratios(measured: &CaseRuns, at: usize) -> Vec<f64> {
    let rounds = measured.runs.iter();
    let ratios = rounds.map(|round| round[at].seconds / round[measured.reference].seconds);
    ratios.collect()
}

fn ratio(measured: &CaseRuns, at: usize, seed: u64) -> Option<Estimate> {
    stats::estimate(&ratios(measured, at), Statistic::Median, seed)
}

/// Returns how the times of `usher run` and of the default configuration compare with the reference.
fn conclusion(case: &Case, measured: &CaseRuns) -> String {
    let usher = case.all(ConfigurationKind::Usher).into_iter();
    let usher = usher.map(|at| ("usher run", at));
    let default = (measured.reference != 0).then_some(("default configuration", 0));
    let reference = &case.configuration[measured.reference].name;
    let compared = usher.chain(default).filter_map(|(name, at)| {
        let median = stats::median(&ratios(measured, at))?;
        Some(format!(
            "{name}: {median:.2} times the time of '{reference}'"
        ))
    });
    compared.collect::<Vec<_>>().join("; ")
}

/// Returns the times of all runs, one row for each configuration.
fn plot(case: &Case, measured: &CaseRuns) -> Dots {
    let row = |at: usize| {
        let seconds = measured.runs.iter().map(|round| round[at].seconds);
        let seconds: Vec<f64> = seconds.collect();
        let runs = seconds.iter().map(|&value| Dot { series: 0, value });
        let median = stats::median(&seconds).map(|value| Dot { series: 1, value });
        DotRow {
            label: case.configuration[at].name.clone(),
            dots: runs.chain(median).collect(),
        }
    };
    let series = |name: &str, class: &str, hollow| Series {
        name: name.to_owned(),
        class: class.to_owned(),
        hollow,
    };
    Dots {
        title: format!("Times of the configurations of {}", case.name),
        axis: "seconds (less is better)".to_owned(),
        marks: Vec::new(),
        series: vec![series("one run", "q0", true), series("median", "q4", false)],
        rows: (0..case.configuration.len()).map(row).collect(),
    }
}

fn bars(case: &Case, measured: &CaseRuns, seed: u64) -> Vec<Bar> {
    let name = &case.name;
    let mut bars = Vec::new();
    if let Some(least) = case.default_at_least {
        let estimate = ratio(measured, 0, seed);
        bars.push(Bar::at_least(
            format!("{name}: default / best by hand, lower end"),
            estimate.and_then(|one| one.low),
            least,
            "times",
        ));
    }
    if let (Some(most), [usher]) = (case.at_most, &case.all(ConfigurationKind::Usher)[..]) {
        let all_ended = measured.runs.iter().all(|round| round[*usher].ended);
        let estimate = ratio(measured, *usher, seed).filter(|_| all_ended);
        let reference = match measured.reference {
            0 => "without Usher",
            _ => "best by hand",
        };
        bars.push(Bar::at_most(
            format!("{name}: usher / {reference}, upper end"),
            estimate.and_then(|one| one.high),
            most,
            "times",
        ));
    }
    bars
}

fn row(case: &Case, measured: &CaseRuns, at: usize, seed: u64) -> Vec<String> {
    let runs: Vec<&RunResult> = measured.runs.iter().map(|round| &round[at]).collect();
    let seconds: Vec<f64> = runs.iter().map(|run| run.seconds).collect();
    let exceeded = runs.iter().any(|run| !run.ended);
    let quantile = |p| stats::quantile(&seconds, p).unwrap_or(f64::NAN);
    let estimate = ratio(measured, at, seed);
    let above = if exceeded { "> " } else { "" };
    let interval = estimate.and_then(|one| Some(format!("{:.2} to {:.2}", one.low?, one.high?)));
    let ratio = match estimate {
        Some(one) => format!("{above}{:.2}", one.value),
        None => "-".to_owned(),
    };
    let label = &case.configuration[at].name;
    let is_reference = at == measured.reference;
    vec![
        case.name.clone(),
        format!("{label}{}", if is_reference { " (reference)" } else { "" }),
        format!("{above}{:.2} s", quantile(0.5)),
        format!("{:.2} to {:.2} s", quantile(0.0), quantile(1.0)),
        ratio,
        interval.unwrap_or_else(|| "-".to_owned()),
        other_figures(&runs),
    ]
}

/// The medians of the numbers that the programs printed.
fn other_figures(runs: &[&RunResult]) -> String {
    let names = runs.first().into_iter().flat_map(|run| run.figures.keys());
    let medians = names.filter_map(|name| {
        let values = runs.iter().filter_map(|run| run.figures.get(name).copied());
        let median = stats::median(&values.collect::<Vec<_>>())?;
        Some(format!("{name} {median:.1}"))
    });
    medians.collect::<Vec<_>>().join(", ")
}

fn note(case: &Case, measured: &CaseRuns) -> String {
    let rounds = measured.runs.iter().zip(&measured.again);
    let pairs: Vec<(f64, f64)> = rounds
        .map(|(round, again)| (round[measured.reference].seconds, again.seconds))
        .collect();
    let band = stats::aa_band(&pairs).map_or("none (fewer than three rounds)".to_owned(), |band| {
        format!("{:.2} to {:.2}", band.low, band.high)
    });
    format!(
        "{}: number of interleaved rounds: {}; ratios to '{}'; A/A band {band}; limit {} s.",
        case.name,
        measured.runs.len(),
        case.configuration[measured.reference].name,
        case.limit_seconds
    )
}

/// Returns a run of the given duration.
#[cfg(test)]
pub fn run_of(seconds: f64) -> RunResult {
    RunResult {
        seconds,
        ended: true,
        figures: std::collections::BTreeMap::new(),
        errors: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::first::compare::file::Configuration;

    fn example() -> (Case, CaseRuns) {
        let of = |name: &str, kind| Configuration {
            name: name.to_owned(),
            kind,
            run: Vec::new(),
            env: std::collections::BTreeMap::new(),
        };
        let case = Case {
            name: "c".to_owned(),
            at_most: Some(1.1),
            default_at_least: Some(5.0),
            limit_seconds: 60.0,
            configuration: vec![
                of("default", ConfigurationKind::Default),
                of("one thread", ConfigurationKind::HandSet),
                of("usher run", ConfigurationKind::Usher),
            ],
        };
        // The machine becomes slower from round to round; the ratios are constant.
        let rounds = (1..=8).map(f64::from);
        let runs = rounds.map(|drift| [8.0, 1.0, 1.05].map(|seconds| run_of(seconds * drift)));
        let measured = CaseRuns {
            reference: 1,
            runs: runs.map(Vec::from).collect(),
            again: (1..=8).map(|drift| run_of(f64::from(drift))).collect(),
        };
        (case, measured)
    }

    #[test]
    fn ratios_compare_runs_of_one_round() {
        let (case, measured) = example();
        let mut part = Part::new("p", "P");
        add(&mut part, &case, &measured, 1, false);
        let figures: Vec<f64> = part.bars.iter().filter_map(|bar| bar.measured).collect();
        assert_eq!(figures.len(), 2);
        assert!((figures[0] - 8.0).abs() < 1e-9 && (figures[1] - 1.05).abs() < 1e-9);
        assert!(part.bars.iter().all(Bar::is_met));
        assert_eq!(part.tables[0].rows[2][4], "1.05");
        assert!(part.notes[0].contains("A/A band 1.00 to 1.00"));
        assert_eq!(
            part.figures[0].caption,
            "c: usher run: 1.05 times the time of 'one thread'; default configuration: 8.00 times \
             the time of 'one thread'"
        );
        let plot = plot(&case, &measured);
        let dots: Vec<usize> = plot.rows.iter().map(|row| row.dots.len()).collect();
        assert_eq!(dots, [9, 9, 9], "eight runs and their median");
    }

    #[test]
    fn a_run_under_usher_that_exceeds_the_limit_misses_the_bar() {
        let (case, mut measured) = example();
        measured.runs[3][2].ended = false;
        let bars = bars(&case, &measured, 1);
        assert!(bars[0].is_met() && !bars[1].is_met());
        assert_eq!(bars[1].measured, None);
        assert_eq!(row(&case, &measured, 2, 1)[4], "> 1.05");
    }

    #[test]
    fn quick_runs_have_no_bars() {
        let (case, measured) = example();
        let mut part = Part::new("p", "P");
        add(&mut part, &case, &measured, 1, true);
        assert!(part.bars.is_empty());
    }
}
