// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making the plan: whether seats can be thought of at all, the best ones,
//! and whether they, those in force or the kernel are predicted best.

use std::collections::BTreeMap;

use usher_model::{Mode, Note, Plan, ProgramId};

use super::knowledge::Belief;
use super::member::Member;
use super::pair::most_promising;
use super::pens::pens;
use super::stay::stay;
use super::turns::{GAIN, turns};
use super::verdict::{Sharing, Verdict, weigh};
use super::{FAILURES_MAX, HOLD_NS_MAX, HOLD_NS_MIN, STAY, Stale, Usher};
use crate::seating::{Request, seat};
use crate::simple::{shared_plan, wanted};
use crate::timeshare::time_sharing;

/// What a plan is made from.
struct Ground<'a> {
    requests: &'a [Request],
    beliefs: &'a BTreeMap<ProgramId, Belief>,
    /// Programs or CPUs came or went.
    changed: bool,
}

impl Usher {
    /// Makes the plan again if it must be, and may be now.
    pub(super) fn replan(&mut self, at_ns: u64) -> bool {
        match self.stale {
            Some(Stale::Changed) => {
                self.survey.stop();
                self.hold_ns = HOLD_NS_MIN;
                self.hold_until_ns = 0;
            }
            Some(Stale::Measured) if at_ns >= self.hold_until_ns && !self.is_trying() => {}
            _ => return false,
        }
        let changed = self.stale.take() == Some(Stale::Changed);
        self.tried = Some(self.comparison);
        let plan = self.best_plan(changed);
        let all = self.topology.all_cpus();
        let takes_turns = !self.planned_turns.is_empty();
        let moves = wanted(&plan, &all) != wanted(&self.plan, &all)
            || takes_turns != self.turns.are_taken();
        if moves && !changed {
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

    /// Seats or sharing are being tried: what is measured meanwhile changes no
    /// plan.
    fn is_trying(&self) -> bool {
        let step = self.comparison;
        let trying = step.tries_seats() || step.tries_pair() || step.tries_sharing();
        self.survey.is_on() || trying && self.tried == Some(self.comparison)
    }

    fn best_plan(&mut self, changed: bool) -> Plan {
        self.planned_turns.clear();
        let shared = shared_plan(&self.topology, self.members.keys());
        if self.members.is_empty() {
            return Plan::default();
        }
        if let Some(reason) = self.cannot_plan() {
            let whose = reason.program.and_then(|id| self.members.get(&id));
            let name = whose.map_or_else(String::new, |member| member.program.name.clone());
            self.say(None, format!("left to the kernel because of '{name}'"));
            self.notes.push(reason);
            return shared;
        }
        let beliefs: BTreeMap<_, _> = self
            .members
            .iter()
            .map(|(&id, m)| (id, m.belief(&self.topology, self.members.len())))
            .collect();
        let requests: Vec<_> = self
            .members
            .values()
            .map(|m| m.request(&self.topology, &beliefs[&m.program.id].curve))
            .collect();
        let narrow = match seat(&self.topology, &requests) {
            Ok(seating) => pens(&self.topology, &requests).unwrap_or(seating.plan),
            Err(error) => {
                self.say(None, format!("left to the kernel: {error}"));
                return shared;
            }
        };
        let bound = requests.iter().any(|request| request.bound_to.is_some());
        let narrow = match bound {
            true => narrow,
            false => stay(&self.topology, narrow, &self.homes),
        };
        let ground = Ground {
            requests: &requests,
            beliefs: &beliefs,
            changed,
        };
        self.choose(narrow, shared, &ground)
    }

    /// The new seats, those in force, or the kernel: whichever is predicted
    /// best.
    fn choose(&mut self, narrow: Plan, shared: Plan, ground: &Ground) -> Plan {
        let ntt = self.sharing_ntt(ground);
        if let Some(plan) = self.step_of_comparison(&narrow, &shared, &ntt, ground.requests) {
            return plan;
        }
        let all = self.topology.all_cpus();
        let narrows = narrow.seats.iter().any(|seat| seat.cpus != all);
        let seated = narrow.seats.iter().any(|seat| seat.mode == Mode::Seated);
        let learns = self.comparison.tries_seats() || self.members.values().any(Member::explores);
        let explores = narrows && seated && learns;
        let narrow = match explores {
            true => narrow,
            false => self.with_pair(narrow, ground),
        };
        let verdict = self.weigh(&narrow, &ntt, ground.requests);
        let antt_time_sharing = Some(verdict.antt_sharing);
        let acts = narrows && verdict.acts;
        let rival = match acts {
            true => verdict.antt_seats.min(verdict.antt_sharing),
            false => verdict.antt_sharing,
        };
        let turns = match explores {
            true => Err(None),
            false => self.turns_worth_it(ground.requests, rival),
        };
        let no_turns = match turns {
            Ok(plan) => {
                return Plan {
                    antt_time_sharing,
                    ..plan
                };
            }
            Err(why) => why.map_or_else(String::new, |why| format!("; no turns, as {why}")),
        };
        let sentence = verdict.sentence(narrows, explores);
        self.say(None, format!("{sentence}{no_turns}"));
        let plan = match explores || acts {
            true => self.new_or_in_force(narrow, ground),
            false => Plan {
                antt: narrow.antt,
                ..with_ntt(shared, &ntt)
            },
        };
        Plan {
            antt_time_sharing,
            ..plan
        }
    }

    /// The plan of a step of the comparison that is not about seats of their own.
    fn step_of_comparison(
        &mut self,
        narrow: &Plan,
        shared: &Plan,
        ntt: &[f64],
        requests: &[Request],
    ) -> Option<Plan> {
        if self.comparison.tries_seats() {
            self.pair = most_promising(&self.topology, narrow, requests);
        }
        if self.comparison.tries_sharing() {
            self.say(
                None,
                "shared for a moment, to see what the kernel makes of it",
            );
            return Some(Plan {
                antt: narrow.antt,
                ..with_ntt(shared.clone(), ntt)
            });
        }
        let pair = self.pair.filter(|_| self.comparison.tries_pair())?;
        self.say(
            None,
            "two programs share both their seats for a moment, to see how that does",
        );
        Some(pair.in_plan(narrow, &self.topology))
    }

    /// The plan with two programs on both their seats, where that was tried and is
    /// better than seats of their own.
    fn with_pair(&self, narrow: Plan, ground: &Ground) -> Plan {
        let Some(pair) = self.pair else {
            return narrow;
        };
        let tried = ground.requests.iter().map(|request| {
            let knowledge = &self.members[&request.id].knowledge;
            let belief = &ground.beliefs[&request.id];
            let (seat, paired) = knowledge.paired_ntt(belief, self.cores_max())?;
            Some((request.weight * seat, request.weight * paired))
        });
        let Some(tried) = tried.collect::<Option<Vec<_>>>() else {
            return narrow;
        };
        let (seats, paired): (Vec<f64>, Vec<f64>) = tried.into_iter().unzip();
        let (seats, paired) = (seats.iter().sum::<f64>(), paired.iter().sum::<f64>());
        match paired * (1.0 + STAY) < seats {
            true => Plan {
                antt: Some(paired / ground.requests.len() as f64),
                ..pair.in_plan(&narrow, &self.topology)
            },
            false => narrow,
        }
    }

    /// Seats against time sharing with these NTTs.
    fn weigh(&mut self, narrow: &Plan, ntt: &[f64], requests: &[Request]) -> Verdict {
        let tried = self.members.values().all(|m| m.knowledge.was_compared());
        let sharing = Sharing { ntt, tried };
        let mut verdict = weigh(narrow, requests, &sharing, !self.seats.is_empty());
        if tried {
            self.tried_acts = Some(verdict.acts);
        } else if let Some(acts) = self.tried_acts {
            // Somebody has entered a new phase since. What was tried then is worth
            // more than what is predicted now, until they are tried again.
            verdict.acts = acts;
        }
        verdict
    }

    /// The new seats, or those in force where these are about as good.
    fn new_or_in_force(&mut self, narrow: Plan, ground: &Ground) -> Plan {
        let is_pair = |plan: &Plan| self.pair.is_some_and(|pair| pair.is_in(plan));
        let keeps = match (is_pair(&self.plan), is_pair(&narrow)) {
            (false, false) => self.in_force_is_as_good(&narrow, ground.requests),
            (before, now) => before && now,
        };
        if is_pair(&narrow) {
            self.say(None, "two programs share both their seats");
        }
        let plan = match keeps && !ground.changed {
            true => self.plan.clone(),
            false => narrow,
        };
        Plan {
            abstains: false,
            ..plan
        }
    }

    /// The plan by which all take turns, where somebody busy-waits, all can be
    /// stopped and it is so much better than the best of the rest; else why
    /// not, where that is not plain.
    fn turns_worth_it(
        &mut self,
        requests: &[Request],
        rival: f64,
    ) -> Result<Plan, Option<&'static str>> {
        let spins = |member: &Member| member.spinning_threads() > 1;
        if requests.len() < 2 || !self.members.values().any(spins) {
            return Err(None);
        }
        if self.members.values().any(|m| m.program.ran_before) {
            return Err(Some("some were taken in while they ran"));
        }
        if self.members.values().any(|m| !m.program.stops_unseen) {
            return Err(Some("without cgroup v2 their parents would see them stop"));
        }
        let (plan, turns) = turns(&self.topology, requests).map_err(Some)?;
        let antt = plan.antt.ok_or(None)?;
        let worth_it = match self.turns.are_taken() {
            true => antt < rival * (1.0 + STAY),
            false => antt * (1.0 + GAIN) < rival,
        };
        if !worth_it {
            return Err(Some("they would gain too little"));
        }
        self.planned_turns = turns;
        self.say(
            None,
            format!(
                "turns, each on all cores, as some busy-wait: predicted ANTT {antt:.2} against {rival:.2} otherwise"
            ),
        );
        Ok(plan)
    }

    /// NTT of each program when all is left to the kernel: measured where it
    /// can be, else predicted.
    fn sharing_ntt(&self, ground: &Ground) -> Vec<f64> {
        let Ground {
            requests, beliefs, ..
        } = ground;
        // Threads that spin lose by time sharing even where the program may
        // be seated on fewer cores; those that may spin are not known to.
        let spinning = |r: &Request| Request {
            spinners: self.members[&r.id].spinning_threads(),
            ..r.clone()
        };
        let spinning: Vec<_> = requests.iter().map(spinning).collect();
        let predicted = time_sharing(&self.topology, &spinning);
        let measured = requests.iter().map(|r| {
            self.members[&r.id]
                .knowledge
                .shared_ntt(&beliefs[&r.id], self.cores_max())
        });
        let measured: Option<Vec<_>> = measured.collect();
        measured.unwrap_or(predicted)
    }

    /// Whether the seats in force are predicted about as good as a new plan.
    fn in_force_is_as_good(&self, new: &Plan, requests: &[Request]) -> bool {
        let cores_max = self.cores_max();
        let ntt = |request: &Request| {
            let seat = self.seats.get(&request.id)?;
            let household = self.seats.values().filter(|&other| other == seat).count() as f64;
            let rate = request.curve.rate(self.topology.capacity_of(seat));
            Some(household * request.weight * request.curve.best_rate(cores_max) / rate)
        };
        let sum: Option<f64> = requests.iter().map(ntt).sum();
        let now = sum.map(|sum| sum / requests.len() as f64);
        now.zip(new.antt)
            .is_some_and(|(now, antt)| now <= antt * (1.0 + STAY))
    }

    /// Why seats are out of the question.
    fn cannot_plan(&self) -> Option<Note> {
        let note = |id: &ProgramId, text: String| {
            Some(Note {
                program: Some(*id),
                text,
            })
        };
        for (id, member) in &self.members {
            if member.failures >= FAILURES_MAX {
                return note(
                    id,
                    "left to the kernel: seating it has failed too often".to_owned(),
                );
            }
            if !member.can_be_planned(self.cores_max()) {
                let source = member
                    .source
                    .map_or("no figure of its progress".to_owned(), |s| {
                        format!("only {s}, which no plan may rest on")
                    });
                return note(
                    id,
                    format!(
                        "everything is left to the kernel: '{}' has no profile and gives {source}",
                        member.program.name
                    ),
                );
            }
        }
        None
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
