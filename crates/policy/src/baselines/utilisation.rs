// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocation by utilisation, as scx_layered sizes its layers by `util_range`, in units of whole
//! domains.
//!
//! Every 100 ms, a program that keeps more than 90 % of its cores busy wants all domains, one below
//! 60 % wants one less than it has, and others keep theirs. Domains go one by one to the program
//! that has the fewest and wants more, so that no program exceeds an even share while another wants
//! more. For comparison in simulations.

use std::collections::BTreeMap;

use usher_model::{Decision, Observation, ProgramId, Topology};

use super::{PeriodDue, PeriodicSeats};
use crate::Policy;

/// Time between two reconsiderations.
const PERIOD_NS: u64 = 100_000_000;
/// A program that keeps more than `UTIL_HIGH` of its cores busy gets more; a program below
/// `UTIL_LOW` gives some up (scx_layered's `util_range`).
const UTIL_LOW: f64 = 0.6;
const UTIL_HIGH: f64 = 0.9;

/// Grows and shrinks seats by one domain at a time.
#[derive(Debug)]
pub struct Utilisation {
    seats: PeriodicSeats,
    cpu_ns: BTreeMap<ProgramId, u64>,
}

impl Utilisation {
    /// Creates the policy for a machine.
    pub fn new(topology: Topology) -> Self {
        Self {
            seats: PeriodicSeats::new(topology, PERIOD_NS),
            cpu_ns: BTreeMap::new(),
        }
    }

    /// Number of domains of each program. No program gets more than an even share while another
    /// wants more.
    fn counts(&self, busy: &BTreeMap<ProgramId, f64>) -> BTreeMap<ProgramId, usize> {
        let topology = &self.seats.topology;
        let each = topology.cores.len() as f64 / topology.domains.len() as f64;
        let wants = |id: &ProgramId| {
            let domains = self.seats.domains_of(*id);
            let util = busy.get(id).copied().unwrap_or(0.0) / (domains as f64 * each).max(1.0);
            match () {
                () if domains == 0 || util > UTIL_HIGH => topology.domains.len(),
                () if util < UTIL_LOW => (domains - 1).max(1),
                () => domains,
            }
        };
        let wanted: BTreeMap<ProgramId, usize> = self
            .seats
            .programs
            .keys()
            .map(|id| (*id, wants(id)))
            .collect();
        let mut given: BTreeMap<ProgramId, usize> = wanted.keys().map(|&id| (id, 0)).collect();
        for _ in 0..topology.domains.len() {
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
        let seconds = match self.seats.update(observation) {
            PeriodDue::Later(decision) => return decision,
            PeriodDue::Now { seconds, .. } => seconds,
        };
        let mut busy = BTreeMap::new();
        for sample in &observation.programs {
            let before = self.cpu_ns.insert(sample.id, sample.cpu_ns).unwrap_or(0);
            let used_ns = sample.cpu_ns.saturating_sub(before);
            busy.insert(sample.id, used_ns as f64 / 1e9 / seconds);
        }
        self.seats.give(&self.counts(&busy))
    }
}
