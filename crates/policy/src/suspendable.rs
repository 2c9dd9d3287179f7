// SPDX-License-Identifier: MIT OR Apache-2.0
//! A seating policy that gives no seats while another daemon plans the machine.
//!
//! Two daemons that plan the same CPUs would give the same CPUs to programs of both daemons.
//! [`SuspendablePolicy`] therefore follows [`Event::Seating`]: while seats are forbidden, it
//! releases every seat, continues every program that the seating policy had stopped, and leaves all
//! programs to the kernel. When seats are allowed again, a new instance of the seating policy
//! starts with the programs that are present.
//!
//! A suspension requests a thaw and a release of each program. A failed thaw is requested again
//! until it succeeds, because its program would stay stopped; a failed release at most
//! [`RELEASES_MAX`] times. The pause before a request doubles from [`PAUSE_MIN_NS`] to
//! [`PAUSE_MAX_NS`]. Otherwise, every decision is that of the policy in use, and costs the same.

use std::collections::BTreeMap;

use usher_model::{
    Action, Decision, Event, FailedAction, Note, Observation, Program, ProgramId, Topology,
};

use crate::simple::track_programs;
use crate::{Linux, Policy};

/// Number of times that a suspension requests the failed release of a program again. Afterwards,
/// only the undo at the end of the program removes the seat.
const RELEASES_MAX: u32 = 8;

/// Shortest and longest pause, in nanoseconds, before failed actions are requested again.
const PAUSE_MIN_NS: u64 = 100_000_000;
const PAUSE_MAX_NS: u64 = 5_000_000_000;

/// Makes a new instance of the seating policy.
pub type MakePolicy = Box<dyn Fn() -> Box<dyn Policy + Send> + Send>;

/// A seating policy that can be suspended.
pub struct SuspendablePolicy {
    make: MakePolicy,
    topology: Topology,
    name: &'static str,
    /// The policy in use: a seating policy, or [`Linux`] while seats are forbidden.
    current: Box<dyn Policy + Send>,
    programs: BTreeMap<ProgramId, Program>,
    forbidden: Option<String>,
    again: FailedRequests,
}

/// Thaws and releases of a suspension that failed and are to be requested again.
#[derive(Debug, Default)]
struct FailedRequests {
    actions: Vec<Action>,
    /// Number of failed releases of each program.
    releases: BTreeMap<ProgramId, u32>,
    /// Time of the next request, and the pause that led to this time.
    due_ns: u64,
    pause_ns: u64,
}

impl FailedRequests {
    /// Starts with the requests of a suspension at this time.
    fn from(at_ns: u64) -> Self {
        Self {
            due_ns: at_ns + PAUSE_MIN_NS,
            pause_ns: PAUSE_MIN_NS,
            ..Self::default()
        }
    }

    fn add(&mut self, failed: &[FailedAction]) {
        for failure in failed {
            let is_repeated = match &failure.action {
                Action::Thaw { .. } => true,
                Action::Release { program } => {
                    let count = self.releases.entry(*program).or_default();
                    *count += 1;
                    *count <= RELEASES_MAX
                }
                _ => false,
            };
            if is_repeated {
                self.actions.push(failure.action.clone());
            }
        }
    }

    /// Returns the actions that are due now, and the time in nanoseconds until others are due.
    fn take_due(&mut self, now_ns: u64) -> (Vec<Action>, Option<u64>) {
        if self.actions.is_empty() {
            return (Vec::new(), None);
        }
        if now_ns < self.due_ns {
            return (Vec::new(), Some(self.due_ns - now_ns));
        }
        self.pause_ns = (self.pause_ns * 2).min(PAUSE_MAX_NS);
        self.due_ns = now_ns + self.pause_ns;
        // A failure is known with the next observation.
        (std::mem::take(&mut self.actions), Some(self.pause_ns))
    }
}

impl std::fmt::Debug for SuspendablePolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("SuspendablePolicy");
        debug.field("name", &self.name);
        debug.field("forbidden", &self.forbidden);
        debug.finish_non_exhaustive()
    }
}

impl SuspendablePolicy {
    /// Wraps the policy that `make` returns. Seats are allowed until an event forbids them.
    pub fn new(topology: Topology, make: MakePolicy) -> Self {
        let current = make();
        Self {
            name: current.name(),
            make,
            topology,
            current,
            programs: BTreeMap::new(),
            forbidden: None,
            again: FailedRequests::default(),
        }
    }

    /// Decides during a suspension: the decision of [`Linux`], and failed actions that are due.
    fn decide_suspended(&mut self, observation: &Observation) -> Decision {
        let mut decision = self.current.decide(observation);
        self.again.add(&observation.failed);
        let programs = &self.programs;
        let is_present = |action: &Action| programs.contains_key(&action.program());
        self.again.actions.retain(is_present);
        let (due, wait_ns) = self.again.take_due(observation.at_ns);
        decision.actions.extend(due);
        decision.wake_after_ns = wait_ns.or(decision.wake_after_ns);
        decision
    }

    /// Replaces the policy in use after a change of `forbidden`.
    fn switch(&mut self, observation: &Observation) -> Decision {
        self.again = FailedRequests::from(observation.at_ns);
        self.current = match self.forbidden {
            Some(_) => Box::new(Linux::new(self.topology.clone())),
            None => (self.make)(),
        };
        let present = self.programs.values();
        let arrivals = present.map(|program| Event::Arrived(Box::new(program.clone())));
        let as_new = Observation {
            events: arrivals.collect(),
            failed: Vec::new(),
            ..observation.clone()
        };
        let mut decision = self.current.decide(&as_new);
        if let Some(reason) = &self.forbidden {
            let undone = self.programs.keys().flat_map(|&program| {
                let [thaw, release] = [Action::Thaw { program }, Action::Release { program }];
                [thaw, release]
            });
            decision.actions = undone.collect();
            decision.wake_after_ns = Some(PAUSE_MIN_NS);
            let text = format!("Usher assigns no CPUs to programs: {reason}");
            decision.notes.push(Note::new(None, text));
        }
        decision
    }
}

impl Policy for SuspendablePolicy {
    fn name(&self) -> &'static str {
        self.name
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        track_programs(&mut self.programs, &observation.events);
        let mut changes = observation.events.iter().filter_map(|event| match event {
            Event::Seating { forbidden } => Some(forbidden),
            _ => None,
        });
        let Some(latest) = changes.next_back() else {
            return match self.forbidden {
                Some(_) => self.decide_suspended(observation),
                None => self.current.decide(observation),
            };
        };
        let was_allowed = self.forbidden.is_none();
        self.forbidden = latest.clone();
        if was_allowed && self.forbidden.is_none() {
            let mut without = observation.clone();
            without
                .events
                .retain(|event| !matches!(event, Event::Seating { .. }));
            return self.current.decide(&without);
        }
        self.switch(observation)
    }
}
