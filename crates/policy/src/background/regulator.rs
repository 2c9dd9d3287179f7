// SPDX-License-Identifier: MIT OR Apache-2.0
//! The set of background programs, each with its own regulation, and the resulting actions and log
//! messages.

use std::collections::BTreeMap;

use usher_model::{
    Action, BackgroundState, Contention, Demotion, Event, FailedAction, Metering, Note,
    Observation, Program, ProgramId, Regulation,
};

use super::eii::Eii;
use super::ipd::Ipd;
use super::record::{History, Voice};
use super::thresholds::Thresholds;
use super::usher::{CALM_NS, Controller};
use crate::stage::Stage;

/// Time without figures after which no program stays stopped.
const BLIND_NS_MAX: u64 = 1_000_000_000;
/// Least interval between reports of states that differ only in shares.
const TELL_NS: u64 = 1_000_000_000;
/// Number of retries of a failed demotion.
const DEMOTIONS: u32 = 3;
/// Least interval between samples.
const LOOK_NS_MIN: u64 = 1_000_000;

/// Input of the regulations at one sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sight<'a> {
    pub at_ns: u64,
    pub metering: &'a Metering,
    pub thresholds: &'a Thresholds,
}

impl Sight<'_> {
    /// Describes the process that program `id` blocks, if any.
    pub fn held_up_by(&self, id: ProgramId) -> Option<String> {
        let mut all = self.metering.blocked.iter();
        let held = all.find(|held| held.blocked_by == id)?;
        Some(format!("process {} waits for {}", held.pid, held.waits_for))
    }
}

/// Change that a regulation requests.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// Stop the program.
    Stop(Contention, String),
    /// Continue the program.
    Run(String),
    /// Run the program for a limited time although there is contention.
    Spare(String),
}

#[derive(Debug, Clone)]
enum Rule {
    /// The state is in the controller.
    Usher,
    Eii(Eii),
    Ipd(Ipd),
}

#[derive(Debug, Clone)]
struct Member {
    regulation: Regulation,
    rule: Rule,
    running: bool,
    since_ns: u64,
    cause: Option<Contention>,
    why: Option<String>,
    stops: u64,
    history: History,
    /// Number of failed demotions.
    refused: u32,
    /// Logs of stops, of continuations, of grace runs, of failed demotions, and of other failed
    /// actions.
    voices: [Voice; 5],
}

impl Member {
    fn new(regulation: Regulation, at_ns: u64) -> Self {
        let rule = match regulation {
            Regulation::Usher => Rule::Usher,
            Regulation::Eii => Rule::Eii(Eii::default()),
            Regulation::Ipd => Rule::Ipd(Ipd::default()),
        };
        Self {
            regulation,
            rule,
            running: true,
            since_ns: at_ns,
            cause: None,
            why: None,
            stops: 0,
            history: History::new(at_ns),
            refused: 0,
            voices: Default::default(),
        }
    }

    /// Updates the program's state; returns a log message unless it is suppressed.
    fn change(&mut self, at_ns: u64, change: Change) -> Option<String> {
        let (voice, runs, sentence) = match change {
            Change::Stop(cause, why) => {
                self.stops += 1;
                self.cause = Some(cause);
                self.why = Some(why.clone());
                (0, false, format!("stopped: {why}"))
            }
            Change::Run(why) => (1, true, format!("goes on: {why}")),
            Change::Spare(why) => (2, true, format!("let run: {why}")),
        };
        self.running = runs;
        self.since_ns = at_ns;
        self.history.turn(at_ns, runs);
        let percent = self.history.share(at_ns) * 100.0;
        let seconds = self.history.span_ns(at_ns) as f64 * 1e-9;
        let sentence = format!("{sentence}; it ran for {percent:.0} % of the last {seconds:.1} s");
        self.voices[voice].say(at_ns, sentence)
    }

    fn standing(&self, program: ProgramId, at_ns: u64) -> BackgroundState {
        BackgroundState {
            program,
            regulation: self.regulation,
            running: self.running,
            since_ns: self.since_ns,
            cause: self.cause.clone(),
            why: self.why.clone(),
            share: self.history.share(at_ns),
            stops: self.stops,
        }
    }
}

/// Result of one sample for all background programs.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    pub actions: Vec<Action>,
    pub notes: Vec<Note>,
    pub wake_ns: Option<u64>,
    pub background_states: Option<Vec<BackgroundState>>,
}

/// Regulates background programs.
#[derive(Debug, Clone, Default)]
pub(super) struct Regulator {
    thresholds: Thresholds,
    members: BTreeMap<ProgramId, Member>,
    controller: Controller,
    stage: Stage,
    /// Time of the last sample with figures.
    seen_ns: Option<u64>,
    notes: Vec<Note>,
    /// Demotions for the next decision.
    newcomers: Vec<Action>,
    /// Time and content of the last report of states.
    told: Option<(u64, Vec<BackgroundState>)>,
}

impl Regulator {
    pub fn new(thresholds: Thresholds) -> Self {
        Self {
            thresholds,
            ..Self::default()
        }
    }

    pub fn holds(&self, id: ProgramId) -> bool {
        self.members.contains_key(&id)
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Processes an event of a background program.
    pub fn happened(&mut self, at_ns: u64, event: &Event) {
        match event {
            Event::Arrived(program) => self.arrive(at_ns, program),
            Event::Departed(id) => {
                self.members.remove(id);
                self.controller.depart(*id);
                self.stage.forget(*id);
            }
            Event::Repeated { .. } | Event::Limited { .. } | Event::Seating { .. } => {}
        }
    }

    fn arrive(&mut self, at_ns: u64, program: &Program) {
        let regulation = program.background.unwrap_or_default();
        let id = program.id;
        self.members.insert(id, Member::new(regulation, at_ns));
        let to = match regulation {
            Regulation::Usher => {
                self.controller.arrive(id);
                Demotion::Idle
            }
            Regulation::Eii | Regulation::Ipd => Demotion::Nice,
        };
        self.newcomers.push(Action::Demote { program: id, to });
    }

    /// Processes failed actions on background programs.
    pub fn failed(&mut self, at_ns: u64, failed: &[FailedAction]) {
        self.stage.undo_failed(failed);
        for failure in failed {
            let id = failure.action.program();
            let Some(member) = self.members.get_mut(&id) else {
                continue;
            };
            let (voice, what) = match failure.action {
                Action::Freeze { .. } => (4, "could not be stopped, tried again"),
                Action::Thaw { .. } => (4, "could not be let go on, tried again"),
                Action::Demote { .. } if member.refused < DEMOTIONS => {
                    member.refused += 1;
                    self.newcomers.push(failure.action.clone());
                    continue;
                }
                Action::Demote { .. } => (
                    3,
                    "keeps its priorities, is stopped and let go on all the same",
                ),
                Action::Seat { .. } | Action::Release { .. } => continue,
            };
            let text = format!("{what}: {}", failure.error);
            let said = member.voices[voice].say(at_ns, text);
            self.notes.extend(said.map(|text| note(id, text)));
        }
    }

    /// Processes an observation and decides.
    pub fn look(&mut self, observation: &Observation) -> Outcome {
        let at_ns = observation.at_ns;
        let blind = self.is_blind(at_ns, observation.metering.is_some());
        if let Some(metering) = &observation.metering {
            self.regulate(at_ns, metering);
        }
        let mut actions = std::mem::take(&mut self.newcomers);
        let wanted = self.members.iter();
        let wanted = wanted.map(|(&id, member)| (id, !member.running && !blind));
        actions.extend(self.stage.freeze_where(wanted));
        let wake_ns = self.wake_ns(at_ns, observation.metering.as_ref());
        Outcome {
            actions,
            notes: std::mem::take(&mut self.notes),
            wake_ns: wake_ns.map(|wake_ns| wake_ns.max(at_ns + LOOK_NS_MIN)),
            background_states: self.tell(at_ns, blind),
        }
    }

    /// Whether figures have been missing for so long that no program may stay stopped.
    fn is_blind(&mut self, at_ns: u64, seen: bool) -> bool {
        if seen {
            self.seen_ns = Some(at_ns);
        }
        let seen_ns = *self.seen_ns.get_or_insert(at_ns);
        at_ns >= seen_ns + BLIND_NS_MAX
    }

    fn regulate(&mut self, at_ns: u64, metering: &Metering) {
        let thresholds = self.thresholds;
        let sight = Sight {
            at_ns,
            metering,
            thresholds: &thresholds,
        };
        let mut changes = self.controller.look(&sight);
        for (&id, member) in &mut self.members {
            let change = match &mut member.rule {
                Rule::Usher => None,
                Rule::Eii(eii) => eii.look(id, &sight),
                Rule::Ipd(ipd) => ipd.look(id, &sight),
            };
            changes.extend(change.map(|change| (id, change)));
        }
        for (id, change) in changes {
            if let Some(member) = self.members.get_mut(&id) {
                let said = member.change(at_ns, change);
                self.notes.extend(said.map(|text| note(id, text)));
            }
        }
    }

    fn wake_ns(&self, at_ns: u64, metering: Option<&Metering>) -> Option<u64> {
        let by_rule = self.members.values().map(|member| match &member.rule {
            Rule::Usher => u64::MAX,
            Rule::Eii(eii) => eii.wake_ns(at_ns),
            Rule::Ipd(ipd) => ipd.wake_ns(at_ns),
        });
        let wake_ns = by_rule
            .chain(self.controller.wake_ns(at_ns, metering))
            .min();
        match metering {
            Some(_) => wake_ns,
            None => wake_ns.map(|_| at_ns + CALM_NS),
        }
    }

    /// The states, if they have changed. Without figures all programs run.
    fn tell(&mut self, at_ns: u64, blind: bool) -> Option<Vec<BackgroundState>> {
        let each = self.members.iter().map(|(&id, m)| m.standing(id, at_ns));
        let now: Vec<_> = each
            .map(|standing| BackgroundState {
                running: standing.running || blind,
                ..standing
            })
            .collect();
        if let Some((told_ns, told)) = &self.told {
            let key = |s: &BackgroundState| (s.program, s.since_ns, s.stops, s.running);
            let same = told.iter().map(key).eq(now.iter().map(key));
            let shares = told.iter().zip(&now);
            let still = shares.fold(0.0_f64, |most, (a, b)| most.max((a.share - b.share).abs()));
            if same && (still < 0.005 || at_ns < told_ns + TELL_NS) {
                return None;
            }
        }
        self.told = Some((at_ns, now.clone()));
        Some(now)
    }
}

fn note(program: ProgramId, text: String) -> Note {
    Note {
        program: Some(program),
        text,
    }
}
