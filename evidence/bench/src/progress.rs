// SPDX-License-Identifier: MIT OR Apache-2.0
//! `usher bench progress`: measures how well each source of progress (a counter by which Usher
//! estimates the speed of a program, such as instructions or heartbeats) agrees with wall time, as
//! table 1 of paper 1 does for instructions.
//!
//! 1. Each program runs alone on one core and on two cores, several times; all sources count in the
//!    same runs.
//! 2. A source is a valid measure of progress if its total over a whole run does not depend on the
//!    number of cores. The table gives the growth of the total from one to two cores (in the paper,
//!    instructions grew by at most 8.7 %).
//! 3. The table also gives the error of the speed-up that follows from the source's rate, relative
//!    to the speed-up by wall time. A source with an error of more than [`ERROR_MAX`] is not
//!    suitable for planning the program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;
use rustix::thread::{CpuSet as Affinity, sched_setaffinity};
use serde::Serialize;
use usher_heartbeat::Page;
use usher_host::launch::{LaunchSpec, Stream, hold};
use usher_host::mix::MixFile;
use usher_host::profile::seat_of;
use usher_model::CpuSet;
use usher_probe::{CounterKind, PerfCounters, Roots, usable_cpus};
use usher_report::html::{Cell, Item, Section, bench_page};
use usher_report::stats;

use crate::machine;

/// Largest relative error of a source that is suitable for planning.
const ERROR_MAX: f64 = 0.10;

/// Options of the benchmark.
#[derive(Debug, Clone, clap::Args)]
pub struct ProgressArgs {
    /// Measure the programs of the mix files in this directory
    #[arg(long, default_value = "examples/mixes", value_name = "DIR")]
    mixes: PathBuf,
    /// Run each program this many times on each number of cores; the result is the median
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Measure only these programs
    #[arg(long, value_delimiter = ',')]
    program: Vec<String>,
    /// Use this OMPT tool of Usher
    #[arg(long, value_name = "FILE")]
    ompt: Option<PathBuf>,
    /// Create the dated directory of the results in this directory
    #[arg(long, default_value = "out/bench", value_name = "DIR")]
    out: PathBuf,
}

/// Totals of one program on one number of cores: medians over the runs.
#[derive(Debug, Clone, Serialize)]
struct SourceTotals {
    seconds: f64,
    by_source: BTreeMap<&'static str, f64>,
}

/// Result of one program and one source.
#[derive(Debug, Clone, Serialize)]
struct SourceResult {
    program: String,
    source: &'static str,
    growth_percent: f64,
    speedup_wall: f64,
    speedup_source: f64,
    error_percent: f64,
    fit_to_plan: bool,
}

/// Measures every program, then prints the table and saves it with a page.
pub fn run(args: &ProgressArgs) -> Result<bool> {
    let scratch = tempfile::tempdir()?;
    let machine = usher_topology::load(usher_topology::Source::ThisMachine)?;
    let topology = machine.restrict(&usable_cpus(&Roots::default())?)?;
    ensure!(
        topology.cores.len() > 1,
        "the comparison of one core with two cores needs two usable cores"
    );
    let mut subjects = from_mixes(&args.mixes)?;
    subjects.extend(own_programs(scratch.path()));
    let wanted = |name: &String| args.program.is_empty() || args.program.contains(name);
    let mut rows = Vec::new();
    for (name, spec) in subjects.iter().filter(|(name, _)| wanted(name)) {
        let totals = |cores| {
            let seat = seat_of(&topology, cores);
            median_totals(spec, &seat, args, scratch.path())
        };
        let (one, two) = (
            totals(1).with_context(|| name.clone())?,
            totals(2).with_context(|| name.clone())?,
        );
        for row in compare(name, &one, &two) {
            crate::machine::print_line(line(&row))?;
            rows.push(row);
        }
    }
    save(args, &rows)?;
    Ok(true)
}

/// Returns the programs of all mix files, without duplicates.
fn from_mixes(dir: &Path) -> Result<Vec<(String, LaunchSpec)>> {
    let mut subjects: BTreeMap<String, LaunchSpec> = BTreeMap::new();
    let entries = std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|p| p.extension().is_some_and(|e| e == "toml"))
        .collect();
    paths.sort();
    for path in paths {
        let mix = MixFile::read(&path)?;
        for setup in mix.setup.iter().filter(|s| {
            s.unless_exists
                .as_ref()
                .is_some_and(|c| !mix.dir.join(c).exists())
        }) {
            let (command, rest) = setup
                .argv
                .split_first()
                .context("the setup command is empty")?;
            let status = Command::new(command)
                .args(rest)
                .current_dir(&mix.dir)
                .status();
            ensure!(
                status.with_context(|| format!("{command:?}"))?.success(),
                "{command:?} failed"
            );
        }
        for program in &mix.programs {
            let spec = program.spec(&mix.dir, Stream::Null, true);
            subjects.entry(program.name.clone()).or_insert(spec);
        }
    }
    Ok(subjects.into_iter().collect())
}

/// Returns programs that report their progress themselves, by heartbeats or OMPT. They are compiled
/// from the examples; a program is left out if its compiler is not installed.
fn own_programs(scratch: &Path) -> Vec<(String, LaunchSpec)> {
    let build = |compiler: &str, options: &[&str], name: &str| {
        let out = scratch.join(name);
        let built = Command::new(compiler)
            .args(options)
            .arg("-o")
            .arg(&out)
            .status();
        if !built.is_ok_and(|status| status.success()) {
            eprintln!(
                "progress: the program '{name}' is left out, because {compiler} does not build it"
            );
            return None;
        }
        Some(out)
    };
    let primes = build(
        "cc",
        &[
            "-O2",
            "-pthread",
            "-Icrates/heartbeat/include",
            "examples/heartbeat/primes.c",
        ],
        "primes",
    );
    let heat = build(
        "clang",
        &["-O2", "-fopenmp", "examples/openmp/heat.c"],
        "heat",
    );
    let primes = primes.map(|exe| {
        (
            "primes".to_owned(),
            quiet([exe.into_os_string(), "2".into(), "12000000".into()]),
        )
    });
    let heat = heat.map(|exe| {
        (
            "heat".to_owned(),
            quiet([exe.into_os_string(), "1000".into(), "3000".into()]).env("OMP_NUM_THREADS", "2"),
        )
    });
    primes.into_iter().chain(heat).collect()
}

fn quiet(argv: [std::ffi::OsString; 3]) -> LaunchSpec {
    LaunchSpec {
        stdin: Stream::Null,
        stdout: Stream::Null,
        stderr: Stream::Null,
        new_session: true,
        ..LaunchSpec::new(argv)
    }
}

fn median_totals(
    spec: &LaunchSpec,
    seat: &CpuSet,
    args: &ProgressArgs,
    scratch: &Path,
) -> Result<SourceTotals> {
    let runs = (0..args.repeats)
        .map(|_| run_once(spec, seat, args, scratch))
        .collect::<Result<Vec<_>>>()?;
    let median = |values: Vec<f64>| stats::median(&values).unwrap_or(f64::NAN);
    let mut by_source = BTreeMap::new();
    for &source in runs.iter().flat_map(|run| run.by_source.keys()) {
        by_source.insert(
            source,
            median(
                runs.iter()
                    .filter_map(|run| run.by_source.get(source).copied())
                    .collect(),
            ),
        );
    }
    Ok(SourceTotals {
        seconds: median(runs.iter().map(|run| run.seconds).collect()),
        by_source,
    })
}

/// Runs a program once on the CPUs `seat`, while all sources count.
fn run_once(
    spec: &LaunchSpec,
    seat: &CpuSet,
    args: &ProgressArgs,
    scratch: &Path,
) -> Result<SourceTotals> {
    let path = scratch.join("heartbeat");
    let mut page = Page::create(&path)?;
    let mut spec = spec.clone().heartbeat(&path);
    if let Some(tool) = ompt_tool(args) {
        spec = spec.ompt_tool(&tool);
    }
    let held = hold(&spec)?;
    let mut mask = Affinity::new();
    seat.iter().for_each(|cpu| mask.set(cpu as usize));
    sched_setaffinity(Pid::from_raw(held.pid()), &mask)?;
    let kinds = [
        ("cpu-time", CounterKind::TaskClock),
        ("instructions", CounterKind::Instructions),
    ];
    // On a machine without a PMU, the counter of instructions is left out.
    let counters = kinds.map(|(name, kind)| (name, PerfCounters::on_exec(kind, held.pid()).ok()));
    let start = Instant::now();
    let mut running = held.release()?;
    let exit = running.wait()?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(exit.success(), "the program ended with {exit:?}");
    let mut by_source = BTreeMap::from([("repetitions", 1.0)]);
    for (name, counter) in counters {
        if let Some(mut counter) = counter {
            by_source.insert(name, counter.read());
        }
    }
    let reading = page.read()?;
    if reading.work > 0 {
        by_source.insert("heartbeat", reading.work as f64);
    }
    if let (Some(threads), Some(cpu)) = (reading.threads, by_source.get("cpu-time")) {
        by_source.insert("ompt", cpu - threads.waiting_cpu_ns as f64);
    }
    page.remove()?;
    Ok(SourceTotals { seconds, by_source })
}

/// Returns the OMPT tool that the option names, or the tool in the directory of this program.
fn ompt_tool(args: &ProgressArgs) -> Option<PathBuf> {
    let beside = || {
        Some(
            std::env::current_exe()
                .ok()?
                .with_file_name("libusher_ompt.so"),
        )
    };
    args.ompt
        .clone()
        .or_else(beside)
        .filter(|path| path.is_file())
}

fn compare(program: &str, one: &SourceTotals, two: &SourceTotals) -> Vec<SourceResult> {
    let speedup_wall = one.seconds / two.seconds;
    let sources = one
        .by_source
        .iter()
        .filter_map(|(&source, &at_one)| Some((source, at_one, *two.by_source.get(source)?)));
    sources
        .map(|(source, at_one, at_two)| {
            let growth = at_two / at_one;
            let error = growth - 1.0;
            SourceResult {
                program: program.to_owned(),
                source,
                growth_percent: 100.0 * (growth - 1.0),
                speedup_wall,
                speedup_source: growth * speedup_wall,
                error_percent: 100.0 * error,
                fit_to_plan: error.abs() <= ERROR_MAX && source != "cpu-time",
            }
        })
        .collect()
}

fn line(row: &SourceResult) -> String {
    let verdict = if row.fit_to_plan {
        ""
    } else {
        "  not planned by"
    };
    format!(
        "{:<12} {:<13} total {:+7.1} %   speed-up {:.2}, by this source {:.2} ({:+.1} %){verdict}",
        row.program,
        row.source,
        row.growth_percent,
        row.speedup_wall,
        row.speedup_source,
        row.error_percent
    )
}

fn save(args: &ProgressArgs, rows: &[SourceResult]) -> Result<()> {
    let folder = machine::run_folder(&args.out, "progress")?;
    let facts = crate::machine::facts()?;
    let data = serde_json::json!({ "machine": facts, "rows": rows, "repeats": args.repeats });
    std::fs::write(
        folder.join("result.json"),
        serde_json::to_vec_pretty(&data)?,
    )?;
    let head = [
        "program",
        "source",
        "total progress on 2 cores relative to 1 core, %",
        "speed-up",
        "by the source",
        "error, %",
        "planned by",
    ];
    let cells = |row: &SourceResult| {
        vec![
            Cell::Text(row.program.clone()),
            row.source.into(),
            Cell::Number(Some(row.growth_percent), 1),
            Cell::Number(Some(row.speedup_wall), 2),
            Cell::Number(Some(row.speedup_source), 2),
            Cell::Number(Some(row.error_percent), 1),
            Cell::Text(if row.fit_to_plan { "yes" } else { "no" }.to_owned()),
        ]
    };
    let table = Item::Table {
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(cells).collect(),
    };
    let about = "Each program runs alone on one core and on two cores; figures are medians. If \
                 the total progress of a run by some source depends on the number of cores, the \
                 source gives a wrong scalability curve; if it deviates by more than 10 %, Usher \
                 does not use the source to plan the program. Usher never uses CPU time to plan a \
                 program.";
    let section = Section {
        title: "Sources of progress".to_owned(),
        items: vec![Item::Text(about.to_owned()), table],
    };
    let page = folder.join("report.html");
    std::fs::write(
        &page,
        bench_page("Progress sources", Some(&facts), &[section]),
    )?;
    crate::machine::print_line(format_args!("saved in {}", folder.display()))
}
