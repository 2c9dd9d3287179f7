// SPDX-License-Identifier: MIT OR Apache-2.0
//! A policy for comparison in simulations: gives each program the seat that was configured for the
//! program's name in advance. Programs without a configured seat get no seat.
//!
//! Decisions are made when a program arrives, departs or changes its limits, and after a failed
//! action. Each takes linear time in the number of programs. Seats are not compared: two programs
//! can have the same CPUs.

use std::collections::BTreeMap;

use usher_model::{
    CpuSet, Decision, Observation, Plan, Program, ProgramId, Seat, SeatMode, Topology,
};

use crate::Policy;
use crate::action_diff::ActionDiff;
use crate::simple::track_programs;

/// Gives each program the seat that was configured for its name; other programs get no seat.
#[derive(Debug)]
pub struct FixedSeats {
    topology: Topology,
    seats: BTreeMap<String, CpuSet>,
    programs: BTreeMap<ProgramId, Program>,
    diff: ActionDiff,
}

impl FixedSeats {
    /// Creates the policy. `seats`: the seat of each program name.
    pub fn new(topology: Topology, seats: BTreeMap<String, CpuSet>) -> Self {
        Self {
            topology,
            seats,
            programs: BTreeMap::new(),
            diff: ActionDiff::default(),
        }
    }
}

impl Policy for FixedSeats {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        self.diff.mark_failed(&observation.failed);
        let changed = track_programs(&mut self.programs, &observation.events);
        if !changed && observation.failed.is_empty() {
            return Decision::default();
        }
        let seat = |program: &Program| {
            let cpus = self.seats.get(&program.name)?;
            Some(Seat {
                program: program.id,
                cpus: cpus.clone(),
                domains: self.topology.domains_in(cpus),
                mode: SeatMode::Seated,
                ntt: None,
            })
        };
        let seats: Vec<Seat> = self.programs.values().filter_map(seat).collect();
        let wanted = seats
            .iter()
            .map(|s| (s.program, Some(s.cpus.clone())))
            .collect();
        Decision {
            actions: self.diff.move_to(&wanted),
            plan: Some(Plan {
                seats,
                ..Plan::default()
            }),
            ..Decision::default()
        }
    }
}
