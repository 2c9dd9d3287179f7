// SPDX-License-Identifier: MIT OR Apache-2.0
//! As many cores as are used efficiently.

use std::collections::BTreeMap;

use usher_model::{Decision, Observation, Program, ProgramId, Topology};

use super::{hand_out, plan_of, wanted_of};
use crate::Policy;
use crate::simple::keep_roster;
use crate::stage::Stage;

/// Time at one allocation.
const PERIOD_NS: u64 = 200_000_000;
/// A program whose efficiency is above this may have more; the paper's
/// `high_eff`, and its `target_eff` below which it must give some up.
const HIGH: f64 = 0.9;
const TARGET: f64 = 0.7;

/// Performance-driven processor allocation, in units of whole domains.
#[derive(Debug)]
pub struct Pdpa {
    topology: Topology,
    programs: BTreeMap<ProgramId, Program>,
    seats: BTreeMap<ProgramId, Vec<usize>>,
    knows: BTreeMap<ProgramId, Knows>,
    looked_ns: u64,
    stage: Stage,
}

/// What is known of a program.
#[derive(Debug, Clone, Copy, Default)]
struct Knows {
    total: f64,
    /// Progress a second and domain on the smallest seat that it had: what
    /// efficiency is held against.
    base: Option<f64>,
    /// It stays as it is: more was tried and was not efficient.
    stable: bool,
    wants: usize,
}

impl Pdpa {
    /// On that machine.
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            programs: BTreeMap::new(),
            seats: BTreeMap::new(),
            knows: BTreeMap::new(),
            looked_ns: 0,
            stage: Stage::default(),
        }
    }

    /// Efficiency of each program over the last period, and what it is to have
    /// next.
    fn learn(&mut self, observation: &Observation) {
        let elapsed = observation.at_ns.saturating_sub(self.looked_ns).max(1) as f64 / 1e9;
        for sample in &observation.programs {
            let total = sample.progress.map_or(0.0, |progress| progress.total);
            let has = self.seats.get(&sample.id).map_or(0, Vec::len);
            let knows = self.knows.entry(sample.id).or_default();
            let rate = (total - knows.total) / elapsed;
            knows.total = total;
            if has == 0 || rate <= 0.0 {
                knows.wants = knows.wants.max(1);
                continue;
            }
            let each = rate / has as f64;
            let base = *knows.base.get_or_insert(each);
            let efficiency = each / base;
            if efficiency > HIGH && !knows.stable {
                knows.wants = has + 1;
            } else if efficiency < TARGET && has > 1 {
                knows.wants = has - 1;
                knows.stable = true;
            } else {
                knows.wants = has;
            }
        }
    }

    /// What is wanted, as far as there is enough: one each, then one after
    /// another.
    fn counts(&self) -> BTreeMap<ProgramId, usize> {
        let mut left = self.topology.domains.len();
        let mut counts: BTreeMap<ProgramId, usize> = BTreeMap::new();
        loop {
            let mut gave = false;
            for id in self.programs.keys() {
                let wants = self.knows.get(id).map_or(1, |knows| knows.wants.max(1));
                let has = counts.entry(*id).or_default();
                if *has < wants && left > 0 {
                    *has += 1;
                    left -= 1;
                    gave = true;
                }
            }
            if !gave {
                return counts;
            }
        }
    }
}

impl Policy for Pdpa {
    fn name(&self) -> &'static str {
        "pdpa"
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
        self.knows.retain(|id, _| self.programs.contains_key(id));
        self.seats.retain(|id, _| self.programs.contains_key(id));
        if changed {
            // Who stood still for want of room may try again.
            self.knows
                .values_mut()
                .for_each(|knows| knows.stable = false);
        }
        self.learn(observation);
        self.looked_ns = at_ns;
        self.seats = hand_out(&self.topology, &self.seats, &self.counts());
        Decision {
            actions: self.stage.move_to(&wanted_of(&self.topology, &self.seats)),
            plan: Some(plan_of(&self.topology, &self.seats)),
            wake_after_ns: Some(PERIOD_NS),
            ..Decision::default()
        }
    }
}
