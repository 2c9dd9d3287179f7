// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched status`.

use std::path::Path;

use serde::Serialize;
use usher_scx::{Kernel, ScxError, State as Loaded};

use crate::failure::Outcome;
use crate::output::Output;

use super::record::{self, BEGINS_ANEW, Record, State};

/// Says which scheduler runs, and how ours ended
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher sched status
  usher sched status --json | jq .running")]
pub struct Args {}

#[derive(Debug, Serialize)]
pub struct Answer {
    /// Ours has the threads.
    running: bool,
    /// The name of the one that has them, if it is not the kernel's own.
    scheduler: Option<String>,
    /// Why there can be none, or none now.
    lacking: Option<String>,
    /// The last that was started here.
    last: Option<Record>,
    /// One of Usher's runs, and nothing is known of it here.
    #[serde(skip)]
    unknown: Option<String>,
}

/// Looks and tells.
pub fn run(dir: &Path, out: Output) -> Outcome {
    let answer = look(&super::kernel(), dir)?;
    out.answer(&answer, || text(&answer))?;
    Ok(0)
}

/// # Errors
/// What is known of the last, or what the kernel says, cannot be read.
pub fn look(kernel: &Kernel, dir: &Path) -> anyhow::Result<Answer> {
    let last = record::read(dir)?;
    let (scheduler, lacking) = match kernel.state() {
        Ok(Loaded::Disabled) => (None, None),
        Ok(Loaded::Enabled { name }) => (Some(name), None),
        Ok(Loaded::Changing(word)) => (None, Some(format!("the kernel is {word} one"))),
        Err(error @ ScxError::NoSchedExt { .. }) => (None, Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let ended = last.as_ref().filter(|last| last.state == State::Ended);
    let unknown = match ended.is_some() || last.is_none() {
        true => record::unknown(kernel, dir, ended),
        false => None,
    };
    Ok(Answer {
        unknown,
        ..Answer::of(last, scheduler, lacking)
    })
}

impl Answer {
    /// The last that was started here.
    pub fn last(&self) -> Option<&Record> {
        self.last.as_ref()
    }

    /// Which scheduler runs, and how far ours is.
    pub fn lines(&self) -> Vec<String> {
        match &self.last {
            Some(last) if self.running => of_ours(last),
            last => of_others(self.runs(), last.as_ref()),
        }
    }

    /// Which scheduler has the threads, where ours has not got them, and its name.
    fn runs(&self) -> (Option<&str>, String) {
        let name = self.scheduler.as_deref();
        let runs = match (&self.unknown, name) {
            (Some(unknown), _) => unknown.clone(),
            (None, Some(name)) if name == super::NAME => "a scheduler of Usher's runs".to_owned(),
            (None, Some(name)) => format!("the scheduler '{name}' runs, which is not ours"),
            (None, None) => "the kernel's own scheduler runs".to_owned(),
        };
        (name, runs)
    }

    fn of(last: Option<Record>, scheduler: Option<String>, lacking: Option<String>) -> Self {
        let has_begun = last
            .as_ref()
            .is_some_and(|last| last.state == State::Running);
        Self {
            running: has_begun && scheduler.as_deref() == Some(super::NAME),
            scheduler,
            lacking,
            last,
            unknown: None,
        }
    }
}

fn text(answer: &Answer) -> String {
    let mut lines = answer.lines();
    lines.extend(answer.lacking.clone());
    lines.join("\n") + "\n"
}

fn of_ours(last: &Record) -> Vec<String> {
    let mut lines = vec![
        format!("Usher's scheduler runs: {}", last.does),
        format!("held by process {}", last.pid),
    ];
    if last.idle_by_node {
        lines.push("idle CPUs are kept by NUMA node".to_owned());
    }
    match last.restarts {
        0 => {}
        1 => lines.push("begun anew once, as a CPU came or went".to_owned()),
        times => lines.push(format!("begun anew {times} times, as CPUs came or went")),
    }
    lines
}

/// Ours has not got the threads: who has, and what ours does.
fn of_others((scheduler, runs): (Option<&str>, String), last: Option<&Record>) -> Vec<String> {
    let Some(last) = last else {
        return vec![runs];
    };
    let pid = last.pid;
    let ours = match (last.state, &last.ended) {
        (State::Starting, _) => format!("Usher's scheduler is starting, in process {pid}"),
        (State::BeginningAnew, _) => {
            format!("Usher's scheduler {BEGINS_ANEW}, in process {pid}")
        }
        (State::Running, _) => format!("the kernel has just taken ours, of process {pid}, off"),
        (State::Ended, Some(why)) => format!("ours ended: {why}"),
        (State::Ended, None) => return vec![runs],
    };
    // Where ours is about to have the threads, that is what matters.
    match (last.state, scheduler) {
        (State::Starting | State::BeginningAnew, None | Some(super::NAME)) => vec![ours],
        _ => vec![runs, ours],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(state: State, ended: Option<&str>) -> Record {
        Record {
            pid: 12,
            state,
            does: "its work".to_owned(),
            settings: Default::default(),
            changes: 0,
            undone: None,
            seats_since: 0,
            maps: Default::default(),
            idle_by_node: false,
            restarts: 1,
            ended: ended.map(str::to_owned),
        }
    }

    fn told(last: Option<Record>, scheduler: Option<&str>) -> (bool, String) {
        let answer = Answer::of(last, scheduler.map(str::to_owned), None);
        (answer.running, text(&answer))
    }

    #[test]
    fn one_that_runs_is_told_by_its_name() {
        let (runs, text) = told(Some(last(State::Running, None)), Some("usher"));
        let lines = "Usher's scheduler runs: its work\nheld by process 12\n\
                     begun anew once, as a CPU came or went\n";
        assert_eq!((runs, text.as_str()), (true, lines));
        let (runs, text) = told(Some(last(State::Running, None)), Some("other"));
        assert!(!runs && text.starts_with("the scheduler 'other' runs, which is not ours\n"));
    }

    #[test]
    fn each_state_is_told() {
        let own = "the kernel's own scheduler runs\n";
        for (state, ended, lines) in [
            (
                State::Starting,
                None,
                "Usher's scheduler is starting, in process 12\n".to_owned(),
            ),
            (
                State::BeginningAnew,
                None,
                "Usher's scheduler begins anew, as a CPU has come or gone, in process 12\n"
                    .to_owned(),
            ),
            (
                State::Ended,
                Some("its process 12 died"),
                format!("{own}ours ended: its process 12 died\n"),
            ),
            (State::Ended, None, own.to_owned()),
        ] {
            assert_eq!(told(Some(last(state, ended)), None), (false, lines));
        }
        assert_eq!(told(None, None), (false, own.to_owned()));
        let (_, text) = told(Some(last(State::BeginningAnew, None)), Some("other"));
        assert!(text.contains("'other'") && text.contains("begins anew"));
    }
}
