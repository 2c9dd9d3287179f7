// SPDX-License-Identifier: MIT OR Apache-2.0
//! PDPA, performance-driven processor allocation (Corbalán, Martorell, Labarta, OSDI 2000), in
//! units of whole domains. Used only for comparison in simulations; requires progress figures of
//! running programs.
//!
//! The efficiency of a program is its progress per second and domain, divided by its progress per
//! second and domain on its first seat. Every 200 ms, and when a program arrives or departs:
//!
//! 1. A program with an efficiency above 0.9 requests one more domain. A program with an efficiency
//!    below 0.7 gives up one domain, and then gets no more until a program arrives or departs.
//! 2. Domains are distributed in rounds. In each round, every program that wants more domains gets
//!    one, while domains are left.
//!
//! A program keeps at least one domain while domains are left, in the order of ids; further
//! programs are left to the kernel. An allocation takes time of order domains x programs.

use std::collections::BTreeMap;

use usher_model::{Decision, Observation, ProgramId, Topology};

use super::{PeriodDue, PeriodicSeats};
use crate::Policy;

/// Interval between two allocations.
const PERIOD_NS: u64 = 200_000_000;
/// Efficiency above which a program may get another domain; the paper's `high_eff`.
const HIGH: f64 = 0.9;
/// Efficiency below which a program must give up a domain; the paper's `target_eff`.
const TARGET: f64 = 0.7;

/// Performance-driven processor allocation, in units of whole domains.
#[derive(Debug)]
pub struct Pdpa {
    seats: PeriodicSeats,
    states: BTreeMap<ProgramId, ProgramState>,
}

/// State of a program.
#[derive(Debug, Clone, Copy, Default)]
struct ProgramState {
    total: f64,
    /// Progress per second and domain on the program's first seat, with which the efficiency is
    /// computed.
    base: Option<f64>,
    /// Whether the program gets no more domains, because its efficiency on a larger seat was below
    /// `TARGET`.
    stable: bool,
    wants: usize,
}

impl Pdpa {
    /// Creates the policy for a machine.
    pub fn new(topology: Topology) -> Self {
        Self {
            seats: PeriodicSeats::new(topology, PERIOD_NS),
            states: BTreeMap::new(),
        }
    }

    /// Computes each program's efficiency over the last period, and its next number of domains.
    fn learn(&mut self, observation: &Observation, seconds: f64) {
        for sample in &observation.programs {
            let total = sample.progress.map_or(0.0, |progress| progress.total);
            let domains = self.seats.domains_of(sample.id);
            let state = self.states.entry(sample.id).or_default();
            let rate = (total - state.total) / seconds;
            state.total = total;
            if domains == 0 || rate <= 0.0 {
                state.wants = state.wants.max(1);
                continue;
            }
            let each = rate / domains as f64;
            let base = *state.base.get_or_insert(each);
            let efficiency = each / base;
            if efficiency > HIGH && !state.stable {
                state.wants = domains + 1;
            } else if efficiency < TARGET && domains > 1 {
                state.wants = domains - 1;
                state.stable = true;
            } else {
                state.wants = domains;
            }
        }
    }

    /// Distributes the domains in rounds. In each round, every program that wants more domains gets
    /// one.
    fn counts(&self) -> BTreeMap<ProgramId, usize> {
        let mut left = self.seats.topology.domains.len();
        let mut counts: BTreeMap<ProgramId, usize> = BTreeMap::new();
        loop {
            let mut gave = false;
            for id in self.seats.programs.keys() {
                let wants = self.states.get(id).map_or(1, |state| state.wants.max(1));
                let domains = counts.entry(*id).or_default();
                if *domains < wants && left > 0 {
                    *domains += 1;
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
        let (changed, seconds) = match self.seats.update(observation) {
            PeriodDue::Later(decision) => return *decision,
            PeriodDue::Now { changed, seconds } => (changed, seconds),
        };
        self.states
            .retain(|id, _| self.seats.programs.contains_key(id));
        if changed {
            // After an arrival or a departure, every program may try a larger seat again.
            self.states
                .values_mut()
                .for_each(|state| state.stable = false);
        }
        self.learn(observation, seconds);
        self.seats.give(&self.counts())
    }
}
