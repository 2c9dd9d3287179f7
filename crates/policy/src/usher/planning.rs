// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the plan of policy `usher`.
//!
//! 1. Check whether seats are possible: every program must have data to predict its progress, and
//!    fewer than five failed actions since the last 60 s without a failure. If one program fails
//!    the check, no program gets a seat: all programs are left to the kernel, and a note names the
//!    first such program.
//! 2. Compute the best separate seats (`seating`).
//! 3. Choose among these seats, the seats in force, two programs on the union of their seats, turns
//!    on all cores and time sharing, by their predicted ANTT. The ANTT is the weighted mean of the
//!    slow-downs against a run alone. Results of an earlier comparison with the same programs take
//!    precedence over predictions.
//!
//! Seats in force are kept if they are about as good as new seats, because a move has a cost. While
//! seats are being compared with time sharing, measurements do not change the plan.
//!
//! *Limits.* A plan is made at once after programs or CPUs were added or removed. A plan for new
//! measurements alone is made at most once per hold time, 1 to 32 s. Errors of the planner leave
//! all programs to the kernel; the next reason for a plan tries again.
//!
//! *Cost.* A plan takes one fit per program (module `fit`), one search of the planner (module
//! `seating`), and the mapping to the old CPUs (module `remap`). A comparison adds a prediction per
//! pair of programs.

use std::collections::BTreeMap;

use usher_model::{Abstention, Note, Plan, ProgramId, SeatMode};

use super::compare::{CompareStep, Comparison};
use super::curve_data::CurveEstimate;
use super::managed_program::ManagedProgram;
use super::pair::most_promising;
use super::partitions::partitions;
use super::remap::remap;
use super::seat_decision::{SeatDecision, SharingNtt, predict_gain};
use super::turns::{GAIN, plan_turns};
use super::{FAILURES_MAX, HOLD_NS_MAX, HOLD_NS_MIN, KEEP_MARGIN, ReplanReason, Usher};
use crate::seating::{Request, seat};
use crate::simple::{desired_seats, shared_plan};
use crate::timeshare::time_sharing;

/// Input of the planning.
struct PlanInput<'a> {
    requests: &'a [Request],
    estimates: &'a BTreeMap<ProgramId, CurveEstimate>,
    /// Whether programs or CPUs were added or removed.
    changed: bool,
}

impl Usher {
    /// Makes a new plan if there is a reason for it, unless a hold time, a survey or a comparison
    /// forbids a plan for this reason. Returns whether a new plan was made.
    pub(super) fn replan(&mut self, at_ns: u64) -> bool {
        match self.replan_reason {
            Some(ReplanReason::Changed) => {
                self.survey.stop();
                self.hold_ns = HOLD_NS_MIN;
                self.hold_until_ns = 0;
            }
            Some(ReplanReason::Step) => {}
            Some(ReplanReason::Measured) if at_ns >= self.hold_until_ns && !self.is_trying() => {}
            _ => return false,
        }
        let reason = self.replan_reason.take();
        let plan = self.best_plan(reason == Some(ReplanReason::Changed));
        let plan = self.vary(plan, reason == Some(ReplanReason::Changed));
        self.planned_at = Some(self.comparison);
        let all = self.topology.all_cpus();
        let takes_turns = !self.planned_turns.is_empty();
        let moves = desired_seats(&plan, &all) != desired_seats(&self.plan, &all)
            || takes_turns != self.turns.are_taken();
        if moves && reason == Some(ReplanReason::Measured) {
            let soon = at_ns < self.hold_until_ns + 4 * self.hold_ns;
            self.hold_ns = if soon {
                (2 * self.hold_ns).min(HOLD_NS_MAX)
            } else {
                HOLD_NS_MIN
            };
            self.hold_until_ns = at_ns + self.hold_ns;
        }
        self.plan = plan;
        true
    }

    /// Whether a survey or a comparison is in progress, during which measurements do not change the
    /// plan.
    fn is_trying(&self) -> bool {
        let planned = self.planned_at == Some(self.comparison);
        self.survey.is_on() || self.comparison.is_on() && planned
    }

    fn best_plan(&mut self, changed: bool) -> Plan {
        self.planned_turns.clear();
        let shared = shared_plan(&self.topology, self.members.keys());
        if self.members.is_empty() {
            return Plan::default();
        }
        if let Some(cause) = self.cannot_plan() {
            let note = self.note_of(&cause);
            self.notes.push(note);
            return because(shared, cause);
        }
        let estimates: BTreeMap<_, _> = self
            .members
            .iter()
            .map(|(&id, m)| (id, m.curve_estimate(&self.topology, self.members.len())))
            .collect();
        let requests: Vec<_> = self
            .members
            .values()
            .map(|m| m.request(&self.topology, &estimates[&m.program.id].curve))
            .collect();
        let narrow = match seat(&self.topology, &requests) {
            Ok(seating) => partitions(&self.topology, &requests).unwrap_or(seating.plan),
            Err(error) => {
                self.log(
                    None,
                    format!("no program has a seat, and all programs share all CPUs: {error}"),
                );
                return because(shared, Abstention::Rejected(error.to_string()));
            }
        };
        let bound = requests.iter().any(|request| request.bound_to.is_some());
        let narrow = match bound {
            true => narrow,
            false => remap(&self.topology, narrow, &self.last_seats),
        };
        let input = PlanInput {
            requests: &requests,
            estimates: &estimates,
            changed,
        };
        let plan = self.choose(narrow, shared, &input);
        let assumed = estimates.iter();
        let assumed = assumed.filter(|(_, estimate)| estimate.confidence == 0.0);
        let assumed: Vec<ProgramId> = assumed.map(|(&id, _)| id).collect();
        match assumed.is_empty() {
            true => plan,
            false => without_predictions(plan, assumed),
        }
    }

    /// Chooses the alternative with the best predicted ANTT: the new seats, the present seats,
    /// turns, or no seats.
    fn choose(&mut self, narrow: Plan, shared: Plan, input: &PlanInput) -> Plan {
        let ntt = self.sharing_ntt(input);
        if let Some(plan) = self.step_of_comparison(&narrow, &shared, &ntt, input.requests) {
            return plan;
        }
        let all = self.topology.all_cpus();
        let narrows = narrow.seats.iter().any(|seat| seat.cpus != all);
        let seated = narrow
            .seats
            .iter()
            .any(|seat| seat.mode == SeatMode::Seated);
        let is_trying_seats = self.comparison.tries(CompareStep::Seats);
        let explores = narrows
            && seated
            && (is_trying_seats || self.members.values().any(ManagedProgram::explores));
        let pair = match explores {
            true => None,
            false => self.better_pair(input),
        };
        let best = pair.as_ref().unwrap_or(&narrow);
        let decision = self.predict_gain(best, &ntt, input.requests);
        let antt_time_sharing = Some(decision.antt_sharing);
        let favours_seats = narrows && decision.favours_seats;
        let rival = match favours_seats {
            true => decision.antt_seats.min(decision.antt_sharing),
            false => decision.antt_sharing,
        };
        let turns = match explores {
            true => Err(None),
            false => self.turns_worth_it(input.requests, rival),
        };
        let no_turns = match turns {
            Ok(plan) => {
                return Plan {
                    antt_time_sharing,
                    ..plan
                };
            }
            Err(reason) => reason.map_or_else(String::new, |reason| {
                format!("; the programs do not take turns, because {reason}")
            }),
        };
        let sentence = decision.sentence(narrows, explores);
        self.log(None, format!("{sentence}{no_turns}"));
        let plan = match explores || favours_seats {
            true => self.new_or_in_force(pair, narrow, input),
            false => Plan {
                antt: Some(decision.antt_seats).filter(|antt| antt.is_finite()),
                abstention: Some(decision.abstention(narrows)),
                ..with_ntt(shared, &ntt)
            },
        };
        Plan {
            antt_time_sharing,
            ..plan
        }
    }

    /// Returns the plan for the present step of the comparison; `None` in the step with separate
    /// seats, or without a comparison.
    fn step_of_comparison(
        &mut self,
        narrow: &Plan,
        shared: &Plan,
        ntt: &[f64],
        requests: &[Request],
    ) -> Option<Plan> {
        if let Comparison::Trying(CompareStep::Pair, since_ns) = self.comparison {
            let pair = most_promising(&self.topology, &self.plan, requests);
            self.pair = pair.map(|pair| pair.in_plan(&self.plan, &self.topology));
            if let Some(plan) = self.pair.clone() {
                self.log(
                    None,
                    format!(
                        "{} for a moment, so that Usher can measure their progress on the shared \
                         CPUs",
                        self.pair_text(&plan)
                    ),
                );
                return Some(plan);
            }
            self.comparison = Comparison::Trying(CompareStep::Sharing, since_ns);
        }
        if !self.comparison.tries(CompareStep::Sharing) {
            return None;
        }
        self.log(
            None,
            "all programs share all CPUs for a moment, so that Usher can measure their progress \
             without seats",
        );
        Some(Plan {
            antt: narrow.antt,
            abstention: Some(Abstention::Measuring),
            ..with_ntt(shared.clone(), ntt)
        })
    }

    /// Formats a sentence such as "'a' and 'b' share the CPUs of both their seats".
    fn pair_text(&self, plan: &Plan) -> String {
        let shares = plan
            .seats
            .iter()
            .filter(|seat| seat.mode == SeatMode::Shared);
        let names = shares.filter_map(|seat| self.members.get(&seat.program));
        let names: Vec<_> = names.map(|member| member.program.name.as_str()).collect();
        format!(
            "'{}' share the CPUs of their two seats",
            names.join("' and '")
        )
    }

    /// Whether the present plan has two programs on the union of their seats.
    pub(super) fn is_paired(&self) -> bool {
        let all = self.topology.all_cpus();
        let same = |pair: &Plan| desired_seats(pair, &all) == desired_seats(&self.plan, &all);
        !self.plan.abstains && self.pair.as_ref().is_some_and(same)
    }

    /// Returns the measured plan with two programs on the union of their seats, if it is better
    /// than separate seats.
    fn better_pair(&self, input: &PlanInput) -> Option<Plan> {
        let plan = self.pair.as_ref()?;
        let (mut seats, mut paired) = (0.0, 0.0);
        for request in input.requests {
            let curve_data = &self.members[&request.id].curve_data;
            let estimate = &input.estimates[&request.id];
            let (on_seat, in_pair) = curve_data.paired_ntt(estimate, self.cores_max())?;
            seats += request.weight * on_seat;
            paired += request.weight * in_pair;
        }
        (paired * (1.0 + KEEP_MARGIN) < seats).then(|| Plan {
            antt: Some(paired / input.requests.len() as f64),
            ..plan.clone()
        })
    }

    /// Compares seats with time sharing. `ntt`: the NTT of each request under time sharing.
    fn predict_gain(&mut self, seats: &Plan, ntt: &[f64], requests: &[Request]) -> SeatDecision {
        let compared = self.members.values().all(|m| m.curve_data.was_compared());
        let sharing = SharingNtt { ntt, compared };
        let seats_in_force = !self.seats.is_empty() && self.plan.varied.is_empty();
        let mut decision = predict_gain(seats, requests, &sharing, seats_in_force);
        if compared {
            self.comparison_favours_seats = Some(decision.favours_seats);
        } else if !self.is_comparable() {
            self.comparison_favours_seats = None;
        } else if let Some(favours_seats) = self.comparison_favours_seats {
            // A program has entered a new phase since the comparison. Until the next comparison,
            // the result of the comparison is still more reliable than a prediction.
            decision.by_comparison = true;
            decision.favours_seats = favours_seats;
        }
        decision
    }

    /// Returns `pair`, if given. Otherwise returns the present plan if it is about as good as the
    /// new seats `narrow`, or else `narrow`.
    fn new_or_in_force(&mut self, pair: Option<Plan>, narrow: Plan, input: &PlanInput) -> Plan {
        if let Some(plan) = &pair
            && !self.is_paired()
        {
            self.log(None, self.pair_text(plan));
        }
        let keeps = !input.changed
            && self.plan.varied.is_empty()
            && !self.is_paired()
            && self.in_force_is_as_good(&narrow, input.requests);
        let plan = match pair {
            Some(plan) => plan,
            None if keeps => self.plan.clone(),
            None => narrow,
        };
        Plan {
            abstains: false,
            abstention: None,
            ..plan
        }
    }

    /// Returns the plan in which all programs take turns. Conditions: a program busy-waits, all
    /// programs can be stopped, and turns are sufficiently better than `rival`, the ANTT of the
    /// best alternative. Otherwise returns the reason against turns; `None`: the reason is obvious.
    fn turns_worth_it(
        &mut self,
        requests: &[Request],
        rival: f64,
    ) -> Result<Plan, Option<&'static str>> {
        let spins = |member: &ManagedProgram| member.spinning_threads() > 1;
        if requests.len() < 2 || !self.members.values().any(spins) {
            return Err(None);
        }
        if self.members.values().any(|m| m.program.ran_before) {
            return Err(Some(
                "some programs were already running when they were attached",
            ));
        }
        if self.members.values().any(|m| !m.program.stops_unseen) {
            return Err(Some(
                "without cgroup v2 the parents of the programs would notice the stops",
            ));
        }
        let (plan, turns) = plan_turns(&self.topology, requests).map_err(Some)?;
        let antt = plan.antt.ok_or(None)?;
        let worth_it = match self.turns.are_taken() {
            true => antt < rival * (1.0 + KEEP_MARGIN),
            false => antt * (1.0 + GAIN) < rival,
        };
        if !worth_it {
            return Err(Some("the programs would gain too little"));
        }
        self.planned_turns = turns;
        self.log(
            None,
            format!(
                "the programs take turns on all cores, because some programs busy-wait: predicted \
                 ANTT {antt:.2}, against {rival:.2} without turns"
            ),
        );
        Ok(plan)
    }

    /// NTT of each program if all programs are left to the kernel. Measured if the NTTs of all
    /// programs were measured, otherwise predicted.
    fn sharing_ntt(&self, input: &PlanInput) -> Vec<f64> {
        let PlanInput {
            requests,
            estimates,
            ..
        } = input;
        // Spinning threads lose by time sharing, even in a program that may have fewer cores than
        // threads. Threads that are only suspected to spin do not count.
        let spinning = |r: &Request| Request {
            spinners: self.members[&r.id].spinning_threads(),
            ..r.clone()
        };
        let spinning: Vec<_> = requests.iter().map(spinning).collect();
        let predicted = time_sharing(&self.topology, &spinning);
        let predicted = self.with_usual_waits(requests, predicted);
        let measured = requests.iter().map(|r| {
            self.members[&r.id]
                .curve_data
                .shared_ntt(&estimates[&r.id], self.cores_max())
        });
        let measured: Option<Vec<_>> = measured.collect();
        measured.unwrap_or(predicted)
    }

    /// Raises predicted NTTs under time sharing to the usual slowdown by waits for CPUs in earlier
    /// runs, but at most to the load of the machine: the number of CPUs that all programs would use
    /// alone, divided by the number of CPUs of the machine.
    fn with_usual_waits(&self, requests: &[Request], predicted: Vec<f64>) -> Vec<f64> {
        let cores_max = self.cores_max();
        let usual = |request: &Request| self.members[&request.id].program.variation;
        let demand = |request: &Request| {
            let known = usual(request).map(|usual| usual.usual_cpus);
            let cpus = known.or_else(|| request.curve.busy_cpus(cores_max));
            cpus.map_or(0.0, |cpus| cpus.min(cores_max))
        };
        let load = requests.iter().map(demand).sum::<f64>() / cores_max;
        let raised = |(request, ntt): (&Request, f64)| {
            let slowdown = usual(request).map_or(1.0, |usual| usual.usual_slowdown);
            let curve = &request.curve;
            let unshared = curve.best_rate(cores_max) / curve.rate(cores_max);
            ntt.max(slowdown.min(load) * unshared)
        };
        requests.iter().zip(predicted).map(raised).collect()
    }

    /// Whether the present seats are predicted to be about as good as a new plan.
    fn in_force_is_as_good(&self, new: &Plan, requests: &[Request]) -> bool {
        let cores_max = self.cores_max();
        let ntt = |request: &Request| {
            let seat = self.seats.get(&request.id)?;
            let programs_on_seat =
                self.seats.values().filter(|&other| other == seat).count() as f64;
            let rate = request.curve.rate(self.topology.capacity_of(seat));
            Some(programs_on_seat * request.weight * request.curve.best_rate(cores_max) / rate)
        };
        let sum: Option<f64> = requests.iter().map(ntt).sum();
        let now = sum.map(|sum| sum / requests.len() as f64);
        now.zip(new.antt)
            .is_some_and(|(now, antt)| now <= antt * (1.0 + KEEP_MARGIN))
    }

    /// The cause for which seats are impossible; `None`: seats are possible.
    fn cannot_plan(&self) -> Option<Abstention> {
        let mut members = self.members.iter();
        if let Some((&id, _)) = members.find(|(_, member)| member.failures >= FAILURES_MAX) {
            return Some(Abstention::FailedActions(id));
        }
        let cores_max = self.cores_max();
        let unmeasured = self.members.iter();
        let unmeasured = unmeasured.filter(|(_, member)| !member.can_be_planned(cores_max));
        let ids: Vec<ProgramId> = unmeasured.map(|(&id, _)| id).collect();
        (!ids.is_empty()).then_some(Abstention::Unmeasured(ids))
    }

    /// The note for the log about seats that are impossible.
    fn note_of(&self, cause: &Abstention) -> Note {
        let ids = match cause {
            Abstention::Unmeasured(ids) => ids.as_slice(),
            Abstention::FailedActions(id) => std::slice::from_ref(id),
            _ => &[],
        };
        let names = ids.iter().filter_map(|id| self.members.get(id));
        let names: Vec<_> = names.map(|member| member.program.name.as_str()).collect();
        let why = match cause {
            Abstention::FailedActions(_) => "assigning a seat has failed too often for",
            _ => "there is neither a profile nor sufficient progress of",
        };
        let names = names.join("', '");
        let text =
            format!("no program has a seat, and all programs share all CPUs: {why} '{names}'");
        Note::new(None, text)
    }
}

/// Returns a plan that leaves all programs to the kernel, with the cause.
fn because(shared: Plan, cause: Abstention) -> Plan {
    Plan {
        abstention: Some(cause),
        ..shared
    }
}

/// Returns the plan without NTTs. The curves of the programs `assumed` are assumptions for the fair
/// start, from which no NTT can be predicted.
fn without_predictions(plan: Plan, assumed: Vec<ProgramId>) -> Plan {
    let seats = plan.seats.into_iter();
    let seats = seats.map(|seat| usher_model::Seat { ntt: None, ..seat });
    Plan {
        seats: seats.collect(),
        antt: None,
        antt_time_sharing: None,
        abstention: match plan.abstention {
            Some(Abstention::SmallGain { .. }) => Some(Abstention::Unmeasured(assumed)),
            other => other,
        },
        ..plan
    }
}

fn with_ntt(plan: Plan, ntt: &[f64]) -> Plan {
    let seats = plan
        .seats
        .into_iter()
        .zip(ntt)
        .map(|(seat, &ntt)| usher_model::Seat {
            ntt: Some(ntt),
            ..seat
        });
    Plan {
        seats: seats.collect(),
        ..plan
    }
}
