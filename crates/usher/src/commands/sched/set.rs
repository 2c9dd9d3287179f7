// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched set`: changes settings of the running scheduler.
//!
//! One request carries all changed settings to the process that holds the scheduler. The reply
//! arrives when the scheduler applies them, within the time limit of `remote` (60 s). Times are
//! whole milliseconds from 1 to 200. The order `--fifo` cannot be changed while the scheduler runs:
//! a change of the order requires a new start. A call without an option is an error.

use std::path::Path;

use anyhow::ensure;

use crate::answers::SchedSetAnswer;
use crate::daemon::scheduler::{Phase, SettingsChange};
use crate::failure::{self, Outcome};
use crate::output::Output;

use super::options::{Switch, limit_ms, turn_warning};
use super::remote::Found;

/// Changes the settings of Usher's scheduler while it runs
#[derive(Debug, PartialEq, Eq, clap::Args)]
#[command(after_help = "\
Give at least one option. Settings without an option keep their values, but a maximum lag
that equals the length of a turn changes with the length of a turn. A scheduler that was
started with --fifo keeps first-come, first-served order until it is stopped.

Examples:
  usher sched set --aggregate off
  usher sched set --smt on --turn-ms 8
  usher sched set --seats off              makes the daemon use affinity masks again")]
pub struct Args {
    /// Prefer idle cores: run no two threads on one core while another core is idle
    #[arg(long, value_enum, value_name = "ON|OFF")]
    smt: Option<Switch>,
    /// Run threads of one address space one after another, in turns of at most --turn-ms
    #[arg(long, value_enum, value_name = "ON|OFF")]
    aggregate: Option<Switch>,
    /// Let the scheduler enforce the seats of programs and lend their idle CPUs (soft seats); off:
    /// enforce seats by affinity masks
    #[arg(long, value_enum, value_name = "ON|OFF")]
    seats: Option<Switch>,
    /// Limit the turn of an address space to this time in ms, 1 to 200
    #[arg(long, value_name = "MS", value_parser = limit_ms, allow_negative_numbers = true)]
    turn_ms: Option<u64>,
    /// Limit how far the virtual time of a running thread may exceed that of waiting threads, in ms,
    /// 1 to 200
    #[arg(long, value_name = "MS", value_parser = limit_ms, allow_negative_numbers = true)]
    max_lag_ms: Option<u64>,
}

/// The error if no option is given. Clap's own message would only show the syntax of the command.
const NOTHING: &str = "nothing to change: give at least one of --smt, --aggregate, --seats, \
                       --turn-ms and --max-lag-ms";

impl Args {
    fn change(&self) -> SettingsChange {
        SettingsChange {
            smt: self.smt.map(Switch::is_on),
            aggregate: self.aggregate.map(Switch::is_on),
            seats: self.seats.map(Switch::is_on),
            turn_ms: self.turn_ms,
            max_lag_ms: self.max_lag_ms,
        }
    }
}

/// Requests the change. The reply arrives when the scheduler applies the new settings or, during a
/// restart, when the daemon has recorded them.
pub fn run(args: &Args, dir: &Path, out: Output) -> Outcome {
    let change = args.change();
    ensure!(change != SettingsChange::default(), NOTHING);
    let (mut client, _) = Found::at(dir)?.holder(dir)?;
    let after = client.set(&change)?;
    if let Some(line) = turn_warning([args.turn_ms, args.max_lag_ms], &after.settings) {
        failure::print_error(line);
    }
    let answer = SchedSetAnswer {
        does: after.does.clone(),
        settings: after.settings,
    };
    out.answer(&answer, || {
        let state = match after.state {
            Phase::Running => "now runs with",
            _ => "is restarting, and will run with",
        };
        format!("the scheduler {state}: {}\n", after.does)
    })?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Args = Args {
        smt: None,
        aggregate: None,
        seats: None,
        turn_ms: None,
        max_lag_ms: None,
    };

    #[test]
    fn names_the_options_if_none_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let out = Output::new(false, crate::output::Color::Never);
        let error = run(&NONE, dir.path(), out).unwrap_err().to_string();
        assert_eq!(error, NOTHING);
        assert!(dir.path().read_dir().unwrap().next().is_none());
    }

    #[test]
    fn only_given_options_are_requested() {
        let some = Args {
            smt: Some(Switch::Off),
            turn_ms: Some(7),
            ..NONE
        };
        let change = SettingsChange {
            smt: Some(false),
            turn_ms: Some(7),
            ..SettingsChange::default()
        };
        assert_eq!(some.change(), change);
    }
}
