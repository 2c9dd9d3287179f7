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

use super::record::{Asking, Record, State};
use super::{Switch, record};

/// Changes what the scheduler does, while it runs
#[derive(Debug, PartialEq, Eq, clap::Args)]
#[command(after_help = "\
One option is due at least. What is not named stays as it is; a lead that is as long as a
turn stays so. A scheduler that was started with --fifo or --o1 serves in that order until
it is stopped.

Examples:
  usher sched set --aggregate off
  usher sched set --smt on --turn-ms 8
  usher sched set --seats off              the daemon seats by affinity masks again")]
pub struct Args {
    /// Idle physical cores first, no two threads on a core beside an idle one
    #[arg(long, value_enum, value_name = "ON|OFF")]
    smt: Option<Switch>,
    /// Threads of one address space one after another, in bounded turns
    #[arg(long, value_enum, value_name = "ON|OFF")]
    aggregate: Option<Switch>,
    /// Seats kept by the scheduler where a daemon gives them; off: affinity masks
    #[arg(long, value_enum, value_name = "ON|OFF")]
    seats: Option<Switch>,
    /// How long threads of one address space may follow one another, 1 to 200
    #[arg(long, value_name = "MS", value_parser = super::limit_ms, allow_negative_numbers = true)]
    turn_ms: Option<u64>,
    /// How far they may get ahead of whoever waits, 1 to 200
    #[arg(long, value_name = "MS", value_parser = super::limit_ms, allow_negative_numbers = true)]
    lead_ms: Option<u64>,
}

/// What is said where nothing is named. Not by clap, which shows its grammar.
const NOTHING: &str = "nothing to change: name one at least of --smt, --aggregate, --seats, \
                       --turn-ms and --lead-ms";

impl Args {
    /// With nothing in it.
    const NONE: Self = Self {
        smt: None,
        aggregate: None,
        seats: None,
        turn_ms: None,
        lead_ms: None,
    };

    fn changed(&self, now: Settings) -> Settings {
        let ns = |ms: Option<u64>| ms.map(|ms| ms * 1_000_000);
        let turn_ns = ns(self.turn_ms).unwrap_or(now.turn_ns);
        let lead_ns = match now.lead_ns == now.turn_ns {
            true => turn_ns,
            false => now.lead_ns,
        };
        Settings {
            smt: self.smt.map_or(now.smt, Switch::is_on),
            aggregate: self.aggregate.map_or(now.aggregate, Switch::is_on),
            seats: self.seats.map_or(now.seats, Switch::is_on),
            turn_ns,
            lead_ns: ns(self.lead_ms).unwrap_or(lead_ns),
            ..now
        }
    }
}

/// How long the scheduler's process may take.
const WAIT: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Asks for it, and waits until it is so.
pub fn run(args: &Args, dir: &Path, out: Output) -> Outcome {
    ensure!(*args != Args::NONE, NOTHING);
    // Where none runs there is nothing to be made either.
    record::of_running(dir)?;
    // What another one changes is not to be taken back by this.
    let deadline = Instant::now() + 3 * WAIT;
    let _asking = alone(dir, || Instant::now() > deadline)?;
    // Of one that died before it was answered.
    record::withdraw(dir)?;
    let before = record::of_running(dir)?;
    if before.settings.is_fixed() {
        let option = if before.settings.o1 { "--o1" } else { "--fifo" };
        bail!("the scheduler was started with {option}: 'usher sched stop' and start it without");
    }
    let process = record::process_of(dir, &before)?;
    record::leave(dir, &args.changed(before.settings))?;
    let told = pidfd_send_signal(&process, Signal::USR1)
        .with_context(|| format!("telling process {}", before.pid));
    let wait = || {
        let deadline = Instant::now() + WAIT;
        answer(dir, &before, || Instant::now() > deadline)
    };
    let after = match told.and_then(|()| wait()) {
        // What nobody has taken yet is not to be taken later; what is taken is being done.
        Err(_) if !record::withdraw(dir)? => wait()?,
        answered => answered?,
    };
    if let Some(line) = super::idle_turn([args.turn_ms, args.lead_ms], &after.settings) {
        failure::complain(line);
    }
    out.answer(
        &json!({ "does": after.does, "settings": after.settings }),
        || format!("the scheduler does now: {}\n", after.does),
    )?;
    Ok(0)
}

/// Waits until nobody else asks; who does is through after twice [`WAIT`].
fn alone(dir: &Path, is_late: impl Fn() -> bool) -> anyhow::Result<Asking> {
    loop {
        if let Some(asking) = Asking::begin(dir)? {
            return Ok(asking);
        }
        if is_late() {
            bail!("another 'usher sched set' is not through: end it, or try again in a moment");
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// What is known once the scheduler's process has done what it was told, all of it.
fn answer(dir: &Path, before: &Record, is_late: impl Fn() -> bool) -> anyhow::Result<Record> {
    loop {
        let now = record::read(dir)?.filter(|now| now.pid == before.pid);
        let now = now.filter(|now| now.state != State::Ended);
        let now = now.context("the scheduler has ended meanwhile")?;
        if now.changes != before.changes {
            return match &now.undone {
                None => Ok(now),
                Some(undone) => bail!("the scheduler does now: {}, but {undone}", now.does),
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
    fn where_nothing_is_named_the_options_are() {
        let dir = tempfile::tempdir().unwrap();
        let out = Output::new(false, crate::output::Color::Never);
        let told = run(&Args::NONE, dir.path(), out).unwrap_err().to_string();
        assert_eq!(told, NOTHING);
        assert!(dir.path().read_dir().unwrap().next().is_none());
    }

    #[test]
    fn what_is_not_named_stays() {
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
    fn a_lead_as_long_as_a_turn_stays_so() {
        let ms = |turn_ms, lead_ms, now| {
            let changed = Args {
                turn_ms,
                lead_ms,
                ..Args::NONE
            }
            .changed(now);
            (changed.turn_ns / 1_000_000, changed.lead_ns / 1_000_000)
        };
        let now = Settings::default();
        assert_eq!(ms(Some(7), None, now), (7, 7));
        assert_eq!(ms(None, Some(3), now), (24, 3));
        let apart = Settings {
            lead_ns: 5_000_000,
            ..now
        };
        assert_eq!(ms(Some(7), None, apart), (7, 5));
    }

    #[test]
    fn one_asks_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = alone(dir.path(), || true).unwrap();
        let why = alone(dir.path(), || true).unwrap_err().to_string();
        assert!(why.contains("is not through"), "{why}");
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
    fn one_that_does_not_answer_or_ends_is_waited_for_no_longer() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = record::Held::take(dir, &Settings::default()).unwrap();
        held.write(|record| record.state = State::Running).unwrap();
        let before = record::of_running(dir).unwrap();
        let why = |late: bool| answer(dir, &before, || late).unwrap_err().to_string();
        assert!(why(true).contains("does not answer"));
        held.write(|record| record.changes += 1).unwrap();
        assert_eq!(answer(dir, &before, || false).unwrap().changes, 1);
        held.write(|record| record.undone = Some("seats are left (busy)".to_owned()))
            .unwrap();
        assert!(why(false).ends_with(", but seats are left (busy)"));
        held.end("stopped").unwrap();
        assert!(why(false).contains("ended meanwhile"));
    }
}
