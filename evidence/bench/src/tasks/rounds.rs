// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the rounds of a part. A round runs every contestant once with each number of threads, each
//! time in a new process that prints one line per case.
//!
//! Slow changes of other load therefore affect all contestants equally, and each process has a new
//! memory layout. The order of the contestants rotates from round to round. A process that fails or
//! takes longer than 300 s is listed as a failure, and the rounds continue.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::contestants::{Contestant, Program};
use super::inside;
use super::study::{Sample, Samples};
use super::toolchain::Programs;

/// Time limit of a process in seconds.
const SECONDS_MAX: u32 = 300;

/// Settings of the rounds: numbers of rounds, frames and threads, and the time of a case.
#[derive(Debug, Clone)]
pub struct RoundSettings {
    pub rounds: u32,
    /// Minimum time for which each case is measured, in milliseconds.
    pub ms: u32,
    /// Minimum number of frames that are timed in each case.
    pub frames: u32,
    /// Numbers of threads with which each contestant runs.
    pub threads: Vec<u32>,
}

impl RoundSettings {
    /// The highest number of threads.
    pub fn threads_max(&self) -> u32 {
        self.threads.iter().copied().max().unwrap_or(1)
    }
}

/// Returns the command that runs a contestant. The caller appends the words of the workload.
pub fn command(programs: &Programs, one: &Contestant) -> Result<Command> {
    command_under(&[], programs, one)
}

/// Returns the command that runs a contestant under another program, such as valgrind: `words`
/// precede the path of the contestant's program.
pub fn command_under(words: &[String], programs: &Programs, one: &Contestant) -> Result<Command> {
    let path = programs.paths.get(&one.program);
    let path = path.with_context(|| format!("the program {} was not compiled", one.label))?;
    let mut command = Command::new("timeout");
    // Without the option `--foreground` of `timeout`, Ctrl-C would not reach the contestant.
    command
        .arg("--foreground")
        .arg(SECONDS_MAX.to_string())
        .args(words)
        .arg(path);
    if one.program == Program::Own {
        command.arg(inside::COMMAND);
    }
    command.arg(one.form);
    Ok(command)
}

/// Runs all rounds of a workload. `words` are the words of the workload on the command line of each
/// contestant.
pub fn run(
    part: &str,
    programs: &Programs,
    contestants: &[Contestant],
    settings: &RoundSettings,
    workload: &[String],
) -> Samples {
    let mut samples = Samples::default();
    let mut turns: Vec<(Contestant, u32)> = contestants
        .iter()
        .filter(|one| programs.paths.contains_key(&one.program))
        .flat_map(|&one| {
            let sequential = one.is_sequential.then_some(1);
            let threads = sequential.map_or(settings.threads.clone(), |n| vec![n]);
            threads.into_iter().map(move |threads| (one, threads))
        })
        .collect();
    for round in 0..settings.rounds {
        eprintln!("tasks: {part}, round {} of {}", round + 1, settings.rounds);
        for &(one, threads) in &turns {
            let words = words(threads, settings, workload);
            match measure(programs, &one, threads, round, &words) {
                Ok(measured) => samples.all.extend(measured),
                Err(error) => samples.failed.push(format!(
                    "{} with {threads} threads, round {}: {error:#}",
                    one.label,
                    round + 1
                )),
            }
        }
        // The order rotates, so that no contestant is always first.
        let first = turns.len().min(1);
        turns.rotate_left(first);
    }
    samples
}

fn words(threads: u32, settings: &RoundSettings, workload: &[String]) -> Vec<String> {
    let numbers = [threads, settings.ms, settings.frames].map(|number| number.to_string());
    numbers
        .into_iter()
        .chain(workload.iter().cloned())
        .collect()
}

/// Runs one contestant in a process. Returns a sample for each case.
fn measure(
    programs: &Programs,
    one: &Contestant,
    threads: u32,
    round: u32,
    words: &[String],
) -> Result<Vec<Sample>> {
    let text = output(command(programs, one)?.args(words))?;
    let sample = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let &[case, tasks, frames, median, least] = words.as_slice() else {
            bail!("the program printed an unexpected line: '{line}'");
        };
        let tasks: f64 = tasks.parse()?;
        let each = |ns: &str| anyhow::Ok(ns.parse::<f64>()? / tasks);
        Ok(Sample {
            form: one.form.to_owned(),
            runtime: one.runtime,
            threads,
            round,
            case: case.to_owned(),
            frames: frames.parse()?,
            median_ns: each(median)?,
            least_ns: each(least)?,
        })
    };
    let samples: Vec<Sample> = text.lines().map(sample).collect::<Result<_>>()?;
    ensure!(!samples.is_empty(), "the program printed nothing");
    Ok(samples)
}

/// Runs a command and returns its standard output. A failure of the command is an error.
pub fn output(command: &mut Command) -> Result<String> {
    Ok(outputs(command)?.0)
}

/// Runs a command and returns its standard output and standard error. A failure of the command is
/// an error.
pub fn outputs(command: &mut Command) -> Result<(String, String)> {
    let output = command.output().context("running it")?;
    let all = String::from_utf8_lossy(&output.stderr).into_owned();
    let last_line = all
        .trim()
        .lines()
        .last()
        .unwrap_or("the program printed no error message");
    match output.status.code() {
        Some(0) => Ok((String::from_utf8(output.stdout)?, all)),
        Some(124) => bail!("the program took longer than {SECONDS_MAX} s"),
        _ => bail!("{}: {last_line}", output.status),
    }
}
