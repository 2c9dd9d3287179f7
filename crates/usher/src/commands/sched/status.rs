// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched status`: shows which scheduler runs the threads, the phase and settings of Usher's
//! scheduler, and how its last run ended.
//!
//! The command combines the kernel's sched_ext state with the state that the process at the sockets
//! of the runtime directory reports, and only reads. The exit status is 0 with and without a
//! running scheduler. A process that does not answer within 10 s (`remote`) is an error.

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use usher_scx::{Kernel, QuotaCounts, ScxError, State as Loaded};

use crate::daemon::scheduler::{Phase, SchedulerState, kernel, unix_seconds};
use crate::failure::Outcome;
use crate::output::Output;

use super::remote::{self, Found, NAME, RECOVERS, RESTARTS};

/// Shows which scheduler runs, and why Usher's scheduler ended
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher sched status
  usher sched status --json | jq .running")]
pub struct Args {}

#[derive(Debug, Serialize, JsonSchema)]
pub struct StatusAnswer {
    /// Whether Usher's scheduler runs the threads.
    running: bool,
    /// The name of the running scheduler, unless it is the kernel's own.
    scheduler: Option<String>,
    /// Why no scheduler can run on this kernel, or none at present.
    lacking: Option<String>,
    /// The last scheduler of the process that listens in this runtime directory.
    last: Option<SchedulerState>,
    /// Why the state of a running scheduler of Usher's is unknown.
    #[serde(skip)]
    unknown: Option<String>,
}

/// Reads the status and prints it.
pub fn run(dir: &Path, out: Output) -> Outcome {
    let answer = read(&kernel(), dir, Found::at(dir)?.state)?;
    out.answer(&answer, || text(&answer))?;
    Ok(0)
}

/// Returns the status; `last` is the last scheduler of the process that listens in `dir`.
///
/// # Errors
/// The kernel's state cannot be read.
pub fn read(
    kernel: &Kernel,
    dir: &Path,
    last: Option<SchedulerState>,
) -> anyhow::Result<StatusAnswer> {
    let (scheduler, lacking) = match kernel.state() {
        Ok(Loaded::Disabled) => (None, None),
        Ok(Loaded::Enabled { name }) => (Some(name), None),
        Ok(Loaded::Changing(word)) => (None, Some(format!("the kernel is {word} a scheduler"))),
        Err(error @ ScxError::NoSchedExt { .. }) => (None, Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let lives = |last: &SchedulerState| !last.state.is_over();
    let unknown = match last.as_ref().is_some_and(lives) {
        true => None,
        false => remote::unknown(kernel, dir),
    };
    Ok(StatusAnswer {
        unknown,
        ..StatusAnswer::of(last, scheduler, lacking)
    })
}

impl StatusAnswer {
    /// Returns the last scheduler of the process that listens in this runtime directory.
    pub fn last(&self) -> Option<&SchedulerState> {
        self.last.as_ref()
    }

    /// Formats which scheduler runs, and the phase of Usher's.
    pub fn lines(&self) -> Vec<String> {
        match &self.last {
            Some(last) if self.running => of_ours(last),
            last => of_others(self.runs(), last.as_ref()),
        }
    }

    /// Returns which scheduler runs the threads if it is not Usher's, and its name.
    fn runs(&self) -> (Option<&str>, String) {
        let name = self.scheduler.as_deref();
        let runs = match (&self.unknown, name) {
            (Some(unknown), _) => unknown.clone(),
            (None, Some(name)) if name == NAME => "Usher's scheduler runs".to_owned(),
            (None, Some(name)) => {
                format!("the scheduler '{name}' runs, which is not Usher's scheduler")
            }
            (None, None) => "the kernel's own scheduler runs".to_owned(),
        };
        (name, runs)
    }

    fn of(
        last: Option<SchedulerState>,
        scheduler: Option<String>,
        lacking: Option<String>,
    ) -> Self {
        let has_begun = last
            .as_ref()
            .is_some_and(|last| last.state == Phase::Running);
        Self {
            running: has_begun && scheduler.as_deref() == Some(NAME),
            scheduler,
            lacking,
            last,
            unknown: None,
        }
    }
}

fn text(answer: &StatusAnswer) -> String {
    let mut lines = answer.lines();
    // A failed start may have the same reason.
    let is_new = |reason: &String| !lines.iter().any(|line| line.contains(reason));
    let lacking = answer.lacking.clone().filter(is_new);
    lines.extend(lacking);
    lines.join("\n") + "\n"
}

fn of_ours(last: &SchedulerState) -> Vec<String> {
    let mut lines = vec![
        format!("Usher's scheduler runs with: {}", last.does),
        format!("process {} keeps the scheduler loaded", last.pid),
    ];
    if last.idle_by_node {
        lines.push(
            "the kernel first searches for idle CPUs within the NUMA node of a thread".to_owned(),
        );
    }
    match last.restarts {
        0 => {}
        1 => lines
            .push("the scheduler restarted once because CPUs went online or offline".to_owned()),
        times => lines.push(format!(
            "the scheduler restarted {times} times because CPUs went online or offline"
        )),
    }
    lines.extend(last.quotas.and_then(rejected_quotas));
    lines.extend(last.fault_notice(unix_seconds()));
    lines
}

/// Formats how many CPU limits the scheduler does not enforce.
fn rejected_quotas(counts: QuotaCounts) -> Option<String> {
    (counts.rejected > 0).then(|| {
        format!(
            "the scheduler has rejected {} limits in cpu.max, the last of cgroup {}, because it \
             enforces at most {}: remove limits of other cgroups, and write cpu.max again",
            counts.rejected, counts.rejected_cgroup, counts.enforced
        )
    })
}

/// Formats the status if Usher's scheduler does not run the threads.
fn of_others(
    (scheduler, runs): (Option<&str>, String),
    last: Option<&SchedulerState>,
) -> Vec<String> {
    let Some(last) = last else {
        return vec![runs];
    };
    let pid = last.pid;
    let ours = match (last.state, &last.ended) {
        (Phase::Starting, _) => format!("Usher's scheduler is starting, in process {pid}"),
        (Phase::Restarting, _) => {
            format!("Usher's scheduler {RESTARTS}, in process {pid}")
        }
        (Phase::Recovering, _) => {
            let fault = last.fault.as_ref().map(|fault| fault.reason.as_str());
            let fault = fault.unwrap_or("unknown fault");
            format!("Usher's scheduler {RECOVERS}, in process {pid}: {fault}")
        }
        (Phase::Running, _) => {
            format!("the kernel has just ended Usher's scheduler, which process {pid} had loaded")
        }
        (Phase::Ended, Some(why)) => format!("Usher's scheduler ended: {why}"),
        (Phase::Failed, Some(why)) => format!("Usher's scheduler could not be started: {why}"),
        (Phase::Ended | Phase::Failed, None) => return vec![runs],
    };
    // A scheduler of Usher's that is starting or restarting is reported first, because it will run
    // the threads soon.
    match (last.state, scheduler) {
        (Phase::Starting | Phase::Restarting | Phase::Recovering, None | Some(NAME)) => vec![ours],
        _ => vec![runs, ours],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(state: Phase, ended: Option<&str>) -> SchedulerState {
        SchedulerState {
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
            fault: None,
            fault_restarts: 0,
            quotas: None,
        }
    }

    fn actual(last: Option<SchedulerState>, scheduler: Option<&str>) -> (bool, String) {
        let answer = StatusAnswer::of(last, scheduler.map(str::to_owned), None);
        (answer.running, text(&answer))
    }

    #[test]
    fn status_names_a_running_scheduler() {
        let (runs, text) = actual(Some(last(Phase::Running, None)), Some("usher"));
        let lines = "Usher's scheduler runs with: its work\nprocess 12 keeps the scheduler \
                     loaded\nthe scheduler restarted once because CPUs went online or offline\n";
        assert_eq!((runs, text.as_str()), (true, lines));
        let (runs, text) = actual(Some(last(Phase::Running, None)), Some("other"));
        assert!(
            !runs
                && text.starts_with("the scheduler 'other' runs, which is not Usher's scheduler\n")
        );
    }

    #[test]
    fn rejected_limits_are_reported_with_a_cgroup() {
        let text = |rejected| {
            let quotas = QuotaCounts {
                enforced: 4096,
                rejected,
                rejected_cgroup: 77,
            };
            let last = SchedulerState {
                quotas: Some(quotas),
                ..last(Phase::Running, None)
            };
            actual(Some(last), Some("usher")).1
        };
        assert!(!text(0).contains("cpu.max"));
        assert!(text(3).contains("rejected 3 limits in cpu.max, the last of cgroup 77"));
    }

    #[test]
    fn describes_each_state() {
        let own = "the kernel's own scheduler runs\n";
        for (state, ended, lines) in [
            (
                Phase::Starting,
                None,
                "Usher's scheduler is starting, in process 12\n".to_owned(),
            ),
            (
                Phase::Restarting,
                None,
                "Usher's scheduler restarts because CPUs went online or offline, in process 12\n"
                    .to_owned(),
            ),
            (
                Phase::Ended,
                Some("the kernel ended the scheduler"),
                format!("{own}Usher's scheduler ended: the kernel ended the scheduler\n"),
            ),
            (Phase::Ended, None, own.to_owned()),
            (
                Phase::Failed,
                Some("the scheduler 'lavd' is already loaded"),
                format!(
                    "{own}Usher's scheduler could not be started: the scheduler 'lavd' is already \
                     loaded\n"
                ),
            ),
        ] {
            assert_eq!(actual(Some(last(state, ended)), None), (false, lines));
        }
        assert_eq!(actual(None, None), (false, own.to_owned()));
        let mut recovering = last(Phase::Starting, None);
        recovering.recover("a stall".to_owned());
        let (_, text) = actual(Some(recovering.clone()), None);
        assert!(text.contains("starts again in a few seconds"), "{text}");
        assert!(text.ends_with("in process 12: a stall\n"), "{text}");
        recovering.state = Phase::Running;
        let (runs, text) = actual(Some(recovering), Some("usher"));
        assert!(
            runs && text.ends_with("a stall; the daemon started it again\n"),
            "{text}"
        );
        let (_, text) = actual(Some(last(Phase::Restarting, None)), Some("other"));
        assert!(text.contains("'other'") && text.contains("restarts because"));
    }
}
