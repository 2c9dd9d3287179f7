// SPDX-License-Identifier: MIT OR Apache-2.0
//! Filter for reports of run-queue imbalance under `usher`.
//!
//! An imbalance means that two foreground threads queue on one CPU while another CPU runs only
//! background work. The kernel spreads threads over idle CPUs, but a CPU that runs background
//! threads is not idle for the kernel, even if these threads are under `SCHED_IDLE`. Threads that
//! happened to wake on the same CPU may thus share it for seconds. A stop of background work
//! resolves the imbalance: the kernel moves a thread to the free CPU within about 10 ms. Background
//! work may continue as soon as a CPU is idle.
//!
//! Not every imbalance can be resolved: threads may be bound to their CPU, or may repeatedly wake
//! on the same CPU. After a stop for an imbalance, further reports are therefore ignored for a
//! pause of 50 ms. The pause doubles, up to 2 s, whenever the next report comes within [`AGAIN_NS`]
//! (100 ms) after the end of the pause. Waits during ignored imbalances are charged to the CPUs'
//! budget like all waits, so that a pause does not weaken the bound.
//!
//! The filter can thus stop background work at most once per 50 ms, and at most once per 2 s if
//! stops do not help. The pause is counted from the stop. An update takes constant time.

/// A report within this time after the end of a pause shows that the last stop did not help for
/// long.
const AGAIN_NS: u64 = 100_000_000;
/// Shortest and longest pause during which reports are ignored.
const PAUSE_NS_MIN: u64 = 50_000_000;
const PAUSE_NS_MAX: u64 = 2_000_000_000;

/// State of the filter.
#[derive(Debug, Clone, Default)]
pub struct ImbalanceFilter {
    /// Number of reports at the last sample.
    found: Option<u64>,
    /// Time until which reports are ignored.
    next_ns: u64,
    pause_ns: u64,
}

impl ImbalanceFilter {
    /// Updates the number of reports. Returns whether background work must stop, given that it runs
    /// (`can_stop`).
    pub fn update(&mut self, at_ns: u64, found: u64, can_stop: bool) -> bool {
        let is_new = (self.found.replace(found)).is_some_and(|before| found > before);
        if !is_new || !can_stop || at_ns < self.next_ns {
            return false;
        }
        let is_same = self.pause_ns > 0 && at_ns < self.next_ns + AGAIN_NS;
        self.pause_ns = match is_same {
            true => (self.pause_ns * 2).min(PAUSE_NS_MAX),
            false => PAUSE_NS_MIN,
        };
        self.next_ns = at_ns + self.pause_ns;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Adds a report at each of the given times in milliseconds; returns the times of the reports
    /// that stop background work.
    fn counted(reports: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut filter = ImbalanceFilter::default();
        filter.update(0, 7, true);
        let counts = |(found, ms): &(u64, u64)| filter.update(ms * MS, *found, true);
        let each = (8..).zip(reports).filter(counts);
        each.map(|(_, ms)| ms).collect()
    }

    #[test]
    fn separate_reports_count_each() {
        assert_eq!(counted([5, 500, 1_000]), [5, 500, 1_000]);
    }

    #[test]
    fn a_lasting_imbalance_counts_less_and_less_often() {
        let times = counted((1..=60_000).step_by(4));
        let gaps: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(gaps.is_sorted() && gaps[0] <= 56, "{gaps:?}");
        let longest = gaps.last().copied().unwrap_or_default();
        assert!((2_000..2_008).contains(&longest), "{gaps:?}");
    }

    #[test]
    fn earlier_reports_do_not_count() {
        let mut filter = ImbalanceFilter::default();
        assert!((0..100).all(|at_ms| !filter.update(at_ms * MS, 3, true)));
    }

    #[test]
    fn reports_during_a_stop_start_no_pause() {
        let mut filter = ImbalanceFilter::default();
        filter.update(0, 7, true);
        assert!(!filter.update(MS, 8, false));
        assert!(filter.update(2 * MS, 9, true));
    }
}
