// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated world of a mix: it sends home who was to stay for a time, and
//! writes down who sat where.

use std::collections::{BTreeMap, BTreeSet};

use usher_control::World;
use usher_model::{Action, Decision, Event, FailedAction, Observation, ProgramId};

use super::seats::SeatLog;
use crate::world::SimWorld;

/// Sentences of a policy that are kept.
const NOTES_MAX: usize = 10_000;

pub(super) struct Stage {
    pub world: SimWorld,
    pub log: SeatLog,
    pub notes: Vec<(f64, String)>,
    /// When somebody leaves who stays for a time.
    leaves: BTreeSet<(u64, ProgramId)>,
    /// Completions that each program needs before the run may end; who is not
    /// here has to have left.
    needs: BTreeMap<ProgramId, usize>,
    names: BTreeMap<ProgramId, String>,
    until_ns: u64,
    /// Whether everybody has done what was wanted.
    pub complete: bool,
}

impl Stage {
    pub fn new(
        world: SimWorld,
        leaves: BTreeSet<(u64, ProgramId)>,
        needs: BTreeMap<ProgramId, usize>,
        until_ns: u64,
    ) -> Self {
        let guests = world.guests().iter();
        Self {
            log: SeatLog::new(world.engine().machine().topology().all_cpus()),
            names: guests
                .map(|guest| (guest.arrival.id, guest.arrival.name.clone()))
                .collect(),
            notes: Vec::new(),
            world,
            leaves,
            needs,
            until_ns,
            complete: false,
        }
    }

    /// Whether everybody has come, and has completed what was wanted or gone.
    fn is_enough(&self) -> bool {
        let guests = self.world.guests().iter().zip(self.world.seconds());
        guests.enumerate().all(|(at, (guest, seconds))| {
            let needs = self.needs.get(&guest.arrival.id);
            let done = needs.is_some_and(|&needs| seconds.len() >= needs);
            done || self.world.left_ns(at).is_some()
        })
    }
}

impl World for Stage {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        let observation = self.world.observe(failed);
        for event in &observation.events {
            match event {
                Event::Arrived(arrival) => self.log.came(arrival.id),
                Event::Departed(id) => self.log.left(*id, observation.at_ns),
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
            .leaves
            .first()
            .map(|(at_ns, _)| at_ns.saturating_sub(now_ns));
        let most_ns = at_most_ns.into_iter().chain(leave_ns).min();
        // Somebody who wants to look again at once would never see time pass.
        if !self.world.wait(most_ns.map(|ns| ns.max(1))) {
            self.complete = self.world.engine().fault().is_none() && self.is_enough();
            return false;
        }
        let now_ns = self.world.engine().now_ns();
        while let Some(&(at_ns, id)) = self.leaves.first().filter(|(at_ns, _)| *at_ns <= now_ns) {
            self.leaves.remove(&(at_ns, id));
            self.world.kill(id);
        }
        self.complete = self.is_enough();
        !self.complete && now_ns < self.until_ns
    }
}
