// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench calibrate`: measures the contention thresholds of this machine.
//!
//! 1. Load generators run in all settings of paper 2's section on thresholds
//!    ([`super::calibrate::settings`]). Usher's own meter measures the background's share of each
//!    resource in time windows. Each setting has three windows of 1 s, from 300 ms after its start;
//!    in quick runs, one window of 0.5 s.
//! 2. For the threshold of IPD, the meter measures the idle share of the CPUs in each second while
//!    the benchmark runs nothing. This takes 30 minutes by default, or 1 minute in quick runs.
//! 3. `calibrate` computes the thresholds. They are printed, saved with a page, and written to the
//!    file that `--write` names.
//!
//! The default run has 576 settings (two resources), and 80 in quick runs. An error in any setting
//! ends the run without a result.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::actors::Background;
use super::calibrate::{self, AccuracyMap, Setting, Window};
use super::experiments::DiskSetup;
use super::fixture::{BackgroundFixture, FixtureSettings};
use super::jobs::{Job, LoadCommand};
use super::metered::BackgroundMeter;
use super::watch::Resource;
use crate::bars::{Figure, Part, Table};
use crate::chart;

/// Arguments of `usher bench calibrate`.
#[derive(Debug, Clone, clap::Args)]
pub struct CalibrateArgs {
    /// Measure only four usage degrees, 1 and 4 background programs, short windows and one idle
    /// minute
    #[arg(long)]
    quick: bool,
    /// Measure the threshold of IPD for this time without foreground work, in minutes; 30 in the
    /// paper
    #[arg(long)]
    idle_minutes: Option<f64>,
    /// Measure only these resources
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["disk", "net"])]
    resources: Vec<Resource>,
    /// Change the I/O scheduler of this disk to mq-deadline during the run
    #[arg(long)]
    allow_disk_scheduler: bool,
    /// Create files in this directory, which must be on the disk to be measured
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    scratch: PathBuf,
    /// Write the thresholds to this file; `usher` reads thresholds.toml in the directory of its
    /// profile store (/var/lib/usher for root)
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: PathBuf,
}

/// Measures the windows, computes and prints the thresholds, and saves a page.
pub fn run(args: &CalibrateArgs) -> Result<bool> {
    let folder = crate::machine::run_folder(&args.out, "calibrate")?;
    let size = FixtureSettings {
        fg_seconds: 1.0,
        quick: args.quick,
        rate_mbit: 200,
        tree: None,
        tpr: None,
        allow_disk_scheduler: args.allow_disk_scheduler,
    };
    let mut fixture = BackgroundFixture::new(size, &args.scratch)?;
    let mut source = BackgroundMeter::new();
    let settings = calibrate::settings(&args.resources, args.quick);
    let mut windows = Vec::new();
    for (number, setting) in settings.iter().enumerate() {
        if number % 20 == 0 {
            eprintln!(
                "calibrate: measuring setting {} of {}",
                number + 1,
                settings.len()
            );
        }
        windows.extend(one(&mut fixture, &mut source, setting, args.quick)?);
    }
    let minutes = args
        .idle_minutes
        .unwrap_or(if args.quick { 1.0 } else { 30.0 });
    let idle = idle_shares(&mut source, minutes)?;
    let (part, toml) = study(&args.resources, &windows, &idle, minutes);
    crate::machine::print_line(&toml)?;
    if let Some(path) = &args.write {
        let failed = || format!("writing the thresholds to {}", path.display());
        std::fs::write(path, toml).with_context(failed)?;
    }
    super::finish("Usher: thresholds of contention", &folder, &[part])
}

/// Measures the windows of one setting of the load generators.
fn one(
    fixture: &mut BackgroundFixture,
    source: &mut BackgroundMeter,
    setting: &Setting,
    quick: bool,
) -> Result<Vec<Window>> {
    let place = (setting.resource == Resource::Disk).then_some(DiskSetup::Deadline);
    fixture.prepare(setting.resource.task(), place, setting.bg_count)?;
    let seconds = Duration::from_millis(if quick { 500 } else { 1_000 });
    let runtime = fixture.path("no-usher");
    let bg: Vec<Job> = (1..=setting.bg_count)
        .map(|number| job(fixture, setting, number, setting.bg_usage))
        .collect::<Result<_>>()?;
    let background = Background::start(&bg, &runtime)?;
    let fg = match setting.fg_usage {
        Some(usage) => Some(Background::start(
            &[job(fixture, setting, 0, usage)?],
            &runtime,
        )?),
        None => None,
    };
    std::thread::sleep(Duration::from_millis(300));
    source.watches(&background.processes())?;
    let mut windows = Vec::new();
    for _ in 0..if quick { 1 } else { 3 } {
        let shares = source.window(seconds);
        windows.push(Window {
            resource: setting.resource,
            fg_usage: setting.fg_usage,
            bg_usage: setting.bg_usage,
            bg_count: setting.bg_count,
            shares,
        });
    }
    fg.map(Background::end).transpose()?;
    background.end()?;
    Ok(windows)
}

fn counter(fixture: &BackgroundFixture, number: u32) -> PathBuf {
    fixture.path(&format!("calibrate{number}"))
}

/// Returns the command of a load generator: of the foreground (`number` 0, at normal priority), or
/// of a background program (`number` from 1).
fn job(fixture: &mut BackgroundFixture, setting: &Setting, number: u32, usage: f64) -> Result<Job> {
    let kind = match setting.resource {
        Resource::Cpu => "cpu",
        Resource::Disk => "disk",
        Resource::Net => "net",
    };
    let mut load = LoadCommand::new(kind)?;
    load.pair("--usage", usage);
    load.pair("--counter", counter(fixture, number).display());
    match setting.resource {
        Resource::Cpu => {}
        Resource::Disk => {
            let file = fixture
                .disk(DiskSetup::Deadline)?
                .dir
                .join(format!("file{number}"));
            load.pair("--file", file.display());
        }
        Resource::Net => {
            load.pair("--to", fixture.network()?.sink());
            load.pair("--name", format!("flow{number}"));
            load.words = fixture.network()?.in_local_ns(load.words);
        }
    }
    let nice: &[&str] = if number == 0 {
        &["setsid"]
    } else {
        &["setsid", "nice", "-n", "19"]
    };
    let words = nice
        .iter()
        .map(|w| (*w).to_owned())
        .chain(load.words)
        .collect();
    Ok(Job {
        words,
        counter: Some(counter(fixture, number)),
    })
}

/// Measures the idle share of the CPUs in each second while the benchmark runs no load generator.
fn idle_shares(source: &mut BackgroundMeter, minutes: f64) -> Result<Vec<f64>> {
    eprintln!("calibrate: measuring {minutes} minutes without foreground work");
    source.watches(&[])?;
    let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let mut shares = Vec::new();
    while Instant::now() < end {
        shares.push(source.window(Duration::from_secs(1)).idle);
    }
    Ok(shares)
}

/// Returns the part of the page with the results, and the text of the thresholds file for `usher`.
fn study(resources: &[Resource], windows: &[Window], idle: &[f64], minutes: f64) -> (Part, String) {
    let mut part = Part::new("calibrate", "Thresholds of contention (figure 1)");
    let maps: Vec<AccuracyMap> = resources
        .iter()
        .filter_map(|&r| AccuracyMap::of(windows, r))
        .collect();
    let best = |resource| {
        maps.iter()
            .find(|m| m.resource == resource)
            .map(AccuracyMap::best)
    };
    let least = calibrate::idle_threshold(idle);
    let toml = calibrate::thresholds_toml(
        calibrate::cpu_threshold(&maps),
        best(Resource::Disk),
        best(Resource::Net),
        least,
        minutes,
    );
    part.figures = maps.iter().map(figure).collect();
    part.tables = vec![Table {
        head: ["", "threshold", "CPU threshold", "accuracy"]
            .map(str::to_owned)
            .to_vec(),
        rows: maps
            .iter()
            .map(|map| {
                let best = map.best();
                let percent = |share: f64| usher_report::text::percent(share);
                vec![
                    map.resource.name().to_owned(),
                    percent(best.share),
                    percent(best.cpu),
                    percent(best.accuracy),
                ]
            })
            .collect(),
    }];
    part.notes = vec![
        toml.clone(),
        format!(
            "A window is correct if it reports contention exactly when foreground work ran. The \
             threshold of IPD is the least idle share of a second, in %, in {minutes} minutes \
             without foreground work (30 in the paper)."
        ),
    ];
    part.raw = serde_json::json!({ "windows": windows, "maps": maps, "idle": idle });
    (part, toml)
}

fn figure(map: &AccuracyMap) -> Figure {
    let name = map.resource.name();
    let value = |i: usize, j: usize| map.accuracy[i][j];
    Figure {
        caption: format!(
            "Accuracy of contention detection over {} windows, by the thresholds of {name} and CPU",
            map.windows
        ),
        svg: chart::heat_map(&format!("{name} x CPU"), name, "CPU", &map.steps, value),
    }
}
