// SPDX-License-Identifier: GPL-2.0-only
//! `usher mix`: runs several programs together under several policies in turn and compares the
//! policies.
//!
//! `usher_host::mix` measures. This file parses the options, reports progress, prints the result,
//! and writes a report page, the figures as JSON and a trace into a directory.
//!
//! - Without `--max-seconds`, the duration has no limit. With the option, rounds and repetitions
//!   are reduced, but one round with one repetition is always run.
//! - SIGINT, SIGTERM or SIGHUP ends the measurement without a result. The exit status is then 128
//!   plus the number of the signal.
//! - After a failed measurement, the directory is removed if it is empty.
//! - The result is printed even if a file cannot be written; the exit status is then 125.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use usher_host::mix::{MixEvent, MixFile, MixOptions, run_mix};
use usher_report::data::MixResult;
use usher_report::{html, table, text as words, trace};

use crate::answers::MixAnswer;
use crate::cli::numbers::{seconds, whole};
use crate::cli::options::{Global, LoadArgs, StoreArg};
use crate::failure::{self, Outcome};
use crate::measure;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::runtime;

/// Runs a mix of programs under several policies and compares them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A mix is a set of programs that run at the same time. Each program is repeated until every
program has run as often as FILE.toml or --repeats states (by default three times). NTT is the
time of a program relative to its best time alone; ANTT is the mean NTT, weighted by the
programs' weights. The policy with the least ANTT is the best policy for the mix. Each round
runs all policies, one after another. Each ratio of two policies is printed with a confidence
interval, which shows the noise.

docs/mix-file.md in the sources describes mix files. The command needs no daemon: it runs
the policies itself. On a busy machine, it waits up to 60 s, and then ends with an error.

Examples:
  usher mix examples/mixes/main.toml
  usher mix examples/mixes/x264-sort.toml --against linux,usher --rounds 5
  usher mix my.toml --against linux,linux#2,usher --rounds 6
  usher mix my.toml --max-seconds 300 --out report")]
pub struct Args {
    /// Description of the mix: programs, their inputs, rounds and repetitions
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    /// Run these policies, separated by commas. The others are compared with `linux` if LIST
    /// contains it, or else with the first policy of LIST. `linux#2` is a second `linux`, which
    /// shows the noise of the machine; `linux-bare` runs without Usher's measurements of running
    /// programs
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "linux,equal,casas,usher",
          value_parser = PossibleValuesParser::new(arms()))]
    against: Vec<String>,
    /// Run N rounds of each policy; by default, as many as the file states
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=u32::MAX))]
    rounds: Option<u32>,
    /// Repeat each program at least N times in a round; by default, as often as the file states
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=u32::MAX))]
    repeats: Option<u32>,
    /// Limit the duration of the command; rounds and repetitions are reduced to fit, but one round
    /// with one repetition is always run
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    max_seconds: Option<f64>,
    /// Select by N the policy that begins the first round, and use N as the seed of the confidence
    /// intervals
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    /// Measure every program alone again, even if the profile store has its measurement
    #[arg(long)]
    remeasure: bool,
    /// Run the policy `usher` without stored profiles
    #[arg(long)]
    cold: bool,
    /// Write the report to DIR; by default, to ./usher-mix-NAME
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    store: StoreArg,
}

/// Runs the mix, writes the report, prints the result.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let reading = || format!("reading the mix {}", args.file.display());
    let read = usher_topology::file::read_text(&args.file).with_context(reading)?;
    let mix = MixFile::parse(&args.file, &read)?;
    let config = measure::engine_config(global)?;
    let interruption = measure::Interruption::watch()?;
    let dir = args.out.clone().unwrap_or_else(|| default_dir(&args.file));
    fs::create_dir_all(&dir)
        .with_context(|| format!("making the directory '{}'", dir.display()))?;
    let progress = Progress::new();
    measure::warn_of_neighbours(global, &progress);
    let flag = interruption.flag();
    let result = run_mix(&mix, &config, &args.options(), flag, &mut |event| {
        report_event(&progress, &mix, args.against.len(), &event);
    });
    progress.end();
    if result.is_err() {
        // Removes the directory if it is still empty. A directory that existed before and is not
        // empty stays.
        let _ = fs::remove_dir(&dir);
    }
    let result = interruption.outcome(result)?;
    // The results are printed even if no file can be written.
    let (written, unwritten) = write(&result, &dir);
    let value = MixAnswer {
        result: result.clone(),
        files: written.clone(),
    };
    let shown = out.answer(&value, || text(&result, &written, out));
    failure::combine(unwritten.into_iter().map(Err).chain([shown]))
}

/// Returns the names that `--against` accepts: the policies, `linux#2` (the kernel a second time),
/// and `linux-bare` (the kernel without Usher's measurements).
fn arms() -> impl Iterator<Item = &'static str> {
    usher_policy::NAMES
        .into_iter()
        .chain(["linux#2", "linux-bare"])
}

impl Args {
    fn options(&self) -> MixOptions {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        MixOptions {
            policies: self.against.clone(),
            rounds: self.rounds,
            repeats: self.repeats,
            max_seconds: self.max_seconds,
            seed: self.seed,
            store: Some(runtime::store_path(self.store.path.as_deref())),
            remeasure: self.remeasure,
            cold: self.cold,
            load: self.load.rule(),
            ompt: measure::ompt_tool(),
            command: words.collect::<Vec<_>>().join(" "),
            date: today(),
            ..MixOptions::default()
        }
    }
}

fn default_dir(file: &Path) -> PathBuf {
    let stem = file.file_stem().unwrap_or(file.as_os_str());
    PathBuf::from(format!("usher-mix-{}", stem.to_string_lossy()))
}

/// Returns the date in UTC, in ISO 8601.
fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

fn report_event(progress: &Progress, mix: &MixFile, policies: usize, event: &MixEvent<'_>) {
    match event {
        MixEvent::Setup { command } => {
            progress.print_line(&format!("preparing the inputs of the mix: {command}"))
        }
        MixEvent::Alone { program, run } => {
            progress.doing(format!("measuring the program {program} alone"));
            progress.print_line(&format!(
                "{program} alone on {}: {:.2} s (run {} of at most {})",
                super::profile::cores(run.cores),
                run.seconds,
                run.repetition,
                run.repeats
            ));
        }
        MixEvent::Begins {
            rounds,
            repeats,
            seconds,
        } => {
            let runs = u64::from(*rounds) * policies as u64 * mix.programs.len() as u64;
            progress.steps(runs * u64::from(*repeats));
            progress.print_line(&format!(
                "{}, {}; rounds: {rounds}, repetitions: {repeats}; about {}",
                words::count(mix.programs.len(), "program"),
                words::policies(policies),
                super::status::duration(*seconds)
            ));
        }
        MixEvent::Round {
            policy,
            round,
            rounds,
        } => {
            progress.doing(format!("{policy}, round {round} of {rounds}"));
        }
        MixEvent::Repetition {
            policy,
            program,
            done,
            of,
            seconds,
        } => {
            if done <= of {
                progress.step();
            }
            progress.doing(format!(
                "{policy}: {program} took {seconds:.1} s (repetition {done} of {of})"
            ));
        }
        MixEvent::RoundEnded { policy, result } => {
            let antt = result
                .antt
                .map_or("ANTT unknown".to_owned(), |x| format!("ANTT {x:.3}"));
            let abstained = if result.abstained {
                ", no seats: all programs share all CPUs"
            } else {
                ""
            };
            progress.print_line(&format!("{policy}: {antt}{abstained}"));
        }
        MixEvent::Warning { text } => progress.print_line(&format!("usher: {text}")),
    }
}

/// Writes the report, the figures and a trace. Returns the paths of the written files, and the
/// errors of the files that could not be written.
fn write(result: &MixResult, dir: &Path) -> (Vec<PathBuf>, Vec<anyhow::Error>) {
    output::write_files(dir, files(result))
}

/// Returns the files of a result, by name.
fn files(result: &MixResult) -> Vec<(&'static str, anyhow::Result<String>)> {
    let figures = serde_json::to_string_pretty(result).context("writing JSON");
    let mut files = vec![
        ("report.html", Ok(html::page(result))),
        ("result.json", figures),
    ];
    let ours = result.policy("usher").or(result.policies.last());
    if let Some((policy, round)) = ours.and_then(|p| Some((p, p.typical_round()?))) {
        let trace = trace::perfetto(result, policy, round).to_string();
        files.push(("trace.json", Ok(trace)));
    }
    files
}

fn text(result: &MixResult, written: &[PathBuf], out: Output) -> String {
    let style = measure::style(out);
    let mut text = format!(
        "{}\n\n{}\n\n",
        table::ntt(result, style).trim_end(),
        table::summary(result, style).trim_end()
    );
    let about = written.iter().map(|path| {
        let about = match path.extension().and_then(|e| e.to_str()) {
            Some("html") => "report, to open in a browser",
            _ if path.ends_with("trace.json") => {
                "trace of the seats over time, to open in https://ui.perfetto.dev"
            }
            _ => "all figures of the report as JSON",
        };
        vec![path.display().to_string(), about.to_owned()]
    });
    text.push_str(&output::columns(&about.collect::<Vec<_>>()));
    text
}
