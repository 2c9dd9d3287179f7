// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses the fastest of several alternatives by trials.
//!
//! 1. Three rounds of trials run each alternative once per round, in the order 0, 1, 2 ..., then in
//!    reverse order, then in the first order again. A disturbance of the machine, even a periodic
//!    disturbance, then affects all alternatives.
//! 2. Alternatives are compared by their fastest runs, because disturbances only make runs slower.
//! 3. The fastest alternative is chosen. If it is less than 3 % faster than an alternative with a
//!    lower number, which was expected to be better, the latter is chosen instead.
//! 4. After 1000 runs of the chosen alternative, the trials are repeated. Alternatives that took
//!    more than twice the time of the fastest alternative are then left out.
//! 5. If 16 consecutive runs take more than 1.5 times the fastest time, the work has changed, and
//!    the trials of all alternatives are repeated.
//!
//! With a alternatives, one set of trials takes 3 a runs. Recording a run takes constant time,
//! except at the end of trials, where it takes O(a). This module reads no clock; the caller passes
//! the time of each run.

/// Number of rounds of trials. It is odd, so that the alternative that is expected to be best,
/// number 0, is tried first.
const ROUNDS: u32 = 3;
/// Number of runs of the chosen alternative between two sets of trials.
const SETTLED_RUNS: u32 = 1000;
/// Number of consecutive slower runs after which all alternatives are tried again.
const SLOWER_RUNS: u32 = 16;
/// A run counts as slower if it takes more than this multiple of the fastest time of the chosen
/// alternative.
const SLOWER: f64 = 1.5;
/// An alternative is left out of repeated trials if it takes more than this multiple of the best
/// time.
const HOPELESS: f64 = 2.0;
/// An alternative is chosen instead of an alternative with a lower number if it takes less than
/// this fraction of the latter's time.
const MARGIN: f64 = 0.97;

/// Trials of alternatives numbered from 0, sorted by expected speed.
#[derive(Debug, Clone)]
pub(crate) struct AlternativeTrials {
    /// The time of the fastest run of each alternative, in the latest trials in which it took part.
    fastest_ns: Vec<Option<f64>>,
    /// The time of the fastest run of each alternative in the current trials.
    current_ns: Vec<Option<f64>>,
    /// The alternatives of the remaining trial runs, in reverse order.
    pending: Vec<usize>,
    chosen: usize,
    /// Number of runs since the last trial. The next field is the number of slower runs since the
    /// last run that was not slower.
    runs: u32,
    slower: u32,
}

impl AlternativeTrials {
    /// Begins trials of this number of alternatives, which is at least one.
    pub fn new(alternatives: usize) -> Self {
        let mut trials = Self {
            fastest_ns: vec![None; alternatives],
            current_ns: vec![None; alternatives],
            pending: Vec::new(),
            chosen: 0,
            runs: 0,
            slower: 0,
        };
        trials.begin();
        trials
    }

    fn begin(&mut self) {
        let best = self.fastest_ns.iter().flatten().copied().reduce(f64::min);
        let is_hopeless = |current: &usize| match (self.fastest_ns[*current], best) {
            (Some(ns), Some(best)) => ns > best * HOPELESS,
            _ => false,
        };
        let alternatives = (0..self.fastest_ns.len()).rev();
        let alternatives: Vec<usize> = alternatives
            .filter(|current| !is_hopeless(current))
            .collect();
        self.current_ns.fill(None);
        self.pending = match alternatives.len() {
            // A single alternative needs no trials.
            0 | 1 => Vec::new(),
            _ => (0..ROUNDS)
                .flat_map(|round| match round % 2 {
                    0 => alternatives.clone(),
                    _ => alternatives.iter().rev().copied().collect(),
                })
                .collect(),
        };
        self.runs = 0;
        self.slower = 0;
    }

    /// Returns the alternative to use now.
    pub fn current(&self) -> usize {
        self.pending.last().copied().unwrap_or(self.chosen)
    }

    /// Returns the best alternative known; `None` during the first trials.
    pub fn best(&self) -> Option<usize> {
        (self.pending.is_empty() || self.fastest_ns[self.chosen].is_some()).then_some(self.chosen)
    }

    /// Returns the fastest known run of an alternative.
    pub fn fastest_ns(&self, current: usize) -> Option<f64> {
        self.current_ns[current].or(self.fastest_ns[current])
    }

    /// Records the time of a run of [`Self::current`].
    pub fn record(&mut self, ns: f64) {
        let current = self.current();
        let trying = self.pending.pop().is_some();
        match trying {
            true => {
                self.current_ns[current] =
                    Some(self.current_ns[current].map_or(ns, |before| before.min(ns)));
                if self.pending.is_empty() {
                    self.choose();
                }
            }
            false => self.watch(ns),
        }
    }

    fn choose(&mut self) {
        for (fastest, now) in self.fastest_ns.iter_mut().zip(&self.current_ns) {
            *fastest = now.or(*fastest);
        }
        let mut best = f64::INFINITY;
        for (current, ns) in self.current_ns.iter().enumerate() {
            if let Some(ns) = *ns
                && ns < best * MARGIN
            {
                (self.chosen, best) = (current, ns);
            }
        }
    }

    fn watch(&mut self, ns: f64) {
        let fastest = &mut self.fastest_ns[self.chosen];
        let usual = fastest.map_or(ns, |before| before.min(ns));
        *fastest = Some(usual);
        self.runs += 1;
        self.slower = if ns > usual * SLOWER {
            self.slower + 1
        } else {
            0
        };
        if self.slower >= SLOWER_RUNS {
            // The work has changed, so alternatives that were left out as too slow are tried again.
            self.fastest_ns.fill(None);
            self.begin();
        } else if self.runs >= SETTLED_RUNS {
            self.begin();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates `runs` runs in which each alternative takes the given time, and returns how often
    /// each alternative was used.
    fn run_trials(trials: &mut AlternativeTrials, costs_ns: &[f64], runs: u32) -> Vec<u32> {
        let mut used = vec![0; costs_ns.len()];
        for run in 0..runs {
            let current = trials.current();
            used[current] += 1;
            // A disturbance makes every fifth run slower. No disturbance makes a run faster.
            let disturbed = if run % 5 == 2 { 1.4 } else { 1.0 };
            trials.record(costs_ns[current] * disturbed);
        }
        used
    }

    #[test]
    fn the_fastest_alternative_is_found_and_kept() {
        let mut trials = AlternativeTrials::new(4);
        assert_eq!(trials.best(), None);
        let used = run_trials(&mut trials, &[100.0, 900.0, 50.0, 90.0], 1000);
        assert_eq!(trials.best(), Some(2));
        assert_eq!(used, [3, 3, 991, 3]);
        assert_eq!(trials.fastest_ns(1), Some(900.0));
    }

    #[test]
    fn a_marginally_faster_alternative_is_not_chosen() {
        let mut trials = AlternativeTrials::new(2);
        run_trials(&mut trials, &[100.0, 99.0], 20);
        assert_eq!(trials.best(), Some(0));
    }

    #[test]
    fn all_but_hopeless_alternatives_are_tried_again() {
        let mut trials = AlternativeTrials::new(3);
        run_trials(&mut trials, &[100.0, 150.0, 900.0], 20);
        let used = run_trials(&mut trials, &[100.0, 60.0, 900.0], 2000);
        assert_eq!(trials.best(), Some(1));
        assert_eq!(used[2], 0);
    }

    #[test]
    fn lasting_slowdown_restarts_all_trials() {
        let mut trials = AlternativeTrials::new(2);
        run_trials(&mut trials, &[100.0, 900.0], 50);
        run_trials(&mut trials, &[1000.0, 500.0], 50);
        assert_eq!(trials.best(), Some(1));
    }

    #[test]
    fn periodic_load_does_not_bias_the_trials() {
        let mut trials = AlternativeTrials::new(2);
        for run in 0..20 {
            let heavier = if run % 2 == 0 { 2.0 } else { 1.0 };
            let ns = [100.0, 110.0][trials.current()];
            trials.record(ns * heavier);
        }
        assert_eq!(trials.best(), Some(0));
    }

    #[test]
    fn one_disturbed_run_per_alternative_changes_nothing() {
        let mut trials = AlternativeTrials::new(2);
        run_trials(&mut trials, &[90.0, 50.0], 20);
        while trials.pending.is_empty() {
            trials.record(50.0);
        }
        // The first run of each alternative is slow, as if the whole machine were slow at that
        // time.
        for _ in 0..6 {
            let is_first = trials.current_ns[trials.current()].is_none();
            let disturbed = if is_first { 3.0 } else { 1.0 };
            trials.record([90.0, 50.0][trials.current()] * disturbed);
        }
        assert_eq!(trials.best(), Some(1));
    }

    #[test]
    fn the_fastest_run_is_reported() {
        let mut trials = AlternativeTrials::new(1);
        for ns in [9.0, 7.0, 8.0] {
            trials.record(ns);
        }
        assert_eq!(trials.fastest_ns(0), Some(7.0));
    }

    #[test]
    fn a_single_alternative_needs_no_trials() {
        let mut trials = AlternativeTrials::new(1);
        assert_eq!((trials.current(), trials.best()), (0, Some(0)));
        assert_eq!(run_trials(&mut trials, &[7.0], 5000), [5000]);
    }
}
