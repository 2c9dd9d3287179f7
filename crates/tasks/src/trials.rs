// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses the fastest of several alternatives by trials, if it is clearly faster than the
//! baseline.
//!
//! 1. Rounds of trials run each alternative once per round, the baseline first, then in reverse
//!    order, then in the first order again, and so on. A disturbance of the machine, even a
//!    periodic disturbance, then affects all alternatives. There are three rounds, or nine if a run
//!    of the baseline takes less than 2 ms, because the times of short runs vary more.
//! 2. An alternative that takes 1.05 times the time of the baseline after two trials, or 3 times
//!    after one, takes part in no further round. If the trials have taken four runs of the baseline
//!    longer than the baseline would have taken, alternatives that are slower so far take part in
//!    no further round.
//! 3. Alternatives are compared by their fastest runs, because disturbances only make runs slower.
//!    The baseline is chosen unless another alternative is at least 5 % faster, and faster in each
//!    of three rounds or in eight of nine. Of the alternatives for which this holds and which are
//!    within 5 % of the fastest, the present choice is kept, or else the lowest number is chosen:
//!    alternatives are sorted by expected speed. Small differences therefore do not change the
//!    choice.
//! 4. After 1000 runs of the chosen alternative, the trials are repeated, except those of
//!    alternatives that took more than 1.5 times the time of the baseline.
//! 5. If 16 consecutive runs take more than 1.5 times the fastest time, the work has changed, and
//!    the trials of all alternatives are repeated.
//!
//! **Cost.** With a alternatives, one set of trials takes at most 3 a or 9 a runs. Apart from
//! disturbances, one trial of each alternative and four runs of the baseline are the upper limit of
//! the time that they take longer than as many runs of the baseline. Recording a run takes O(a).
//! This module reads no clock; the caller passes the time of each run.

/// Numbers of rounds of trials, for long and for short runs.
const ROUNDS: u32 = 3;
const SHORT_ROUNDS: u32 = 9;
/// A run is short if it takes less than this time.
const SHORT_NS: f64 = 2e6;
/// Number of runs of the chosen alternative between two sets of trials.
const SETTLED_RUNS: u32 = 1000;
/// Number of consecutive slower runs after which all alternatives are tried again.
const SLOWER_RUNS: u32 = 16;
/// A run counts as slower if it takes more than this multiple of the fastest time of the chosen
/// alternative.
const SLOWER: f64 = 1.5;
/// An alternative takes part in no further trial if it takes more than this multiple of the time of
/// the baseline, after one trial and after several.
const HOPELESS: f64 = 3.0;
const WORSE: f64 = 1.05;
/// An alternative is left out of repeated trials if it takes more than this multiple of the time of
/// the baseline.
const NOT_REPEATED: f64 = 1.5;
/// If the trials have taken this number of runs of the baseline longer than runs of the baseline,
/// only alternatives that are not slower so far continue, after one trial of each.
const LOSS_RUNS: f64 = 4.0;
/// An alternative is chosen instead of the baseline, or of a better known alternative, if it takes
/// less than this fraction of the latter's time.
const MARGIN: f64 = 0.95;

/// Trials of alternatives numbered from 0, sorted by expected speed.
#[derive(Debug, Clone)]
pub(crate) struct AlternativeTrials {
    baseline: usize,
    /// A run that takes less than this time is short.
    short_ns: f64,
    /// The time of the fastest run of each alternative, in the latest trials in which it took part.
    fastest_ns: Vec<Option<f64>>,
    /// The times of each alternative in the current trials, one for each round.
    current_ns: Vec<Vec<f64>>,
    /// The alternatives of the remaining trial runs of this round, in reverse order.
    pending: Vec<usize>,
    /// The alternatives that take part in the next round.
    remaining: Vec<usize>,
    /// Completed rounds of the current trials.
    rounds: u32,
    chosen: usize,
    /// Number of runs since the last trial. The next field is the number of slower runs since the
    /// last run that was not slower.
    runs: u32,
    slower: u32,
}

impl AlternativeTrials {
    /// Begins trials of this number of alternatives, which is at least one. `baseline` is the
    /// alternative that no chosen alternative may be slower than.
    pub fn new(alternatives: usize, baseline: usize) -> Self {
        let mut trials = Self {
            baseline,
            short_ns: SHORT_NS,
            fastest_ns: vec![None; alternatives],
            current_ns: vec![Vec::new(); alternatives],
            pending: Vec::new(),
            remaining: Vec::new(),
            rounds: 0,
            chosen: baseline,
            runs: 0,
            slower: 0,
        };
        trials.begin();
        trials
    }

    /// Never uses the number of rounds for short runs, because the times do not vary more if they
    /// are shorter.
    pub fn without_short_runs(self) -> Self {
        Self {
            short_ns: 0.0,
            ..self
        }
    }

    fn begin(&mut self) {
        let baseline_ns = self.fastest_ns[self.baseline];
        let is_hopeless = |current: usize| match (self.fastest_ns[current], baseline_ns) {
            (Some(ns), Some(baseline_ns)) => ns > baseline_ns * NOT_REPEATED,
            _ => false,
        };
        let others = (0..self.fastest_ns.len()).filter(|&current| current != self.baseline);
        self.remaining = others.filter(|&current| !is_hopeless(current)).collect();
        self.current_ns.iter_mut().for_each(Vec::clear);
        (self.rounds, self.runs, self.slower) = (0, 0, 0);
        self.begin_round();
    }

    /// Begins a round. A single alternative needs no trials.
    fn begin_round(&mut self) {
        if self.remaining.is_empty() {
            return;
        }
        self.pending = [self.baseline]
            .into_iter()
            .chain(self.remaining.iter().copied())
            .collect();
        if self.rounds.is_multiple_of(2) {
            self.pending.reverse();
        }
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
        self.fastest_now_ns(current).or(self.fastest_ns[current])
    }

    /// Returns the fastest run of an alternative in the current trials.
    fn fastest_now_ns(&self, current: usize) -> Option<f64> {
        self.current_ns[current].iter().copied().reduce(f64::min)
    }

    /// Records the time of a run of [`Self::current`].
    pub fn record(&mut self, ns: f64) {
        match self.pending.pop() {
            Some(current) => self.record_trial(current, ns),
            None => self.watch(ns),
        }
    }

    fn record_trial(&mut self, current: usize, ns: f64) {
        self.current_ns[current].push(ns);
        if let Some(baseline_ns) = self.fastest_now_ns(self.baseline) {
            self.leave_out(baseline_ns);
        }
        if self.pending.is_empty() {
            self.end_round();
        }
    }

    /// Leaves slow alternatives out of the remaining trials.
    fn leave_out(&mut self, baseline_ns: f64) {
        let loss_ns: f64 = (0..self.current_ns.len())
            .map(|one| self.loss_ns(one, baseline_ns))
            .sum();
        let is_spent = loss_ns > baseline_ns * LOSS_RUNS;
        let continues = |current: usize| {
            let limit = match self.current_ns[current].len() {
                _ if is_spent => 1.0,
                0 | 1 => HOPELESS,
                _ => WORSE,
            };
            match self.fastest_now_ns(current) {
                Some(ns) => ns <= baseline_ns * limit,
                None => true,
            }
        };
        let kept = |list: &[usize]| list.iter().copied().filter(|&one| continues(one)).collect();
        let (remaining, pending) = (kept(&self.remaining), kept(&self.pending));
        (self.remaining, self.pending) = (remaining, pending);
    }

    /// Returns how much longer the trials of an alternative took than runs of the baseline. Each
    /// trial counts as the fastest, so that disturbances do not count.
    fn loss_ns(&self, current: usize, baseline_ns: f64) -> f64 {
        let trials = self.current_ns[current].len() as f64;
        let fastest_ns = self.fastest_now_ns(current).unwrap_or(baseline_ns);
        trials * (fastest_ns - baseline_ns)
    }

    fn end_round(&mut self) {
        self.rounds += 1;
        let is_short = self
            .fastest_now_ns(self.baseline)
            .is_some_and(|ns| ns < self.short_ns);
        let rounds = if is_short { SHORT_ROUNDS } else { ROUNDS };
        match self.rounds < rounds && !self.remaining.is_empty() {
            true => self.begin_round(),
            false => self.choose(),
        }
    }

    fn choose(&mut self) {
        for current in 0..self.fastest_ns.len() {
            self.fastest_ns[current] = self.fastest_ns(current);
        }
        let baseline = &self.current_ns[self.baseline];
        let baseline_ns = self.fastest_now_ns(self.baseline).unwrap_or(f64::INFINITY);
        let clearly_faster = |&current: &usize| {
            let times = &self.current_ns[current];
            let wins = times.iter().zip(baseline).filter(|(ns, other)| ns < other);
            let is_faster = |ns: f64| ns < baseline_ns * MARGIN;
            // One round may have been disturbed if there are many.
            times.len() >= ROUNDS as usize
                && wins.count() >= times.len() - times.len() / 8
                && self.fastest_now_ns(current).is_some_and(is_faster)
        };
        let candidates: Vec<usize> = (0..self.current_ns.len()).filter(clearly_faster).collect();
        let of = |current: usize| self.fastest_now_ns(current).unwrap_or(f64::INFINITY);
        let best_ns = candidates
            .iter()
            .map(|&one| of(one))
            .fold(f64::INFINITY, f64::min);
        let is_near = |current: &&usize| of(**current) * MARGIN <= best_ns;
        let mut near = candidates.iter().filter(is_near);
        let present = near.clone().find(|&&current| current == self.chosen);
        self.chosen = *present.or(near.next()).unwrap_or(&self.baseline);
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
    use proptest::prelude::*;

    use super::*;

    /// Simulates `runs` runs in which each alternative takes the given time in ms, and returns how
    /// often each alternative was used.
    fn run_trials(trials: &mut AlternativeTrials, costs_ms: &[f64], runs: u32) -> Vec<u32> {
        let mut used = vec![0; costs_ms.len()];
        for run in 0..runs {
            let current = trials.current();
            used[current] += 1;
            // A disturbance makes every fifth run slower. No disturbance makes a run faster.
            let disturbed = if run % 5 == 2 { 1.4 } else { 1.0 };
            trials.record(costs_ms[current] * disturbed * 1e6);
        }
        used
    }

    #[test]
    fn the_fastest_alternative_is_found_and_kept() {
        let mut trials = AlternativeTrials::new(4, 0);
        assert_eq!(trials.best(), None);
        let used = run_trials(&mut trials, &[100.0, 900.0, 50.0, 90.0], 1000);
        assert_eq!(trials.best(), Some(2));
        assert_eq!(used, [3, 1, 993, 3]);
        assert_eq!(trials.fastest_ns(1), Some(900e6));
    }

    #[test]
    fn short_runs_are_tried_more_often() {
        let mut trials = AlternativeTrials::new(2, 0);
        let used = run_trials(&mut trials, &[1.0, 0.5], 18);
        assert_eq!((trials.best(), used), (Some(1), vec![9, 9]));
    }

    #[test]
    fn the_baseline_is_kept_unless_another_is_clearly_faster() {
        for (baseline, costs, chosen) in [
            (0, [100.0, 96.0, 97.0], 0),
            (0, [100.0, 70.0, 97.0], 1),
            (1, [110.0, 100.0, 96.0], 1),
            (2, [99.0, 98.0, 100.0], 2),
        ] {
            let mut trials = AlternativeTrials::new(3, baseline);
            run_trials(&mut trials, &costs, 20);
            assert_eq!(trials.best(), Some(chosen), "{costs:?}");
        }
    }

    #[test]
    fn of_nearly_equal_alternatives_the_present_choice_or_the_first_is_chosen() {
        let mut trials = AlternativeTrials::new(3, 0);
        run_trials(&mut trials, &[100.0, 62.0, 60.0], 20);
        assert_eq!(trials.best(), Some(1));
        run_trials(&mut trials, &[100.0, 62.0, 50.0], 1100);
        assert_eq!(trials.best(), Some(2));
        run_trials(&mut trials, &[100.0, 49.0, 50.0], 1100);
        assert_eq!(trials.best(), Some(2));
    }

    #[test]
    fn an_alternative_that_becomes_slower_than_the_baseline_is_given_up() {
        let mut trials = AlternativeTrials::new(2, 0);
        run_trials(&mut trials, &[100.0, 60.0], 20);
        run_trials(&mut trials, &[60.0, 61.0], 1100);
        assert_eq!(trials.best(), Some(0));
    }

    #[test]
    fn all_but_slow_alternatives_are_tried_again() {
        let mut trials = AlternativeTrials::new(3, 0);
        run_trials(&mut trials, &[100.0, 140.0, 160.0], 20);
        let used = run_trials(&mut trials, &[100.0, 60.0, 160.0], 2000);
        assert_eq!(trials.best(), Some(1));
        assert_eq!(used[2], 0);
    }

    #[test]
    fn lasting_slowdown_restarts_all_trials() {
        let mut trials = AlternativeTrials::new(2, 0);
        run_trials(&mut trials, &[100.0, 900.0], 50);
        run_trials(&mut trials, &[1000.0, 500.0], 50);
        assert_eq!(trials.best(), Some(1));
    }

    #[test]
    fn periodic_load_does_not_bias_the_trials() {
        for (other, chosen) in [(110.0, 0), (40.0, 1)] {
            let mut trials = AlternativeTrials::new(2, 0);
            for run in 0..20 {
                let heavier = if run % 2 == 0 { 2.0 } else { 1.0 };
                let ms = [100.0, other][trials.current()];
                trials.record(ms * heavier * 1e6);
            }
            assert_eq!(trials.best(), Some(chosen));
        }
    }

    #[test]
    fn one_disturbed_run_per_alternative_changes_nothing() {
        let mut trials = AlternativeTrials::new(2, 0);
        run_trials(&mut trials, &[90.0, 50.0], 20);
        while trials.pending.is_empty() {
            trials.record(50e6);
        }
        // The first run of each alternative is slow, as if the whole machine were slow at that
        // time.
        for _ in 0..6 {
            let is_first = trials.current_ns[trials.current()].is_empty();
            let disturbed = if is_first { 3.0 } else { 1.0 };
            trials.record([90e6, 50e6][trials.current()] * disturbed);
        }
        assert_eq!(trials.best(), Some(1));
    }

    #[test]
    fn the_fastest_run_is_reported() {
        let mut trials = AlternativeTrials::new(1, 0);
        for ns in [9.0, 7.0, 8.0] {
            trials.record(ns);
        }
        assert_eq!(trials.fastest_ns(0), Some(7.0));
    }

    #[test]
    fn a_single_alternative_needs_no_trials() {
        let mut trials = AlternativeTrials::new(1, 0);
        assert_eq!((trials.current(), trials.best()), (0, Some(0)));
        assert_eq!(run_trials(&mut trials, &[7.0], 5000), [5000]);
    }

    proptest! {
        /// The loss by trials is bounded, and the choice is not slower than the baseline.
        #[test]
        fn trials_cost_at_most_their_limit(
            costs in prop::collection::vec(0.2..20.0_f64, 1..9),
            baseline in 0..8_usize,
        ) {
            let baseline = baseline % costs.len();
            let mut trials = AlternativeTrials::new(costs.len(), baseline);
            let mut loss = 0.0;
            while trials.best().is_none() {
                let cost = costs[trials.current()];
                loss += cost - costs[baseline];
                trials.record(cost * 1e6);
            }
            let once: f64 = costs.iter().map(|cost| (cost - costs[baseline]).max(0.0)).sum();
            let slowest = costs.iter().copied().fold(0.0, f64::max);
            prop_assert!(loss <= once + LOSS_RUNS * costs[baseline] + slowest, "{loss}");
            let chosen = costs[trials.best().unwrap()];
            let best = costs.iter().copied().fold(f64::INFINITY, f64::min);
            prop_assert!(chosen <= costs[baseline], "{chosen}");
            prop_assert!(chosen * MARGIN <= best || best >= costs[baseline] * MARGIN);
        }
    }
}
