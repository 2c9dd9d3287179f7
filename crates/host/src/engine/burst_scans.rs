// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frequent scans of one program after a notification that a process executes a program.
//!
//! **Problem.** Libraries such as GNU OpenMP read the affinity mask about 1 ms after the `exec` of
//! their process. `xargs -P 4` starts four processes within 1 ms. Scans at intervals of 5 ms find
//! them too late.
//!
//! **Idea.** The notification arrives in the middle of `execve`, when the process still seems to run
//! its old program. A single scan at this time would not recognise the new program. Each notification
//! therefore begins a burst: a scan after 0.1 ms ([`FIRST_NS`]), and then every 0.25 ms
//! ([`INTERVAL_NS`]) for 2 ms ([`BURST_NS`]).
//!
//! **Bound.** The scans of bursts use at most 10 ms of CPU time ([`CREDIT_NS`]) at once, and 2 % of a
//! CPU ([`REGAIN`]) in the long term. Without credit, notifications begin no burst.

/// Time between a notification and the first scan of a burst.
const FIRST_NS: u64 = 100_000;
/// Interval of the scans of a burst.
const INTERVAL_NS: u64 = 250_000;
/// Duration of a burst after the last notification.
const BURST_NS: u64 = 2_000_000;
/// Upper limit of the CPU time that bursts may use.
const CREDIT_NS: i64 = 10_000_000;
/// Passed time in which the credit grows by one nanosecond, in nanoseconds.
const REGAIN: u64 = 50;

/// The bursts of one program.
#[derive(Debug)]
pub(super) struct BurstScans {
    /// End of the present burst; a time in the past if there is none.
    until_ns: u64,
    /// CPU time that bursts may still use; less than zero if the last scan used more.
    credit_ns: i64,
    /// Time up to which the credit has grown.
    grown_ns: u64,
}

impl BurstScans {
    /// Creates the state with full credit, without a burst.
    pub fn new(at_ns: u64) -> Self {
        Self {
            until_ns: 0,
            credit_ns: CREDIT_NS,
            grown_ns: at_ns,
        }
    }

    /// Begins or prolongs a burst after a notification. Returns the time of the next scan; `None`
    /// without credit.
    pub fn begin(&mut self, at_ns: u64) -> Option<u64> {
        self.grow(at_ns);
        if self.credit_ns <= 0 {
            return None;
        }
        self.until_ns = at_ns + BURST_NS;
        Some(at_ns + FIRST_NS)
    }

    /// Returns the time of the next scan of the present burst, after a scan that began at `began_ns`
    /// and used `spent_ns` of CPU time; `None` if there is no burst.
    pub fn next(&mut self, began_ns: u64, spent_ns: u64) -> Option<u64> {
        if began_ns >= self.until_ns {
            return None;
        }
        self.grow(began_ns);
        self.credit_ns -= spent_ns as i64;
        if self.credit_ns <= 0 {
            self.until_ns = 0;
            return None;
        }
        Some(began_ns + spent_ns + INTERVAL_NS)
    }

    /// Returns whether there is a burst.
    pub fn is_active(&self, at_ns: u64) -> bool {
        at_ns < self.until_ns
    }

    fn grow(&mut self, at_ns: u64) {
        let passed_ns = at_ns.saturating_sub(self.grown_ns);
        self.credit_ns = CREDIT_NS.min(self.credit_ns + (passed_ns / REGAIN) as i64);
        self.grown_ns = self.grown_ns.max(at_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_burst_ends_after_its_duration() {
        let mut bursts = BurstScans::new(0);
        assert_eq!(bursts.next(0, MS), None, "there was no notification");
        let first_ns = bursts.begin(10 * MS).unwrap();
        assert_eq!(first_ns, 10 * MS + FIRST_NS);
        let next = |&began_ns: &u64| bursts.next(began_ns, 0);
        let scans: Vec<u64> = std::iter::successors(Some(first_ns), next).collect();
        assert!(scans.windows(2).all(|two| two[1] - two[0] == INTERVAL_NS));
        let end_ns = 10 * MS + BURST_NS;
        let last_ns = *scans.last().unwrap();
        assert!((end_ns..end_ns + INTERVAL_NS).contains(&last_ns), "{last_ns}");
        assert!(!bursts.is_active(end_ns));
    }

    #[test]
    fn scans_of_bursts_use_at_most_the_credit() {
        let mut bursts = BurstScans::new(0);
        let (mut at_ns, mut spent_ns) = (0, 0);
        while at_ns < 10_000 * MS {
            // A process executes a program all the time.
            let Some(began_ns) = bursts.begin(at_ns) else {
                at_ns += MS;
                continue;
            };
            bursts.next(began_ns, 200_000);
            spent_ns += 200_000;
            at_ns = began_ns + 200_000;
        }
        let bound_ns = CREDIT_NS as u64 + 10_000 * MS / REGAIN;
        let range = bound_ns - 10 * MS..=bound_ns + 10 * MS;
        assert!(range.contains(&spent_ns), "{spent_ns} ns");
    }
}
