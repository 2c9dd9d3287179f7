// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate variation of seats, so that ordinary runs measure programs without a counter of
//! progress.
//!
//! The duration of a run on a seat of its own is a point of the program's curve. While the policy
//! leaves all programs to the kernel, the store gets no such point. For some runs, the policy
//! therefore gives seats to all programs instead of leaving them to the kernel:
//!
//! 1. Variation needs a plan that leaves the programs to the kernel for lack of measurements or of
//!    predicted gain. No comparison and no measurement with progress may be running.
//! 2. Each program must have a budget ([`VariationBudget`]). A program with pinned threads, a
//!    binding, a quota, a fixed seat, another weight than the others, busy-waiting threads or a
//!    failed action forbids variation. So does a program that was attached while it ran.
//! 3. The seats are equal shares of the machine. If no program needs a measurement on its share,
//!    they are halves of the shares. A single program gets half of the machine.
//! 4. A program needs a measurement if its stored curve has a point on more cores, but no point on
//!    this number of cores with an error of at most 10 %. The first ordinary run gives the point on
//!    more cores.
//! 5. Module `crate::variation` gives the greatest loss per second. The variation starts only if the
//!    budget of each program lasts for 60 % of its usual run.
//! 6. The variation ends when a program has used up its budget, when it departs, or when another
//!    program arrives. After an arrival, the conditions are checked again.
//!
//! The variation of a program stops for good when its curve has enough points.
//!
//! *Cost.* A check takes one search of the planner. During a variation, each decision takes linear
//! time in the number of programs.
//!
//! [`VariationBudget`]: usher_model::VariationBudget

use std::collections::BTreeMap;

use usher_model::{Abstention, CpuSet, Plan, ProgramId, Seat, SeatMode};

use super::managed_program::{ManagedProgram, half_of};
use super::remap::remap;
use super::{ReplanReason, Usher};
use crate::seating::seat;
use crate::variation::{loss_rate, time_shares};

/// Least fraction of the usual run for which the budget must last.
const COVERED_MIN: f64 = 0.6;

/// The seats of a variation.
type Seats = BTreeMap<ProgramId, CpuSet>;

/// State of the variation.
#[derive(Debug, Clone, Default)]
pub(super) struct Variation {
    /// Losses per second of the variation in force, by program; empty without variation.
    rates: BTreeMap<ProgramId, f64>,
    since_ns: u64,
}

impl Variation {
    /// Whether seats are narrowed for variation.
    pub fn is_on(&self) -> bool {
        !self.rates.is_empty()
    }
}

impl Usher {
    /// Adds the losses since the last decision. Requests a new plan when a budget is used up.
    pub(super) fn spend_variation(&mut self, at_ns: u64) {
        let seconds = at_ns.saturating_sub(self.variation.since_ns) as f64 * 1e-9;
        self.variation.since_ns = at_ns;
        let mut is_over = false;
        for (id, rate) in &self.variation.rates {
            if let Some(member) = self.members.get_mut(id) {
                member.lost_seconds += rate * seconds;
                is_over |= member.budget_left() <= 0.0;
            }
        }
        if is_over {
            self.request_replan(ReplanReason::Step);
        }
    }

    /// Returns `plan`, or the seats of a variation if `plan` leaves the programs to the kernel.
    /// `changed`: programs or CPUs were added or removed.
    pub(super) fn vary(&mut self, plan: Plan, changed: bool) -> Plan {
        let was_on = self.variation.is_on() && !changed;
        let permits = matches!(
            plan.abstention,
            Some(
                Abstention::Unmeasured(_) | Abstention::SmallGain { .. } | Abstention::Unrestricted
            )
        );
        self.variation.rates.clear();
        if !(plan.abstains && permits && self.permits_variation()) {
            return plan;
        }
        let Some((seats, rates)) = self.varied_seats(was_on) else {
            return plan;
        };
        if !was_on {
            self.log(
                None,
                "the programs have seats in this run, so that Usher measures how fast they are on \
                 fewer CPUs (deliberate variation, docs/policies.md)",
            );
        }
        self.variation.rates.clone_from(&rates);
        let seats = seats.into_iter().map(|(program, cpus)| Seat {
            program,
            domains: self.topology.domains_in(&cpus),
            cpus,
            mode: SeatMode::Seated,
            ntt: None,
        });
        let plan = Plan {
            seats: seats.collect(),
            varied: rates,
            ..Plan::default()
        };
        remap(&self.topology, plan, &self.last_seats)
    }

    /// Whether all programs may be moved to narrower seats.
    fn permits_variation(&self) -> bool {
        let mut weights = self.members.values().map(|member| member.program.weight);
        let first = weights.next();
        let is_exploring = self.survey.is_on() || self.comparison.is_on();
        !is_exploring
            && weights.all(|weight| Some(weight) == first)
            && self.members.values().all(ManagedProgram::permits_variation)
    }

    /// Returns the seats of a variation with the losses per second; `None` if no program needs one,
    /// or a budget does not suffice.
    fn varied_seats(&self, was_on: bool) -> Option<(Seats, BTreeMap<ProgramId, f64>)> {
        let shares = self.equal_shares()?;
        let half = |cpus: &CpuSet| half_of(cpus, &self.topology);
        let halves = shares.iter().map(|(&id, cpus)| Some((id, half(cpus)?)));
        let halves: Option<Seats> = halves.collect();
        let all = self.topology.all_cpus();
        let narrow = [Some(shares), halves].into_iter().flatten();
        let mut narrow = narrow.filter(|seats| seats.values().all(|cpus| *cpus != all));
        let needs = |(id, cpus): (&ProgramId, &CpuSet)| {
            let cores = self.topology.capacity_of(cpus);
            let member = self.members.get(id);
            member.is_some_and(|member| member.needs_point(cores))
        };
        let seats = narrow.find(|seats| seats.iter().any(needs))?;
        let fits = |(id, cpus): (&ProgramId, &CpuSet)| {
            let cores = self.topology.cores_in(cpus).len();
            let member = self.members.get(id);
            member.is_some_and(|member| member.narrowest_cores() as usize <= cores)
        };
        if !seats.iter().all(fits) {
            return None;
        }
        let rates = self.loss_rates(&seats);
        let lasts = |(id, &rate): (&ProgramId, &f64)| {
            self.members.get(id).is_some_and(|member| {
                let usual = member.program.variation;
                let seconds = usual.map_or(0.0, |usual| COVERED_MIN * usual.usual_seconds);
                let seconds = if was_on { 0.0 } else { seconds };
                member.budget_left() > 0.0 && member.budget_left() >= rate * seconds
            })
        };
        rates.iter().all(lasts).then_some((seats, rates))
    }

    /// Returns disjoint seats with equal shares of the machine; `None` if there are none.
    fn equal_shares(&self) -> Option<Seats> {
        let fair = |member: &ManagedProgram| {
            let curve = member.fair_start(&self.topology, self.members.len());
            member.request(&self.topology, &curve.curve)
        };
        let requests: Vec<_> = self.members.values().map(fair).collect();
        let plan = seat(&self.topology, &requests).ok()?.plan;
        let mut used = CpuSet::new();
        let mut seats = Seats::new();
        for seat in plan.seats {
            if seat.mode != SeatMode::Seated || seat.cpus.intersects(&used) {
                return None;
            }
            used = used.or(&seat.cpus);
            seats.insert(seat.program, seat.cpus);
        }
        (seats.len() == self.members.len()).then_some(seats)
    }

    /// Returns the greatest loss per second of each program on these seats.
    fn loss_rates(&self, seats: &Seats) -> BTreeMap<ProgramId, f64> {
        let cores_max = self.cores_max();
        let demand = |member: &ManagedProgram| {
            let usual = member.program.variation;
            usual.map_or(cores_max, |usual| usual.usual_cpus.min(cores_max))
        };
        let demands: Vec<f64> = self.members.values().map(demand).collect();
        let shares = time_shares(&demands, cores_max);
        let rate = |(&id, share): (&ProgramId, f64)| {
            let cores = seats
                .get(&id)
                .map_or(cores_max, |cpus| self.topology.capacity_of(cpus));
            (id, loss_rate(cores, share))
        };
        self.members.keys().zip(shares).map(rate).collect()
    }
}
