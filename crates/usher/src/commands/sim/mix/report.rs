// SPDX-License-Identifier: GPL-2.0-only
//! What `usher sim mix` prints and writes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use usher_model::SeatMode;
use usher_report::data::MixResult;
use usher_report::html::{Cell, Item, Section, page_with};
use usher_report::text as words;
use usher_report::trace::{Slice, Tracks, simulated};
use usher_report::{stats, table};
use usher_sim::campaign::Scheduler;
use usher_sim::trial::{self, Place, Reception, Show, Trial};

use crate::measure;
use crate::output::{self, Output, STRONG};

/// The answer for programs: the same for the same file and seed.
pub fn answer(show: &Show<'_>, result: &MixResult, written: &[PathBuf]) -> Value {
    let runs: Vec<Value> = show
        .trials
        .iter()
        .flat_map(|(scheduler, trials)| {
            let number = trials.iter().enumerate();
            number.map(|(round, trial)| run(show, *scheduler, round + 1, trial))
        })
        .collect();
    json!({
        "simulated": true,
        "machine": show.mix.machine,
        "seed": show.mix.protocol.seed,
        "result": result,
        "runs": runs,
        "files": written,
    })
}

fn run(show: &Show<'_>, scheduler: Scheduler, round: usize, trial: &Trial) -> Value {
    let programs = trial.guests.iter().map(|guest| {
        json!({
            "name": guest.name,
            "program": show.cast.roles[guest.role].name,
            "at_s": guest.at_s,
            "left_s": guest.left_s,
            "by_chance": guest.by_chance,
            "seconds": guest.seconds,
            "ntt": guest.ntt,
        })
    });
    json!({
        "scheduler": trial::scheduler_id(scheduler),
        "round": round,
        "antt": show.antt(trial),
        "complete": trial.complete,
        "virtual_seconds": trial.seconds,
        "events": trial.events,
        "acts": trial.acts,
        "arrivals": reception(show, trial),
        "programs": programs.collect::<Vec<_>>(),
    })
}

fn reception(show: &Show<'_>, trial: &Trial) -> Option<Reception> {
    let arrivals = show.mix.arrivals.as_ref()?;
    Reception::of(trial, arrivals.stay_s.is_some())
}

/// What people see.
pub fn text(
    show: &Show<'_>,
    result: &MixResult,
    took: &[Duration],
    written: &[PathBuf],
    out: Output,
) -> String {
    let style = measure::style(out);
    let topology = show.cast.machine.topology();
    let mut parts = vec![
        format!(
            "{}: {}, on {}: {} in {}\n{}",
            out.paint(STRONG, "SIMULATED"),
            result.title,
            show.mix.machine,
            words::count(topology.cores.len(), "core"),
            words::count(topology.domains.len(), "domain"),
            result.machine.kernel,
        ),
        table::ntt(result, style).trim_end().to_owned(),
        table::summary(result, style).trim_end().to_owned(),
        counts(show, took, out).trim_end().to_owned(),
    ];
    if show.mix.arrivals.is_some() {
        let head = ARRIVALS.map(|heading| out.paint(STRONG, &heading.to_uppercase()));
        let rows = arrivals(show);
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

/// What was done to programs, and what it cost to simulate that.
fn counts(show: &Show<'_>, took: &[Duration], out: Output) -> String {
    let head = [
        "SCHEDULER",
        "VIRTUAL TIME",
        "PLANS",
        "SEATS",
        "RELEASES",
        "STOPS",
        "EVENTS",
        "A SECOND",
    ];
    let mut rows = vec![head.map(|heading| out.paint(STRONG, heading)).to_vec()];
    for ((scheduler, trials), took) in show.trials.iter().zip(took) {
        let sum = |of: &dyn Fn(&Trial) -> usize| trials.iter().map(of).sum::<usize>().to_string();
        let events: u64 = trials.iter().map(|t| t.events).sum();
        let virtual_s: f64 = trials.iter().map(|t| t.seconds).sum();
        rows.push(vec![
            scheduler.name().to_owned(),
            words::seconds(virtual_s),
            sum(&|t| t.acts.plans),
            sum(&|t| t.acts.seats),
            sum(&|t| t.acts.releases),
            sum(&|t| t.acts.stops),
            events.to_string(),
            format!("{:.0}", events as f64 / took.as_secs_f64().max(1e-9)),
        ]);
    }
    output::columns(&rows)
}

const ARRIVALS: [&str; 8] = [
    "scheduler",
    "came",
    "left",
    "response",
    "95 %",
    "slowdown",
    "done a second",
    "present",
];

/// A scheduler and its figures, each with its decimals.
type ArrivalsRow = (String, [(Option<f64>, usize); 7]);

/// Means over the rounds of what newcomers met with, by scheduler.
fn arrivals(show: &Show<'_>) -> Vec<ArrivalsRow> {
    let row = |(scheduler, trials): &(Scheduler, Vec<Trial>)| {
        let rounds: Vec<Reception> = trials.iter().filter_map(|t| reception(show, t)).collect();
        let mean = |of: &dyn Fn(&Reception) -> Option<f64>| {
            let values: Vec<f64> = rounds.iter().filter_map(of).collect();
            stats::mean(&values)
        };
        let figures = [
            (mean(&|r| Some(r.came as f64)), 0),
            (mean(&|r| Some(r.left as f64)), 0),
            (mean(&|r| r.response_mean_s), 2),
            (mean(&|r| r.response_p95_s), 2),
            (mean(&|r| r.slowdown_mean), 2),
            (mean(&|r| Some(r.throughput_per_s)), 3),
            (mean(&|r| Some(r.present_mean)), 2),
        ];
        (scheduler.name().to_owned(), figures)
    };
    show.trials.iter().map(row).collect()
}

fn files(written: &[PathBuf]) -> Vec<Vec<String>> {
    let about = written.iter().map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let about = match name.as_ref() {
            "report.html" => "the report, for a browser",
            "result.json" => "every figure, for programs",
            _ => "who ran and sat where and when, for https://ui.perfetto.dev",
        };
        vec![path.display().to_string(), about.to_owned()]
    });
    about.collect()
}

/// Writes the report and the traces; answers where they are, and why those
/// are missing that are.
pub fn write(
    show: &Show<'_>,
    result: &MixResult,
    dir: &Path,
) -> (Vec<PathBuf>, Vec<anyhow::Error>) {
    let mut texts = vec![(
        "report.html".to_owned(),
        Ok(page_with(result, &sections(show))),
    )];
    let figures = serde_json::to_string_pretty(&answer(show, result, &[]));
    texts.push(("result.json".to_owned(), figures.context("writing JSON")));
    for (scheduler, trials) in show.trials {
        if let Some(trial) = trials.first() {
            let name = format!("trace-{}.json", trial::scheduler_id(*scheduler));
            texts.push((name, Ok(trace(show, *scheduler, trial).to_string())));
        }
    }
    output::write_files(dir, texts)
}

/// What the page has beside what that of a real mix has.
fn sections(show: &Show<'_>) -> Vec<Section> {
    let mut sections = Vec::new();
    if let Some(came) = &show.mix.arrivals {
        let stay = came.stay_s.map_or_else(
            || "each leaves when its work is done".to_owned(),
            |mean| format!("each stays for {mean} s on average, repeating its work"),
        );
        let row = |(name, figures): ArrivalsRow| {
            let cells = figures.map(|(value, decimals)| Cell::Number(value, decimals));
            [Cell::Text(name)].into_iter().chain(cells).collect()
        };
        sections.push(Section {
            title: "Arrivals and departures".to_owned(),
            items: vec![
                Item::Text(format!(
                    "Programs come by chance, {} a second on average (a Poisson process); {stay}. All schedulers meet the same ones at the same moments.",
                    came.rate_per_s
                )),
                Item::Table {
                    head: ARRIVALS.map(str::to_owned).to_vec(),
                    rows: arrivals(show).into_iter().map(row).collect(),
                },
                Item::Note("Response: seconds from coming to leaving. Slowdown: mean NTT of those who came. Present: how many of them were there on average. Means over the rounds.".to_owned()),
            ],
        });
    }
    sections.push(acts_section(show));
    sections
}

fn acts_section(show: &Show<'_>) -> Section {
    let row = |(scheduler, trials): &(Scheduler, Vec<Trial>)| {
        let sum = |of: &dyn Fn(&Trial) -> f64| Cell::Number(Some(trials.iter().map(of).sum()), 0);
        vec![
            Cell::Text(scheduler.name().to_owned()),
            sum(&|t| t.acts.plans as f64),
            sum(&|t| t.acts.seats as f64),
            sum(&|t| t.acts.releases as f64),
            sum(&|t| t.acts.stops as f64),
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
        title: "What was done to programs".to_owned(),
        items: vec![
            Item::Table {
                head: head.map(str::to_owned).to_vec(),
                rows: show.trials.iter().map(row).collect(),
            },
            Item::Note("Seats: programs given a seat, or another one. Releases: let out of it. Stops: a program was stopped, for another one's trial or because it was another one's turn. Sums over the rounds.".to_owned()),
        ],
    }
}

/// Who ran on every CPU, and where every program was.
fn trace(show: &Show<'_>, scheduler: Scheduler, trial: &Trial) -> Value {
    let topology = show.cast.machine.topology();
    let cpu = |cpu: &usher_model::Cpu| {
        format!(
            "CPU {} (domain {})",
            cpu.os, topology.cores[cpu.core].domain
        )
    };
    let names: Vec<String> = trial.guests.iter().map(|g| g.name.clone()).collect();
    let ran = trial.recording.spans.iter().map(|span| Slice {
        track: span.cpu,
        name: names[span.program].clone(),
        from_ns: span.from_ns,
        to_ns: span.to_ns,
    });
    let places = trial.stays.iter().map(|stay| Slice {
        track: (stay.program.0 as usize).saturating_sub(1),
        name: place(&stay.place),
        from_ns: stay.from_ns,
        to_ns: stay.to_ns,
    });
    simulated(&Tracks {
        title: &show.mix.title,
        policy: scheduler.name(),
        cpus: topology.cpus.iter().map(cpu).collect(),
        ran: ran.collect(),
        ran_until_ns: trial.recording.until_ns,
        places: places.collect(),
        notes: &trial.notes,
        programs: names,
    })
}

fn place(place: &Place) -> String {
    let how = match (place.frozen, place.mode) {
        (true, _) => return "stopped".to_owned(),
        (false, SeatMode::Shared) => "left to the kernel on",
        (false, SeatMode::InTurn) => "has its turn on",
        (false, SeatMode::Seated) => "seated on",
    };
    let borrowed: usize = place.borrowed.iter().map(|(_, cpus)| cpus.len()).sum();
    let more = match borrowed {
        0 => String::new(),
        n => format!(" and {n} borrowed"),
    };
    format!("{how} CPU {}{more}", place.own)
}
