// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two policies for comparison: `linux`, which never acts, and `equal`, which gives all
//! programs the same number of cores. Also holds functions that several policies use: tracking of
//! arrivals and limits, the planner's request of a program, and the desired seats of a plan.
//!
//! `equal` decides when a program arrives, departs or changes its limits, when the usable CPUs
//! change, and after a failed action; the number of retries of a seat is not limited. Module
//! `seating` states the cost of a plan. If the planner rejects the programs, `equal` reports the
//! error in a note and releases all seats.

use std::collections::BTreeMap;

use usher_model::{
    CpuSet, Curve, CurvePoint, Decision, Event, Note, Observation, Plan, Program, ProgramId, Seat,
    SeatMode, Topology,
};

use crate::Policy;
use crate::action_diff::{ActionDiff, DesiredSeats};
use crate::seating::{Request, seat};

/// The policy `linux`, which leaves all programs to the kernel.
#[derive(Debug)]
pub struct Linux {
    topology: Topology,
    programs: BTreeMap<ProgramId, Program>,
}

impl Linux {
    /// Creates a policy that never acts.
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            programs: BTreeMap::new(),
        }
    }
}

impl Policy for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        let changed = track_programs(&mut self.programs, &observation.events);
        let plan = || {
            shared_plan(
                &self
                    .topology
                    .restrict(&observation.usable)
                    .unwrap_or(self.topology.clone()),
                self.programs.keys(),
            )
        };
        Decision {
            plan: changed.then(plan),
            ..Decision::default()
        }
    }
}

/// The policy `equal`, which gives all programs the same number of cores. The seats are the
/// planner's result for programs that scale perfectly.
#[derive(Debug)]
pub struct Equal {
    topology: Topology,
    programs: BTreeMap<ProgramId, Program>,
    diff: ActionDiff,
    usable: CpuSet,
}

impl Equal {
    /// Creates the policy for a machine.
    pub fn new(topology: Topology) -> Self {
        let usable = topology.all_cpus();
        Self {
            topology,
            programs: BTreeMap::new(),
            diff: ActionDiff::default(),
            usable,
        }
    }
}

impl Policy for Equal {
    fn name(&self) -> &'static str {
        "equal"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        let came_or_went = track_programs(&mut self.programs, &observation.events);
        for event in &observation.events {
            if let Event::Departed(program) = event {
                self.diff.forget(*program);
            }
        }
        self.diff.mark_failed(&observation.failed);
        let moved = self.usable != observation.usable;
        self.usable = observation.usable.clone();
        if !(came_or_went || moved || !observation.failed.is_empty()) {
            return Decision::default();
        }
        let topology = self
            .topology
            .restrict(&self.usable)
            .unwrap_or_else(|_| self.topology.clone());
        let requests: Vec<_> = self
            .programs
            .values()
            .map(|p| request(p, &topology, linear(&topology)))
            .collect();
        let (plan, notes) = match seat(&topology, &requests) {
            Ok(seating) => (seating.plan, vec![]),
            Err(error) => {
                let text =
                    format!("no program has a seat, and all programs share all CPUs: {error}");
                let note = Note::new(None, text);
                (shared_plan(&topology, self.programs.keys()), vec![note])
            }
        };
        let mut wanted = match plan.abstains {
            // The seats are released. A seat of all usable CPUs would be a mask, which would not
            // grow when a CPU returns.
            true => self.programs.keys().map(|&id| (id, None)).collect(),
            false => desired_seats(&plan, &topology.all_cpus()),
        };
        remove_pinned(&mut wanted, self.programs.values());
        Decision {
            actions: self.diff.move_to(&wanted),
            soft_seats: (!plan.abstains).then_some(true),
            plan: Some(plan),
            notes,
            ..Decision::default()
        }
    }
}

/// Updates `programs` by arrivals, departures and changed limits. Returns whether `programs` has
/// changed.
pub(crate) fn track_programs(
    programs: &mut BTreeMap<ProgramId, Program>,
    events: &[Event],
) -> bool {
    let mut changed = false;
    for event in events {
        match event {
            Event::Arrived(program) => {
                changed |= programs.insert(program.id, (**program).clone()).is_none()
            }
            Event::Departed(id) => changed |= programs.remove(id).is_some(),
            Event::Limited { program, .. } => {
                if let Some(program) = programs.get_mut(program) {
                    changed |= apply_limits(program, event);
                }
            }
            Event::Repeated { .. } | Event::Seating { .. } => {}
        }
    }
    changed
}

/// Processes [`Event::Limited`]; returns whether the limits have changed.
pub(crate) fn apply_limits(program: &mut Program, event: &Event) -> bool {
    let Event::Limited {
        cpu_quota,
        pinned_to,
        bound_to,
        ..
    } = event
    else {
        return false;
    };
    let is_bound_anew = bound_to.is_some() && program.bound_to != *bound_to;
    let changed =
        program.cpu_quota != *cpu_quota || program.pinned_to != *pinned_to || is_bound_anew;
    program.cpu_quota = *cpu_quota;
    program.pinned_to.clone_from(pinned_to);
    if is_bound_anew {
        program.bound_to.clone_from(bound_to);
    }
    changed
}

/// Removes the seats of programs that pinned their threads.
pub(crate) fn remove_pinned<'a>(
    wanted: &mut DesiredSeats,
    programs: impl Iterator<Item = &'a Program>,
) {
    for program in programs.filter(|program| program.pinned_to.is_some()) {
        if let Some(seat_cpus) = wanted.get_mut(&program.id) {
            *seat_cpus = None;
        }
    }
}

/// The planner's input for a program with a given curve, limited to the program's CPU quota.
pub(crate) fn request(program: &Program, topology: &Topology, curve: Curve) -> Request {
    let bound_to = program
        .confined_to()
        .map(|bound| bound.and(&topology.all_cpus()));
    Request {
        id: program.id,
        name: program.name.clone(),
        curve: curve.limited(program.cpu_quota),
        weight: program.weight,
        spinners: program.spinners,
        llc_bytes: program.llc_bytes,
        bandwidth_gbps: program.bandwidth_gbps,
        bound_to,
        pinned: program.pinned_to.is_some(),
    }
}

/// The curve of a program that scales perfectly on a machine.
#[allow(clippy::expect_used)]
pub(crate) fn linear(topology: &Topology) -> Curve {
    let cores = topology.capacity_of(&topology.all_cpus()).max(1.0);
    let point = CurvePoint {
        cores,
        rate: cores,
        relative_error: 0.0,
        busy_cpus: None,
    };
    // The curve has a single point, whose number of cores and rate are both at least 1.
    Curve::new(vec![point]).expect("a curve of one positive point is valid")
}

/// Desired CPUs of each program of a plan. `None` for a seat of all CPUs, which restricts nothing.
pub(crate) fn desired_seats(plan: &Plan, all: &CpuSet) -> DesiredSeats {
    let seat_cpus = |seat: &Seat| (seat.cpus != *all).then(|| seat.cpus.clone());
    plan.seats
        .iter()
        .map(|seat| (seat.program, seat_cpus(seat)))
        .collect()
}

/// A plan that leaves all programs to the kernel.
pub(crate) fn shared_plan<'a>(
    topology: &Topology,
    programs: impl Iterator<Item = &'a ProgramId>,
) -> Plan {
    let cpus = topology.all_cpus();
    let seat = |&program: &ProgramId| Seat {
        program,
        cpus: cpus.clone(),
        domains: (0..topology.domains.len()).collect(),
        mode: SeatMode::Shared,
        ntt: None,
    };
    Plan {
        seats: programs.map(seat).collect(),
        abstains: true,
        ..Plan::default()
    }
}
