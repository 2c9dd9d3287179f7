// SPDX-License-Identifier: MIT OR Apache-2.0
//! A wide seat in turn, for programs of which nothing is known.
//!
//! A newcomer is measured on its fair start and on half of it; what it would do
//! on many cores is extrapolated from there, and that decides how much it is
//! given and what its NTT is held against. Where several programs without a
//! profile have seats of their own, each newcomer in turn has half of those of
//! all others for a moment: one more point of its curve, far out, and no core is
//! idle meanwhile.

use std::collections::BTreeMap;

use usher_model::{CpuSet, Mode, ProgramId, Seat};

use super::Usher;
use super::member::{Member, half_of};

/// Whoever has told nothing on its wide seat for so long is passed over.
const TURN_NS_MAX: u64 = 1_000_000_000;

/// Who has the wide seat.
#[derive(Debug, Clone, Default)]
pub(super) struct Survey {
    turn: Option<Turn>,
}

#[derive(Debug, Clone)]
struct Turn {
    program: ProgramId,
    since_ns: u64,
    /// How many core counts had been measured of it.
    measured: usize,
    seats: BTreeMap<ProgramId, CpuSet>,
}

impl Survey {
    /// Somebody has the wide seat.
    pub fn is_on(&self) -> bool {
        self.turn.is_some()
    }

    /// The seats of the present turn.
    pub fn seats(&self) -> Option<&BTreeMap<ProgramId, CpuSet>> {
        self.turn.as_ref().map(|turn| &turn.seats)
    }

    /// The plan is another one now.
    pub fn stop(&mut self) {
        self.turn = None;
    }
}

impl Usher {
    /// Gives the wide seat to the next one when it is time; true when the last
    /// turn has ended.
    pub(super) fn survey(&mut self, at_ns: u64) -> bool {
        let was_on = self.survey.is_on();
        if let Some(turn) = &self.survey.turn {
            let member = self.members.get_mut(&turn.program);
            let goes_on = member.is_some_and(|member| {
                let told = member.knowledge.seats_measured() > turn.measured;
                let over = told || at_ns >= turn.since_ns + TURN_NS_MAX;
                if over {
                    member.survey_from_ns = u64::MAX;
                }
                !over
            });
            if goes_on {
                return false;
            }
        }
        self.survey.turn = self.next_turn(at_ns);
        was_on && !self.survey.is_on()
    }

    /// The next turn, once everybody has been measured on half a seat.
    fn next_turn(&self, at_ns: u64) -> Option<Turn> {
        let explores = self.members.values().any(Member::explores);
        if self.plan.abstains || self.comparison.is_on() || explores {
            return None;
        }
        let mut wants = self.members.iter().filter(|(_, m)| m.wants_survey(at_ns));
        wants.find_map(|(&program, member)| self.turn_of(program, member, at_ns))
    }

    /// The turn of that program, if anybody has half a seat to give.
    fn turn_of(&self, program: ProgramId, member: &Member, at_ns: u64) -> Option<Turn> {
        let is_own = |seat: &Seat| seat.program == program && seat.mode == Mode::Seated;
        if member.program.confined_to().is_some() || !self.plan.seats.iter().any(is_own) {
            return None;
        }
        let mut seats = BTreeMap::new();
        let mut wide = CpuSet::new();
        for seat in &self.plan.seats {
            let gives = self.members.get(&seat.program).is_some_and(|other| {
                seat.mode == Mode::Seated
                    && other.program.profile.is_none()
                    && other.is_narrowable()
            });
            let half = gives.then(|| half_of(&seat.cpus, &self.topology)).flatten();
            let own = seat.program == program;
            let kept = half.filter(|_| !own).unwrap_or_else(|| seat.cpus.clone());
            wide = wide.or(&match own {
                true => seat.cpus.clone(),
                false => seat.cpus.minus(&kept),
            });
            seats.insert(seat.program, kept);
        }
        let own = seats.insert(program, wide.clone())?;
        (wide != own).then(|| Turn {
            program,
            since_ns: at_ns,
            measured: member.knowledge.seats_measured(),
            seats,
        })
    }
}
