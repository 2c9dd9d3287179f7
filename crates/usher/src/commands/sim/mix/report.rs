// SPDX-License-Identifier: GPL-2.0-only
//! Formats the result of `usher sim mix` as JSON, as text and as a report page with traces.
//!
//! The JSON output depends only on the sim file, the options and the seed, except for the paths of
//! written files. Simulation times appear in the text output only.
//!
//! The directory of `--out` gets `report.html`, `result.json` and one trace of the first round per
//! scheduler. A file that cannot be written does not prevent the other files. The cost is
//! proportional to the size of the result.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use usher_model::SeatMode;
use usher_report::data::MixResult;
use usher_report::html::{Cell, Item, Section, page_with};
use usher_report::text as words;
use usher_report::trace::{Slice, Tracks, simulated};
use usher_report::{stats, table};
use usher_sim::campaign::Scheduler;
use usher_sim::trial::{self, ArrivalStats, MixReport, SeatState, Trial};

use crate::answers::{SimMixAnswer, SimProgram, SimRun};
use crate::measure;
use crate::output::{self, Output, STRONG};

/// The JSON output; it depends only on the file and the seed.
pub fn answer(mix_report: &MixReport<'_>, result: &MixResult, written: &[PathBuf]) -> SimMixAnswer {
    let runs: Vec<SimRun> = mix_report
        .trials
        .iter()
        .flat_map(|(scheduler, trials)| {
            let number = trials.iter().enumerate();
            number.map(|(round, trial)| run(mix_report, *scheduler, round + 1, trial))
        })
        .collect();
    SimMixAnswer {
        simulated: true,
        machine: mix_report.mix.machine.to_string(),
        seed: mix_report.mix.protocol.seed,
        result: result.clone(),
        runs,
        files: written.to_vec(),
    }
}

fn run(mix_report: &MixReport<'_>, scheduler: Scheduler, round: usize, trial: &Trial) -> SimRun {
    let programs = trial.programs.iter().map(|program| {
        let file = &mix_report.setup.programs[program.program];
        SimProgram {
            name: program.name.clone(),
            program: file.name.clone(),
            at_s: program.at_s,
            left_s: program.left_s,
            random: program.random,
            seconds: program.seconds.clone(),
            ntt: program.ntt,
        }
    });
    SimRun {
        scheduler: trial::scheduler_id(scheduler).to_string(),
        round,
        antt: mix_report.antt(trial),
        complete: trial.complete,
        virtual_seconds: trial.seconds,
        events: trial.events,
        action_counts: trial.action_counts,
        arrivals: arrival_stats(mix_report, trial),
        programs: programs.collect(),
    }
}

fn arrival_stats(mix_report: &MixReport<'_>, trial: &Trial) -> Option<ArrivalStats> {
    let arrivals = mix_report.mix.arrivals.as_ref()?;
    ArrivalStats::of(trial, arrivals.lifetime_s.is_some())
}

/// The text output.
pub fn text(
    mix_report: &MixReport<'_>,
    result: &MixResult,
    took: &[Duration],
    written: &[PathBuf],
    out: Output,
) -> String {
    let style = measure::style(out);
    let topology = mix_report.setup.machine.topology();
    let mut parts = vec![
        format!(
            "{}: {}, on {}: {} in {}\n{}",
            out.paint(STRONG, "SIMULATED"),
            result.title,
            mix_report.mix.machine,
            words::count(topology.cores.len(), "core"),
            words::count(topology.domains.len(), "domain"),
            result.machine.kernel,
        ),
        table::ntt(result, style).trim_end().to_owned(),
        table::summary(result, style).trim_end().to_owned(),
        counts(mix_report, took, out).trim_end().to_owned(),
    ];
    if mix_report.mix.arrivals.is_some() {
        let head = ARRIVALS.map(|heading| out.paint(STRONG, &heading.to_uppercase()));
        let rows = arrivals(mix_report);
        let rows = rows.into_iter().map(|(name, cells)| {
            let cells = cells.map(|(value, decimals)| words::number(value, decimals));
            [name].into_iter().chain(cells).collect()
        });
        let rows: Vec<Vec<String>> = [head.to_vec()].into_iter().chain(rows).collect();
        parts.push(output::columns(&rows).trim_end().to_owned());
    }
    for note in &result.protocol.notes {
        parts.push(format!("- {note}"));
    }
    if !written.is_empty() {
        parts.push(output::columns(&files(written)));
    }
    parts.join("\n\n")
}

/// Numbers of actions, and the cost of the simulation.
fn counts(mix_report: &MixReport<'_>, took: &[Duration], out: Output) -> String {
    let head = [
        "SCHEDULER",
        "VIRTUAL TIME",
        "PLANS",
        "SEATS",
        "RELEASES",
        "STOPS",
        "EVENTS",
        "EVENTS/S",
    ];
    let mut rows = vec![head.map(|heading| out.paint(STRONG, heading)).to_vec()];
    for ((scheduler, trials), took) in mix_report.trials.iter().zip(took) {
        let sum = |of: &dyn Fn(&Trial) -> usize| trials.iter().map(of).sum::<usize>().to_string();
        let events: u64 = trials.iter().map(|t| t.events).sum();
        let virtual_s: f64 = trials.iter().map(|t| t.seconds).sum();
        rows.push(vec![
            scheduler.name().to_owned(),
            words::seconds(virtual_s),
            sum(&|t| t.action_counts.plans),
            sum(&|t| t.action_counts.seats),
            sum(&|t| t.action_counts.releases),
            sum(&|t| t.action_counts.stops),
            events.to_string(),
            format!("{:.0}", events as f64 / took.as_secs_f64().max(1e-9)),
        ]);
    }
    output::columns(&rows)
}

const ARRIVALS: [&str; 8] = [
    "scheduler",
    "arrived",
    "departed",
    "response",
    "95 %",
    "slowdown",
    "completions/s",
    "present",
];

/// A scheduler and its figures, each with its number of decimals.
type ArrivalsRow = (String, [(Option<f64>, usize); 7]);

/// Statistics of the random arrivals by scheduler, as means over the rounds.
fn arrivals(mix_report: &MixReport<'_>) -> Vec<ArrivalsRow> {
    let row = |(scheduler, trials): &(Scheduler, Vec<Trial>)| {
        let rounds: Vec<ArrivalStats> = trials
            .iter()
            .filter_map(|t| arrival_stats(mix_report, t))
            .collect();
        let mean = |of: &dyn Fn(&ArrivalStats) -> Option<f64>| {
            let values: Vec<f64> = rounds.iter().filter_map(of).collect();
            stats::mean(&values)
        };
        let figures = [
            (mean(&|r| Some(r.arrived as f64)), 0),
            (mean(&|r| Some(r.departed as f64)), 0),
            (mean(&|r| r.response_mean_s), 2),
            (mean(&|r| r.response_p95_s), 2),
            (mean(&|r| r.slowdown_mean), 2),
            (mean(&|r| Some(r.throughput_per_s)), 3),
            (mean(&|r| Some(r.present_mean)), 2),
        ];
        (scheduler.name().to_owned(), figures)
    };
    mix_report.trials.iter().map(row).collect()
}

fn files(written: &[PathBuf]) -> Vec<Vec<String>> {
    let about = written.iter().map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let about = match name.as_ref() {
            "report.html" => "report, to open in a browser",
            "result.json" => "all figures of the report as JSON",
            _ => "trace of programs and seats over time, to open in https://ui.perfetto.dev",
        };
        vec![path.display().to_string(), about.to_owned()]
    });
    about.collect()
}

/// Writes the report and the traces. Returns the written paths, and the errors of files that could
/// not be written.
pub fn write(
    mix_report: &MixReport<'_>,
    result: &MixResult,
    dir: &Path,
) -> (Vec<PathBuf>, Vec<anyhow::Error>) {
    let mut texts = vec![(
        "report.html".to_owned(),
        Ok(page_with(result, &sections(mix_report))),
    )];
    let figures = serde_json::to_string_pretty(&answer(mix_report, result, &[]));
    texts.push(("result.json".to_owned(), figures.context("writing JSON")));
    for (scheduler, trials) in mix_report.trials {
        if let Some(trial) = trials.first() {
            let name = format!("trace-{}.json", trial::scheduler_id(*scheduler));
            texts.push((name, Ok(trace(mix_report, *scheduler, trial).to_string())));
        }
    }
    output::write_files(dir, texts)
}

/// Sections that the page of a real mix does not have.
fn sections(mix_report: &MixReport<'_>) -> Vec<Section> {
    let mut sections = Vec::new();
    if let Some(arrivals_spec) = &mix_report.mix.arrivals {
        let lifetime = arrivals_spec.lifetime_s.map_or_else(
            || "each program departs when its work is done".to_owned(),
            |mean| {
                format!(
                    "each program repeats its work for a random lifetime of {mean} s on average"
                )
            },
        );
        let row = |(name, figures): ArrivalsRow| {
            let cells = figures.map(|(value, decimals)| Cell::Number(value, decimals));
            [Cell::Text(name)].into_iter().chain(cells).collect()
        };
        sections.push(Section {
            title: "Arrivals and departures".to_owned(),
            items: vec![
                Item::Text(format!(
                    "Programs arrive at random (a Poisson process), {} per second on average; \
                     {lifetime}. The arrivals are the same for all schedulers.",
                    arrivals_spec.rate_per_s
                )),
                Item::Table {
                    head: ARRIVALS.map(str::to_owned).to_vec(),
                    rows: arrivals(mix_report).into_iter().map(row).collect(),
                },
                Item::Note(
                    "Response: seconds from a program's arrival to its departure. Slowdown: mean \
                     NTT of the arrived programs. Present: mean number of arrived programs that \
                     run at the same time. All figures are means over the rounds."
                        .to_owned(),
                ),
            ],
        });
    }
    sections.push(actions_section(mix_report));
    sections
}

fn actions_section(mix_report: &MixReport<'_>) -> Section {
    let row = |(scheduler, trials): &(Scheduler, Vec<Trial>)| {
        let sum = |of: &dyn Fn(&Trial) -> f64| Cell::Number(Some(trials.iter().map(of).sum()), 0);
        vec![
            Cell::Text(scheduler.name().to_owned()),
            sum(&|t| t.action_counts.plans as f64),
            sum(&|t| t.action_counts.seats as f64),
            sum(&|t| t.action_counts.releases as f64),
            sum(&|t| t.action_counts.stops as f64),
            Cell::Number(Some(trials.iter().map(|t| t.seconds).sum()), 1),
            sum(&|t| t.events as f64),
        ]
    };
    let head = [
        "scheduler",
        "plans",
        "seats",
        "releases",
        "stops",
        "virtual seconds",
        "events",
    ];
    Section {
        title: "Actions".to_owned(),
        items: vec![
            Item::Table {
                head: head.map(str::to_owned).to_vec(),
                rows: mix_report.trials.iter().map(row).collect(),
            },
            Item::Note(
                "Seats: number of times that a program got a seat or another seat. Releases: \
                 number of times that a program lost its seat. Stops: number of times that a \
                 program was stopped, because another program was on trial or because programs take \
                 turns. All numbers are sums over the rounds."
                    .to_owned(),
            ),
        ],
    }
}

/// Programs on every CPU and seats of every program, over time.
fn trace(mix_report: &MixReport<'_>, scheduler: Scheduler, trial: &Trial) -> serde_json::Value {
    let topology = mix_report.setup.machine.topology();
    let cpu = |cpu: &usher_model::Cpu| {
        format!(
            "CPU {} (domain {})",
            cpu.os, topology.cores[cpu.core].domain
        )
    };
    let names: Vec<String> = trial.programs.iter().map(|g| g.name.clone()).collect();
    let ran = trial.recording.spans.iter().map(|span| Slice {
        track: span.cpu,
        name: names[span.program].clone(),
        from_ns: span.from_ns,
        to_ns: span.to_ns,
    });
    let seats = trial.seat_periods.iter().map(|period| Slice {
        track: (period.program.0 as usize).saturating_sub(1),
        name: describe_seat(&period.seat_state),
        from_ns: period.from_ns,
        to_ns: period.to_ns,
    });
    simulated(&Tracks {
        title: &mix_report.mix.title,
        policy: scheduler.name(),
        cpus: topology.cpus.iter().map(cpu).collect(),
        ran: ran.collect(),
        ran_until_ns: trial.recording.until_ns,
        seats: seats.collect(),
        notes: &trial.notes,
        programs: names,
    })
}

fn describe_seat(seat: &SeatState) -> String {
    let how = match (seat.frozen, seat.mode) {
        (true, _) => return "stopped".to_owned(),
        (false, SeatMode::Shared) => "unmanaged on",
        (false, SeatMode::InTurn) => "in turn on",
        (false, SeatMode::Seated) => "seated on",
    };
    let borrowed: usize = seat.borrowed.iter().map(|(_, cpus)| cpus.len()).sum();
    let more = match borrowed {
        0 => String::new(),
        n => format!(" and {n} borrowed"),
    };
    format!("{how} CPU {}{more}", seat.own)
}
