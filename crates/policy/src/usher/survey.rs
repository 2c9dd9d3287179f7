// SPDX-License-Identifier: MIT OR Apache-2.0
//! Surveys: each program without a profile gets a wide seat once, in turn.
//!
//! A new program is measured on its fair start, which is an equal share of the machine, and on half
//! of that share. Its rate on many cores is extrapolated from these measurements, and determines
//! its seat and the best rate in its NTT. A *wide seat* adds a distant point to the curve while no
//! core is idle.
//!
//! 1. A survey starts when seats are in force, no comparison is running, and all programs have been
//!    measured on half of a seat.
//! 2. A program with a seat, but without a profile, gets its seat and half of each other seat.
//!    Seats of programs with a profile, and of programs that must not be narrowed, stay whole.
//! 3. The turn of the program ends when its rate on the wide seat is known, or after `TURN_NS_MAX`
//!    (1 s). Then the next program has its turn. A program gets no second turn before it enters a
//!    new phase.
//!
//! A survey of `n` programs thus takes at most `n` seconds, plus one sampling interval per turn. A
//! change of programs or CPUs ends the survey at once. Starting a turn takes linear time in the
//! number of programs.

use std::collections::BTreeMap;

use usher_model::{CpuSet, ProgramId, Seat, SeatMode};

use super::Usher;
use super::managed_program::{ManagedProgram, half_of};

/// Greatest length of a turn. A program that has not been measured in this time is skipped.
const TURN_NS_MAX: u64 = 1_000_000_000;

/// State of the survey: the turn of the program that has the wide seat.
#[derive(Debug, Clone, Default)]
pub(super) struct Survey {
    turn: Option<SurveyTurn>,
}

#[derive(Debug, Clone)]
struct SurveyTurn {
    program: ProgramId,
    since_ns: u64,
    /// Number of core counts measured before the turn.
    measured: usize,
    seats: BTreeMap<ProgramId, CpuSet>,
}

impl Survey {
    /// Whether a program has the wide seat.
    pub fn is_on(&self) -> bool {
        self.turn.is_some()
    }

    /// The seats of all programs in the present turn.
    pub fn seats(&self) -> Option<&BTreeMap<ProgramId, CpuSet>> {
        self.turn.as_ref().map(|turn| &turn.seats)
    }

    /// Ends the turn, because the plan has changed.
    pub fn stop(&mut self) {
        self.turn = None;
    }
}

impl Usher {
    /// Ends the present turn when it is over, and starts the next turn. Returns whether a turn has
    /// ended and no turn follows.
    pub(super) fn survey(&mut self, at_ns: u64) -> bool {
        let was_on = self.survey.is_on();
        if let Some(turn) = &self.survey.turn {
            let member = self.members.get_mut(&turn.program);
            let goes_on = member.is_some_and(|member| {
                let measured = member.curve_data.seats_measured() > turn.measured;
                let over = measured || at_ns >= turn.since_ns + TURN_NS_MAX;
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

    /// Returns the next turn; `None` while a program has not yet been measured on half of its seat,
    /// and if no program needs a turn.
    fn next_turn(&self, at_ns: u64) -> Option<SurveyTurn> {
        let explores = self.members.values().any(ManagedProgram::explores);
        if self.plan.abstains || self.comparison.is_on() || explores {
            return None;
        }
        let mut wants = self.members.iter().filter(|(_, m)| m.wants_survey(at_ns));
        wants.find_map(|(&program, member)| self.turn_of(program, member, at_ns))
    }

    /// Returns the turn of this program; `None` if no other program can give up half of its seat.
    fn turn_of(
        &self,
        program: ProgramId,
        member: &ManagedProgram,
        at_ns: u64,
    ) -> Option<SurveyTurn> {
        let is_own = |seat: &Seat| seat.program == program && seat.mode == SeatMode::Seated;
        if member.program.confined_to().is_some() || !self.plan.seats.iter().any(is_own) {
            return None;
        }
        let mut seats = BTreeMap::new();
        let mut wide = CpuSet::new();
        for seat in &self.plan.seats {
            let gives = self.members.get(&seat.program).is_some_and(|other| {
                seat.mode == SeatMode::Seated
                    && !other.program.has_own_profile()
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
        (wide != own).then(|| SurveyTurn {
            program,
            since_ns: at_ns,
            measured: member.curve_data.seats_measured(),
            seats,
        })
    }
}
