// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched`: the scheduler for kernels with sched_ext.

mod explain;
mod hold;
mod keeping;
mod limits;
mod outlook;
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
pub use outlook::{Outlook, look};

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
    let looks_only = matches!(args.command, Command::Status(_));
    anyhow::ensure!(
        looks_only || rustix::process::geteuid().is_root(),
        "{FOR_ROOT}"
    );
    let dir = runtime::roots_dir(global.runtime_dir.as_deref());
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

/// What `--turn-ms` and `--lead-ms` take: with these, and a hundred threads for
/// a CPU, nobody waits as long as the kernel allows.
fn limit_ms(text: &str) -> Result<u64, &'static str> {
    let ms = text.parse().ok().filter(|ms| (1..=200).contains(ms));
    ms.ok_or("it takes whole milliseconds, from 1 to 200")
}

/// What anybody else is told.
const FOR_ROOT: &str = "'usher sched' is for root, except its status: run this as root";

/// What is said of an end.
const GOES_ON: &str = "the kernel's own scheduler goes on\n";

/// The name by which the kernel knows ours.
const NAME: &str = "usher";

fn kernel() -> Kernel {
    Kernel::at(&PathBuf::from("/sys"))
}

/// What is said where a turn's length is told, and there are to be no turns; the lead may have
/// been told beside it.
fn idle_turn(told: [Option<u64>; 2], settings: &Settings) -> Option<&'static str> {
    let [turn_ms, lead_ms] = told;
    if turn_ms.is_none() || settings.aggregate {
        return None;
    }
    Some(
        match lead_ms.is_none() && settings.lead_ns == settings.turn_ns {
            true => {
                "there are turns with --aggregate on alone: --turn-ms sets no more than the lead"
            }
            false => {
                "there are turns with --aggregate on alone: --turn-ms changes nothing until then"
            }
        },
    )
}

/// What the scheduler does, in a few words.
fn described(settings: &Settings) -> String {
    if settings.minimal {
        return "first come, first served, and nothing else".to_owned();
    }
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
    let ms = |ns: u64| ns / 1_000_000;
    let lead = match settings.lead_ns == settings.turn_ns {
        true => String::new(),
        false => format!(", ahead by {} ms at most", ms(settings.lead_ns)),
    };
    let turns = match settings.aggregate {
        true => format!("on ({} ms{lead})", ms(settings.turn_ns)),
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
    fn what_it_does_names_each_feature() {
        let mut settings = Settings::default();
        let all = "idle cores first on, address spaces in turns on (24 ms), seats on";
        assert_eq!(described(&settings), all);
        settings.lead_ns /= 2;
        settings.seats = false;
        let some = "address spaces in turns on (24 ms, ahead by 12 ms at most), seats off";
        assert!(described(&settings).ends_with(some));
        settings.aggregate = false;
        assert!(described(&settings).contains("in turns off, seats"));
    }

    #[test]
    fn who_tells_a_turns_length_without_turns_is_told_what_comes_of_it() {
        let on = Settings::default();
        let off = Settings {
            aggregate: false,
            ..on
        };
        let apart = Settings { lead_ns: 1, ..off };
        assert_eq!(idle_turn([Some(8), None], &on), None);
        assert_eq!(idle_turn([None, Some(8)], &off), None);
        let comes = |told, settings| idle_turn(told, settings)?.split_once(": ");
        let when = "there are turns with --aggregate on alone";
        let lead = Some((when, "--turn-ms sets no more than the lead"));
        let nothing = Some((when, "--turn-ms changes nothing until then"));
        assert_eq!(comes([Some(8), None], &off), lead);
        assert_eq!(comes([Some(8), Some(8)], &off), nothing);
        assert_eq!(comes([Some(8), None], &apart), nothing);
    }
}
