// SPDX-License-Identifier: MIT OR Apache-2.0
//! The delay budget: how much background work may cost the foreground.
//!
//! *Whether the foreground is gone for good or for a moment cannot be known.*
//! Whoever lets background work go on guesses, and a wrong guess costs: the
//! foreground comes back, and its first request waits until background work has
//! been seen, stopped, and what it had under way is done. Waiting longer before
//! one guesses makes wrong guesses rarer and never excludes them, and costs the
//! background what it waits. The paper's EII guesses once in 1..16 s, whatever
//! a guess costs; its IPD guesses at every pause.
//!
//! Here guesses are paid for. Each resource has an account in nanoseconds of
//! delay. Time earns [`EARN`] of itself, up to a cap; a wrong guess is charged
//! what it is believed to have cost. Let *d* be that cost, *C* the cap. Guesses
//! are only made with *d* in the account, so that over any time *T*
//!
//! > delay <= C + EARN x T,
//!
//! whatever the foreground does, as far as *d* is estimated rightly: of what a
//! guess turns out to have cost beyond that, an account owes no more than its
//! debt. An adversary who comes back just after each
//! guess gets one wrong guess every *d* / EARN, half a second for 5 ms, and the
//! foreground is slowed by 1 %. That, and nothing else, is what prevents
//! flapping: stops on account of one resource come in bunches of *C* / *d* at
//! most, and no more than EARN / *d* a second in the long run.
//!
//! *Why time earns, and not the foreground's active time only*: the bar is on
//! how long a foreground job takes, pauses included. A job that asks for one
//! block a second and is delayed by 5 ms each time takes 0.5 % longer. *Why there
//! is a cap*: a job that starts on a machine that has long been idle would find
//! an account so full that its first second could be spoiled. With 20 ms, a job
//! of one second is slowed by 3 % at worst.
//!
//! EARN is a third of the bar of 3 %: the rest is for what the estimate of *d*
//! leaves out, for a second resource, and for Usher's own CPU time.

/// Delay that the foreground may suffer, as a share of time.
pub const EARN: f64 = 0.01;
/// What an account holds at most, unless one wrong guess costs more.
pub const CAP_NS: f64 = 20e6;

/// An account of delay, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    level_ns: f64,
    at_ns: u64,
    cap_ns: f64,
    debt_ns: f64,
}

impl Budget {
    /// A full account that can be overdrawn by so much.
    pub fn new(at_ns: u64, debt_ns: f64) -> Self {
        Self {
            level_ns: CAP_NS,
            at_ns,
            cap_ns: CAP_NS,
            debt_ns,
        }
    }

    /// What is in it; negative: overdrawn.
    pub fn level_ns(&self) -> f64 {
        self.level_ns
    }

    /// What it holds at most.
    pub fn cap_ns(&self) -> f64 {
        self.cap_ns
    }

    /// Lets it hold one wrong guess of that cost at least.
    pub fn hold(&mut self, cost_ns: f64) {
        self.cap_ns = cost_ns.max(CAP_NS);
        self.level_ns = self.level_ns.min(self.cap_ns);
    }

    /// Earns for the time since it last did, [`EARN`] of it for each of so many
    /// foreground threads.
    pub fn earn(&mut self, at_ns: u64, threads: f64) {
        let elapsed_ns = at_ns.saturating_sub(self.at_ns) as f64;
        self.level_ns = (self.level_ns + EARN * threads * elapsed_ns).min(self.cap_ns);
        self.at_ns = self.at_ns.max(at_ns);
    }

    /// Pays. The debt is bounded, so that nobody pays for ever.
    pub fn spend(&mut self, cost_ns: f64) {
        self.level_ns = (self.level_ns - cost_ns).max(-self.debt_ns);
    }

    /// Owes nothing any more.
    pub fn forgive(&mut self) {
        self.level_ns = self.level_ns.max(0.0);
    }

    /// When so much will be in it if nothing is spent.
    pub fn reaches_at_ns(&self, level_ns: f64) -> u64 {
        let missing_ns = level_ns.min(self.cap_ns) - self.level_ns;
        self.at_ns + (missing_ns.max(0.0) / EARN).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_earns_up_to_its_cap_and_owes_no_more() {
        let mut budget = Budget::new(0, 20e6);
        budget.spend(5e6);
        assert_eq!(budget.reaches_at_ns(CAP_NS), 500_000_000);
        budget.earn(100_000_000, 1.0);
        assert_eq!(budget.level_ns(), 16e6);
        budget.earn(u64::MAX / 2, 1.0);
        assert_eq!(budget.level_ns(), CAP_NS);
        budget.spend(1e12);
        assert_eq!(budget.level_ns(), -CAP_NS);
        let mut forgiven = budget;
        forgiven.forgive();
        assert_eq!(forgiven.level_ns(), 0.0);
        forgiven.earn(u64::MAX / 2 + 100, 1.0);
        forgiven.forgive();
        assert_eq!(forgiven.level_ns(), EARN * 100.0);
        budget.hold(100e6);
        assert_eq!(
            budget.reaches_at_ns(1e12) - budget.reaches_at_ns(-CAP_NS),
            12_000_000_000
        );
    }
}
