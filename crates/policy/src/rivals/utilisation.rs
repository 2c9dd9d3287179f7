// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cores by utilisation.

use std::collections::BTreeMap;

use usher_model::{Decision, Observation, Program, ProgramId, Topology};

use super::{hand_out, plan_of, wanted_of};
use crate::Policy;
use crate::simple::keep_roster;
use crate::stage::Stage;

/// Time between two looks.
const PERIOD_NS: u64 = 100_000_000;
/// A program that keeps more than this share of its cores busy gets more, one
/// that keeps less than that gives some up (scx_layered's `util_range`).
const UTIL_LOW: f64 = 0.6;
const UTIL_HIGH: f64 = 0.9;

/// Grows and shrinks seats, a domain at a time.
#[derive(Debug)]
pub struct Utilisation {
    topology: Topology,
    programs: BTreeMap<ProgramId, Program>,
    seats: BTreeMap<ProgramId, Vec<usize>>,
    cpu_ns: BTreeMap<ProgramId, u64>,
    looked_ns: u64,
    stage: Stage,
}

impl Utilisation {
    /// On that machine.
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            programs: BTreeMap::new(),
            seats: BTreeMap::new(),
            cpu_ns: BTreeMap::new(),
            looked_ns: 0,
            stage: Stage::default(),
        }
    }

    /// Domains that each program wants, of which nobody gets more than an even
    /// share as long as somebody else wants more.
    fn counts(&self, busy: &BTreeMap<ProgramId, f64>) -> BTreeMap<ProgramId, usize> {
        let each = self.topology.cores.len() as f64 / self.topology.domains.len() as f64;
        let wants = |id: &ProgramId| {
            let has = self.seats.get(id).map_or(0, Vec::len);
            let util = busy.get(id).copied().unwrap_or(0.0) / (has as f64 * each).max(1.0);
            match () {
                () if has == 0 || util > UTIL_HIGH => self.topology.domains.len(),
                () if util < UTIL_LOW => (has - 1).max(1),
                () => has,
            }
        };
        let wanted: BTreeMap<ProgramId, usize> =
            self.programs.keys().map(|id| (*id, wants(id))).collect();
        let mut given: BTreeMap<ProgramId, usize> = wanted.keys().map(|&id| (id, 0)).collect();
        for _ in 0..self.topology.domains.len() {
            let poorest = given.iter().filter(|(id, count)| **count < wanted[*id]);
            let Some((&id, _)) = poorest.min_by_key(|(id, count)| (**count, **id)) else {
                break;
            };
            *given.entry(id).or_default() += 1;
        }
        given
    }
}

impl Policy for Utilisation {
    fn name(&self) -> &'static str {
        "utilisation"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        let changed = keep_roster(&mut self.programs, &observation.events);
        self.stage.undo_failed(&observation.failed);
        let at_ns = observation.at_ns;
        let due_ns = self.looked_ns + PERIOD_NS;
        if !changed && at_ns < due_ns {
            return Decision {
                wake_after_ns: Some(due_ns - at_ns),
                ..Decision::default()
            };
        }
        let elapsed_ns = at_ns.saturating_sub(self.looked_ns).max(1) as f64;
        let mut busy = BTreeMap::new();
        for sample in &observation.programs {
            let before = self.cpu_ns.insert(sample.id, sample.cpu_ns).unwrap_or(0);
            busy.insert(sample.id, (sample.cpu_ns - before) as f64 / elapsed_ns);
        }
        self.looked_ns = at_ns;
        self.seats.retain(|id, _| self.programs.contains_key(id));
        self.seats = hand_out(&self.topology, &self.seats, &self.counts(&busy));
        Decision {
            actions: self.stage.move_to(&wanted_of(&self.topology, &self.seats)),
            plan: Some(plan_of(&self.topology, &self.seats)),
            wake_after_ns: Some(PERIOD_NS),
            ..Decision::default()
        }
    }
}
