// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched`: controls Usher's sched_ext scheduler (start, stop, set, status, stats, explain).
//! Holds the names, limits and descriptions that the subcommands share. The scheduler itself is in
//! crate `usher-scx`.

mod doctor_report;
mod explain;
mod hold;
mod limits;
mod record;
mod set;
mod soft_seats;
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

pub use doctor_report::{SchedDoctorReport, doctor_report};
pub use soft_seats::seats;

/// Runs this machine's threads with Usher's own scheduler
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Requires root and a kernel with sched_ext (6.12 or newer). A process of Usher's holds the
scheduler. When that process ends, in any way, the kernel's own scheduler takes over.

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

impl Switch {
    fn is_on(self) -> bool {
        self == Self::On
    }
}

/// Parses `--turn-ms` and `--max-lag-ms`. Within this range, no thread waits as long as the
/// kernel's watchdog allows, even with a hundred threads per CPU.
fn limit_ms(text: &str) -> Result<u64, &'static str> {
    let ms = text.parse().ok().filter(|ms| (1..=200).contains(ms));
    ms.ok_or("the value must be a whole number of milliseconds from 1 to 200")
}

/// The error for other users.
const FOR_ROOT: &str = "'usher sched' requires root, except for its status: run this as root";

/// The message after an end.
const TAKES_OVER: &str = "the kernel's own scheduler takes over\n";

/// The name of Usher's scheduler in the kernel.
const NAME: &str = "usher";

fn kernel() -> Kernel {
    Kernel::at(&PathBuf::from("/sys"))
}

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

/// Describes the scheduler's behaviour in a few words.
fn described(settings: &Settings) -> String {
    if settings.minimal {
        return "first come, first served, and nothing else".to_owned();
    }
    if settings.fifo {
        return "first come, first served, without SMT".to_owned();
    }
    if settings.o1 {
        let cure = match settings.aggregate {
            true => ", the running address space one level better",
            false => "",
        };
        return format!("the order of Linux 2.6 (O(1)), without SMT{cure}");
    }
    let on = |on: bool| if on { "on" } else { "off" };
    let ms = |ns: u64| ns / 1_000_000;
    let lag = match settings.max_lag_ns == settings.turn_ns {
        true => String::new(),
        false => format!(", lag at most {} ms", ms(settings.max_lag_ns)),
    };
    let turns = match settings.aggregate {
        true => format!("on ({} ms{lag})", ms(settings.turn_ns)),
        false => "off".to_owned(),
    };
    format!(
        "idle cores first {}, address spaces in turns {turns}, seats {}",
        on(settings.smt),
        on(settings.seats)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_names_each_feature() {
        let mut settings = Settings::default();
        let all = "idle cores first on, address spaces in turns on (24 ms), seats on";
        assert_eq!(described(&settings), all);
        settings.max_lag_ns /= 2;
        settings.seats = false;
        let some = "address spaces in turns on (24 ms, lag at most 12 ms), seats off";
        assert!(described(&settings).ends_with(some));
        settings.aggregate = false;
        assert!(described(&settings).contains("in turns off, seats"));
    }

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
