// SPDX-License-Identifier: MIT OR Apache-2.0
//! The world of a trial, which wraps the simulated world:
//!
//! - ends programs after their lifetime;
//! - records seats, and at most 10,000 notes of the policy;
//! - ends the run when all programs have completed their repetitions or have departed.
//!
//! A wait lasts at least 1 ns, until the next departure at the latest. A wait takes linear time in
//! the number of programs. A fault of the engine ends the run as incomplete.

use std::collections::{BTreeMap, BTreeSet};

use usher_control::World;
use usher_model::{Action, Decision, Event, FailedAction, Observation, ProgramId};

use super::seats::SeatLog;
use crate::world::SimWorld;

/// Maximum number of notes; later notes are dropped.
const NOTES_MAX: usize = 10_000;

pub(super) struct TrialRun {
    pub world: SimWorld,
    pub log: SeatLog,
    pub notes: Vec<(f64, String)>,
    /// Times of the departures of programs with a limited lifetime.
    departures: BTreeSet<(u64, ProgramId)>,
    /// Number of repetitions that each program must complete before the run may end. A program
    /// without an entry must have departed.
    needs: BTreeMap<ProgramId, usize>,
    names: BTreeMap<ProgramId, String>,
    until_ns: u64,
    /// Whether all programs have completed their requirements.
    pub complete: bool,
}

impl TrialRun {
    pub fn new(
        world: SimWorld,
        departures: BTreeSet<(u64, ProgramId)>,
        needs: BTreeMap<ProgramId, usize>,
        until_ns: u64,
    ) -> Self {
        let arrivals = world.arrivals().iter();
        Self {
            log: SeatLog::new(world.engine().machine().topology().all_cpus()),
            names: arrivals
                .map(|planned| (planned.arrival.id, planned.arrival.name.clone()))
                .collect(),
            notes: Vec::new(),
            world,
            departures,
            needs,
            until_ns,
            complete: false,
        }
    }

    /// Returns whether all programs have arrived, and have completed their repetitions or departed.
    fn is_complete(&self) -> bool {
        let arrivals = self.world.arrivals().iter().zip(self.world.seconds());
        arrivals.enumerate().all(|(at, (planned, seconds))| {
            let needs = self.needs.get(&planned.arrival.id);
            let done = needs.is_some_and(|&needs| seconds.len() >= needs);
            done || self.world.left_ns(at).is_some()
        })
    }
}

impl World for TrialRun {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        let observation = self.world.observe(failed);
        for event in &observation.events {
            match event {
                Event::Arrived(arrival) => self.log.arrived(arrival.id),
                Event::Departed(id) => self.log.departed(*id, observation.at_ns),
                Event::Repeated { .. } | Event::Limited { .. } | Event::Seating { .. } => {}
            }
        }
        observation
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        self.world.act(action)?;
        self.log.acted(action);
        Ok(())
    }

    fn decided(&mut self, observation: &Observation, decision: &Decision) {
        self.log.decided(decision, observation.at_ns);
        let room = NOTES_MAX.saturating_sub(self.notes.len());
        for note in decision.notes.iter().take(room) {
            let name = note.program.and_then(|id| self.names.get(&id));
            let text = name.map_or_else(
                || note.text.clone(),
                |name| format!("{name}: {}", note.text),
            );
            self.notes.push((observation.at_ns as f64 / 1e9, text));
        }
    }

    fn wait(&mut self, at_most_ns: Option<u64>) -> bool {
        let now_ns = self.world.engine().now_ns();
        let leave_ns = self
            .departures
            .first()
            .map(|(at_ns, _)| at_ns.saturating_sub(now_ns));
        let most_ns = at_most_ns.into_iter().chain(leave_ns).min();
        // The wait is at least 1 ns, because virtual time would not advance with a wait of 0.
        if !self.world.wait(most_ns.map(|ns| ns.max(1))) {
            self.complete = self.world.engine().fault().is_none() && self.is_complete();
            return false;
        }
        let now_ns = self.world.engine().now_ns();
        while let Some(&(at_ns, id)) = self
            .departures
            .first()
            .filter(|(at_ns, _)| *at_ns <= now_ns)
        {
            self.departures.remove(&(at_ns, id));
            self.world.kill(id);
        }
        self.complete = self.is_complete();
        !self.complete && now_ns < self.until_ns
    }
}
