// SPDX-License-Identifier: MIT OR Apache-2.0
//! The set of background programs, each with its own regulation (`usher`, `eii` or `ipd`), and the
//! resulting actions and log messages.
//!
//! For each observation, the regulator takes these steps:
//!
//! 1. Each regulation decides from the meter's figures whether its program may run.
//! 2. Changed decisions become freezes and thaws. Failed freezes and thaws are requested again
//!    after each failure, without a limit. A failed demotion is retried up to three times per
//!    program; afterwards, the program keeps its priorities.
//! 3. The time of the next sample is determined; it is at least 1 ms after the present sample.
//! 4. The states of the programs are reported when a program arrives, departs, stops or continues.
//!    Otherwise they are reported at most once a second, if a share of run time has changed by 0.5
//!    percentage points.
//!
//! If the meter has delivered no figures for a second, all programs run. Log messages are limited
//! to one per second for each program and kind of message. The regulations determine the cost of a
//! sample (modules `usher`, `eii` and `ipd`).

use std::collections::BTreeMap;

use usher_model::{
    Action, BackgroundState, Contention, Demotion, Event, FailedAction, Metering, Note,
    Observation, Program, ProgramId, Regulation,
};

use super::eii::Eii;
use super::history::{History, RateLimitedLog};
use super::ipd::Ipd;
use super::thresholds::Thresholds;
use super::usher::{CALM_NS, Controller};
use crate::action_diff::ActionDiff;

/// Time without figures of the meter after which all programs run.
const NO_FIGURES_NS_MAX: u64 = 1_000_000_000;
/// Least interval between two reports that differ only in the programs' shares of run time.
const REPORT_NS_MIN: u64 = 1_000_000_000;
/// Number of retries of failed demotions per program.
const DEMOTION_RETRIES: u32 = 3;
/// Least interval between samples.
const SAMPLE_NS_MIN: u64 = 1_000_000;

/// Input of the regulations at one sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct TickCtx<'a> {
    pub at_ns: u64,
    pub metering: &'a Metering,
    pub thresholds: &'a Thresholds,
}

impl TickCtx<'_> {
    /// Describes the process that program `id` blocks, if any.
    pub fn blocked_by(&self, id: ProgramId) -> Option<String> {
        let mut all = self.metering.blocked.iter();
        let blocked = all.find(|blocked| blocked.blocked_by == id)?;
        Some(format!(
            "process {} waits for {}",
            blocked.pid, blocked.waits_for
        ))
    }
}

/// Change that a regulation requests.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RegulationChange {
    /// Stop the program.
    Stop(Contention, String),
    /// Continue the program.
    Continue(String),
    /// Run the program for a limited time although there is contention.
    GraceRun(String),
}

#[derive(Debug, Clone)]
enum RegulationState {
    /// The state of the program is stored in `Controller`.
    Usher,
    Eii(Eii),
    Ipd(Ipd),
}

#[derive(Debug, Clone)]
struct BackgroundProgram {
    regulation: Regulation,
    state: RegulationState,
    running: bool,
    since_ns: u64,
    reason: Option<Contention>,
    reason_text: Option<String>,
    stops: u64,
    history: History,
    /// Number of failed demotions.
    failed_demotions: u32,
    /// Logs of stops, of continuations, of grace runs, of failed demotions, and of other failed
    /// actions.
    logs: [RateLimitedLog; 5],
}

impl BackgroundProgram {
    fn new(regulation: Regulation, at_ns: u64) -> Self {
        let state = match regulation {
            Regulation::Usher => RegulationState::Usher,
            Regulation::Eii => RegulationState::Eii(Eii::default()),
            Regulation::Ipd => RegulationState::Ipd(Ipd::default()),
        };
        Self {
            regulation,
            state,
            running: true,
            since_ns: at_ns,
            reason: None,
            reason_text: None,
            stops: 0,
            history: History::new(at_ns),
            failed_demotions: 0,
            logs: Default::default(),
        }
    }

    /// Updates the program's state; returns a log message unless the message is suppressed.
    fn change(&mut self, at_ns: u64, change: RegulationChange) -> Option<String> {
        let (log, runs, message) = match change {
            RegulationChange::Stop(reason, reason_text) => {
                self.stops += 1;
                self.reason = Some(reason);
                self.reason_text = Some(reason_text.clone());
                (0, false, format!("stopped: {reason_text}"))
            }
            RegulationChange::Continue(reason_text) => {
                (1, true, format!("continues: {reason_text}"))
            }
            RegulationChange::GraceRun(reason_text) => (
                2,
                true,
                format!("the program may run despite contention: {reason_text}"),
            ),
        };
        self.running = runs;
        self.since_ns = at_ns;
        self.history.record(at_ns, runs);
        let percent = self.history.share(at_ns) * 100.0;
        let seconds = self.history.span_ns(at_ns) as f64 * 1e-9;
        let message =
            format!("{message}; the program ran for {percent:.0} % of the last {seconds:.1} s");
        self.logs[log].log(at_ns, message)
    }

    fn public_state(&self, program: ProgramId, at_ns: u64) -> BackgroundState {
        BackgroundState {
            program,
            regulation: self.regulation,
            running: self.running,
            since_ns: self.since_ns,
            reason: self.reason.clone(),
            reason_text: self.reason_text.clone(),
            share: self.history.share(at_ns),
            stops: self.stops,
        }
    }
}

/// Result of one sample for all background programs.
#[derive(Debug, Clone, Default)]
pub(super) struct RegulatorOutput {
    pub actions: Vec<Action>,
    pub notes: Vec<Note>,
    pub wake_ns: Option<u64>,
    pub background_states: Option<Vec<BackgroundState>>,
}

/// Regulates background programs.
#[derive(Debug, Clone, Default)]
pub(super) struct Regulator {
    thresholds: Thresholds,
    members: BTreeMap<ProgramId, BackgroundProgram>,
    controller: Controller,
    diff: ActionDiff,
    /// Time of the last sample with figures of the meter.
    seen_ns: Option<u64>,
    notes: Vec<Note>,
    /// Demotions for the next decision.
    demotions: Vec<Action>,
    /// Time and content of the last report of states.
    reported: Option<(u64, Vec<BackgroundState>)>,
}

impl Regulator {
    pub fn new(thresholds: Thresholds) -> Self {
        Self {
            thresholds,
            ..Self::default()
        }
    }

    pub fn contains(&self, id: ProgramId) -> bool {
        self.members.contains_key(&id)
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Processes an event of a background program.
    pub fn handle_event(&mut self, at_ns: u64, event: &Event) {
        match event {
            Event::Arrived(program) => self.arrive(at_ns, program),
            Event::Departed(id) => {
                self.members.remove(id);
                self.controller.remove(*id);
                self.diff.forget(*id);
            }
            Event::Repeated { .. } | Event::Limited { .. } | Event::Seating { .. } => {}
        }
    }

    fn arrive(&mut self, at_ns: u64, program: &Program) {
        let regulation = program.background.unwrap_or_default();
        let id = program.id;
        self.members
            .insert(id, BackgroundProgram::new(regulation, at_ns));
        let to = match regulation {
            Regulation::Usher => {
                self.controller.insert(id);
                Demotion::Idle
            }
            Regulation::Eii | Regulation::Ipd => Demotion::Nice,
        };
        self.demotions.push(Action::Demote { program: id, to });
    }

    /// Processes failed actions on background programs.
    pub fn handle_failures(&mut self, at_ns: u64, failed: &[FailedAction]) {
        self.diff.mark_failed(failed);
        for failure in failed {
            let id = failure.action.program();
            let Some(member) = self.members.get_mut(&id) else {
                continue;
            };
            let (log, what) = match failure.action {
                Action::Freeze { .. } => {
                    (4, "the program could not be stopped; Usher will try again")
                }
                Action::Thaw { .. } => (
                    4,
                    "the program could not be continued; Usher will try again",
                ),
                Action::Demote { .. } if member.failed_demotions < DEMOTION_RETRIES => {
                    member.failed_demotions += 1;
                    self.demotions.push(failure.action.clone());
                    continue;
                }
                Action::Demote { .. } => (
                    3,
                    "the program keeps its priorities, but Usher still stops and continues it",
                ),
                Action::Seat { .. } | Action::Release { .. } => continue,
            };
            let text = format!("{what}: {}", failure.error);
            let message = member.logs[log].log(at_ns, text);
            self.notes
                .extend(message.map(|text| Note::new(Some(id), text)));
        }
    }

    /// Processes an observation and decides.
    pub fn update(&mut self, observation: &Observation) -> RegulatorOutput {
        let at_ns = observation.at_ns;
        let lacks_figures = self.lacks_figures(at_ns, observation.metering.is_some());
        if let Some(metering) = &observation.metering {
            self.regulate(at_ns, metering);
        }
        let mut actions = std::mem::take(&mut self.demotions);
        let wanted = self.members.iter();
        let wanted = wanted.map(|(&id, member)| (id, !member.running && !lacks_figures));
        actions.extend(self.diff.freeze_where(wanted));
        let wake_ns = self.wake_ns(at_ns, observation.metering.as_ref());
        RegulatorOutput {
            actions,
            notes: std::mem::take(&mut self.notes),
            wake_ns: wake_ns.map(|wake_ns| wake_ns.max(at_ns + SAMPLE_NS_MIN)),
            background_states: self.changed_states(at_ns, lacks_figures),
        }
    }

    /// Whether figures of the meter have been missing for `NO_FIGURES_NS_MAX`, after which all
    /// programs run.
    fn lacks_figures(&mut self, at_ns: u64, seen: bool) -> bool {
        if seen {
            self.seen_ns = Some(at_ns);
        }
        let seen_ns = *self.seen_ns.get_or_insert(at_ns);
        at_ns >= seen_ns + NO_FIGURES_NS_MAX
    }

    fn regulate(&mut self, at_ns: u64, metering: &Metering) {
        let thresholds = self.thresholds;
        let ctx = TickCtx {
            at_ns,
            metering,
            thresholds: &thresholds,
        };
        let mut changes = self.controller.update(&ctx);
        for (&id, member) in &mut self.members {
            let change = match &mut member.state {
                RegulationState::Usher => None,
                RegulationState::Eii(eii) => eii.update(id, &ctx),
                RegulationState::Ipd(ipd) => ipd.update(id, &ctx),
            };
            changes.extend(change.map(|change| (id, change)));
        }
        for (id, change) in changes {
            if let Some(member) = self.members.get_mut(&id) {
                let message = member.change(at_ns, change);
                self.notes
                    .extend(message.map(|text| Note::new(Some(id), text)));
            }
        }
    }

    fn wake_ns(&self, at_ns: u64, metering: Option<&Metering>) -> Option<u64> {
        let wake_times = self.members.values().map(|member| match &member.state {
            RegulationState::Usher => u64::MAX,
            RegulationState::Eii(eii) => eii.wake_ns(at_ns),
            RegulationState::Ipd(ipd) => ipd.wake_ns(at_ns),
        });
        let wake_ns = wake_times
            .chain(self.controller.wake_ns(at_ns, metering))
            .min();
        match metering {
            Some(_) => wake_ns,
            None => wake_ns.map(|_| at_ns + CALM_NS),
        }
    }

    /// Returns the states of all programs, if they have changed. If figures of the meter are
    /// missing (`lacks_figures`), all programs run.
    fn changed_states(&mut self, at_ns: u64, lacks_figures: bool) -> Option<Vec<BackgroundState>> {
        let each = self
            .members
            .iter()
            .map(|(&id, m)| m.public_state(id, at_ns));
        let now: Vec<_> = each
            .map(|state| BackgroundState {
                running: state.running || lacks_figures,
                ..state
            })
            .collect();
        if let Some((reported_ns, reported)) = &self.reported {
            let key = |s: &BackgroundState| (s.program, s.since_ns, s.stops, s.running);
            let same = reported.iter().map(key).eq(now.iter().map(key));
            let shares = reported.iter().zip(&now);
            let difference =
                shares.fold(0.0_f64, |most, (a, b)| most.max((a.share - b.share).abs()));
            if same && (difference < 0.005 || at_ns < reported_ns + REPORT_NS_MIN) {
                return None;
            }
        }
        self.reported = Some((at_ns, now.clone()));
        Some(now)
    }
}
