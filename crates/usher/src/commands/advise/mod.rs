// SPDX-License-Identifier: GPL-2.0-only
//! `usher advise`: finds the number of copies of a program, and of CPUs per copy, with the highest
//! throughput.
//!
//! 1. Check the command and the path of `--svg`.
//! 2. Run configurations until the best one is known (`usher_host::advise`). On a busy machine, the
//!    command waits, and then refuses; `--force` measures with a warning.
//! 3. Print a table with bars, one line with the advice, and command lines that run the advised
//!    configuration (module `lines`).
//!
//! The standard input of the copies is empty, and their output is discarded. SIGINT, SIGTERM or
//! SIGHUP kills the copies and ends the measurement without a result, with exit status 128 plus the
//! number of the signal. If the picture cannot be written, the command still prints the result, and
//! the exit status is 125.

mod answer;
mod lines;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use usher_host::RunError;
use usher_host::advise::{
    AdviseEvent, AdviseOptions, AdviseTarget, CopiesRun, MeasuredAdvice, advise,
};
use usher_host::launch::{LaunchSpec, Stream};
use usher_policy::advise::candidates::MachineSize;
use usher_policy::advise::{ConfigSamples, NextRun, RunOutcome};
use usher_report::copies::{CopiesRow, copies_svg, copies_table};
use usher_report::text as words;

use super::profile::{check_picture, unwritable};
use crate::cli::numbers::{seconds, whole};
use crate::cli::options::{Global, LoadArgs};
use crate::failure::{self, Outcome};
use crate::launch::placeholders;
use crate::measure;
use crate::output::Output;
use crate::progress::Progress;
pub use answer::AdviseAnswer;
use answer::{AdviceAnswer, ConfigurationAnswer};
use lines::{CommandLines, command_lines};

/// Mean number of busy CPUs up to which one copy counts as serial.
const SERIAL_CPUS: f64 = 1.2;

/// Finds the number of copies of a program, and of CPUs per copy, with the highest throughput
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Measures CMD with one copy on all CPUs, several copies on a part of the CPUs each, and so on,
until the best configuration is known. `{cpus}` in CMD is replaced by the number of CPUs of a
copy, and `{copy}` by the number of the copy, from 1. Without `{cpus}`, CMD must adapt its
threads to its affinity mask, as `nproc` and most OpenMP programs do.

Each copy must do the same work and take at least a second. CMD runs many times: it must not
need a terminal or input, and several copies must not write to the same file (use `{copy}`).
The standard input of the copies is empty, and their output is discarded.

Prints a table, the advice, and command lines for usher, GNU parallel and xargs. The method is
described in docs/advise.md. On a busy machine, the command waits up to 60 s, and then ends
with an error.

Examples:
  usher advise -- x264 --threads {cpus} -o /dev/null in.y4m
  usher advise -- sh -c './solve --threads {cpus} in > /tmp/out.{copy}'
  usher advise --max-seconds 300 --svg advice.svg -- ./solver input
  usher advise --json -- ./solver input | jq '.advice | [.copies, .cpus]'")]
pub struct Args {
    /// Use this name for the program in messages and in the picture; by default, the name of the
    /// command's file
    #[arg(long, value_parser = crate::cli::options::program_name)]
    name: Option<String>,
    /// Start no further run after this total time, and advise the best configuration so far; by
    /// default, no limit
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    max_seconds: Option<f64>,
    /// End with an error if one copy takes longer than this time on all CPUs, or N copies longer than
    /// N times this time
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 900.0,
        allow_negative_numbers = true,
        value_parser = seconds
    )]
    timeout: f64,
    /// Run every configuration N times instead of stopping when the best one is known
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1000), allow_negative_numbers = true)]
    sweep: Option<u32>,
    /// Draw the throughputs into FILE as an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    load: LoadArgs,
    /// Command to measure, with its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "CMD",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,
}

/// Measures and prints the advice.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    crate::launch::check_named(&args.command)?;
    if let Some(path) = &args.svg {
        check_picture(path).with_context(|| unwritable(path))?;
    }
    let config = measure::engine_config(global)?;
    let size = MachineSize::of(&config.topology);
    let first = placeholders::replace(&args.command, size.cpus as usize, 1);
    LaunchSpec::new(&first).resolve()?;
    let interruption = measure::Interruption::watch()?;
    let progress = Progress::new();
    measure::warn_of_neighbours(global, &progress);
    if !placeholders::contains(&args.command, placeholders::CPUS) {
        progress.print_line(
            "usher: the command does not contain {cpus}, so each copy must adapt its number of \
             threads to its affinity mask",
        );
    }
    let command =
        |cpus: u32, copy: u32| placeholders::replace(&args.command, cpus as usize, copy as usize);
    let target = AdviseTarget {
        name: args.name(),
        spec: LaunchSpec {
            stdin: Stream::Null,
            stdout: Stream::Null,
            ..LaunchSpec::new(&first)
        },
        command: &command,
    };
    let options = AdviseOptions {
        timeout_seconds: args.timeout,
        seconds_max: args.max_seconds,
        load: args.load.rule(),
        sweep: args.sweep,
    };
    let cancel = interruption.flag();
    let measured = advise(config, &target, &options, cancel, &mut |event| {
        report_event(&progress, &event);
    });
    progress.end();
    let failed_alone = matches!(measured, Err(RunError::Failed { .. }));
    let measured = interruption
        .outcome(measured)
        .with_context(|| match failed_alone {
            true => {
                "nothing can be advised, because the command fails without a terminal, with an \
                 empty standard input, and with its output discarded"
            }
            false => "nothing can be advised",
        })?;
    let result = AdviceResult::new(args, size, measured);
    let shown = out.answer(&result.answer(), || result.text(out));
    let picture = args.svg.as_deref();
    let drawn = picture.map(|path| {
        let picture = copies_svg(&args.name(), &result.rows);
        fs::write(path, picture).with_context(|| unwritable(path))
    });
    failure::combine([shown].into_iter().chain(drawn))
}

impl Args {
    fn name(&self) -> String {
        let file = self
            .command
            .first()
            .map(Path::new)
            .and_then(Path::file_name);
        let name = file.map(|name| name.to_string_lossy().into_owned());
        self.name.clone().or(name).unwrap_or_default()
    }
}

fn report_event(progress: &Progress, event: &AdviseEvent<'_>) {
    match event {
        AdviseEvent::Begins(trial) => progress.doing(configuration(trial)),
        AdviseEvent::Run(trial, run) => progress.print_line(&run_line(trial, run)),
        AdviseEvent::Busy(text) => progress.print_line(&format!("usher: {text}")),
    }
}

/// "4 copies with 4 CPUs each".
fn configuration(trial: &NextRun) -> String {
    let each = if trial.config.copies > 1 { " each" } else { "" };
    format!(
        "{} with {}{each}",
        words::copies(trial.config.copies as usize),
        words::count(trial.config.cpus as usize, "CPU")
    )
}

fn run_line(trial: &NextRun, run: &CopiesRun) -> String {
    let result = match run.outcome {
        RunOutcome::Completed(rate) => {
            let longest = run.seconds.iter().copied().fold(0.0, f64::max);
            format!("{longest:.2} s, {} copies/s", words::short(rate, 4))
        }
        RunOutcome::Capped(_) => "stopped early, because it is slower".to_owned(),
        RunOutcome::Failed => {
            format!(
                "failed with {}",
                run.failure.as_deref().unwrap_or("an error")
            )
        }
    };
    let kind = if trial.is_warm_up {
        " (first run, not counted)"
    } else {
        ""
    };
    format!("{}: {result}{kind}", configuration(trial))
}

/// The advice, in the forms in which it is printed.
struct AdviceResult {
    name: String,
    measured: MeasuredAdvice,
    rows: Vec<CopiesRow>,
    lines: CommandLines,
    /// Sentences about the program and the measurement.
    notes: Vec<String>,
}

impl AdviceResult {
    fn new(args: &Args, size: MachineSize, measured: MeasuredAdvice) -> Self {
        let lines = command_lines(&args.command, measured.advice.config, size);
        let whole = size.divided(1);
        let mut samples: Vec<&ConfigSamples> = measured.samples.iter().collect();
        samples.retain(|one| one.runs() > 0 || one.failed || one.capped_at.is_some());
        samples.sort_by_key(|one| one.config);
        let single = samples.iter().find(|one| one.config == whole);
        let single = single.and_then(|one| one.throughput());
        let row = |one: &&ConfigSamples| CopiesRow {
            copies: one.config.copies,
            cpus: one.config.cpus,
            runs: one.runs(),
            throughput: one.throughput(),
            ratio: one
                .throughput()
                .zip(single)
                .map(|(rate, single)| rate / single),
            note: note(one),
            is_chosen: one.config == measured.advice.config,
        };
        Self {
            name: args.name(),
            rows: samples.iter().map(row).collect(),
            notes: notes(size, &measured),
            lines,
            measured,
        }
    }

    /// Returns how much later the last copy ends than the first, as the mean of the counted runs.
    fn spread(&self) -> f64 {
        let config = self.measured.advice.config;
        let runs = self.measured.runs.iter();
        let runs = runs
            .filter(|(own, run)| *own == config && matches!(run.outcome, RunOutcome::Completed(_)));
        let spreads: Vec<f64> = runs.map(|(_, run)| run.spread()).collect();
        spreads.iter().sum::<f64>() / spreads.len().max(1) as f64
    }

    /// Returns whether the choice is certain. Disturbed runs do not suffice to choose.
    fn is_certain(&self) -> bool {
        self.measured.advice.is_certain && self.measured.disturbance.is_none()
    }

    /// The advice in one line.
    fn sentence(&self) -> String {
        let advice = &self.measured.advice;
        let config = advice.config;
        let all = self.rows.iter().map(|row| row.cpus).max().unwrap_or(0);
        let chosen = self.rows.iter().find(|row| row.is_chosen);
        let each = words::count(config.cpus as usize, "CPU");
        if config.copies == 1 {
            let compared = match self.rows.len() {
                1 => "no other configuration was measured",
                _ => "no measured configuration with several copies is better",
            };
            let rate = words::short(advice.throughput, 4);
            return format!("1 copy with {each}: {rate} copies/s, and {compared}");
        }
        let ratio = chosen.and_then(|row| row.ratio).map_or_else(
            || format!("{} copies/s", words::short(advice.throughput, 4)),
            |ratio| format!("{ratio:.1}x the throughput of one with {all}"),
        );
        format!(
            "{} with {each} each: {ratio}; the last copy ends {:.0} % later",
            words::copies(config.copies as usize),
            100.0 * self.spread()
        )
    }

    fn answer(&self) -> AdviseAnswer<'_> {
        let advice = &self.measured.advice;
        let chosen = self.rows.iter().find(|row| row.is_chosen);
        AdviseAnswer {
            name: &self.name,
            advice: AdviceAnswer {
                copies: advice.config.copies,
                cores: advice.config.cores,
                cpus: advice.config.cpus,
                throughput: advice.throughput,
                relative_error: advice.relative_error,
                ratio: chosen.and_then(|row| row.ratio),
                last_copy_later: self.spread(),
                certain: self.is_certain(),
                text: self.sentence(),
            },
            configurations: self
                .rows
                .iter()
                .map(|row| self.configuration(row))
                .collect(),
            commands: &self.lines,
            seconds: self.measured.seconds,
            notes: &self.notes,
            disturbance: self.measured.disturbance.as_deref(),
        }
    }

    fn configuration(&self, row: &CopiesRow) -> ConfigurationAnswer<'_> {
        let mut samples = self.measured.samples.iter();
        let sample =
            samples.find(|one| one.config.copies == row.copies && one.config.cpus == row.cpus);
        ConfigurationAnswer {
            copies: row.copies,
            cpus: row.cpus,
            cores: sample.map(|one| one.config.cores),
            throughputs: sample.map(|one| one.throughputs.as_slice()),
            throughput: row.throughput,
            ratio: row.ratio,
            throughput_below: sample.and_then(|one| one.capped_at),
            failed: sample.is_some_and(|one| one.failed),
        }
    }

    fn text(&self, out: Output) -> String {
        let mut text = copies_table(&self.rows, measure::style(out));
        text.push_str(&format!("\n\n{}\n", self.sentence()));
        for note in &self.notes {
            text.push_str(&format!("{note}\n"));
        }
        text.push_str(&format!(
            "\nRun this configuration:\n  {}\n",
            self.lines.usher
        ));
        if let Some(parallel) = &self.lines.parallel {
            text.push_str(&format!("  {parallel}\n"));
        }
        text.push_str(&format!("  {}\n", self.lines.xargs));
        text
    }
}

/// Returns the reason for which a configuration has no throughput, or was not measured further.
fn note(one: &ConfigSamples) -> String {
    match (one.failed, one.capped_at) {
        (true, _) => "a copy failed".to_owned(),
        (_, Some(bound)) => format!("stopped below {} copies/s", words::short(bound, 4)),
        (false, None) => String::new(),
    }
}

/// Sentences about the program and the measurement.
fn notes(size: MachineSize, measured: &MeasuredAdvice) -> Vec<String> {
    let mut notes = Vec::new();
    let several = measured.samples.iter().filter(|one| one.config.copies > 1);
    let several: Vec<&ConfigSamples> = several.collect();
    let failure = measured
        .runs
        .iter()
        .find_map(|(_, run)| run.failure.as_ref());
    if let Some(failure) = failure {
        let all = several.iter().all(|one| one.failed || one.runs() == 0);
        let subject = match all {
            true => "the program cannot run twice at a time: a copy ended",
            false => "in some configurations, a copy ended",
        };
        notes.push(format!(
            "{subject} with {failure}; if the copies write to the same file, put {{copy}} into its \
             name"
        ));
    }
    // A disturbed program also uses fewer CPUs.
    let is_disturbed = measured.disturbance.is_some();
    if size.cpus > 1 && !is_disturbed && measured.busy_cpus_alone <= SERIAL_CPUS {
        notes.push(format!(
            "one copy with {} CPUs uses {:.1} CPUs: the program is serial, or ignores its thread \
             option",
            size.cpus, measured.busy_cpus_alone
        ));
    }
    if !measured.advice.is_certain {
        notes.push(
            "the choice is uncertain: the throughputs differ too much between runs, or \
             --max-seconds was too short"
                .to_owned(),
        );
    }
    if let Some(reason) = &measured.disturbance {
        notes.push(format!(
            "the advice is unreliable, because the measurement was disturbed: {reason}; measure \
             again on a quiet machine"
        ));
    }
    notes
}
