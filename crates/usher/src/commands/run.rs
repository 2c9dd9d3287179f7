// SPDX-License-Identifier: GPL-2.0-only
//! `usher run`: runs a program in managed seats and returns its exit status. Also holds the parsers
//! of weights and seconds, which other commands use. The launch itself is in `crate::launch`.

use std::ffi::OsString;

use crate::cli::{Global, StoreArg};
use crate::failure::Outcome;
use crate::launch::{self, RunOptions};

/// Runs a program in managed seats and returns its exit status
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With a daemon, the program is seated before it first touches memory. Seats change when
programs start, end or change phase. If the daemon dies, the program keeps running.
Without a daemon, the program runs as it would without `usher run`. In both cases its
duration is stored.
A program that counts its own work (heartbeat.h) finds its page in USHER_HEARTBEAT.

Streams, environment and signals are passed through; `nohup usher run …` works.

Examples:
  usher run -- x264 --preset slow -o out.264 in.y4m
  usher run --name nightly --weight 0.5 -- make -j8 check
  usher run --hints -- ./solver        sets the number of threads of OpenMP and others
  usher run -- sh -c 'pigz < a > b'    seats the whole process tree")]
pub struct Args {
    /// Name of the program; by default the file name of the command
    #[arg(long, value_parser = crate::cli::program_name)]
    name: Option<String>,
    /// Weight of its turnaround time in the mean; 1 by default
    #[arg(long, value_parser = weight)]
    weight: Option<f64>,
    /// Set the size of thread pools (OMP_NUM_THREADS and the like, if unset) to the number of seats
    /// at the start; the pools cannot grow later
    #[arg(long)]
    hints: bool,
    #[command(flatten)]
    store: StoreArg,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// Runs the program.
pub fn run(args: &Args, global: &Global) -> Outcome {
    launch::run(&RunOptions {
        argv: args.command.clone(),
        name: args.name.clone(),
        weight: args.weight,
        hints: args.hints,
        background: None,
        regulation: super::bg::RegulationArgs::default(),
        runtime_dir: global.runtime_dir.clone(),
        store: args.store.path.clone(),
    })
}

/// Parses a weight.
pub fn weight(text: &str) -> Result<f64, String> {
    let rule = "a weight is a number from 0.001 to 1000";
    let weight = positive(text, rule)?;
    match usher_host::engine::WEIGHTS.contains(&weight) {
        true => Ok(weight),
        false => Err(rule.to_owned()),
    }
}

/// Parses a number of seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    positive(text, "seconds must be a positive number")
}

fn positive(text: &str, rule: &str) -> Result<f64, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| format!("'{text}' is not a number"))?;
    match number.is_finite() && number > 0.0 {
        true => Ok(number),
        false => Err(rule.to_owned()),
    }
}
