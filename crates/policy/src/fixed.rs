// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seats of a fixed number of cores ([`usher_model::Program::cores`]: `usher run --cores N`, or a
//! rule).
//!
//! [`FixedSeats`] wraps a seating policy. A program with a fixed number of cores gets that number of
//! physical cores, with all their hardware threads, from its arrival to its end. The seat needs no
//! profile. The seating policy never receives such a program: it plans the other programs on the
//! remaining cores, as if the fixed cores were offline. A program that the seating policy leaves to
//! the kernel is restricted to the remaining CPUs. Without fixed programs, the seating policy
//! receives every observation and returns every decision unchanged.
//!
//! 1. Route events, samples and failed actions of fixed programs here, all others to the seating
//!    policy.
//! 2. Place the fixed programs (module [`placement`]) when one arrives, departs or changes its
//!    limits, and when the usable CPUs change.
//! 3. Call the seating policy with the remaining CPUs as usable CPUs.
//! 4. Merge the desired seats, and request what differs from the last request (`ActionDiff`).
//!
//! *Limits.* If the fixed programs leave no core, the other programs share all CPUs with them. If
//! they need more cores than there are, some of them share cores. A fixed program that pinned
//! threads has no seat. The CPUs of fixed seats are not lent, and soft seats are off, because a
//! soft seat lends idle CPUs. A failed seat is requested again after each failure, without a limit.
//! A decision adds linear time in the number of programs, and [`placement`] on a change.

pub mod placement;

use std::collections::BTreeMap;

use usher_model::{
    Action, CpuSet, Decision, Event, FailedAction, Note, NoteTopic, Observation, Plan, Program,
    ProgramId, ProgramSample, Seat, SeatMode, Topology,
};

use self::placement::{FixedRequest, place};
use crate::Policy;
use crate::action_diff::{ActionDiff, DesiredSeats};
use crate::simple::track_programs;

/// A seating policy combined with seats of fixed sizes.
#[derive(Debug)]
pub struct FixedSeats<P> {
    topology: Topology,
    inner: P,
    /// Programs with a fixed number of cores.
    fixed: BTreeMap<ProgramId, Program>,
    /// Their seats. A program with pinned threads has none.
    seats: BTreeMap<ProgramId, CpuSet>,
    /// All other programs.
    others: BTreeMap<ProgramId, Program>,
    /// The seats that the seating policy requested last.
    requested: DesiredSeats,
    /// The last plan of the seating policy.
    plan: Option<Plan>,
    /// The last value of [`Decision::soft_seats`] of the seating policy.
    soft_seats: bool,
    usable: CpuSet,
    diff: ActionDiff,
    /// Whether a fixed program is present, or was present at the last decision.
    active: bool,
}

/// The parts of an observation.
struct Routed {
    inner: Observation,
    /// Whether the fixed programs have changed.
    changed: bool,
}

impl<P: Policy> FixedSeats<P> {
    /// Wraps a seating policy for a machine.
    pub fn new(topology: Topology, inner: P) -> Self {
        Self {
            usable: topology.all_cpus(),
            topology,
            inner,
            fixed: BTreeMap::new(),
            seats: BTreeMap::new(),
            others: BTreeMap::new(),
            requested: BTreeMap::new(),
            plan: None,
            soft_seats: false,
            diff: ActionDiff::default(),
            active: false,
        }
    }

    /// Calls the seating policy, and stores the parts of its decision that later decisions need.
    fn call_inner(&mut self, observation: &Observation) -> Decision {
        let decision = self.inner.decide(observation);
        for action in &decision.actions {
            let seat = match action {
                Action::Seat { cpus, .. } => Some(cpus.clone()),
                Action::Release { .. } => None,
                Action::Freeze { .. } | Action::Thaw { .. } | Action::Demote { .. } => continue,
            };
            self.requested.insert(action.program(), seat);
        }
        if let Some(plan) = &decision.plan {
            self.plan = Some(plan.clone());
        }
        self.soft_seats = decision.soft_seats.unwrap_or(self.soft_seats);
        decision
    }

    /// Decides without fixed programs: returns the decision of the seating policy.
    fn pass_on(&mut self, observation: &Observation) -> Decision {
        track_programs(&mut self.others, &observation.events);
        for event in &observation.events {
            if let Event::Departed(id) = event {
                self.requested.remove(id);
                self.diff.forget(*id);
            }
        }
        self.diff.mark_failed(&observation.failed);
        self.usable.clone_from(&observation.usable);
        let decision = self.call_inner(observation);
        // Records the requests, from which the first fixed program starts.
        let requested = self.requested.clone();
        self.diff.move_to(&requested);
        decision
    }

    /// Separates the input of the seating policy from the input about fixed programs.
    fn route(&mut self, observation: &Observation) -> Routed {
        let mut fixed = Vec::new();
        let mut inner = Vec::new();
        for event in &observation.events {
            let is_fixed = match event {
                Event::Arrived(program) => program.cores.is_some(),
                Event::Departed(id)
                | Event::Repeated { program: id, .. }
                | Event::Limited { program: id, .. } => self.fixed.contains_key(id),
                Event::Seating { .. } => false,
            };
            let (events, programs) = match is_fixed {
                true => (&mut fixed, &mut self.fixed),
                false => (&mut inner, &mut self.others),
            };
            track_programs(programs, std::slice::from_ref(event));
            events.push(event.clone());
            if let Event::Departed(id) = event {
                self.seats.remove(id);
                self.requested.remove(id);
                self.diff.forget(*id);
            }
        }
        self.diff.mark_failed(&observation.failed);
        let is_others = |failure: &&FailedAction| self.is_of_inner(&failure.action);
        let has_sample = |sample: &&ProgramSample| !self.fixed.contains_key(&sample.id);
        Routed {
            changed: fixed.iter().any(|e| !matches!(e, Event::Repeated { .. })),
            inner: Observation {
                events: inner,
                failed: observation
                    .failed
                    .iter()
                    .filter(is_others)
                    .cloned()
                    .collect(),
                programs: observation
                    .programs
                    .iter()
                    .filter(has_sample)
                    .cloned()
                    .collect(),
                usable: observation.usable.clone(),
                at_ns: observation.at_ns,
                metering: observation.metering.clone(),
            },
        }
    }

    /// Returns whether the seating policy requested an action. A seat that only keeps a program off
    /// the fixed cores is a request of this wrapper.
    fn is_of_inner(&self, action: &Action) -> bool {
        let id = action.program();
        let requested = self.requested.get(&id).and_then(Option::as_ref);
        !self.fixed.contains_key(&id)
            && match action {
                Action::Seat { .. } => requested.is_some(),
                _ => true,
            }
    }

    /// The usable part of the machine.
    fn machine(&self) -> Topology {
        let machine = self.topology.restrict(&self.usable);
        machine.unwrap_or_else(|_| self.topology.clone())
    }

    /// Places the fixed programs. Returns notes about programs whose seat is new.
    fn place_fixed(&mut self) -> Vec<Note> {
        let request = |program: &Program| FixedRequest {
            id: program.id,
            cores: program.cores.map_or(1, |cores| cores as usize).max(1),
            bound_to: program.bound_to.clone(),
        };
        let seatable = self.fixed.values().filter(|p| p.pinned_to.is_none());
        let requests: Vec<FixedRequest> = seatable.map(request).collect();
        let machine = self.machine();
        let seats = place(&machine, &requests, &self.seats);
        let mut notes = Vec::new();
        for request in &requests {
            let seat = &seats[&request.id];
            if self.seats.get(&request.id) != Some(seat) {
                let actual = machine.cores_in(seat).len();
                notes.push(Note {
                    program: Some(request.id),
                    text: seat_note(request.cores, actual),
                    topic: NoteTopic::FixedSeat,
                });
            }
        }
        self.seats = seats;
        notes
    }

    /// CPUs for the programs without a fixed number of cores. All usable CPUs if no core is left.
    fn remaining(&self) -> CpuSet {
        let taken = self.seats.values().fold(CpuSet::new(), |a, b| a.or(b));
        let cores = self.topology.cores_in(&taken);
        let left = self.usable.minus(&self.topology.cpus_of_cores(cores));
        match left.is_empty() {
            true => self.usable.clone(),
            false => left,
        }
    }

    /// The desired seats of all programs.
    fn desired(&self, remaining: &CpuSet) -> DesiredSeats {
        let narrows = !self.fixed.is_empty() && *remaining != self.usable;
        let other = |program: &Program| {
            let requested = self.requested.get(&program.id).cloned().flatten();
            // A stored seat may contain CPUs that became fixed in this decision.
            let requested = requested.map(|cpus| match narrows {
                true => cpus.and(remaining),
                false => cpus,
            });
            let requested = requested.filter(|cpus| !cpus.is_empty());
            let bound = program.bound_to.as_ref();
            let own = bound.map_or_else(|| remaining.clone(), |bound| bound.and(remaining));
            let is_narrowed = narrows && program.pinned_to.is_none() && !own.is_empty();
            (program.id, requested.or(is_narrowed.then_some(own)))
        };
        let fixed = |&id: &ProgramId| {
            let seat = self.seats.get(&id);
            (id, seat.filter(|seat| **seat != self.usable).cloned())
        };
        let others = self.others.values().map(other);
        others.chain(self.fixed.keys().map(fixed)).collect()
    }

    /// Adds the fixed seats to the last plan of the seating policy.
    fn merged_plan(&self) -> Plan {
        let machine = self.machine();
        let mut plan = self.plan.clone().unwrap_or_default();
        plan.abstains &= !self.others.is_empty();
        for &id in self.fixed.keys() {
            let seat = self.seats.get(&id);
            let overlaps = |other: &CpuSet| seat.is_none_or(|seat| seat.intersects(other));
            let others = self.seats.iter().filter(|&(&other, _)| other != id);
            let mut others = others.map(|(_, cpus)| cpus);
            let is_shared = seat.is_none()
                || others.any(overlaps)
                || !self.others.is_empty() && overlaps(&self.remaining());
            let cpus = seat.cloned().unwrap_or_else(|| self.usable.clone());
            plan.seats.push(Seat {
                program: id,
                domains: machine.domains_in(&cpus),
                cpus,
                mode: match is_shared {
                    true => SeatMode::Shared,
                    false => SeatMode::Seated,
                },
                ntt: None,
            });
        }
        plan.seats.sort_by_key(|seat| seat.program);
        plan
    }

    /// Replaces the seats in a decision of the seating policy by the merged seats.
    fn merge(&mut self, decision: Decision, remaining: &CpuSet, changed: bool) -> Decision {
        let wanted = self.desired(remaining);
        let (freezes, rest): (Vec<_>, Vec<_>) = decision
            .actions
            .into_iter()
            .filter(|action| !matches!(action, Action::Seat { .. } | Action::Release { .. }))
            .partition(|action| matches!(action, Action::Freeze { .. }));
        let actions = [freezes, self.diff.move_to(&wanted), rest].concat();
        let plan = (decision.plan.is_some() || changed).then(|| self.merged_plan());
        let is_soft = self.soft_seats && self.fixed.is_empty();
        Decision {
            actions,
            soft_seats: (decision.soft_seats.is_some() || changed).then_some(is_soft),
            plan,
            ..decision
        }
    }
}

impl<P: Policy> Policy for FixedSeats<P> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        let arrives = |event: &Event| matches!(event, Event::Arrived(p) if p.cores.is_some());
        if !self.active && !observation.events.iter().any(arrives) {
            return self.pass_on(observation);
        }
        let Routed { mut inner, changed } = self.route(observation);
        let moved = self.usable != observation.usable;
        self.usable.clone_from(&observation.usable);
        let mut notes = Vec::new();
        if changed || moved && !self.fixed.is_empty() {
            notes = self.place_fixed();
        }
        let is_present = !self.fixed.is_empty();
        let remaining = self.remaining();
        inner.usable.clone_from(&remaining);
        let decision = self.call_inner(&inner);
        self.active = is_present;
        let mut decision = self.merge(decision, &remaining, changed || moved);
        decision.notes.extend(notes);
        decision
    }
}

/// Describes a new seat.
fn seat_note(requested: usize, actual: usize) -> String {
    let cores = |count: usize| match count {
        1 => "1 core".to_owned(),
        count => format!("{count} cores"),
    };
    match actual < requested {
        true => format!(
            "the seat is fixed at {}, because the program may use no more; --cores or a rule requests {}",
            cores(actual),
            cores(requested)
        ),
        false => format!(
            "the seat is fixed at {} by --cores or a rule",
            cores(requested)
        ),
    }
}
