// SPDX-License-Identifier: GPL-2.0-only
//! `usher undo`: undoes the actions that dead daemons recorded in their journals: affinity masks,
//! priorities, frozen cgroups. Programs of a running daemon are not changed.
//!
//! 1. Undo the journals of all dead daemons in the runtime directory.
//! 2. Threads that start during an undo may inherit the mask or priority that the undo removes. An
//!    incomplete attempt is therefore repeated, without a pause, until 5 s have passed
//!    ([`ATTEMPTS_TIME_MAX`]). An attempt that has begun is not interrupted.
//! 3. Print the sum of all attempts, and each different error once. An error that a later attempt
//!    resolved is not printed; any other error leads to exit status 125.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use usher_act::{ActConfig, ActError, UndoReport, undo_stale};
use usher_report::text as words;

use crate::answers::UndoAnswer;
use crate::cli::options::Global;
use crate::failure::{self, Outcome};
use crate::output::Output;
use crate::runtime;

/// Undoes the changes of dead daemons: restores affinities and priorities, and continues stopped
/// programs
#[derive(Debug, clap::Args)]
#[command(after_help = "\
If a daemon is killed, its keeper process undoes the daemon's changes within a second. If
the keeper was killed too, the next daemon undoes the changes when it starts. The systemd
unit runs this command after the daemon has ended, in case both were killed. Programs of a
running daemon are not changed.

Examples:
  usher undo
  sudo usher undo --runtime-dir /run/usher")]
pub struct Args {}

/// Undoes the changes, and reports those that could not be undone.
pub fn run(_: &Args, global: &Global, out: Output) -> Outcome {
    let dir = runtime::own_dir(global.runtime_dir.as_deref());
    let report = undo(&dir)?;
    let (programs, daemons) = (report.programs, report.instances);
    let errors: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
    let value = UndoAnswer {
        programs,
        daemons,
        errors,
    };
    let text = || match daemons {
        0 => "no changes of dead daemons to undo".to_owned(),
        _ => format!(
            "undid the changes of {} to {}",
            words::count(daemons, "dead daemon"),
            words::count(programs, "program")
        ),
    };
    let printed = out.answer(&value, text);
    let errors = report.errors.into_iter().map(|error| Err(error.into()));
    failure::combine(errors.chain([printed]))
}

/// Upper limit of the time for further attempts while new threads may still inherit a mask or a
/// priority. The attempts are repeated, because perhaps no later process of Usher undoes the rest.
const ATTEMPTS_TIME_MAX: Duration = Duration::from_secs(5);

/// Undoes the changes in as many attempts as needed, and returns the sum of the reports of all
/// attempts.
fn undo(dir: &Path) -> anyhow::Result<UndoReport> {
    let begun = Instant::now();
    let mut total = UndoReport::default();
    loop {
        let report = undo_stale(&ActConfig::new(dir))
            .with_context(|| format!("undoing the journals in {}", dir.display()))?;
        total.programs += report.programs;
        total.instances += report.instances;
        let is_complete = !report.errors.iter().any(ActError::is_not_undone);
        total.errors.retain(|error| !error.is_not_undone());
        for error in report.errors {
            let text = error.to_string();
            if total.errors.iter().all(|known| known.to_string() != text) {
                total.errors.push(error);
            }
        }
        if is_complete || begun.elapsed() >= ATTEMPTS_TIME_MAX {
            return Ok(total);
        }
    }
}
