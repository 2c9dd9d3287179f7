// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part `profiles`: checks that ordinary runs give profiles, and that deliberate variation costs
//! little.
//!
//! 1. `usher profile` measures each program of the example mixes alone. Its speed-up on two CPUs is
//!    the reference. Variants, which run one of these programs with other arguments or under another
//!    name (`pigz-quick`, `svd-1`), are left out. A program that is not installed is missing, and
//!    its bar is not met.
//! 2. Each round runs every program once under `usher run`, in pairs, with a daemon that varies
//!    seats. The same pairs run under a second daemon with `variation = false` and a store of its
//!    own. The order of the two daemons alternates. A program has another partner in each round.
//! 3. After all rounds, the stored speed-up on two CPUs is compared with the reference. The cost of
//!    variation is the ratio of the mean durations of each program with and without variation.
//!
//! The ordinary runs of a program follow the order of the rounds, so that the first run of each
//! program has no profile.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use usher_host::mix::{MixFile, MixProgram};

use crate::bars::{Bar, Part, Table};
use crate::here::mixes::missing;
use crate::processes::{Daemon, usher};

/// Largest deviation of a stored speed-up from the reference.
const DEVIATION_MAX: f64 = 0.10;
/// Least number of programs with a stored speed-up within the deviation.
const PROGRAMS_MIN: f64 = 8.0;
/// Largest ratio of the mean durations with and without variation.
const SLOWDOWN_MAX: f64 = 1.05;

/// A program of the mixes and the directory in which it runs.
#[derive(Debug, Clone)]
struct ExampleProgram {
    program: MixProgram,
    dir: PathBuf,
}

/// The results of one program.
#[derive(Debug, Clone, Default, Serialize)]
struct ProgramResult {
    /// Speed-up on two CPUs by `usher profile`.
    reference: Option<f64>,
    /// Speed-up on two CPUs in the store of the ordinary runs.
    stored: Option<f64>,
    /// Seconds of each run with variation, and without.
    varied_s: Vec<f64>,
    plain_s: Vec<f64>,
}

impl ProgramResult {
    fn is_near(&self) -> bool {
        let both = self.stored.zip(self.reference);
        both.is_some_and(|(stored, reference)| (stored / reference - 1.0).abs() <= DEVIATION_MAX)
    }

    /// Ratio of the mean durations; `None` without runs.
    fn slowdown(&self) -> Option<f64> {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let is_any = !self.varied_s.is_empty() && !self.plain_s.is_empty();
        is_any.then(|| mean(&self.varied_s) / mean(&self.plain_s))
    }
}

/// Measures the programs of the mixes in this directory, and computes the part.
pub fn run(
    binary: &Path,
    mixes: &Path,
    rounds: usize,
    max_other_cpus: Option<f64>,
) -> Result<Part> {
    let (programs, absent) = programs(mixes)?;
    ensure!(programs.len() > 1, "missing: {}", absent.join(", "));
    let mut results: BTreeMap<String, ProgramResult> = BTreeMap::new();
    let references = tempfile::tempdir()?;
    for (name, example) in &programs {
        eprintln!("profiles: measuring '{name}' alone");
        let measured = reference(binary, references.path(), name, example, max_other_cpus);
        if let Err(error) = measured {
            eprintln!("profiles: '{name}' has no reference: {error:#}");
        }
        results.entry(name.clone()).or_default().reference =
            speed_up(binary, references.path(), name)?;
    }
    let (varied, plain) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let config = plain.path().join("usher.toml");
    fs::write(&config, "[daemon]\nvariation = false\n")?;
    let config = config.to_string_lossy().into_owned();
    let daemons = [
        Daemon::start(binary, varied.path(), &[])?,
        Daemon::start(binary, plain.path(), &["--config", &config])?,
    ];
    for round in 0..rounds {
        eprintln!("profiles: round {} of {rounds}", round + 1);
        for pair in pairs(programs.len(), round) {
            let mut order = [(varied.path(), true), (plain.path(), false)];
            order.rotate_left(round % 2);
            for (runtime, varies) in order {
                let seconds = run_beside(binary, runtime, &programs, &pair)?;
                for (name, seconds) in seconds {
                    let result = results.entry(name).or_default();
                    match varies {
                        true => result.varied_s.push(seconds),
                        false => result.plain_s.push(seconds),
                    }
                }
            }
        }
    }
    for (name, result) in &mut results {
        result.stored = speed_up(binary, varied.path(), name)?;
    }
    drop(daemons);
    Ok(part(&results, &absent, rounds))
}

/// Returns the programs of all mixes by name, and the names of the missing ones. Makes their inputs.
fn programs(mixes: &Path) -> Result<(BTreeMap<String, ExampleProgram>, Vec<String>)> {
    let mut programs = BTreeMap::new();
    let mut absent = Vec::new();
    // The setup commands run in the directory of their mix, where a relative path would be resolved
    // again.
    let mixes = fs::canonicalize(mixes).with_context(|| format!("reading {}", mixes.display()))?;
    let files = fs::read_dir(&mixes).with_context(|| format!("reading {}", mixes.display()))?;
    let mut files: Vec<PathBuf> = files.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    files.sort();
    for file in files {
        let mix = MixFile::read(&file)?;
        absent.extend(missing(&mix));
        for setup in &mix.setup {
            let made = setup.unless_exists.as_ref().map(|path| mix.dir.join(path));
            if made.is_some_and(|path| path.exists()) {
                continue;
            }
            let mut words = setup.argv.iter();
            let command = words.next().context("an empty setup command")?;
            let done = Command::new(mix.dir.join(command))
                .args(words)
                .current_dir(&mix.dir)
                .status();
            // The inputs of a program that is not installed cannot always be made.
            let failure = match done {
                Ok(status) if status.success() => continue,
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
            let command = setup.argv.join(std::ffi::OsStr::new(" "));
            let mix = file.display();
            eprintln!("profiles: the setup command {command:?} of '{mix}' failed: {failure}");
        }
        for program in mix.programs {
            let dir = mix.dir.clone();
            let name = program.name.clone();
            programs
                .entry(name)
                .or_insert(ExampleProgram { program, dir });
        }
    }
    absent.sort();
    absent.dedup();
    let is_absent = |name: &String| {
        let same = |one: &String| one.split(" (").next() == Some(name);
        absent.iter().any(same)
    };
    programs.retain(|name, _| !is_absent(name));
    let names: Vec<String> = programs.keys().cloned().collect();
    programs.retain(|name, _| !is_variant(name, &names));
    Ok((programs, absent))
}

/// Returns whether a name is that of another program with a suffix: `pigz-quick` is a variant of
/// `pigz`.
fn is_variant(name: &str, names: &[String]) -> bool {
    let mut others = names
        .iter()
        .filter_map(|other| name.strip_prefix(other.as_str()));
    others.any(|rest| rest.starts_with('-'))
}

/// Returns the pairs of a round: each program once, with another partner in each round. With an odd
/// number of programs, one program runs alone.
fn pairs(programs: usize, round: usize) -> Vec<Vec<usize>> {
    // The circle method of round-robin tournaments: one place is fixed, the others rotate.
    let places = programs + programs % 2;
    let turning = places - 1;
    let at = |place: usize| match place {
        0 => 0,
        place => 1 + (place - 1 + round) % turning,
    };
    let pair = |place: usize| {
        let both = [at(place), at(places - 1 - place)];
        both.into_iter().filter(|&one| one < programs).collect()
    };
    (0..places / 2).map(pair).collect()
}

fn command(binary: &Path, runtime: &Path, example: &ExampleProgram) -> Command {
    let mut command = usher(binary, runtime);
    command
        .current_dir(&example.dir)
        .envs(&example.program.env)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn reference(
    binary: &Path,
    runtime: &Path,
    name: &str,
    example: &ExampleProgram,
    max_other_cpus: Option<f64>,
) -> Result<()> {
    let mut command = command(binary, runtime, example);
    command.args([
        "profile",
        "--repeats",
        "2",
        "--max-wait",
        "120",
        "--name",
        name,
    ]);
    if let Some(cpus) = max_other_cpus {
        command.args(["--max-other-cpus", &cpus.to_string()]);
    }
    let output = command.arg("--").args(&example.program.argv);
    let output = output.stderr(Stdio::piped()).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "usher profile failed: {errors}");
    Ok(())
}

/// Runs programs at the same time, and returns the seconds of each.
fn run_beside(
    binary: &Path,
    runtime: &Path,
    programs: &BTreeMap<String, ExampleProgram>,
    pair: &[usize],
) -> Result<Vec<(String, f64)>> {
    let mut running: Vec<(String, Child)> = Vec::new();
    let begun = Instant::now();
    for (name, example) in pair.iter().filter_map(|&at| programs.iter().nth(at)) {
        let mut command = command(binary, runtime, example);
        command.args(["run", "--name", name, "--"]);
        let child = command.args(&example.program.argv).spawn()?;
        running.push((name.clone(), child));
    }
    let mut seconds = Vec::new();
    while !running.is_empty() {
        let mut living = Vec::new();
        for (name, mut child) in running {
            match child.try_wait()? {
                Some(_) => seconds.push((name, begun.elapsed().as_secs_f64())),
                None => living.push((name, child)),
            }
        }
        running = living;
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    Ok(seconds)
}

/// Returns the stored speed-up of a program on two CPUs, by whole repetitions.
fn speed_up(binary: &Path, runtime: &Path, name: &str) -> Result<Option<f64>> {
    let mut command = usher(binary, runtime);
    let output = command.args(["profile", "export", name]).output()?;
    if !output.status.success() {
        return Ok(None);
    }
    let file: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let rate = |cores: f64| {
        let points = file["profiles"][0]["points"].as_array()?;
        let mut points = points.iter();
        let point = points.find(|point| {
            point["source"] == "repetition" && point["cores"].as_f64() == Some(cores)
        });
        point?["rate"].as_f64()
    };
    Ok(rate(2.0).zip(rate(1.0)).map(|(two, one)| two / one))
}

fn part(results: &BTreeMap<String, ProgramResult>, absent: &[String], rounds: usize) -> Part {
    let mut part = Part::new("profiles", "Profiles from ordinary runs");
    let near = results.values().filter(|one| one.is_near()).count();
    let slowdowns = results.values().filter_map(ProgramResult::slowdown);
    let worst = slowdowns.fold(None, |worst: Option<f64>, one| {
        Some(worst.map_or(one, |worst| worst.max(one)))
    });
    part.bars = vec![
        Bar::at_least(
            "programs with a stored speed-up on two CPUs within 10 % of 'usher profile'",
            near as f64,
            PROGRAMS_MIN,
            "programs",
        ),
        Bar::at_most(
            "greatest ratio of the mean durations with and without variation",
            worst,
            SLOWDOWN_MAX,
            "",
        ),
    ];
    let number = |value: Option<f64>| usher_report::text::number(value, 2);
    let row = |(name, one): (&String, &ProgramResult)| {
        vec![
            name.clone(),
            number(one.reference),
            number(one.stored),
            number(one.slowdown()),
        ]
    };
    let head = ["program", "usher profile", "ordinary runs", "slowdown"];
    part.tables = vec![Table {
        head: head.map(str::to_owned).to_vec(),
        rows: results.iter().map(row).collect(),
    }];
    part.notes = vec![format!(
        "{rounds} runs of each program beside another program, with and without deliberate \
         variation. Speed-ups on two CPUs."
    )];
    if !absent.is_empty() {
        part.notes
            .push(format!("Not installed: {}.", absent.join(", ")));
    }
    part.raw = serde_json::json!({ "programs": results });
    part
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn variants_of_a_program_are_recognised() {
        let names = ["pigz", "pigz-quick", "minimap2", "mini"].map(str::to_owned);
        let variants = names.iter().filter(|name| is_variant(name, &names));
        assert_eq!(variants.collect::<Vec<_>>(), ["pigz-quick"]);
    }

    #[test]
    fn each_round_runs_each_program_once_with_another_partner() {
        for programs in 2..14 {
            let mut met = BTreeSet::new();
            for round in 0..(programs - 1) {
                let pairs = pairs(programs, round);
                let mut all: Vec<usize> = pairs.concat();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..programs), "{programs} {pairs:?}");
                for mut pair in pairs.into_iter().filter(|pair| pair.len() == 2) {
                    pair.sort_unstable();
                    assert!(met.insert(pair.clone()), "{programs}: {pair:?} twice");
                }
            }
        }
    }
}
