// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who sat where: from plans and actions to spans of time.

use std::collections::BTreeMap;

use usher_model::{Action, CpuSet, Decision, Plan, ProgramId, SeatMode};

/// Spans that are kept of a run; what comes later is counted and dropped.
pub(super) const SPANS_MAX: usize = 50_000;

/// Where a program is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// CPUs of its own, or those that it shares.
    pub own: CpuSet,
    /// CPUs that it borrows, and from whom; `None`: nobody owns them.
    pub borrowed: Vec<(Option<ProgramId>, CpuSet)>,
    /// Seated, shared or in turn.
    pub mode: SeatMode,
    /// Whether it is stopped.
    pub frozen: bool,
}

/// A program was there for so long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stay {
    /// Who.
    pub program: ProgramId,
    /// Virtual nanoseconds.
    pub from_ns: u64,
    /// The same, later.
    pub to_ns: u64,
    /// Where.
    pub place: Place,
}

/// What was done to programs, by count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Acts {
    /// Plans made.
    pub plans: usize,
    /// Programs seated somewhere, or somewhere else.
    pub seats: usize,
    /// Programs let out of their seats.
    pub releases: usize,
    /// Programs stopped: for others' trials, or because it was others' turn.
    pub stops: usize,
}

#[derive(Debug, Default)]
struct Member {
    seat: Option<CpuSet>,
    frozen: bool,
    open: Option<(u64, Place)>,
}

/// Written along while a run goes on.
#[derive(Debug)]
pub(super) struct SeatLog {
    all: CpuSet,
    plan: Plan,
    members: BTreeMap<ProgramId, Member>,
    pub stays: Vec<Stay>,
    pub acts: Acts,
}

impl SeatLog {
    pub fn new(all: CpuSet) -> Self {
        Self {
            all,
            plan: Plan::default(),
            members: BTreeMap::new(),
            stays: Vec::new(),
            acts: Acts::default(),
        }
    }

    /// A program has come.
    pub fn came(&mut self, program: ProgramId) {
        self.members.entry(program).or_default();
    }

    /// A program has gone.
    pub fn left(&mut self, program: ProgramId, now_ns: u64) {
        if let Some(member) = self.members.remove(&program) {
            self.close(program, member.open, now_ns);
        }
    }

    /// Something was done to a program.
    pub fn acted(&mut self, action: &Action) {
        let member = self.members.entry(action.program()).or_default();
        match action {
            Action::Seat { cpus, .. } => {
                self.acts.seats += usize::from(member.seat.as_ref() != Some(cpus));
                member.seat = Some(cpus.clone());
            }
            Action::Release { .. } => {
                self.acts.releases += usize::from(member.seat.is_some());
                member.seat = None;
            }
            Action::Freeze { .. } => {
                self.acts.stops += usize::from(!member.frozen);
                member.frozen = true;
            }
            Action::Thaw { .. } => member.frozen = false,
            Action::Demote { .. } => {}
        }
    }

    /// A decision was carried out: places may have changed.
    pub fn decided(&mut self, decision: &Decision, now_ns: u64) {
        if let Some(plan) = &decision.plan {
            self.acts.plans += 1;
            self.plan = plan.clone();
        } else if decision.actions.is_empty() && self.members.values().all(|m| m.open.is_some()) {
            return;
        }
        let modes: BTreeMap<ProgramId, SeatMode> = self
            .plan
            .seats
            .iter()
            .map(|seat| (seat.program, seat.mode))
            .collect();
        let mut closed = Vec::new();
        for (&id, member) in &mut self.members {
            let place = member.place(id, modes.get(&id).copied(), &self.plan, &self.all);
            if member.open.as_ref().is_none_or(|(_, old)| *old != place) {
                closed.push((id, member.open.replace((now_ns, place))));
            }
        }
        for (id, open) in closed {
            self.close(id, open, now_ns);
        }
    }

    /// The run is over.
    pub fn end(&mut self, now_ns: u64) {
        for (id, member) in std::mem::take(&mut self.members) {
            self.close(id, member.open, now_ns);
        }
    }

    fn close(&mut self, program: ProgramId, open: Option<(u64, Place)>, to_ns: u64) {
        let Some((from_ns, place)) = open else {
            return;
        };
        if to_ns > from_ns && self.stays.len() < SPANS_MAX {
            self.stays.push(Stay {
                program,
                from_ns,
                to_ns,
                place,
            });
        }
    }
}

impl Member {
    /// Where it is, given the plan: as the engine for real programs has it.
    fn place(&self, id: ProgramId, mode: Option<SeatMode>, plan: &Plan, all: &CpuSet) -> Place {
        let loans = plan.loans.iter().filter(|loan| loan.borrower == id);
        let borrowed: Vec<_> = loans.map(|loan| (loan.owner, loan.cpus.clone())).collect();
        let reach = self.seat.as_ref().unwrap_or(all).clone();
        let own = borrowed
            .iter()
            .fold(reach, |own, (_, cpus)| own.minus(cpus));
        let in_turn = mode.filter(|&mode| mode == SeatMode::InTurn);
        Place {
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
