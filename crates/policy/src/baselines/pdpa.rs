// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocation by efficiency.

use std::collections::BTreeMap;

use usher_model::{Decision, Observation, ProgramId, Topology};

use super::{Due, Periodic};
use crate::Policy;

/// Time between two reconsiderations.
const PERIOD_NS: u64 = 200_000_000;
/// A program whose efficiency is above this may get more; the paper's `high_eff`. Below the paper's
/// `target_eff` it must give up a domain.
const HIGH: f64 = 0.9;
const TARGET: f64 = 0.7;

/// Performance-driven processor allocation, in units of whole domains.
#[derive(Debug)]
pub struct Pdpa {
    seats: Periodic,
    knows: BTreeMap<ProgramId, Knows>,
}

/// State of a program.
#[derive(Debug, Clone, Copy, Default)]
struct Knows {
    total: f64,
    /// Progress per second and domain on the smallest seat it had: the reference of the efficiency.
    base: Option<f64>,
    /// Whether the program keeps its seat: more was tried and was not efficient.
    stable: bool,
    wants: usize,
}

impl Pdpa {
    /// Creates the policy for a machine.
    pub fn new(topology: Topology) -> Self {
        Self {
            seats: Periodic::new(topology, PERIOD_NS),
            knows: BTreeMap::new(),
        }
    }

    /// Computes each program's efficiency over the last period, and its next number of domains.
    fn learn(&mut self, observation: &Observation, seconds: f64) {
        for sample in &observation.programs {
            let total = sample.progress.map_or(0.0, |progress| progress.total);
            let has = self.seats.has(sample.id);
            let knows = self.knows.entry(sample.id).or_default();
            let rate = (total - knows.total) / seconds;
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

    /// Distributes the domains: one each, then one more each in turn.
    fn counts(&self) -> BTreeMap<ProgramId, usize> {
        let mut left = self.seats.topology.domains.len();
        let mut counts: BTreeMap<ProgramId, usize> = BTreeMap::new();
        loop {
            let mut gave = false;
            for id in self.seats.programs.keys() {
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
        let (changed, seconds) = match self.seats.look(observation) {
            Due::Later(decision) => return decision,
            Due::Now { changed, seconds } => (changed, seconds),
        };
        self.knows
            .retain(|id, _| self.seats.programs.contains_key(id));
        if changed {
            // A program that stayed small for lack of domains may grow again.
            self.knows
                .values_mut()
                .for_each(|knows| knows.stable = false);
        }
        self.learn(observation, seconds);
        self.seats.give(&self.counts())
    }
}
