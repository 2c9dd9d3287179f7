// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running the load generators for `usher bench calibrate`.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::actors::Background;
use super::calibrate::{self, AccuracyMap, Setting, Shares, Source, Window};
use super::chart;
use super::experiments::Place;
use super::jobs::{Job, Load};
use super::load::read_counter;
use super::stage::{Size, Stage};
use super::watch::Resource;
use crate::bars::{Figure, Part, Table};

/// Arguments of `usher bench calibrate`.
#[derive(Debug, Clone, clap::Args)]
pub struct CalibrateArgs {
    /// Four usage degrees, 1 and 4 backgrounds, short windows, one idle minute
    #[arg(long)]
    quick: bool,
    /// Minutes without a foreground for IPD's threshold; 30 in the paper
    #[arg(long)]
    idle_minutes: Option<f64>,
    /// Only these resources
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["disk", "net"])]
    resources: Vec<Resource>,
    /// Switch this disk's scheduler to mq-deadline during the run
    #[arg(long)]
    allow_disk_scheduler: bool,
    /// Where files are made, on the disk to be measured
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    scratch: PathBuf,
    /// Where the dated folder of results is made
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: PathBuf,
}

/// Measures, studies, prints thresholds and saves a page.
pub fn run(args: &CalibrateArgs) -> Result<bool> {
    let folder = crate::machine::run_folder(&args.out, "calibrate")?;
    let size = Size {
        fg_seconds: 1.0,
        quick: args.quick,
        rate_mbit: 200,
        tree: None,
        tpr: None,
        allow_disk_scheduler: args.allow_disk_scheduler,
    };
    let mut stage = Stage::new(size, &args.scratch)?;
    let mut source = Generators::default();
    let settings = calibrate::settings(&args.resources, args.quick);
    let mut windows = Vec::new();
    for (number, setting) in settings.iter().enumerate() {
        if number % 20 == 0 {
            eprintln!("calibrate: setting {} of {}", number + 1, settings.len());
        }
        windows.extend(one(&mut stage, &mut source, setting, args.quick)?);
    }
    let minutes = args
        .idle_minutes
        .unwrap_or(if args.quick { 1.0 } else { 30.0 });
    let idle = idle_shares(minutes)?;
    let part = study(&args.resources, &windows, &idle, minutes);
    super::finish("Usher: thresholds of contention", &folder, &[part])
}

/// Windows of one setting.
fn one(
    stage: &mut Stage,
    source: &mut dyn Source,
    setting: &Setting,
    quick: bool,
) -> Result<Vec<Window>> {
    let place = (setting.resource == Resource::Disk).then_some(Place::Deadline);
    stage.prepare(setting.resource.task(), place, setting.bg_count)?;
    let seconds = Duration::from_millis(if quick { 500 } else { 1_000 });
    let runtime = stage.path("no-usher");
    let bg: Vec<Job> = (1..=setting.bg_count)
        .map(|number| job(stage, setting, number, setting.bg_usage))
        .collect::<Result<_>>()?;
    let background = Background::start(&bg, &runtime)?;
    let fg = match setting.fg_usage {
        Some(usage) => Some(Background::start(
            &[job(stage, setting, 0, usage)?],
            &runtime,
        )?),
        None => None,
    };
    std::thread::sleep(Duration::from_millis(300));
    source.looks_at(&bg, fg.is_some().then(|| counter(stage, 0)));
    let mut windows = Vec::new();
    for _ in 0..if quick { 1 } else { 3 } {
        let shares = source.window(seconds, setting.resource, &background.processes())?;
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

fn counter(stage: &Stage, number: u32) -> PathBuf {
    stage.path(&format!("calibrate{number}"))
}

/// The generator of foreground (0, in its normal priority) or background.
fn job(stage: &mut Stage, setting: &Setting, number: u32, usage: f64) -> Result<Job> {
    let kind = match setting.resource {
        Resource::Cpu => "cpu",
        Resource::Disk => "disk",
        Resource::Net => "net",
    };
    let mut load = Load::new(kind)?;
    load.pair("--usage", usage);
    load.pair("--counter", counter(stage, number).display());
    match setting.resource {
        Resource::Cpu => {}
        Resource::Disk => {
            let file = stage
                .disk(Place::Deadline)?
                .dir
                .join(format!("file{number}"));
            load.pair("--file", file.display());
        }
        Resource::Net => {
            load.pair("--to", stage.network()?.sink());
            load.pair("--name", format!("flow{number}"));
            load.words = stage.network()?.near(load.words);
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
        counter: Some(counter(stage, number)),
    })
}

/// Shares by the generators' own counters (blocks, sends) and /proc (CPU).
#[derive(Debug, Default)]
struct Generators {
    bg: Vec<PathBuf>,
    fg: Option<PathBuf>,
}

impl Generators {
    fn counted(&self) -> (u64, u64) {
        let bg = self.bg.iter().map(|path| read_counter(path)).sum();
        (bg, self.fg.as_deref().map_or(0, read_counter))
    }
}

impl Source for Generators {
    fn looks_at(&mut self, background: &[Job], foreground: Option<PathBuf>) {
        self.bg = background
            .iter()
            .filter_map(|job| job.counter.clone())
            .collect();
        self.fg = foreground;
    }

    fn window(
        &mut self,
        length: Duration,
        resource: Resource,
        background: &[i32],
    ) -> Result<Shares> {
        let cpu_of = || {
            background
                .iter()
                .filter_map(|&pid| crate::processes::cpu_seconds(pid).ok())
                .sum::<f64>()
        };
        let (before, cpu, start, machine) =
            (self.counted(), cpu_of(), Instant::now(), CpuTime::now()?);
        std::thread::sleep(length);
        let (after, bg_cpu) = (self.counted(), cpu_of() - cpu);
        let machine = CpuTime::now()?.since(&machine);
        let (bg, fg) = ((after.0 - before.0) as f64, (after.1 - before.1) as f64);
        let share = (bg + fg > 0.0).then(|| bg / (bg + fg));
        let cpus = std::thread::available_parallelism()?.get() as f64;
        let used = (1.0 - machine) * cpus * start.elapsed().as_secs_f64();
        Ok(Shares {
            cpu: (used > 0.0).then(|| (bg_cpu / used).clamp(0.0, 1.0)),
            disk: share.filter(|_| resource == Resource::Disk),
            net: share.filter(|_| resource == Resource::Net),
            idle: machine,
        })
    }
}

/// Ticks of all CPUs: idle (with waiting for disks) and all.
struct CpuTime {
    idle: f64,
    all: f64,
}

impl CpuTime {
    fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<f64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|n| n.parse().ok())
            .collect();
        anyhow::ensure!(ticks.len() == 8, "/proc/stat begins with '{line}'");
        Ok(Self {
            idle: ticks[3] + ticks[4],
            all: ticks.iter().sum(),
        })
    }

    /// The idle share since then.
    fn since(&self, before: &Self) -> f64 {
        let all = self.all - before.all;
        if all > 0.0 {
            (self.idle - before.idle) / all
        } else {
            1.0
        }
    }
}

/// Idle shares by the second while nothing of ours runs.
fn idle_shares(minutes: f64) -> Result<Vec<f64>> {
    eprintln!("calibrate: {minutes} minutes without a foreground");
    let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let mut shares = Vec::new();
    let mut before = CpuTime::now()?;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_secs(1));
        let now = CpuTime::now()?;
        shares.push(now.since(&before));
        before = now;
    }
    Ok(shares)
}

fn study(resources: &[Resource], windows: &[Window], idle: &[f64], minutes: f64) -> Part {
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
    let toml =
        calibrate::thresholds_toml(best(Resource::Disk), best(Resource::Net), least, minutes);
    println!("{toml}");
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
        toml,
        format!(
            "A window is right if it says contention exactly when a foreground ran. IPD's threshold is the least idle share of a second in {minutes} minutes without a foreground (the paper: 30)."
        ),
    ];
    part.raw = serde_json::json!({ "windows": windows, "maps": maps, "idle": idle });
    part
}

fn figure(map: &AccuracyMap) -> Figure {
    let name = map.resource.name();
    let value = |i: usize, j: usize| map.accuracy[i][j];
    Figure {
        caption: format!(
            "Accuracy of contention detection over {} windows, thresholds {name} x CPU",
            map.windows
        ),
        svg: chart::heat_map(&format!("{name} x CPU"), name, "CPU", &map.steps, value),
    }
}
