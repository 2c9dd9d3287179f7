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
//! [`RELEASES_MAX`] times. Otherwise, every decision is that of the policy in use, and costs the
//! same.

use std::collections::BTreeMap;

use usher_model::{
    Action, Decision, Event, FailedAction, Note, Observation, Program, ProgramId, Topology,
};

use crate::simple::track_programs;
use crate::{Linux, Policy};

/// Number of times that a suspension requests the failed release of a program again. Afterwards, only
/// the undo at the end of the program removes the seat.
const RELEASES_MAX: u32 = 8;

/// Time in nanoseconds after which the policy checks whether its thaws and releases failed.
const RESULT_AFTER_NS: u64 = 100_000_000;

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
    /// Number of failed releases of each program during the suspension.
    failed_releases: BTreeMap<ProgramId, u32>,
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
            failed_releases: BTreeMap::new(),
        }
    }

    /// Returns the failed thaws and releases of a suspension that are requested again.
    fn repeated(&mut self, failed: &[FailedAction]) -> Vec<Action> {
        if self.forbidden.is_none() {
            return Vec::new();
        }
        let (programs, releases) = (&self.programs, &mut self.failed_releases);
        let mut is_repeated = |action: &Action| match action {
            Action::Thaw { .. } => true,
            Action::Release { program } => {
                let count = releases.entry(*program).or_default();
                *count += 1;
                *count <= RELEASES_MAX
            }
            _ => false,
        };
        let failed = failed.iter().map(|failure| failure.action.clone());
        let present = failed.filter(|action| programs.contains_key(&action.program()));
        present.filter(|action| is_repeated(action)).collect()
    }

    /// Replaces the policy in use after a change of `forbidden`.
    fn switch(&mut self, observation: &Observation) -> Decision {
        self.failed_releases.clear();
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
            decision.wake_after_ns = Some(RESULT_AFTER_NS);
            decision.notes.push(Note {
                program: None,
                text: format!("Usher assigns no CPUs to programs: {reason}"),
            });
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
            let mut decision = self.current.decide(observation);
            let repeated = self.repeated(&observation.failed);
            if !repeated.is_empty() {
                decision.wake_after_ns = Some(RESULT_AFTER_NS);
            }
            decision.actions.extend(repeated);
            return decision;
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
