// SPDX-License-Identifier: MIT OR Apache-2.0
//! The delay budget: a bound on the delay that background work may cause to the foreground.
//!
//! *Problem.* When the foreground pauses, it is unknown whether the pause will last. To continue
//! background work is to predict that the pause will last. A misprediction has a cost: when the
//! foreground returns, its first request waits until Usher has stopped background work and the
//! outstanding background requests have completed. A longer wait before background work continues
//! makes mispredictions rarer, but never excludes them, and background work loses the time of the
//! wait. In paper 2, `eii` continues background work every 1 to 16 s whatever a misprediction
//! costs, and `ipd` continues it at every pause.
//!
//! *Idea.* Mispredictions are paid from a budget. Each resource has a budget in nanoseconds of
//! delay. The budget refills at [`REFILL_RATE`] of the elapsed time, up to a cap, and each
//! misprediction is charged with its estimated cost. Let *d* be that cost and *C* the cap.
//! Background work continues only while the budget holds at least *d*.
//!
//! *Bound.* Over any time *T*, the delay of the foreground is limited:
//!
//! > delay <= C + REFILL_RATE x T,
//!
//! whatever the foreground does, provided that *d* is estimated correctly. If a misprediction turns
//! out to cost more than *d*, the budget becomes negative by at most the maximum debt, which the
//! owner of the budget chooses. The bound does not include cost beyond the maximum debt, and debts
//! that the owner clears. In the worst case, the foreground returns just after each prediction. One
//! misprediction then happens per *d* / REFILL_RATE (0.5 s if *d* is 5 ms), and the foreground is
//! slowed by 1 %. The bound also limits how often background work stops: at most *C* / *d* times in
//! a burst, and in the long run at most REFILL_RATE / *d* times per second for each resource.
//!
//! *Why the budget refills with all time, not with foreground activity only*: the target is the run
//! time of a foreground job, pauses included. A job that reads one block per second and is delayed
//! by 5 ms each time takes 0.5 % longer. *Why there is a cap*: without a cap, the budget of a
//! machine that was idle for long would permit a large delay in the first second of a job. With a
//! cap of 20 ms, a job of one second is slowed by at most 3 %.
//!
//! REFILL_RATE is a third of the target of 3 %. The other two thirds cover errors in the estimate
//! of *d*, delays on a second resource, and Usher's own CPU time.
//!
//! *Limits.* *C* is [`CAP_NS`] (20 ms), or *d* if *d* is more. For the CPUs, the refill is
//! multiplied by the number of CPUs that the foreground uses, and the bound with it. Every
//! operation takes constant time.

/// Rate at which a budget refills: nanoseconds of permitted delay per nanosecond of elapsed time.
pub const REFILL_RATE: f64 = 0.01;
/// Cap of a budget in nanoseconds, unless one misprediction costs more than this cap.
pub const CAP_NS: f64 = 20e6;

/// A delay budget, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DelayBudget {
    level_ns: f64,
    at_ns: u64,
    cap_ns: f64,
    max_debt_ns: f64,
}

impl DelayBudget {
    /// Creates a full budget that can become negative by `max_debt_ns`.
    pub fn new(at_ns: u64, max_debt_ns: f64) -> Self {
        Self {
            level_ns: CAP_NS,
            at_ns,
            cap_ns: CAP_NS,
            max_debt_ns,
        }
    }

    /// Present level of the budget; negative if charges exceeded the budget.
    pub fn level_ns(&self) -> f64 {
        self.level_ns
    }

    /// Present cap of the budget.
    pub fn cap_ns(&self) -> f64 {
        self.cap_ns
    }

    /// Sets the cap to `cost_ns`, the cost of one misprediction, but to at least [`CAP_NS`].
    pub fn raise_cap(&mut self, cost_ns: f64) {
        self.cap_ns = cost_ns.max(CAP_NS);
        self.level_ns = self.level_ns.min(self.cap_ns);
    }

    /// Refills the budget by [`REFILL_RATE`] x `threads` of the time since the last call.
    /// `threads`: number of CPUs that the foreground uses, at least 1; 1 for devices.
    pub fn refill(&mut self, at_ns: u64, threads: f64) {
        let elapsed_ns = at_ns.saturating_sub(self.at_ns) as f64;
        self.level_ns = (self.level_ns + REFILL_RATE * threads * elapsed_ns).min(self.cap_ns);
        self.at_ns = self.at_ns.max(at_ns);
    }

    /// Charges a cost. The debt is limited to `max_debt_ns`, because an unlimited cost could stop
    /// background work for ever.
    pub fn charge(&mut self, cost_ns: f64) {
        self.level_ns = (self.level_ns - cost_ns).max(-self.max_debt_ns);
    }

    /// Sets a negative level to 0.
    pub fn clear_debt(&mut self) {
        self.level_ns = self.level_ns.max(0.0);
    }

    /// Time at which the budget reaches `level_ns`, or the cap if `level_ns` exceeds the cap, if
    /// nothing is charged meanwhile. The refill is that of a single foreground thread.
    pub fn reaches_at_ns(&self, level_ns: f64) -> u64 {
        let missing_ns = level_ns.min(self.cap_ns) - self.level_ns;
        self.at_ns + (missing_ns.max(0.0) / REFILL_RATE).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refills_to_its_cap_and_limits_the_debt() {
        let mut budget = DelayBudget::new(0, 20e6);
        budget.charge(5e6);
        assert_eq!(budget.reaches_at_ns(CAP_NS), 500_000_000);
        budget.refill(100_000_000, 1.0);
        assert_eq!(budget.level_ns(), 16e6);
        budget.refill(u64::MAX / 2, 1.0);
        assert_eq!(budget.level_ns(), CAP_NS);
        budget.charge(1e12);
        assert_eq!(budget.level_ns(), -CAP_NS);
        let mut cleared = budget;
        cleared.clear_debt();
        assert_eq!(cleared.level_ns(), 0.0);
        cleared.refill(u64::MAX / 2 + 100, 1.0);
        cleared.clear_debt();
        assert_eq!(cleared.level_ns(), REFILL_RATE * 100.0);
        budget.raise_cap(100e6);
        assert_eq!(
            budget.reaches_at_ns(1e12) - budget.reaches_at_ns(-CAP_NS),
            12_000_000_000
        );
    }
}
