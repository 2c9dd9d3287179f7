// SPDX-License-Identifier: GPL-2.0-only
//! `usher run`: a program in managed seats.

use std::ffi::OsString;

use crate::cli::{Global, StoreArg};
use crate::failure::Outcome;
use crate::launch::{self, Wish};

/// Runs a program in managed seats and passes its exit status on
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With a daemon, the program is seated before it first touches memory, and seats follow
as programs come, go and change phase. Should the daemon die, the program runs on.
Without one there is nobody to share with that Usher knows of, and the program runs
as it would without `usher run`; how long it takes is remembered either way.
A program that counts its own work (heartbeat.h) finds its page in USHER_HEARTBEAT.

Streams, environment and signals are passed through; `nohup usher run …` works.

Examples:
  usher run -- x264 --preset slow -o out.264 in.y4m
  usher run --name nightly --weight 0.5 -- make -j8 check
  usher run --hints -- ./solver        tells OpenMP and friends how many seats there are
  usher run -- sh -c 'pigz < a > b'    whole trees are seated")]
pub struct Args {
    /// What to call it; else the command's file name
    #[arg(long, value_parser = crate::cli::program_name)]
    name: Option<String>,
    /// How much its turnaround counts in the mean; 1 unless told
    #[arg(long, value_parser = weight)]
    weight: Option<f64>,
    /// Tell thread pools (OMP_NUM_THREADS and the like, where unset) how many
    /// seats the program starts with; they cannot grow later
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

/// Runs it.
pub fn run(args: &Args, global: &Global) -> Outcome {
    launch::run(&Wish {
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

/// Reads a weight.
pub fn weight(text: &str) -> Result<f64, String> {
    let rule = "a weight is a number from 0.001 to 1000";
    let weight = positive(text, rule)?;
    match usher_host::engine::WEIGHTS.contains(&weight) {
        true => Ok(weight),
        false => Err(rule.to_owned()),
    }
}

/// Reads a number of seconds.
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
