// SPDX-License-Identifier: GPL-2.0-only
//! `usher run`: runs a program in managed seats and returns its exit status. The launch itself,
//! with its time limits, is in `crate::launch`.

use std::ffi::OsString;

use crate::cli::options::{Global, RegulationArgs, StoreArg};
use crate::failure::{self, Outcome};
use crate::launch::{self, HintMode, RunOptions, placeholders};

/// Runs a program on CPUs that the daemon assigns, and returns the program's exit status
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A daemon assigns CPUs (a seat) to the program before the program first touches memory. If
no daemon listens, this command starts one, which ends 5 s after its last program. Seats
change when programs start, end or change phase. If the daemon dies, the program keeps
running. If no daemon can be started, the program runs unmanaged, and one line names the
reason. The duration of the program is stored in the profile store.
A program that counts its own work (heartbeat.h) finds the path of its heartbeat page in
the environment variable USHER_HEARTBEAT.

Streams, environment and signals are passed to the program; `nohup usher run …` works.

With --copies, only the first copy reads the standard input, and all copies write to the same
output. A copy that fails does not end the others; the exit status is that of the first copy
that failed, by its number. `usher advise` finds the number of copies with the highest throughput.

Examples:
  usher run -- x264 --preset slow -o out.264 in.y4m
  usher run --name nightly --weight 0.5 -- make -j8 check
  usher run --cores 4 -- ./solver      a seat of 4 physical cores, whatever else runs
  usher run --copies 4 -- sh -c 'x264 --threads {cpus} -o out{copy}.264 in{copy}.y4m'
  usher run --no-daemon -- make check  changes nothing: no seat, no daemon
  usher run --hints -- ./solver        sets OMP_NUM_THREADS and similar variables
  usher run --no-hints -- pytest -n 4  does not set them, even after a run with copies
  usher run -- sh -c 'pigz < a > b'    assigns a seat to the whole process tree")]
pub struct Args {
    /// Use this name for the program in reports and profiles; by default, the name of the command's
    /// file
    #[arg(long, value_parser = crate::cli::options::program_name)]
    name: Option<String>,
    /// Give the program's turnaround time this weight in the mean that Usher minimises, from 0.001
    /// to 1000; by default, 1
    #[arg(long, value_parser = crate::cli::numbers::weight, allow_negative_numbers = true)]
    weight: Option<f64>,
    /// Give the program a seat of exactly N physical cores, with all their hardware threads, from
    /// its start to its end; the seat needs no profile, and its CPUs are not lent
    #[arg(
        long,
        value_name = "N",
        value_parser = crate::cli::numbers::cores,
        allow_negative_numbers = true,
        conflicts_with = "no_daemon"
    )]
    cores: Option<u32>,
    /// Run N copies of CMD as N programs with equal seats of their own: --cores cores each, or an
    /// equal part of all cores. `{cpus}` in CMD is replaced by the number of CPUs of a copy, and
    /// `{copy}` by the number of the copy, from 1
    #[arg(
        long,
        value_name = "N",
        value_parser = crate::cli::numbers::whole(1..=launch::copies::COPIES_MAX),
        allow_negative_numbers = true,
        conflicts_with = "no_daemon"
    )]
    copies: Option<u32>,
    /// Set OMP_NUM_THREADS and similar variables in every run, unless they are set: to the number
    /// of CPUs of a copy if Usher recognised copies in an earlier run of CMD, else to the number of
    /// CPUs of the program at its start. By default, the variables are set only after a run with
    /// copies. A thread pool of that size does not use CPUs that the program gets later
    #[arg(long, conflicts_with = "no_hints")]
    hints: bool,
    /// Do not set OMP_NUM_THREADS and similar variables
    #[arg(long)]
    no_hints: bool,
    /// Run the program unmanaged, and neither use nor start a daemon
    #[arg(long)]
    no_daemon: bool,
    #[command(flatten)]
    store: StoreArg,
    /// Command to run, with its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "CMD",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,
}

/// Runs the program.
pub fn run(args: &Args, global: &Global) -> Outcome {
    let options = RunOptions {
        argv: args.command.clone(),
        name: args.name.clone(),
        weight: args.weight,
        cores: args.cores,
        hints: match (args.hints, args.no_hints) {
            (true, _) => HintMode::Always,
            (false, true) => HintMode::Never,
            (false, false) => HintMode::AfterCopies,
        },
        background: None,
        no_daemon: args.no_daemon,
        regulation: RegulationArgs::default(),
        runtime_dir: global.runtime_dir.clone(),
        store: args.store.path.clone(),
    };
    match args.copies {
        Some(copies) => launch::copies::run(&options, copies),
        None => {
            note_placeholders(&args.command);
            launch::run(&options)
        }
    }
}

/// Prints a note if the command contains a placeholder, which only `--copies` replaces.
fn note_placeholders(command: &[OsString]) {
    let present = [placeholders::CPUS, placeholders::COPY];
    let present = present
        .iter()
        .find(|text| placeholders::contains(command, text));
    if let Some(text) = present {
        failure::print_error(&format!(
            "{text} in the command is passed unchanged: only --copies replaces it, also with 1 copy"
        ));
    }
}
