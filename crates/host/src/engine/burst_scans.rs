// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frequent scans of a program after a notification that a process executes a program.
//!
//! **Problem.** Libraries such as GNU OpenMP read the affinity mask about 1 ms after the `exec` of
//! their process. `xargs -P 4` starts four processes within 4 ms. Scans at the intervals of
//! `copy_tracker` (10 ms or more) find them too late.
//!
//! **Idea.** The notification arrives in the middle of `execve`, when the process still seems to run
//! its old program. A single scan at this time would not recognise the new program. Each notification
//! therefore begins a *scan burst*: a scan after 0.1 ms ([`FIRST_NS`]), and further scans 0.25 ms
//! ([`INTERVAL_NS`]) after the end of the scan before, for 2 ms ([`DURATION_NS`]).
//!
//! **Bound.** The bursts of all programs together use at most 10 ms of CPU time ([`BUDGET_NS`]) plus
//! one scan at once, and 2 % of a CPU ([`GROWTH_NS`]) in the long term. While the budget is used up,
//! notifications begin no burst.

/// Time between a notification and the first scan of a burst.
const FIRST_NS: u64 = 100_000;
/// Time from the end of a scan to the next scan of the burst.
const INTERVAL_NS: u64 = 250_000;
/// Duration of a burst after the last notification.
const DURATION_NS: u64 = 2_000_000;
/// Upper limit of the budget: CPU time that bursts may use at once.
const BUDGET_NS: i64 = 10_000_000;
/// The passed time in which the budget grows by one nanosecond, in nanoseconds.
const GROWTH_NS: u64 = 50;
/// CPU time of a wake-up of the control loop, which is charged in addition to the scan.
const WAKEUP_NS: u64 = 20_000;

/// The CPU time that the bursts of all programs may use.
#[derive(Debug)]
pub(super) struct BurstBudget {
    /// CPU time that bursts may still use; negative after a scan that used more.
    left_ns: i64,
    /// Time up to which the budget has grown.
    grown_ns: u64,
}

impl BurstBudget {
    /// Returns whether a burst may begin or go on.
    fn has_left(&mut self, at_ns: u64) -> bool {
        let passed_ns = at_ns.saturating_sub(self.grown_ns);
        self.left_ns = BUDGET_NS.min(self.left_ns + (passed_ns / GROWTH_NS) as i64);
        self.grown_ns = self.grown_ns.max(at_ns);
        self.left_ns > 0
    }

    fn charge(&mut self, spent_ns: u64) {
        self.left_ns -= (spent_ns + WAKEUP_NS) as i64;
    }
}

impl Default for BurstBudget {
    /// Returns the whole budget.
    fn default() -> Self {
        Self {
            left_ns: BUDGET_NS,
            grown_ns: 0,
        }
    }
}

/// The bursts of one program.
#[derive(Debug, Default)]
pub(super) struct BurstScans {
    /// End of the present burst; a time in the past if there is none.
    until_ns: u64,
    /// Whether the next scan belongs to a burst.
    is_pending: bool,
}

impl BurstScans {
    /// Begins or prolongs a burst after a notification. Returns the time of the next scan; `None`
    /// if the budget is used up.
    pub fn begin(&mut self, at_ns: u64, budget: &mut BurstBudget) -> Option<u64> {
        if !budget.has_left(at_ns) {
            return None;
        }
        self.until_ns = at_ns + DURATION_NS;
        self.is_pending = true;
        Some(at_ns + FIRST_NS)
    }

    /// Charges a scan that began at `began_ns` and used `spent_ns` of CPU time, if it belongs to a
    /// burst. Returns the time of the next scan of the burst; `None` if there is none.
    pub fn next(&mut self, began_ns: u64, spent_ns: u64, budget: &mut BurstBudget) -> Option<u64> {
        if !std::mem::take(&mut self.is_pending) {
            return None;
        }
        budget.charge(spent_ns);
        if began_ns >= self.until_ns || !budget.has_left(began_ns) {
            self.until_ns = 0;
            return None;
        }
        self.is_pending = true;
        Some(began_ns + spent_ns + INTERVAL_NS)
    }

    /// Returns whether there is a burst.
    pub fn is_active(&self, at_ns: u64) -> bool {
        at_ns < self.until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_burst_ends_after_its_duration() {
        let (mut bursts, mut budget) = (BurstScans::default(), BurstBudget::default());
        assert_eq!(bursts.next(0, MS, &mut budget), None, "no notification");
        let first_ns = bursts.begin(10 * MS, &mut budget).unwrap();
        assert_eq!(first_ns, 10 * MS + FIRST_NS);
        let next = |&began_ns: &u64| bursts.next(began_ns, 0, &mut budget);
        let scans: Vec<u64> = std::iter::successors(Some(first_ns), next).collect();
        assert!(scans.windows(2).all(|two| two[1] - two[0] == INTERVAL_NS));
        let end_ns = 10 * MS + DURATION_NS;
        let last_ns = *scans.last().unwrap();
        assert!(
            (end_ns..end_ns + INTERVAL_NS).contains(&last_ns),
            "{last_ns}"
        );
        assert!(!bursts.is_active(end_ns));
    }

    /// A process of the machine executes a program all the time. The second program has long scans,
    /// which begin after the end of their bursts.
    #[test]
    fn the_scans_of_all_programs_use_at_most_the_budget() {
        let mut programs = [BurstScans::default(), BurstScans::default()];
        let mut budget = BurstBudget::default();
        let (mut at_ns, mut spent_ns) = (0, 0);
        while at_ns < 10_000 * MS {
            let due = programs.each_mut().map(|one| one.begin(at_ns, &mut budget));
            if due.iter().all(Option::is_none) {
                at_ns += MS;
                continue;
            }
            for (bursts, scan_ns) in programs.iter_mut().zip([200_000, 3 * MS]) {
                bursts.next(at_ns, scan_ns, &mut budget);
                spent_ns += scan_ns + WAKEUP_NS;
                at_ns += scan_ns;
            }
        }
        let bound_ns = BUDGET_NS as u64 + at_ns / GROWTH_NS;
        let range = bound_ns - 10 * MS..=bound_ns + 10 * MS;
        assert!(range.contains(&spent_ns), "{spent_ns} ns of {bound_ns} ns");
    }
}
