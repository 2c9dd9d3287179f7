// SPDX-License-Identifier: MIT OR Apache-2.0
//! A policy for comparison in simulations: lends the idle cores of another policy's seats, to
//! measure the gain of lending alone.
//!
//! 1. The other policy decides; its seats are stored, its freezes and demotions are passed on.
//! 2. Unless a program is frozen, the lender of policy `usher` updates the loans. A change of a
//!    seat ends all loans.
//! 3. Each program gets the CPUs of its seat and of its loans. The next decision is due after
//!    `TICK_NS` (8 ms) at the latest.
//!
//! The lender determines the cost of a decision (module `lend` of policy `usher`).

use std::collections::{BTreeMap, BTreeSet};

use usher_model::{Action, CpuSet, Decision, Observation, ProgramId, Topology};

use crate::Policy;
use crate::action_diff::ActionDiff;
use crate::usher::lend::{Lender, LendingContext, TICK_NS};

/// A policy with a lender that lends the idle cores of the policy's seats.
#[derive(Debug)]
pub struct Lending<P> {
    inner: P,
    topology: Topology,
    seats: BTreeMap<ProgramId, CpuSet>,
    lender: Lender,
    diff: ActionDiff,
}

impl<P: Policy> Lending<P> {
    /// Wraps the policy `inner`.
    pub fn new(inner: P, topology: Topology) -> Self {
        Self {
            inner,
            topology,
            seats: BTreeMap::new(),
            lender: Lender::default(),
            diff: ActionDiff::default(),
        }
    }

    /// Stores the seats that the inner policy's actions give; the seats are put into force together
    /// with the loans. Returns the other actions.
    fn follow(&mut self, actions: &[Action]) -> Vec<Action> {
        let mut others = Vec::new();
        let before = self.seats.clone();
        for action in actions {
            match action {
                Action::Seat { program, cpus } => {
                    self.seats.insert(*program, cpus.clone());
                }
                Action::Release { program } => {
                    self.seats.remove(program);
                }
                Action::Freeze { program } => {
                    others.append(&mut self.diff.freeze_where([(*program, true)]));
                }
                Action::Thaw { program } => {
                    others.append(&mut self.diff.freeze_where([(*program, false)]));
                }
                Action::Demote { .. } => others.push(action.clone()),
            }
        }
        if before != self.seats {
            self.lender.recall_all();
        }
        others
    }
}

impl<P: Policy> Policy for Lending<P> {
    fn name(&self) -> &'static str {
        "lending"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        let mut decision = self.inner.decide(observation);
        self.diff.mark_failed(&observation.failed);
        let mut actions = self.follow(&decision.actions);
        let present: BTreeSet<ProgramId> = observation.programs.iter().map(|p| p.id).collect();
        self.seats.retain(|id, _| present.contains(id));
        if !self.diff.has_frozen() {
            let ctx = LendingContext {
                topology: &self.topology,
                seats: &self.seats,
                gains: &|_, _, _| true,
                lends: &|_| true,
            };
            self.lender
                .tick(observation.at_ns, &observation.programs, &ctx);
        }
        let loans = self.lender.loans(&self.topology);
        let place = |&id: &ProgramId| {
            let seat = self.seats.get(&id)?;
            let borrowed = loans.iter().filter(|loan| loan.borrower == id);
            Some(borrowed.fold(seat.clone(), |cpus, loan| cpus.or(&loan.cpus)))
        };
        let wanted = present.iter().map(|id| (*id, place(id))).collect();
        actions.extend(self.diff.move_to(&wanted));
        decision.actions = actions;
        let inner = decision.wake_after_ns.unwrap_or(u64::MAX);
        decision.wake_after_ns = Some(inner.min(TICK_NS));
        decision
    }
}
