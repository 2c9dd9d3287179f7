// SPDX-License-Identifier: GPL-2.0-only
//! `usher profile`: measures the scalability curve of a program, draws it and stores it as the
//! program's profile.
//!
//! 1. Check that the picture of `--svg` can be written.
//! 2. Run the program at several core counts in several passes (`usher_host::profile`), at most
//!    `--repeats` times per count, by default three times.
//! 3. Print the curve, store it unless `--forget` is given, and draw the picture.
//!
//! On a busy machine, the command waits, and then refuses (`usher_host::quiet`). With `--force`, it
//! measures, and does not store a disturbed curve, which is no error.
//!
//! The commands about stored profiles are in `profile/stored.rs`.
//!
//! - Without `--max-seconds`, the duration has no limit. With the option, no further run starts
//!   that would exceed the limit.
//! - SIGINT, SIGTERM or SIGHUP ends the measurement without a result, with exit status 128 plus the
//!   number of the signal.
//! - The result is printed even if the picture or the store cannot be written; the exit status is
//!   then 125.

mod stored;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use usher_host::launch::{LaunchSpec, Stream};
use usher_host::profile::{
    MeasuredProfile, ProfileError, ProfileEvent, ProfileOptions, ProfileRun, ProfileTarget,
    default_counts, profile, store_curve,
};
use usher_model::Topology;
use usher_report::figure::{CurveFigure, curve_svg};
use usher_report::{summary, table, text as words};

use crate::answers::CurveAnswer;
use crate::cli::numbers::{seconds, whole};
use crate::cli::options::{Global, LoadArgs};
use crate::failure::{self, Outcome};
use crate::measure;
use crate::output::Output;
use crate::progress::Progress;
use crate::runtime;
use stored::StoredCommand;
pub use stored::age;

/// Measures and stores a program's scalability curve; manages stored profiles
#[derive(Debug, clap::Args)]
#[command(
    subcommand_negates_reqs = true,
    after_help = "\
The program runs alone from start to end on each number of cores, several times. The
standard input of the program is empty, and its output is discarded. Each run of the
program must do the same work and take some seconds. Usher stores the measured curve and
uses it to choose seats for later runs of the program.

Other programs would make the curve wrong. On a busy machine, the command therefore waits
up to 60 s, and then ends with an error (docs/profiles.md states the limits).

A program with the name of a command of `usher profile` must follow `--`.

Examples:
  usher profile -- x264 --preset medium -o /dev/null in.y4m
  usher profile --cores 1,2,4 --repeats 5 -- ./solver input
  usher profile --svg curve.svg -- sh -c 'pigz -c < text > /dev/null'
  usher profile --json -- ./solver input | jq '.curve[] | [.cores, .rate]'
  usher profile list                      list the stored profiles
  usher profile export > profiles.json    for `usher profile import` on another machine"
)]
pub struct Args {
    #[command(subcommand)]
    stored: Option<StoredCommand>,
    /// Use this name for the program in the picture and in the profile; by default, the name of the
    /// command's file
    #[arg(long)]
    name: Option<String>,
    /// Measure with these numbers of cores; by default, all on small machines, else powers of two and
    /// whole LLC domains
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = whole::<u32>(0..=u32::MAX))]
    cores: Option<Vec<u32>>,
    /// Run the program at most N times on each number of cores; fewer times if the measured times
    /// agree
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole::<u32>(1..=u32::MAX))]
    repeats: u32,
    /// Start no further run that would exceed this total time; by default, no limit
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    max_seconds: Option<f64>,
    /// Draw the curve into FILE as an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the curve without storing it
    #[arg(long)]
    forget: bool,
    #[command(flatten)]
    load: LoadArgs,
    /// Use FILE as the profile store, which holds the measurements of earlier runs; by default,
    /// /var/lib/usher/profiles.db as root, else usher/profiles.db in $XDG_DATA_HOME or
    /// ~/.local/share
    #[arg(
        long,
        value_name = "FILE",
        env = "USHER_STORE",
        hide_env_values = true,
        global = true
    )]
    store: Option<PathBuf>,
    /// Command to measure, with its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "CMD",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,
}

/// Runs the given command about stored profiles, or measures.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    match &args.stored {
        Some(command) => {
            args.refuse_beside_command()?;
            stored::run(command, args.store.as_deref(), out)
        }
        None => measure_program(args, global, out),
    }
}

/// Measures, prints and stores.
fn measure_program(args: &Args, global: &Global, out: Output) -> Outcome {
    crate::launch::check_named(&args.command)?;
    // A command that does not exist waits for no idle machine.
    LaunchSpec::new(&args.command).resolve()?;
    if let Some(path) = &args.svg {
        check_picture(path).with_context(|| unwritable(path))?;
    }
    let config = measure::engine_config(global)?;
    let topology = config.topology.clone();
    let interruption = measure::Interruption::watch()?;
    let progress = Progress::new();
    measure::warn_of_neighbours(global, &progress);
    let subject = args.subject();
    let options = ProfileOptions {
        counts: args.cores.clone(),
        repeats: args.repeats,
        seconds_max: args.max_seconds,
        load: args.load.rule(),
        ..ProfileOptions::default()
    };
    let counts = options
        .counts
        .clone()
        .unwrap_or_else(|| default_counts(&topology));
    progress.steps(counts.len() as u64 * u64::from(args.repeats));
    let measured = profile(
        config,
        &subject,
        &options,
        interruption.flag(),
        &mut |event| report_event(&progress, &event),
    );
    progress.end();
    let measured = interruption.outcome(measured)?;
    let shown = show(&subject.name, &measured, out);
    let kept = args.keep(&topology, &subject.name, &measured);
    let cores = topology.cores.len() as f64;
    let picture = args.svg.as_deref();
    let drawn = picture.map(|path| draw(path, &subject.name, &measured, cores));
    failure::combine([shown, kept].into_iter().chain(drawn))
}

/// Checks whether a picture can be written to the path, without writing.
///
/// # Errors
/// The path is a directory, or its directory does not exist.
pub fn check_picture(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    match fs::metadata(dir.unwrap_or(Path::new(".")))?.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Returns the message about a picture that cannot be written.
pub fn unwritable(path: &Path) -> String {
    format!("writing the picture '{}'", path.display())
}

/// Prints the measurement.
fn show(name: &str, measured: &MeasuredProfile, out: Output) -> anyhow::Result<()> {
    let value = CurveAnswer {
        name: name.to_owned(),
        curve: measured.curve.clone(),
        seconds: (measured.points.iter().map(|p| p.seconds.clone())).collect(),
        spinners: measured.spinners,
        active_wait: measured.active_wait,
        disturbance: measured.disturbance.clone(),
    };
    out.answer(&value, || text(measured, out))
}

impl Args {
    /// Rejects options of a measurement that precede a command about stored profiles.
    fn refuse_beside_command(&self) -> anyhow::Result<()> {
        let given = [
            ("--name", self.name.is_some()),
            ("--cores", self.cores.is_some()),
            ("--max-seconds", self.max_seconds.is_some()),
            ("--svg", self.svg.is_some()),
            ("--forget", self.forget),
            ("--force", self.load.force),
            ("--max-other-cpus", self.load.max_other_cpus.is_some()),
            ("--max-wait", self.load.max_wait.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => bail!(
                "{option} belongs to a measurement: write `usher profile {option} … -- CMD`, with \
                 `--` before a program that has the name of a command"
            ),
            None => Ok(()),
        }
    }

    /// Stores a curve, unless `--forget` is given. A measurement of a program that is too short, and
    /// a forced measurement that was disturbed, are not stored, which is reported but no error.
    fn keep(
        &self,
        topology: &Topology,
        name: &str,
        measured: &MeasuredProfile,
    ) -> anyhow::Result<()> {
        if self.forget {
            return Ok(());
        }
        if summary::too_short_note(&measured.curve).is_some() {
            failure::print_error("the profile is not stored, because the program is too short");
            return Ok(());
        }
        let store = runtime::store_path(self.store.as_deref());
        match store_curve(&store, topology, name, measured) {
            Err(error @ ProfileError::Disturbed(_)) => {
                failure::print_error(&error.to_string());
                Ok(())
            }
            stored => stored.map_err(Into::into),
        }
    }

    fn subject(&self) -> ProfileTarget {
        let file = self
            .command
            .first()
            .map(Path::new)
            .and_then(Path::file_name);
        let name = file.map(|name| name.to_string_lossy().into_owned());
        ProfileTarget {
            name: self.name.clone().or(name).unwrap_or_default(),
            spec: LaunchSpec {
                stdin: Stream::Null,
                stdout: Stream::Null,
                new_session: true,
                ..LaunchSpec::new(&self.command)
            },
            ok_exit_codes: vec![0],
        }
    }
}

fn report_event(progress: &Progress, event: &ProfileEvent<'_>) {
    match event {
        ProfileEvent::Run(run) => report_run(progress, run),
        ProfileEvent::Busy(text) => progress.print_line(&format!("usher: {text}")),
    }
}

fn report_run(progress: &Progress, run: &ProfileRun) {
    progress.step();
    progress.print_line(&format!(
        "{:>8} (CPUs {}): {:.2} s, {:.1} CPUs busy (run {} of at most {})",
        cores(run.cores),
        run.cpus,
        run.seconds,
        run.busy_cpus,
        run.repetition,
        run.repeats
    ));
}

/// "1 core", "2 cores".
pub fn cores(count: u32) -> String {
    words::count(count as usize, "core")
}

fn draw(path: &Path, name: &str, measured: &MeasuredProfile, cores: f64) -> anyhow::Result<()> {
    // The fit that the planner uses.
    let fit = usher_policy::fit::fit(measured.curve.points(), cores as u32);
    let figure = CurveFigure {
        title: name,
        class: "p0",
        cores_max: cores,
        fitted: fit.as_ref().map(|fit| &fit.curve),
        ..CurveFigure::default()
    };
    let picture = curve_svg(&measured.curve, &figure);
    fs::write(path, picture).with_context(|| unwritable(path))
}

fn text(measured: &MeasuredProfile, out: Output) -> String {
    let style = measure::style(out);
    let mut text = table::profile(&measured.curve, style);
    text.push('\n');
    if measured.curve.points().len() > 1 {
        text.push_str(&format!(
            "\n{}\n",
            table::curve(&measured.curve, style).trim_end()
        ));
    }
    if let Some(note) = summary::too_short_note(&measured.curve) {
        text.push_str(&format!("\n{note}\n"));
    }
    if measured.spinners > 0 {
        text.push_str(&format!(
            "\n{} threads of the program busy-wait for one another: the program always gets at \
             least one core for each of these threads\n",
            measured.spinners
        ));
    }
    if measured.active_wait == Some(true) {
        text.push_str(
            "\nthe program uses GNU OpenMP or MPI, whose threads busy-wait if they have enough \
             cores when the program starts: Usher takes no CPUs from the program while it runs\n",
        );
    }
    text
}
