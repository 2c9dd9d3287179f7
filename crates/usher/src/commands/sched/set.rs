// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched set`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use usher_scx::Settings;

use crate::failure::Outcome;
use crate::output::Output;

use super::{Switch, record};

/// Changes what the scheduler does, while it runs
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What is not named stays as it is. A scheduler that was started with --fifo or --o1
serves in that order until it is stopped.

Examples:
  usher sched set --aggregate off
  usher sched set --smt on --turn-ms 8")]
#[group(required = true, multiple = true)]
pub struct Args {
    /// Idle physical cores first, no two threads on a core beside an idle one
    #[arg(long, value_enum, value_name = "ON|OFF")]
    smt: Option<Switch>,
    /// Threads of one address space one after another, in bounded turns
    #[arg(long, value_enum, value_name = "ON|OFF")]
    aggregate: Option<Switch>,
    /// How long a turn lasts at most, and how far ahead of others it may get
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=1000))]
    turn_ms: Option<u64>,
}

impl Args {
    fn changed(&self, now: Settings) -> Settings {
        let is_on = |switch: Switch| switch == Switch::On;
        let turn_ns = self.turn_ms.map(|ms| ms * 1_000_000);
        Settings {
            smt: self.smt.map_or(now.smt, is_on),
            aggregate: self.aggregate.map_or(now.aggregate, is_on),
            turn_ns: turn_ns.unwrap_or(now.turn_ns),
            lead_ns: turn_ns.unwrap_or(now.lead_ns),
            ..now
        }
    }
}

/// How long the scheduler's process may take.
const WAIT: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Asks for it, and waits until it is so.
pub fn run(args: &Args, dir: &Path, out: Output) -> Outcome {
    let before = record::of_running(dir)?;
    if before.settings.is_fixed() {
        let option = if before.settings.o1 { "--o1" } else { "--fifo" };
        bail!("the scheduler was started with {option}: 'usher sched stop' and start it without");
    }
    record::leave(dir, &args.changed(before.settings))?;
    let pid = Pid::from_raw(before.pid).context("the record names no process")?;
    pidfd_open(pid, PidfdFlags::empty())
        .and_then(|process| pidfd_send_signal(&process, Signal::USR1))
        .with_context(|| format!("telling process {}", before.pid))?;
    let deadline = Instant::now() + WAIT;
    let after = loop {
        let now = record::of_running(dir)?;
        if now.changes != before.changes {
            break now;
        }
        if Instant::now() > deadline {
            bail!("process {} does not answer", before.pid);
        }
        std::thread::sleep(LOOK_AGAIN);
    };
    out.answer(
        &json!({ "does": after.does, "settings": after.settings }),
        || format!("the scheduler does now: {}\n", after.does),
    )?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_stays() {
        let none = Args {
            smt: None,
            aggregate: None,
            turn_ms: None,
        };
        let now = Settings::default();
        assert_eq!(none.changed(now), now);
        let some = Args {
            smt: Some(Switch::Off),
            turn_ms: Some(7),
            ..none
        };
        let changed = some.changed(now);
        assert_eq!(
            (
                changed.smt,
                changed.aggregate,
                changed.turn_ns,
                changed.lead_ns
            ),
            (false, now.aggregate, 7_000_000, 7_000_000)
        );
    }
}
