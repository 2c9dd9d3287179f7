// SPDX-License-Identifier: MIT OR Apache-2.0
//! A seating policy that gives no seats while another daemon plans the machine.
//!
//! Two daemons that plan the same CPUs would give the same CPUs to programs of both daemons.
//! [`SuspendablePolicy`] therefore follows [`Event::Seating`]: while seats are forbidden, it
//! releases every seat, continues every program that the seating policy had stopped, and leaves all
//! programs to the kernel. When seats are allowed again, a new instance of the seating policy
//! starts with the programs that are present.
//!
//! A suspension requests one thaw and one release per program, once per event: failed requests are
//! not repeated before the next event. Between events, every decision is that of the policy in use,
//! and costs the same.

use std::collections::BTreeMap;

use usher_model::{Action, Decision, Event, Note, Observation, Program, ProgramId, Topology};

use crate::simple::track_programs;
use crate::{Linux, Policy};

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
        }
    }

    /// Replaces the policy in use after a change of `forbidden`.
    fn switch(&mut self, observation: &Observation) -> Decision {
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
            return self.current.decide(observation);
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
