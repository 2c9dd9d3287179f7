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
//! 3. The seats are the first of these three that give a program a needed measurement within all
//!    budgets: equal shares of the machine, about the numbers of CPUs that the kernel would give to
//!    the programs, halves of the equal shares. A single program gets half of the machine.
//! 4. A program needs a measurement if its stored curve has a point on more cores, but no point on
//!    this number of cores with an error of at most 10 %. The first ordinary run gives the point on
//!    more cores.
//! 5. Module `crate::variation` gives the greatest loss per second. The variation starts only if the
//!    budget of each program lasts for 60 % of its usual run. A seat thereby has at least the
//!    fraction `1 - budget / (60 % * usual duration)` of the CPUs that the kernel would give to the
//!    program.
//! 6. The variation ends when a program has used up its budget, when it departs, or when another
//!    program arrives. After an arrival, the conditions are checked again.
//!
//! The variation of a program stops for good when its curve has enough points.
//!
//! *Cost.* A check takes up to three searches of the planner. During a variation, each decision
//! takes linear time in the number of programs.
//!
//! [`VariationBudget`]: usher_model::VariationBudget

use std::collections::BTreeMap;

use usher_model::{Abstention, CpuSet, Plan, ProgramId, Seat, SeatMode};

use super::managed_program::{ManagedProgram, half_of, scales_to};
use super::remap::remap;
use super::{ReplanReason, Usher};
use crate::seating::seat;
use crate::variation::{loss_rate, time_shares};

/// Least fraction of the usual run for which the budget must last.
const COVERED_MIN: f64 = 0.6;

/// The seats of a variation.
type Seats = BTreeMap<ProgramId, CpuSet>;
/// Greatest loss per second of each program on the seats of a variation.
type LossRates = BTreeMap<ProgramId, f64>;

/// State of the variation.
#[derive(Debug, Clone, Default)]
pub(super) struct Variation {
    /// Losses of the variation in force; empty without variation.
    rates: LossRates,
    /// The seats of the variation in force.
    seats: Seats,
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
        self.variation.seats.clone_from(&seats);
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

    /// Returns the seats of a variation with the losses per second; `None` if no seats give a needed
    /// measurement within all budgets. The seats of the variation in force are kept.
    fn varied_seats(&self, was_on: bool) -> Option<(Seats, LossRates)> {
        if was_on {
            return self.within_budgets(self.variation.seats.clone(), was_on);
        }
        let useful = |seats: Seats| {
            let is_useful = self.are_useful(&seats);
            is_useful.then(|| self.within_budgets(seats, was_on))?
        };
        let equal = self.equal_seats();
        let halves = |seats: &Seats| self.halves(seats).and_then(useful);
        equal
            .clone()
            .and_then(useful)
            .or_else(|| self.kernel_share_seats().and_then(useful))
            .or_else(|| equal.as_ref().and_then(halves))
    }

    /// Returns the seats with the losses per second; `None` if a seat has fewer cores than its
    /// program needs, or if a budget does not suffice.
    fn within_budgets(&self, seats: Seats, was_on: bool) -> Option<(Seats, LossRates)> {
        let rates = self.loss_rates(&seats);
        let suffices = |(&id, &rate): (&ProgramId, &f64)| self.budget_suffices(id, rate, was_on);
        let permitted = self.are_wide_enough(&seats) && rates.iter().all(suffices);
        permitted.then_some((seats, rates))
    }

    /// Whether the seats are narrower than the machine, and a program needs a measurement on its
    /// seat.
    fn are_useful(&self, seats: &Seats) -> bool {
        let all = self.topology.all_cpus();
        let needs = |(id, cpus): (&ProgramId, &CpuSet)| {
            let cores = self.topology.capacity_of(cpus);
            let member = self.members.get(id);
            member.is_some_and(|member| member.needs_point(cores))
        };
        seats.values().all(|cpus| *cpus != all) && seats.iter().any(needs)
    }

    /// Whether each seat has the cores that its program needs.
    fn are_wide_enough(&self, seats: &Seats) -> bool {
        seats.iter().all(|(id, cpus)| {
            let cores = self.topology.cores_in(cpus).len();
            let member = self.members.get(id);
            member.is_some_and(|member| member.narrowest_cores() as usize <= cores)
        })
    }

    /// Whether the budget of a program lasts for a loss of `rate` per second: for 60 % of its usual
    /// run, or for any time if the variation `was_on` before.
    fn budget_suffices(&self, id: ProgramId, rate: f64, was_on: bool) -> bool {
        self.members.get(&id).is_some_and(|member| {
            let usual = member.program.variation;
            let seconds = usual.map_or(0.0, |usual| COVERED_MIN * usual.usual_seconds);
            let seconds = if was_on { 0.0 } else { seconds };
            member.budget_left() > 0.0 && member.budget_left() >= rate * seconds
        })
    }

    /// Returns half of each seat; `None` if a seat cannot be halved.
    fn halves(&self, seats: &Seats) -> Option<Seats> {
        let half = |(&id, cpus)| Some((id, half_of(cpus, &self.topology)?));
        seats.iter().map(half).collect()
    }

    /// Returns disjoint seats with equal shares of the machine; `None` if there are none.
    fn equal_seats(&self) -> Option<Seats> {
        let share = self.cores_max() / self.members.len() as f64;
        self.disjoint_seats(&vec![share; self.members.len()])
    }

    /// Returns disjoint seats of about the number of CPUs that the kernel would give to each
    /// program; `None` if there are none.
    fn kernel_share_seats(&self) -> Option<Seats> {
        self.disjoint_seats(&self.kernel_shares())
    }

    /// Returns disjoint seats of about these numbers of cores, in the order of the programs; `None`
    /// if there are none.
    fn disjoint_seats(&self, cores: &[f64]) -> Option<Seats> {
        let scaling = |(member, &cores): (&ManagedProgram, &f64)| {
            let curve = scales_to(cores.max(1.0));
            member.request(&self.topology, &curve)
        };
        let requests: Vec<_> = self.members.values().zip(cores).map(scaling).collect();
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

    /// Returns the number of CPUs that the kernel would give to each program, in the order of the
    /// programs.
    fn kernel_shares(&self) -> Vec<f64> {
        let cores_max = self.cores_max();
        let demand = |member: &ManagedProgram| {
            let usual = member.program.variation;
            usual.map_or(cores_max, |usual| usual.usual_cpus.min(cores_max))
        };
        let demands: Vec<f64> = self.members.values().map(demand).collect();
        time_shares(&demands, cores_max)
    }

    /// Returns the greatest loss per second of each program on these seats.
    fn loss_rates(&self, seats: &Seats) -> LossRates {
        let cores_max = self.cores_max();
        let shares = self.kernel_shares();
        let rate = |(&id, share): (&ProgramId, f64)| {
            let cores = seats
                .get(&id)
                .map_or(cores_max, |cpus| self.topology.capacity_of(cpus));
            (id, loss_rate(cores, share))
        };
        self.members.keys().zip(shares).map(rate).collect()
    }
}
