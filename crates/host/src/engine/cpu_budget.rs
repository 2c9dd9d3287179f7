// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits the CPU time that the control loop uses for periodic work (samples, scans, decisions).
//!
//! The loop runs with a real-time class. Without a limit, its periodic work would take a whole CPU
//! from the programs if one round takes longer than its interval: with many programs or processes,
//! or in a virtual machine that gets little CPU time.
//!
//! 1. The budget grows by a tenth of the passed time, up to 20 ms.
//! 2. The CPU time of the loop's thread is subtracted, except that of requests, ends of programs and
//!    housekeeping.
//! 3. While the budget is below zero, the periodic work pauses, for at most 1 s after the last
//!    subtraction. The loop still handles requests, arrivals and ends of programs, and executes the
//!    housekeeping.

/// Upper limit of the budget: CPU time that a burst of work may use without a pause.
const BURST_NS: u64 = 20_000_000;
/// The passed time in which the budget grows by one nanosecond, in nanoseconds.
const GROWTH_NS: u64 = 10;
/// Upper limit of a pause.
const PAUSE_NS_MAX: u64 = 1_000_000_000;

/// The CPU time that the periodic work may use.
#[derive(Debug, Default)]
pub(super) struct CpuBudget {
    /// Time at which the budget was or will be zero.
    empty_ns: u64,
    /// CPU time of the loop's thread at the last call of [`Self::charge`] or [`Self::skip`].
    cpu_ns: u64,
}

impl CpuBudget {
    /// Charges the CPU time since the last call of this function or of [`Self::skip`]. `cpu_ns` is
    /// the CPU time of the loop's thread.
    pub fn charge(&mut self, at_ns: u64, cpu_ns: u64) {
        let used_ns = cpu_ns.saturating_sub(self.cpu_ns);
        self.cpu_ns = cpu_ns;
        let full_since_ns = at_ns.saturating_sub(BURST_NS * GROWTH_NS);
        let empty_ns = self.empty_ns.max(full_since_ns);
        let empty_ns = empty_ns.saturating_add(used_ns.saturating_mul(GROWTH_NS));
        self.empty_ns = empty_ns.min(at_ns.saturating_add(PAUSE_NS_MAX));
    }

    /// Leaves the CPU time since the last call out: it was not used for periodic work.
    pub fn skip(&mut self, cpu_ns: u64) {
        self.cpu_ns = cpu_ns;
    }

    /// Returns whether the periodic work pauses.
    pub fn is_paused(&self, at_ns: u64) -> bool {
        at_ns < self.empty_ns
    }

    /// Returns the end of the pause; a time in the past if there is none.
    pub fn pause_until_ns(&self) -> u64 {
        self.empty_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn work_of_a_tenth_of_the_time_needs_no_pause() {
        let mut budget = CpuBudget::default();
        for work in 1..6000 {
            let at_ns = (1000 + 10 * work) * MS;
            budget.charge(at_ns, work * MS);
            assert!(!budget.is_paused(at_ns), "after {work} ms of work");
        }
    }

    #[test]
    fn a_burst_needs_no_pause_but_more_work_does() {
        let mut budget = CpuBudget::default();
        budget.charge(1000 * MS, 20 * MS);
        assert!(!budget.is_paused(1000 * MS));
        budget.charge(1000 * MS, 50 * MS);
        assert!(budget.is_paused(1299 * MS));
        assert!(!budget.is_paused(1300 * MS));
        budget.charge(1300 * MS, 55 * MS);
        assert_eq!(budget.pause_until_ns(), 1350 * MS);
    }

    #[test]
    fn other_work_causes_no_pause() {
        let mut budget = CpuBudget::default();
        for second in 1..100 {
            budget.skip(second * 150 * MS);
            budget.charge(second * 1000 * MS, second * 150 * MS + 1);
            assert!(!budget.is_paused(second * 1000 * MS), "after {second} s");
        }
    }

    #[test]
    fn a_pause_takes_at_most_one_second() {
        let mut budget = CpuBudget::default();
        budget.charge(5000 * MS, 700 * MS);
        assert_eq!(budget.pause_until_ns(), 6000 * MS);
        budget.charge(5000 * MS, u64::MAX);
        assert_eq!(budget.pause_until_ns(), 6000 * MS);
    }

    #[test]
    fn continuous_work_uses_a_tenth_of_the_time() {
        let mut budget = CpuBudget::default();
        let (mut at_ns, mut used_ns) = (1000 * MS, 0);
        while at_ns < 61_000 * MS {
            at_ns = budget.pause_until_ns().max(at_ns) + 40 * MS;
            used_ns += 40 * MS;
            budget.charge(at_ns, used_ns);
        }
        let share = used_ns as f64 / (at_ns - 1000 * MS) as f64;
        assert!((0.09..0.11).contains(&share), "{share}");
    }
}
