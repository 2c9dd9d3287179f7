// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `advise`: compares the choice of `usher advise` with an exhaustive sweep, for the ten
//! programs of `examples/` that can run on several CPUs, and on simulated machines.
//!
//! 1. For each program, `usher advise --sweep N` measures every configuration N times, and `usher
//!    advise` chooses one. The choice is compared with the best of the sweep by the throughputs of
//!    the sweep. Half of the sweep precedes the choice and half follows, so that a slow change of
//!    the machine affects both alike.
//! 2. `usher sim advise` runs the selection for 210 program models on 16 and 48 cores.
//!
//! A program that is not installed, or whose input cannot be made, counts as not within the limit.
//! The time is that of about 12 runs of one copy per program, plus the time in which `usher advise`
//! waits for a quiet machine, at most 60 s per measurement.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;

use crate::bars::{Bar, Part, Table};
use crate::processes::{end_daemons, usher};

/// Largest throughput of the best configuration relative to the chosen one.
const NEAR: f64 = 1.05;

/// A program: its name, the input that `examples/programs/prepare` makes, and its command, with
/// paths relative to `examples/programs`.
type Program = (&'static str, Option<&'static str>, &'static [&'static str]);

const PROGRAMS: [Program; 10] = [
    (
        "pigz",
        Some("text.txt"),
        &["pigz", "-p{cpus}", "-6", "-c", "../data/text.txt"],
    ),
    (
        "minimap2",
        Some("genome.fa"),
        &[
            "minimap2",
            "-t{cpus}",
            "-x",
            "map-ont",
            "../data/genome.fa",
            "../data/reads.fq",
        ],
    ),
    (
        "povray",
        None,
        &[
            "povray",
            "+Iscene.pov",
            "+W280",
            "+H210",
            "+A0.2",
            "+WT{cpus}",
            "-D",
            "-V",
            "-F",
        ],
    ),
    (
        "stream",
        None,
        &[
            "stress-ng",
            "--quiet",
            "--stream",
            "{cpus}",
            "--stream-l3-size",
            "32M",
            "--stream-ops",
            "100",
        ],
    ),
    (
        "x264",
        Some("video.y4m"),
        &[
            "x264",
            "--quiet",
            "--preset",
            "veryfast",
            "--threads",
            "{cpus}",
            "-o",
            "/dev/null",
            "../data/video.y4m",
        ],
    ),
    (
        "lammps",
        None,
        &[
            "mpirun",
            "--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            "none",
            "--mca",
            "mpi_yield_when_idle",
            "0",
            "-np",
            "{cpus}",
            "lmp",
            "-in",
            "melt.lmp",
            "-var",
            "steps",
            "120",
            "-log",
            "none",
        ],
    ),
    (
        "sort",
        Some("table.txt"),
        &[
            "env",
            "LC_ALL=C",
            "sort",
            "--parallel={cpus}",
            "-S",
            "1G",
            "-k3,3",
            "-o",
            "/dev/null",
            "../data/table.txt",
        ],
    ),
    (
        "svd",
        None,
        &[
            "env",
            "OPENBLAS_NUM_THREADS={cpus}",
            "/usr/bin/python3",
            "svd.py",
            "1600",
        ],
    ),
    (
        "gromacs",
        Some("water.tpr"),
        &[
            "env",
            "GMX_MAXBACKUP=-1",
            "gmx",
            "-quiet",
            "mdrun",
            "-s",
            "../data/water.tpr",
            "-ntmpi",
            "1",
            "-ntomp",
            "{cpus}",
            "-pin",
            "off",
            "-noconfout",
            "-cpt",
            "-1",
            "-nsteps",
            "250",
            "-g",
            "../data/advise{copy}.log",
            "-e",
            "../data/advise{copy}.edr",
            "-o",
            "../data/advise{copy}.trr",
        ],
    ),
    (
        "7zz",
        Some("letter.txt"),
        &[
            "7zz",
            "a",
            "-mmt{cpus}",
            "-mx3",
            "-txz",
            "-so",
            "-bd",
            "letter.xz",
            "../data/letter.txt",
        ],
    ),
];

/// A configuration: copies and CPUs per copy.
type Config = (u64, u64);

/// The result of one program.
#[derive(Debug, Default, Serialize)]
struct ProgramResult {
    name: &'static str,
    chosen: Option<Config>,
    best: Option<Config>,
    best_by_chosen: Option<f64>,
    sweep_seconds: f64,
    advise_seconds: f64,
    error: Option<String>,
    answers: Vec<Value>,
}

impl ProgramResult {
    fn is_near(&self) -> bool {
        self.best_by_chosen.is_some_and(|ratio| ratio <= NEAR)
    }
}

/// Runs the programs and the simulation, and computes the part.
pub fn run(binary: &Path, examples: &Path, rounds: usize, force: bool) -> Result<Part> {
    let programs = PROGRAMS.iter().map(|program| {
        let mut result = ProgramResult {
            name: program.0,
            ..ProgramResult::default()
        };
        if let Err(error) = measure(binary, examples, program, rounds, force, &mut result) {
            result.error = Some(format!("{error:#}"));
        }
        eprintln!("{}", row(&result).join("  "));
        result
    });
    let results: Vec<ProgramResult> = programs.collect();
    let near = results.iter().filter(|one| one.is_near()).count();
    let mut part = Part::new("advise", "Advice on copies and CPUs");
    part.bars.push(Bar::at_least(
        "programs of ten whose configuration is within 5 % of the best of a sweep",
        near as f64,
        8.0,
        "",
    ));
    let simulated = simulate(binary)?;
    for machine in simulated["machines"].as_array().into_iter().flatten() {
        let name = machine["machine"].as_str().unwrap_or_default();
        part.bars.push(Bar::at_least(
            format!("simulated programs within 5 % of the best, on {name}"),
            machine["near_best"].as_f64().map(|share| 100.0 * share),
            90.0,
            "%",
        ));
        part.bars.push(Bar::at_most(
            format!("simulated time relative to a sweep, on {name}"),
            machine["time_share"].as_f64().map(|share| 100.0 * share),
            25.0,
            "%",
        ));
    }
    let head = [
        "program",
        "chosen",
        "best of the sweep",
        "best / chosen",
        "time / sweep",
    ];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: results.iter().map(row).collect(),
    }];
    part.notes = vec![format!(
        "Sweeps of {} runs of each configuration, half before and half after the choice. \
         Configurations are copies x CPUs.",
        2 * rounds
    )];
    part.raw = serde_json::json!({ "programs": results, "simulated": simulated });
    Ok(part)
}

fn row(result: &ProgramResult) -> Vec<String> {
    let config = |config: Option<Config>| {
        config.map_or("none".to_owned(), |(copies, cpus)| {
            format!("{copies} x {cpus}")
        })
    };
    let share = result.advise_seconds / result.sweep_seconds;
    vec![
        result.name.to_owned(),
        config(result.chosen),
        config(result.best),
        match (&result.error, result.best_by_chosen) {
            (Some(error), _) => error.clone(),
            (None, ratio) => ratio.map_or("none".to_owned(), |ratio| format!("{ratio:.3}")),
        },
        match share.is_finite() {
            true => format!("{share:.2}"),
            false => "none".to_owned(),
        },
    ]
}

fn measure(
    binary: &Path,
    examples: &Path,
    program: &Program,
    rounds: usize,
    force: bool,
    result: &mut ProgramResult,
) -> Result<()> {
    let (_, input, command) = program;
    let dir = examples.join("programs").canonicalize();
    let dir = dir.with_context(|| format!("--examples {}", examples.display()))?;
    if let Some(input) = input.filter(|input| !dir.join("../data").join(input).exists()) {
        let made = Command::new(dir.join("prepare")).arg(input).status()?;
        if !made.success() {
            bail!("examples/programs/prepare {input}: {made}");
        }
    }
    let sweep = rounds.to_string();
    let sweep = ["--sweep", sweep.as_str()];
    for options in [&sweep[..], &[], &sweep[..]] {
        let answer = advise(binary, &dir, options, command, force)?;
        let seconds = answer["seconds"].as_f64().unwrap_or(0.0);
        match options.is_empty() {
            true => {
                result.advise_seconds = seconds;
                result.chosen = config(&answer["advice"]);
            }
            false => result.sweep_seconds += seconds,
        }
        result.answers.push(answer);
    }
    let sweeps = result.answers.iter().step_by(2);
    let means = mean_logs(sweeps.flat_map(|answer| answer["configurations"].as_array()));
    let best = means.iter().max_by(|a, b| a.1.total_cmp(b.1));
    let (&best, &most) = best.context("no configuration of the sweep succeeded")?;
    result.best = Some(best);
    let chosen = result.chosen.and_then(|chosen| means.get(&chosen));
    result.best_by_chosen = chosen.map(|&chosen| (most - chosen).exp());
    Ok(())
}

fn config(value: &Value) -> Option<Config> {
    Some((value["copies"].as_u64()?, value["cpus"].as_u64()?))
}

/// Mean logarithm of the throughputs of each configuration over all sweeps. A configuration that
/// failed in a sweep is left out.
fn mean_logs<'a>(sweeps: impl Iterator<Item = &'a Vec<Value>>) -> BTreeMap<Config, f64> {
    let mut logs: BTreeMap<Config, Vec<f64>> = BTreeMap::new();
    for one in sweeps.flatten() {
        let rates = one["throughputs"].as_array().into_iter().flatten();
        let rates = rates.filter_map(Value::as_f64).map(f64::ln);
        if let Some(config) = config(one).filter(|_| one["failed"] != true) {
            logs.entry(config).or_default().extend(rates);
        }
    }
    logs.retain(|_, logs| !logs.is_empty());
    let mean = |logs: Vec<f64>| logs.iter().sum::<f64>() / logs.len() as f64;
    logs.into_iter()
        .map(|(config, logs)| (config, mean(logs)))
        .collect()
}

fn advise(
    binary: &Path,
    dir: &Path,
    options: &[&str],
    command: &[&str],
    force: bool,
) -> Result<Value> {
    let runtime = tempfile::tempdir()?;
    let mut run = usher(binary, runtime.path());
    run.args(["advise", "--json"]).args(options);
    run.args(force.then_some("--force")).arg("--").args(command);
    let output = run.current_dir(dir).stdout(Stdio::piped()).output()?;
    end_daemons(&binary.canonicalize()?, runtime.path())?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{}", text.lines().last().unwrap_or("usher advise failed"));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn simulate(binary: &Path) -> Result<Value> {
    let output = Command::new(binary)
        .args(["sim", "advise", "--json"])
        .output()?;
    if !output.status.success() {
        bail!("usher sim advise: {}", output.status);
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_two_sweeps_is_that_of_the_mean() {
        let one = |copies, rates: &[f64], failed: bool| {
            serde_json::json!({
                "copies": copies, "cpus": 1, "throughputs": rates, "failed": failed
            })
        };
        let first = vec![
            one(1, &[1.0], false),
            one(2, &[4.0], false),
            one(4, &[9.0], true),
        ];
        let second = vec![one(1, &[4.0], false), one(2, &[2.0], false)];
        let means = mean_logs([&first, &second].into_iter());
        assert_eq!(means.len(), 2);
        assert!((means[&(1, 1)].exp() - 2.0).abs() < 1e-9);
        assert!((means[&(2, 1)].exp() - 8f64.sqrt()).abs() < 1e-9);
    }
}
