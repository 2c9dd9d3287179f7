// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which of several ways is best, found out by going each of them.
//!
//! The ways are tried in turn, a few rounds of them all, there and back, so that what
//! disturbs one disturbs the others too, also if it comes in a beat; of each the
//! fastest run counts, as nothing makes a run faster than it is. Then the best is
//! taken, unless it is hardly better than one that was thought likelier before. From
//! time to time, and when runs have become slower for good, those that were not
//! hopeless are tried again.
//!
//! No clock is read here: the caller says how long a run took.

/// Rounds; an odd number, so that the likeliest way begins.
const ROUNDS: u32 = 3;
/// Runs between two looks at the others.
const SETTLED_RUNS: u32 = 1000;
/// Runs in a row that are slower before all is tried anew.
const SLOWER_RUNS: u32 = 16;
/// Slower: by this factor.
const SLOWER: f64 = 1.5;
/// Hopeless: slower than the best by this factor.
const HOPELESS: f64 = 2.0;
/// A way is better by this factor at least, or the likelier one is taken.
const MARGIN: f64 = 0.97;

/// Trials of ways 0.., the likeliest first.
#[derive(Debug, Clone)]
pub(crate) struct Trials {
    /// By way: the fastest run of the present trials, else of those before.
    fastest_ns: Vec<Option<f64>>,
    /// By way: the fastest run of the present trials.
    now_ns: Vec<Option<f64>>,
    /// What is still to be tried, the next last.
    agenda: Vec<usize>,
    chosen: usize,
    /// Runs since the last trial, and how many of the last were slower.
    runs: u32,
    slower: u32,
}

impl Trials {
    /// Of so many ways, one at least.
    pub fn new(ways: usize) -> Self {
        let mut trials = Self {
            fastest_ns: vec![None; ways],
            now_ns: vec![None; ways],
            agenda: Vec::new(),
            chosen: 0,
            runs: 0,
            slower: 0,
        };
        trials.begin();
        trials
    }

    fn begin(&mut self) {
        let best = self.fastest_ns.iter().flatten().copied().reduce(f64::min);
        let is_hopeless = |way: &usize| match (self.fastest_ns[*way], best) {
            (Some(ns), Some(best)) => ns > best * HOPELESS,
            _ => false,
        };
        let ways = (0..self.fastest_ns.len()).rev();
        let ways: Vec<usize> = ways.filter(|way| !is_hopeless(way)).collect();
        self.now_ns.fill(None);
        self.agenda = match ways.len() {
            // There is nothing to choose.
            0 | 1 => Vec::new(),
            _ => (0..ROUNDS)
                .flat_map(|round| match round % 2 {
                    0 => ways.clone(),
                    _ => ways.iter().rev().copied().collect(),
                })
                .collect(),
        };
        self.runs = 0;
        self.slower = 0;
    }

    /// The way to go now.
    pub fn way(&self) -> usize {
        self.agenda.last().copied().unwrap_or(self.chosen)
    }

    /// The way that is best as far as is known; `None` while they are tried for the
    /// first time.
    pub fn best(&self) -> Option<usize> {
        (self.agenda.is_empty() || self.fastest_ns[self.chosen].is_some()).then_some(self.chosen)
    }

    /// The fastest run of a way that is known of.
    pub fn fastest_ns(&self, way: usize) -> Option<f64> {
        self.now_ns[way].or(self.fastest_ns[way])
    }

    /// A run on [`Self::way`] took so long.
    pub fn ran(&mut self, ns: f64) {
        let way = self.way();
        let trying = self.agenda.pop().is_some();
        match trying {
            true => {
                self.now_ns[way] = Some(self.now_ns[way].map_or(ns, |before| before.min(ns)));
                if self.agenda.is_empty() {
                    self.choose();
                }
            }
            false => self.watch(ns),
        }
    }

    fn choose(&mut self) {
        for (fastest, now) in self.fastest_ns.iter_mut().zip(&self.now_ns) {
            *fastest = now.or(*fastest);
        }
        let mut best = f64::INFINITY;
        for (way, ns) in self.now_ns.iter().enumerate() {
            if let Some(ns) = *ns
                && ns < best * MARGIN
            {
                (self.chosen, best) = (way, ns);
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
            // Another kind of work, by which what was hopeless may not be.
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

    /// Runs on, each way at its cost; how often each was gone.
    fn go(trials: &mut Trials, costs_ns: &[f64], runs: u32) -> Vec<u32> {
        let mut gone = vec![0; costs_ns.len()];
        for run in 0..runs {
            let way = trials.way();
            gone[way] += 1;
            // Disturbed now and then, never sped up.
            let disturbed = if run % 5 == 2 { 1.4 } else { 1.0 };
            trials.ran(costs_ns[way] * disturbed);
        }
        gone
    }

    #[test]
    fn the_best_is_found_and_kept() {
        let mut trials = Trials::new(4);
        assert_eq!(trials.best(), None);
        let gone = go(&mut trials, &[100.0, 900.0, 50.0, 90.0], 1000);
        assert_eq!(trials.best(), Some(2));
        assert_eq!(gone, [3, 3, 991, 3]);
        assert_eq!(trials.fastest_ns(1), Some(900.0));
    }

    #[test]
    fn hardly_better_is_not_enough() {
        let mut trials = Trials::new(2);
        go(&mut trials, &[100.0, 99.0], 20);
        assert_eq!(trials.best(), Some(0));
    }

    #[test]
    fn the_others_are_looked_at_again_but_for_the_hopeless() {
        let mut trials = Trials::new(3);
        go(&mut trials, &[100.0, 150.0, 900.0], 20);
        let gone = go(&mut trials, &[100.0, 60.0, 900.0], 2000);
        assert_eq!(trials.best(), Some(1));
        assert_eq!(gone[2], 0);
    }

    #[test]
    fn another_kind_of_work_is_tried_anew() {
        let mut trials = Trials::new(2);
        go(&mut trials, &[100.0, 900.0], 50);
        go(&mut trials, &[1000.0, 500.0], 50);
        assert_eq!(trials.best(), Some(1));
    }

    #[test]
    fn work_that_comes_in_a_beat_does_not_deceive() {
        let mut trials = Trials::new(2);
        for run in 0..20 {
            let heavier = if run % 2 == 0 { 2.0 } else { 1.0 };
            let ns = [100.0, 110.0][trials.way()];
            trials.ran(ns * heavier);
        }
        assert_eq!(trials.best(), Some(0));
    }

    #[test]
    fn a_second_look_that_is_disturbed_once_changes_nothing() {
        let mut trials = Trials::new(2);
        go(&mut trials, &[90.0, 50.0], 20);
        while trials.agenda.is_empty() {
            trials.ran(50.0);
        }
        // The first run of each is slow, as everything was just then.
        for _ in 0..6 {
            let is_first = trials.now_ns[trials.way()].is_none();
            let disturbed = if is_first { 3.0 } else { 1.0 };
            trials.ran([90.0, 50.0][trials.way()] * disturbed);
        }
        assert_eq!(trials.best(), Some(1));
    }

    #[test]
    fn the_fastest_run_is_told() {
        let mut trials = Trials::new(1);
        for ns in [9.0, 7.0, 8.0] {
            trials.ran(ns);
        }
        assert_eq!(trials.fastest_ns(0), Some(7.0));
    }

    #[test]
    fn one_way_alone_is_never_tried() {
        let mut trials = Trials::new(1);
        assert_eq!((trials.way(), trials.best()), (0, Some(0)));
        assert_eq!(go(&mut trials, &[7.0], 5000), [5000]);
    }
}
