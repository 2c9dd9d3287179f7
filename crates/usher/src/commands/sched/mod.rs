// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched`: controls Usher's sched_ext scheduler (start, stop, set, status, stats, explain).
//! The scheduler itself is in crate `usher-scx`.
//!
//! All subcommands except `usher sched status` require root.

mod daemon_launch;
mod distribution;
mod doctor_report;
mod explain;
mod limits;
mod options;
mod placement;
mod remote;
mod set;
mod start;
mod stats;
mod status;
mod stop;

use crate::cli::options::Global;
use crate::failure::Outcome;
use crate::output::Output;
use crate::runtime;
use remote::FOR_ROOT;

pub use doctor_report::{SchedDoctorReport, doctor_report};
pub use explain::SchedExplainAnswer;
pub use stats::StatsAnswer;
pub use status::StatusAnswer;

/// Controls Usher's CPU scheduler, which replaces the kernel's scheduler while it runs
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Requires root and a kernel with sched_ext (6.12 or newer). Root's daemon loads the
scheduler; 'usher sched start' starts the daemon if none listens. When the daemon ends, in
any way, the kernel's own scheduler takes over.

Examples:
  usher sched start                       prefers idle cores, runs address spaces in turns
  usher sched start --aggregate off       prefers idle cores, without turns
  usher sched status
  usher sched set --turn-ms 8             changes the running scheduler
  usher sched explain 4711                shows where the threads of a process run, and why
  usher sched stats -- make -j8           counts scheduling events while make runs
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

/// Runs the given subcommand.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let looks_only = matches!(args.command, Command::Status(_));
    anyhow::ensure!(
        looks_only || rustix::process::geteuid().is_root(),
        "{FOR_ROOT}"
    );
    let dir = runtime::sched_dir(global.runtime_dir.as_deref());
    match &args.command {
        Command::Start(args) => start::run(args, global, out),
        Command::Stop(_) => stop::run(&dir, out),
        Command::Status(_) => status::run(&dir, out),
        Command::Set(args) => set::run(args, &dir, out),
        Command::Stats(args) => stats::run(args, &dir, out),
        Command::Explain(args) => explain::run(args, &dir, out),
    }
}
