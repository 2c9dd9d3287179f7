// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched`: controls Usher's sched_ext scheduler (start, stop, set, status, stats, explain).
//! Holds the names, limits and descriptions that the subcommands share. The scheduler itself is in
//! crate `usher-scx`.

mod daemon_launch;
mod doctor_report;
mod explain;
mod limits;
mod remote;
mod set;
mod start;
mod stats;
mod status;
mod stop;

use usher_scx::Settings;

use crate::cli::Global;
use crate::daemon::scheduler::LIMIT_MS;
use crate::failure::Outcome;
use crate::output::Output;
use crate::runtime;

pub use doctor_report::{SchedDoctorReport, doctor_report};

/// Runs this machine's threads with Usher's own scheduler
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Requires root and a kernel with sched_ext (6.12 or newer). Root's daemon holds the
scheduler; 'usher sched start' starts the daemon if none listens. When the daemon ends, in
any way, the kernel's own scheduler takes over.

Examples:
  usher sched start                       idle cores first, address spaces in turns
  usher sched start --aggregate off       idle cores first, without turns
  usher sched status
  usher sched set --turn-ms 8             changes the running scheduler
  usher sched explain 4711                shows where the threads of a process run, and why
  usher sched stats -- make -j8           counts the actions of any scheduler meanwhile
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

impl Switch {
    fn is_on(self) -> bool {
        self == Self::On
    }
}

/// Parses `--turn-ms` and `--max-lag-ms`.
fn limit_ms(text: &str) -> Result<u64, &'static str> {
    let ms = text.parse().ok().filter(|ms| LIMIT_MS.contains(ms));
    ms.ok_or("the value must be a whole number of milliseconds from 1 to 200")
}

/// The error for other users.
const FOR_ROOT: &str = "'usher sched' requires root, except for its status: run this as root";

/// The message after an end.
const TAKES_OVER: &str = "the kernel's own scheduler takes over\n";

/// The name of Usher's scheduler in the kernel.
const NAME: &str = "usher";

/// Returns the error if a turn length is given, alone or with a maximum lag, and the settings have
/// no turns.
fn turn_warning(given: [Option<u64>; 2], settings: &Settings) -> Option<&'static str> {
    let [turn_ms, max_lag_ms] = given;
    if turn_ms.is_none() || settings.aggregate {
        return None;
    }
    Some(
        match max_lag_ms.is_none() && settings.max_lag_ns == settings.turn_ns {
            true => "turns need --aggregate on: --turn-ms only sets the maximum lag",
            false => "turns need --aggregate on: --turn-ms has no effect until then",
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warns_of_a_turn_length_without_turns() {
        let on = Settings::default();
        let off = Settings {
            aggregate: false,
            ..on
        };
        let apart = Settings {
            max_lag_ns: 1,
            ..off
        };
        assert_eq!(turn_warning([Some(8), None], &on), None);
        assert_eq!(turn_warning([None, Some(8)], &off), None);
        let comes = |given, settings| turn_warning(given, settings)?.split_once(": ");
        let when = "turns need --aggregate on";
        let lag = Some((when, "--turn-ms only sets the maximum lag"));
        let nothing = Some((when, "--turn-ms has no effect until then"));
        assert_eq!(comes([Some(8), None], &off), lag);
        assert_eq!(comes([Some(8), Some(8)], &off), nothing);
        assert_eq!(comes([Some(8), None], &apart), nothing);
    }
}
