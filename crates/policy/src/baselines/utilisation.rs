// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocation by utilisation, as scx_layered sizes its layers by `util_range`, in units of whole
//! domains. Used only for comparison in simulations.
//!
//! Every 100 ms, and when a program arrives or departs:
//!
//! 1. A program that keeps more than 90 % of its cores busy wants all domains. A program that keeps
//!    less than 60 % of its cores busy wants one domain less than it has. Other programs want the
//!    domains that they have.
//! 2. Each domain goes to the program with the fewest domains, among the programs that want more.
//!    No program exceeds an even share while another program wants more.
//!
//! A program never gives up its last domain. If there are more programs than domains, the programs
//! with the highest ids are left to the kernel. An allocation takes time of order domains x
//! programs.

use std::collections::BTreeMap;

use usher_model::{Decision, Observation, ProgramId, Topology};

use super::{PeriodDue, PeriodicSeats};
use crate::Policy;

/// Interval between two allocations.
const PERIOD_NS: u64 = 100_000_000;
/// A program that keeps more than the share `UTIL_HIGH` of its cores busy wants more domains; a
/// program below `UTIL_LOW` gives up a domain (scx_layered's `util_range`).
const UTIL_LOW: f64 = 0.6;
const UTIL_HIGH: f64 = 0.9;

/// The policy that allocates domains by utilisation.
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

    /// Computes the number of domains of each program, given the number of CPUs that each program
    /// keeps busy.
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
            PeriodDue::Later(decision) => return *decision,
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
