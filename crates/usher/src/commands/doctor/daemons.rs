// SPDX-License-Identifier: GPL-2.0-only
//! The part of `usher doctor` about the daemons that listen for this user (the system's, the user's
//! own): the state of each daemon, and why a daemon does not answer.
//!
//! If no daemon runs, the placement of launched programs is detected instead. The command makes one
//! call to each daemon.

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use usher_act::ActConfig;
use usher_report::text as words;

use crate::answers::DaemonState;
use crate::api;
use crate::client::{Daemon, Daemons};
use crate::failure;
use crate::output::shown;
use crate::runtime;

/// A line of the report: label and text.
type Line = (&'static str, String);

/// The daemons that listen for this user.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DaemonFindings {
    /// The state of the first daemon that listens (the system's, otherwise the user's own).
    daemon: Option<DaemonState>,
    /// The other daemons that manage programs for this user; usually empty.
    other_daemons: Vec<DaemonState>,
    /// Why daemons that listen cannot be used, or do not answer.
    daemon_problems: Vec<String>,
    /// How launched programs get a cgroup, according to the first daemon; without a daemon, as a
    /// command of this user would place them.
    placing: Option<PlacingReport>,
}

/// How launched programs are placed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PlacingReport {
    /// How launched programs get a cgroup.
    pub placement: String,
    /// By which means background work yields to other sessions.
    pub yielding: String,
    /// Why nothing better is used.
    pub reasons: Vec<String>,
}

impl PlacingReport {
    /// Detects the placement that a daemon of this user would use.
    fn detect(runtime_dir: Option<&Path>) -> Option<Self> {
        let config = ActConfig::new(runtime::own_dir(runtime_dir));
        let found = usher_act::describe(&config).ok()?;
        Some(Self {
            placement: found.placement.to_string(),
            yielding: found.yielding.to_string(),
            reasons: found.reasons,
        })
    }

    fn of(state: &api::State) -> Self {
        let placing = state.placing.clone();
        Self {
            placement: placing.placement,
            yielding: placing.yielding,
            reasons: placing.reasons,
        }
    }

    fn lines(&self) -> Vec<Line> {
        let background = format!("yields the CPU to other sessions by {}", self.yielding);
        let mut lines = vec![
            ("launched", self.placement.clone()),
            ("background", background),
        ];
        lines.extend(self.reasons.iter().map(|reason| ("", reason.clone())));
        lines
    }
}

impl DaemonFindings {
    /// Requests the states of the daemons.
    pub fn query(runtime_dir: Option<&Path>) -> Self {
        let daemons = Daemons::survey(runtime_dir);
        let mut daemon_problems: Vec<String> = daemons.errors.iter().map(failure::line).collect();
        if daemons.answered.is_empty() && daemon_problems.is_empty() {
            daemon_problems.extend(Daemon::problem(runtime_dir));
        }
        let mut states = daemons.answered.into_iter().map(|one| DaemonState {
            runtime_dir: one.daemon.dir().to_owned(),
            state: one.state,
        });
        let daemon = states.next();
        Self {
            placing: match &daemon {
                Some(one) => Some(PlacingReport::of(&one.state)),
                None => PlacingReport::detect(runtime_dir),
            },
            daemon,
            other_daemons: states.collect(),
            daemon_problems,
        }
    }

    /// Returns how launched programs are placed.
    pub fn placing(&self) -> Option<&PlacingReport> {
        self.placing.as_ref()
    }

    /// Returns whether a daemon answered.
    pub fn has_daemon(&self) -> bool {
        self.daemon.is_some()
    }

    /// Returns the lines about each daemon, and about daemons that do not answer.
    pub fn lines(&self) -> Vec<Line> {
        let names_dirs = !self.other_daemons.is_empty() || !self.daemon_problems.is_empty();
        let answered = self.daemon.iter().chain(&self.other_daemons);
        let mut lines: Vec<Line> = answered
            .flat_map(|one| daemon_lines(one, names_dirs))
            .collect();
        let problems = self.daemon_problems.iter();
        lines.extend(problems.map(|problem| ("daemon", problem.clone())));
        if lines.is_empty() {
            let none = "no daemon runs; 'usher run', 'usher bg' and 'usher attach' start a daemon";
            lines.push(("daemon", none.to_owned()));
        }
        if self.daemon.is_none() {
            lines.extend(self.placing.iter().flat_map(PlacingReport::lines));
        }
        lines
    }
}

/// Describes a daemon, its keeper and its placement. `names_dir`: also the runtime directory.
fn daemon_lines(one: &DaemonState, names_dir: bool) -> Vec<Line> {
    let state = &one.state;
    let place = match names_dir {
        true => format!(" in {}", shown(&one.runtime_dir.to_string_lossy())),
        false => String::new(),
    };
    let seats = match &state.seating_forbidden {
        Some(reason) => format!("assigns no CPUs to programs: {reason}"),
        None => format!("assigns CPUs by {}", state.acting),
    };
    let daemon = format!(
        "process {}{place}, policy {}, manages {}, {seats}",
        state.pid,
        state.policy,
        words::count(state.programs.len(), "program"),
    );
    let keeper = match state.keeper_pid {
        Some(pid) => format!("process {pid}"),
        None => "no keeper runs: if the daemon is killed, its changes are undone only by the next \
                 daemon"
            .to_owned(),
    };
    let mut lines = vec![("daemon", daemon), ("keeper", keeper)];
    let warnings = state.warnings.iter();
    lines.extend(warnings.map(|warning| ("warning", warning.clone())));
    lines.extend(PlacingReport::of(state).lines());
    lines
}
