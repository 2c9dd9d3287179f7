// SPDX-License-Identifier: MIT OR Apache-2.0
//! The budget of steps of a plan: the one place that bounds the time of the planner.
//!
//! A *step* is the work of at most about one nanosecond of CPU time. Each pass counts its work in
//! steps: a comparison of an option with the remaining units is a few steps, a cost from a curve
//! about 60, an entry of a map about 60. All passes of a plan share one budget. Its target
//! [`STEPS_MAX`] is about 50 ms of CPU time. The result does not depend on the speed of the machine.
//!
//! - A pass that only improves the plan uses [`StepBudget::charge`], and ends when
//!   [`SEARCH_STEPS_MAX`] steps are used up. The plan uses the best result found before, and the
//!   optimality gap remains an upper bound.
//! - A pass without which there is no plan uses [`StepBudget::spend`]. Such passes take time of
//!   order units x log units + programs x log programs. The other steps are kept for them.
//!
//! Known limits: with more than about 4,000 programs, the sets of CPUs in the result alone take
//! longer; these are programs x CPUs / 64 words. Several hundred programs that are bound to CPUs of
//! their own make one kind of units for each program.

use std::cell::Cell;

/// Number of steps that a plan needs at most, except in the cases of the known limits; about 50 ms of
/// CPU time.
pub const STEPS_MAX: u64 = 50_000_000;

/// Number of steps after which the passes end that only improve the plan.
pub const SEARCH_STEPS_MAX: u64 = STEPS_MAX - 10_000_000;

/// The steps that a plan has used and may still use.
#[derive(Debug)]
pub(super) struct StepBudget {
    left: Cell<u64>,
    used: Cell<u64>,
}

impl StepBudget {
    pub fn new(steps: u64) -> Self {
        Self {
            left: Cell::new(steps),
            used: Cell::new(0),
        }
    }

    /// Uses steps. Returns false, and uses all steps that are left, if there are fewer.
    pub fn charge(&self, steps: u64) -> bool {
        let left = self.left.get();
        self.spend(steps.min(left));
        steps <= left
    }

    /// Uses steps, also if fewer are left.
    pub fn spend(&self, steps: u64) {
        self.used.set(self.used.get().saturating_add(steps));
        self.left.set(self.left.get().saturating_sub(steps));
    }

    /// Steps that are left.
    pub fn left(&self) -> u64 {
        self.left.get()
    }

    /// Number of steps that were used.
    pub fn used(&self) -> u64 {
        self.used.get()
    }

    /// Takes steps out of the budget for a later pass, at most all that are left. Returns their
    /// number, for [`Self::release`].
    pub fn reserve(&self, steps: u64) -> u64 {
        let reserved = steps.min(self.left.get());
        self.left.set(self.left.get() - reserved);
        reserved
    }

    /// Returns reserved steps to the budget.
    pub fn release(&self, reserved: u64) {
        self.left.set(self.left.get() + reserved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_counts_and_ends() {
        let budget = StepBudget::new(10);
        assert!(budget.charge(4));
        let reserved = budget.reserve(5);
        assert_eq!((reserved, budget.left()), (5, 1));
        assert!(!budget.charge(2), "the reserved steps are not available");
        budget.release(reserved);
        assert!(budget.charge(5));
        assert_eq!((budget.used(), budget.left()), (10, 0));
        budget.spend(3);
        assert_eq!((budget.used(), budget.left()), (13, 0));
    }
}
