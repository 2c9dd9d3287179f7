// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched status`.

use std::path::Path;

use serde::Serialize;
use usher_scx::{ScxError, State};

use crate::failure::Outcome;
use crate::output::Output;

use super::record::{self, Record};

/// Says which scheduler runs, and how ours ended
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher sched status
  usher sched status --json | jq .running")]
pub struct Args {}

#[derive(Debug, Serialize)]
struct Answer {
    /// Ours runs.
    running: bool,
    /// The name of the one that does, if it is not the kernel's own.
    scheduler: Option<String>,
    /// Why there can be none, or none now.
    lacking: Option<String>,
    /// The last that was started here.
    last: Option<Record>,
}

/// Looks and tells.
pub fn run(dir: &Path, out: Output) -> Outcome {
    let last = record::read(dir)?;
    let (scheduler, lacking) = match super::kernel().state() {
        Ok(State::Disabled) => (None, None),
        Ok(State::Enabled { name }) => (Some(name), None),
        Ok(State::Changing(word)) => (None, Some(format!("the kernel is {word} one"))),
        Err(error @ ScxError::NoSchedExt { .. }) => (None, Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let lives = last.as_ref().is_some_and(|(_, lives)| *lives);
    let answer = Answer {
        running: lives && scheduler.is_some(),
        scheduler,
        lacking,
        last: last.map(|(record, _)| record),
    };
    out.answer(&answer, || text(&answer))?;
    Ok(0)
}

fn text(answer: &Answer) -> String {
    let mut lines = Vec::new();
    match (&answer.scheduler, &answer.last) {
        (Some(_), Some(last)) if answer.running => {
            lines.push(format!("Usher's scheduler runs: {}", last.does));
            lines.push(format!("held by process {}", last.pid));
            if last.idle_by_node {
                lines.push("idle CPUs are kept by NUMA node".to_owned());
            }
            if last.restarts > 0 {
                lines.push(format!(
                    "begun anew {} times, as CPUs came or went",
                    last.restarts
                ));
            }
        }
        (Some(name), _) => lines.push(format!("the scheduler '{name}' runs, which is not ours")),
        (None, _) => lines.push("the kernel's own scheduler runs".to_owned()),
    }
    lines.extend(answer.lacking.clone());
    let ended = answer.last.as_ref().and_then(|last| last.ended.as_ref());
    if let Some(why) = ended.filter(|_| !answer.running) {
        lines.push(format!("the kernel ended ours: {why}"));
    }
    lines.join("\n") + "\n"
}
