// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched set`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::json;
use usher_scx::Settings;

use crate::failure::{self, Outcome};
use crate::output::Output;

use super::record::{Phase, RequestLock, SchedulerRecord};
use super::{Switch, record};

/// Changes the scheduler's settings while it runs
#[derive(Debug, PartialEq, Eq, clap::Args)]
#[command(after_help = "\
Give at least one option. Other settings keep their values, but a maximum lag that equals
the turn follows the turn. A scheduler that was started with --fifo or --o1 keeps that
order until it is stopped.

Examples:
  usher sched set --aggregate off
  usher sched set --smt on --turn-ms 8
  usher sched set --seats off              the daemon seats by affinity masks again")]
pub struct Args {
    /// Prefer idle physical cores; no two threads on one core while another core is idle
    #[arg(long, value_enum, value_name = "ON|OFF")]
    smt: Option<Switch>,
    /// Run threads of one address space one after another, in bounded turns
    #[arg(long, value_enum, value_name = "ON|OFF")]
    aggregate: Option<Switch>,
    /// Let the scheduler keep the seats that a daemon gives; off: affinity masks
    #[arg(long, value_enum, value_name = "ON|OFF")]
    seats: Option<Switch>,
    /// Longest turn of an address space, 1 to 200
    #[arg(long, value_name = "MS", value_parser = super::limit_ms, allow_negative_numbers = true)]
    turn_ms: Option<u64>,
    /// Largest lead over waiting threads in virtual time, 1 to 200
    #[arg(long, value_name = "MS", value_parser = super::limit_ms, allow_negative_numbers = true)]
    max_lag_ms: Option<u64>,
}

/// The error if no option is given. Clap's own message would show only its grammar.
const NOTHING: &str = "nothing to change: give at least one of --smt, --aggregate, --seats, \
                       --turn-ms and --max-lag-ms";

impl Args {
    /// No option.
    const NONE: Self = Self {
        smt: None,
        aggregate: None,
        seats: None,
        turn_ms: None,
        max_lag_ms: None,
    };

    fn changed(&self, now: Settings) -> Settings {
        let ns = |ms: Option<u64>| ms.map(|ms| ms * 1_000_000);
        let turn_ns = ns(self.turn_ms).unwrap_or(now.turn_ns);
        let max_lag_ns = match now.max_lag_ns == now.turn_ns {
            true => turn_ns,
            false => now.max_lag_ns,
        };
        Settings {
            smt: self.smt.map_or(now.smt, Switch::is_on),
            aggregate: self.aggregate.map_or(now.aggregate, Switch::is_on),
            seats: self.seats.map_or(now.seats, Switch::is_on),
            turn_ns,
            max_lag_ns: ns(self.max_lag_ms).unwrap_or(max_lag_ns),
            ..now
        }
    }
}

/// Upper limit of the time in which the scheduler's process has to apply a change.
const WAIT: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Requests the change and waits until it is applied.
pub fn run(args: &Args, dir: &Path, out: Output) -> Outcome {
    ensure!(*args != Args::NONE, NOTHING);
    // If no scheduler runs, no files are created either.
    record::of_running(dir)?;
    // The change of another process must not be reverted by the present change.
    let deadline = Instant::now() + 3 * WAIT;
    let _asking = alone(dir, || Instant::now() > deadline)?;
    // Left by a process that died before its request was answered.
    record::withdraw_request(dir)?;
    let before = record::of_running(dir)?;
    if before.settings.is_fixed() {
        let option = if before.settings.o1 { "--o1" } else { "--fifo" };
        bail!(
            "the scheduler was started with {option}: stop it ('usher sched stop') and start it \
               without that option"
        );
    }
    let process = record::process_of(dir, &before)?;
    record::write_request(dir, &args.changed(before.settings))?;
    let signalled = pidfd_send_signal(&process, Signal::USR1)
        .with_context(|| format!("signalling process {}", before.pid));
    let wait = || {
        let deadline = Instant::now() + WAIT;
        answer(dir, &before, || Instant::now() > deadline)
    };
    let after = match signalled.and_then(|()| wait()) {
        // A request that nothing has read yet must not be read later; a request that was read is
        // being carried out.
        Err(_) if !record::withdraw_request(dir)? => wait()?,
        answered => answered?,
    };
    if let Some(line) = super::turn_warning([args.turn_ms, args.max_lag_ms], &after.settings) {
        failure::print_error(line);
    }
    out.answer(
        &json!({ "does": after.does, "settings": after.settings }),
        || format!("the scheduler now has: {}\n", after.does),
    )?;
    Ok(0)
}

/// Waits for the exclusive right to send requests. A process that has it ends after at most twice
/// [`WAIT`].
fn alone(dir: &Path, is_late: impl Fn() -> bool) -> anyhow::Result<RequestLock> {
    loop {
        if let Some(asking) = RequestLock::begin(dir)? {
            return Ok(asking);
        }
        if is_late() {
            bail!("another 'usher sched set' is in progress: end it, or try again in a moment");
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Returns the record after the scheduler's process has applied the whole request.
fn answer(
    dir: &Path,
    before: &SchedulerRecord,
    is_late: impl Fn() -> bool,
) -> anyhow::Result<SchedulerRecord> {
    loop {
        let now = record::read(dir)?.filter(|now| now.pid == before.pid);
        let now = now.filter(|now| now.state != Phase::Ended);
        let now = now.context("the scheduler has ended meanwhile")?;
        if now.changes != before.changes {
            return match &now.undone {
                None => Ok(now),
                Some(undone) => bail!("the scheduler now has: {}, but {undone}", now.does),
            };
        }
        if is_late() {
            bail!("process {} does not answer", before.pid);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn names_the_options_if_none_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let out = Output::new(false, crate::output::Color::Never);
        let error = run(&Args::NONE, dir.path(), out).unwrap_err().to_string();
        assert_eq!(error, NOTHING);
        assert!(dir.path().read_dir().unwrap().next().is_none());
    }

    #[test]
    fn settings_without_an_option_keep_their_values() {
        let now = Settings::default();
        assert_eq!(Args::NONE.changed(now), now);
        let some = Args {
            smt: Some(Switch::Off),
            seats: Some(Switch::Off),
            ..Args::NONE
        };
        let changed = some.changed(now);
        assert_eq!(
            (changed.smt, changed.aggregate, changed.seats),
            (false, now.aggregate, false)
        );
    }

    #[test]
    fn a_max_lag_of_one_turn_follows_the_turn() {
        let ms = |turn_ms, max_lag_ms, now| {
            let changed = Args {
                turn_ms,
                max_lag_ms,
                ..Args::NONE
            }
            .changed(now);
            (changed.turn_ns / 1_000_000, changed.max_lag_ns / 1_000_000)
        };
        let now = Settings::default();
        assert_eq!(ms(Some(7), None, now), (7, 7));
        assert_eq!(ms(None, Some(3), now), (24, 3));
        let apart = Settings {
            max_lag_ns: 5_000_000,
            ..now
        };
        assert_eq!(ms(Some(7), None, apart), (7, 5));
    }

    #[test]
    fn only_one_process_requests_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = alone(dir.path(), || true).unwrap();
        let why = alone(dir.path(), || true).unwrap_err().to_string();
        assert!(why.contains("is in progress"), "{why}");
        let (first, looks) = (Cell::new(Some(first)), Cell::new(0));
        let second = alone(dir.path(), || {
            looks.set(looks.get() + 1);
            if looks.get() == 3 {
                drop(first.take());
            }
            false
        });
        assert!(second.is_ok() && looks.get() == 3);
    }

    #[test]
    fn set_waits_no_longer_for_a_scheduler_that_ends_or_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = record::RecordWriter::take(dir, &Settings::default()).unwrap();
        held.write(|record| record.state = Phase::Running).unwrap();
        let before = record::of_running(dir).unwrap();
        let why = |late: bool| answer(dir, &before, || late).unwrap_err().to_string();
        assert!(why(true).contains("does not answer"));
        held.write(|record| record.changes += 1).unwrap();
        assert_eq!(answer(dir, &before, || false).unwrap().changes, 1);
        held.write(|record| record.undone = Some("some seats remain (busy)".to_owned()))
            .unwrap();
        assert!(why(false).ends_with(", but some seats remain (busy)"));
        held.end("stopped").unwrap();
        assert!(why(false).contains("ended meanwhile"));
    }
}
