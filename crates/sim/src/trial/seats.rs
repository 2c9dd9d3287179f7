// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records the seats of programs during a simulated run, and counts actions. A record is a period
//! in which the seat of a program does not change; plans and actions begin new periods. At most
//! 50,000 periods are kept; later periods are dropped.
//!
//! A decision takes time in proportion to the programs times the loans.

use schemars::JsonSchema;
use std::collections::BTreeMap;

use usher_model::{Action, CpuSet, Decision, Plan, ProgramId, SeatMode};

/// Maximum number of periods kept for a run; later periods are dropped.
pub(super) const SPANS_MAX: usize = 50_000;

/// The CPUs and the state of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeatState {
    /// The program's own CPUs, or the CPUs that it shares with other programs.
    pub own: CpuSet,
    /// Borrowed CPUs by owner; `None`: CPUs without an owner.
    pub borrowed: Vec<(Option<ProgramId>, CpuSet)>,
    /// Whether the program has its own seat, shares CPUs, or runs in turn with other programs.
    pub mode: SeatMode,
    /// Whether the program is frozen.
    pub frozen: bool,
}

/// A period in which a program's seat did not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeatPeriod {
    /// The program.
    pub program: ProgramId,
    /// Start in virtual nanoseconds.
    pub from_ns: u64,
    /// End in virtual nanoseconds.
    pub to_ns: u64,
    /// The seat during the period.
    pub seat_state: SeatState,
}

/// Number of actions of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, JsonSchema)]
pub struct ActionCounts {
    /// Number of new plans.
    pub plans: usize,
    /// Number of seats given, including changes of seats.
    pub seats: usize,
    /// Number of releases of programs from their seats.
    pub releases: usize,
    /// Number of times that a program was stopped, for the trial of another program or because
    /// programs run in turn.
    pub stops: usize,
}

#[derive(Debug, Default)]
struct ProgramState {
    seat: Option<CpuSet>,
    frozen: bool,
    open: Option<(u64, SeatState)>,
}

/// Recorder of seats during a run.
#[derive(Debug)]
pub(super) struct SeatLog {
    all: CpuSet,
    plan: Plan,
    states: BTreeMap<ProgramId, ProgramState>,
    pub seat_periods: Vec<SeatPeriod>,
    pub action_counts: ActionCounts,
}

impl SeatLog {
    pub fn new(all: CpuSet) -> Self {
        Self {
            all,
            plan: Plan::default(),
            states: BTreeMap::new(),
            seat_periods: Vec::new(),
            action_counts: ActionCounts::default(),
        }
    }

    /// Begins to record the seats of a program that has arrived.
    pub fn arrived(&mut self, program: ProgramId) {
        self.states.entry(program).or_default();
    }

    /// Ends the record of a program that has departed.
    pub fn departed(&mut self, program: ProgramId, now_ns: u64) {
        if let Some(state) = self.states.remove(&program) {
            self.close(program, state.open, now_ns);
        }
    }

    /// Records an action.
    pub fn acted(&mut self, action: &Action) {
        let state = self.states.entry(action.program()).or_default();
        match action {
            Action::Seat { cpus, .. } => {
                self.action_counts.seats += usize::from(state.seat.as_ref() != Some(cpus));
                state.seat = Some(cpus.clone());
            }
            Action::Release { .. } => {
                self.action_counts.releases += usize::from(state.seat.is_some());
                state.seat = None;
            }
            Action::Freeze { .. } => {
                self.action_counts.stops += usize::from(!state.frozen);
                state.frozen = true;
            }
            Action::Thaw { .. } => state.frozen = false,
            Action::Demote { .. } => {}
        }
    }

    /// Records a decision of the policy after its actions: begins a new period for each changed
    /// seat.
    pub fn decided(&mut self, decision: &Decision, now_ns: u64) {
        if let Some(plan) = &decision.plan {
            self.action_counts.plans += 1;
            self.plan = plan.clone();
        } else if decision.actions.is_empty() && self.states.values().all(|m| m.open.is_some()) {
            return;
        }
        let modes: BTreeMap<ProgramId, SeatMode> = self
            .plan
            .seats
            .iter()
            .map(|seat| (seat.program, seat.mode))
            .collect();
        let mut closed = Vec::new();
        for (&id, state) in &mut self.states {
            let seat_state = state.seat_state(id, modes.get(&id).copied(), &self.plan, &self.all);
            if state
                .open
                .as_ref()
                .is_none_or(|(_, old)| *old != seat_state)
            {
                closed.push((id, state.open.replace((now_ns, seat_state))));
            }
        }
        for (id, open) in closed {
            self.close(id, open, now_ns);
        }
    }

    /// Ends all periods at the end of the run.
    pub fn end(&mut self, now_ns: u64) {
        for (id, state) in std::mem::take(&mut self.states) {
            self.close(id, state.open, now_ns);
        }
    }

    fn close(&mut self, program: ProgramId, open: Option<(u64, SeatState)>, to_ns: u64) {
        let Some((from_ns, seat_state)) = open else {
            return;
        };
        if to_ns > from_ns && self.seat_periods.len() < SPANS_MAX {
            self.seat_periods.push(SeatPeriod {
                program,
                from_ns,
                to_ns,
                seat_state,
            });
        }
    }
}

impl ProgramState {
    /// Returns the seat of a program under the plan, computed in the same way as for real programs.
    fn seat_state(
        &self,
        id: ProgramId,
        mode: Option<SeatMode>,
        plan: &Plan,
        all: &CpuSet,
    ) -> SeatState {
        let loans = plan.loans.iter().filter(|loan| loan.borrower == id);
        let borrowed: Vec<_> = loans.map(|loan| (loan.owner, loan.cpus.clone())).collect();
        let reach = self.seat.as_ref().unwrap_or(all).clone();
        let own = borrowed
            .iter()
            .fold(reach, |own, (_, cpus)| own.minus(cpus));
        let in_turn = mode.filter(|&mode| mode == SeatMode::InTurn);
        SeatState {
            own,
            borrowed,
            mode: match self.seat {
                Some(_) => mode.unwrap_or(SeatMode::Seated),
                None => in_turn.unwrap_or(SeatMode::Shared),
            },
            frozen: self.frozen,
        }
    }
}
