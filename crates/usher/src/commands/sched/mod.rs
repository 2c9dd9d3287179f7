// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched`: the scheduler for kernels with sched_ext.

mod explain;
mod hold;
mod keeping;
mod record;
mod set;
mod start;
mod stats;
mod status;
mod stop;

use std::path::PathBuf;

use usher_scx::{Kernel, Settings};

use crate::cli::Global;
use crate::failure::Outcome;
use crate::output::Output;
use crate::runtime;

pub use keeping::seats;

/// Has Usher's own scheduler run this machine's threads
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Needs root and a kernel with sched_ext (6.12 or newer). A process of Usher's holds the
scheduler; when it ends, however it ends, the kernel's own scheduler goes on.

Examples:
  usher sched start                       idle cores first, address spaces in turns
  usher sched start --aggregate off       idle cores first alone
  usher sched status
  usher sched set --turn-ms 8             while it runs
  usher sched explain 4711                where the threads of a process are, and why
  usher sched stats -- make -j8           what the scheduler that runs does meanwhile
  usher sched stop")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Start(start::Args),
    Stop(stop::Args),
    Status(status::Args),
    Set(set::Args),
    Stats(stats::Args),
    Explain(explain::Args),
}

/// Calls what was asked for.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let dir = runtime::own_dir(global.runtime_dir.as_deref());
    match &args.command {
        Command::Start(args) => start::run(args, &dir, out),
        Command::Stop(_) => stop::run(&dir, out),
        Command::Status(_) => status::run(&dir, out),
        Command::Set(args) => set::run(args, &dir, out),
        Command::Stats(args) => stats::run(args, &dir, out),
        Command::Explain(args) => explain::run(args, &dir, out),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

fn kernel() -> Kernel {
    Kernel::at(&PathBuf::from("/sys"))
}

/// What the scheduler does, in a few words.
fn described(settings: &Settings) -> String {
    if settings.fifo {
        return "first come, first served, blind to SMT".to_owned();
    }
    if settings.o1 {
        let cure = match settings.aggregate {
            true => ", the address space that runs a level better",
            false => "",
        };
        return format!("the order of Linux 2.6 (O(1)), blind to SMT{cure}");
    }
    let on = |on: bool| if on { "on" } else { "off" };
    format!(
        "idle cores first {}, address spaces in turns {} ({} ms)",
        on(settings.smt),
        on(settings.aggregate),
        settings.turn_ns / 1_000_000
    )
}
