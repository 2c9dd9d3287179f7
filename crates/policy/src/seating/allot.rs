// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocation of units to candidates: exact, by dynamic programming over the remaining supply.
//!
//! A *unit* is a whole LLC domain or a whole core; a *candidate* is a program to be seated. Units
//! of one *class* are interchangeable (module `units`); the *supply* is the number of units of each
//! class. An *option* of a candidate is a number of units of each class; its *price* is the
//! weighted NTT with these units, as a whole number (module `options`).
//!
//! `least[i][s]` is the least sum of prices of candidates `i..` when the remaining units per class
//! are the vector `s`:
//!
//! `least[i][s] = min over options c <= s of price_i(c) + least[i+1][s - c]`
//!
//! The recurrence is exact for curves of any shape, because a candidate's cost depends on its own
//! units alone. The paper's greedy algorithm would stop at the first plateau of a curve. For `D`
//! equal domains, there is a single class, and the search for `n` candidates takes n * D^2 / 2
//! steps. With several classes, the numbers of states multiply: [`work`] computes the number of
//! steps in advance, and the caller uses `relax` if the number exceeds [`work_max`].
//!
//! The optimal allocations are the paths along which the recurrence holds with equality, apart from
//! the rounding of the prices; [`RecurrenceTable::optima`] enumerates them in a fixed order.
//!
//! Memory: (n + 1) x the number of states, 8 bytes each; the number of states is the product of
//! `supply + 1` over the classes. Enumerating an optimal allocation takes at most as many steps as
//! all candidates together have options. If the units cannot serve all candidates, there is no
//! allocation.

use super::options::{MixedRadix, OptionTable};

/// Maximum number of steps of the exact search for a supply of units per class (about a tenth of a
/// second). A step over a single class of units takes a fraction of the time of other steps.
pub(super) fn work_max(supply: &[u32]) -> u128 {
    match supply {
        [_] => 100_000_000,
        _ => 5_000_000,
    }
}

const INFEASIBLE: u64 = u64::MAX;

/// Upper bound of the steps of [`RecurrenceTable::new`] for this many candidates.
pub(super) fn work(candidates: usize, supply: &[u32]) -> u128 {
    let spare = |m: u32| match supply {
        [_] => (m as usize).saturating_sub(candidates) as u128,
        _ => u128::from(m),
    };
    let pairs = supply
        .iter()
        .map(|&m| (spare(m) + 1) * (spare(m) + 2) / 2)
        .fold(1u128, u128::saturating_mul);
    pairs.saturating_mul(candidates as u128)
}

/// The solved recurrence.
#[derive(Debug)]
pub(super) struct RecurrenceTable<'a> {
    tables: &'a [OptionTable],
    radix: MixedRadix,
    start: usize,
    /// `least[i][s]` of the recurrence. Row `i` has `radix.states` entries.
    least: Vec<u64>,
}

impl<'a> RecurrenceTable<'a> {
    /// Solves the recurrence for the candidates' options.
    pub fn new(tables: &'a [OptionTable], supply: &[u32]) -> Self {
        let radix = MixedRadix::new(supply);
        let states = radix.states;
        let vectors: Vec<Vec<u32>> = (0..states).map(|s| radix.counts(s)).collect();
        let units: Vec<usize> = vectors
            .iter()
            .map(|v| v.iter().sum::<u32>() as usize)
            .collect();
        let all = supply.iter().sum::<u32>() as usize;
        let candidates = tables.len();
        let mut least = vec![INFEASIBLE; (candidates + 1) * states];
        least[candidates * states..].fill(0);
        for (i, table) in tables.iter().enumerate().rev() {
            let (head, next) = least.split_at_mut((i + 1) * states);
            let steps: Vec<usize> = table.iter().map(|c| radix.index(&c.take)).collect();
            // Each earlier candidate has taken at least one unit, and each later candidate needs at
            // least one unit.
            let reachable = |s: &usize| units[*s] + i <= all && units[*s] + i >= candidates;
            for state in (0..states).filter(reachable) {
                let small = table.partition_point(|c| c.units as usize <= units[state]);
                let choices = table[..small].iter().zip(&steps);
                // With a single class, every option in `table[..small]` fits.
                let fitting = choices
                    .filter(|(choice, _)| supply.len() == 1 || fits(&choice.take, &vectors[state]));
                let sums =
                    fitting.map(|(choice, &step)| choice.price.saturating_add(next[state - step]));
                head[i * states + state] = sums.min().unwrap_or(INFEASIBLE);
            }
        }
        Self {
            tables,
            start: states - 1,
            radix,
            least,
        }
    }

    /// The least sum of prices; `None` when not all candidates can be served.
    pub fn least(&self) -> Option<u64> {
        Some(self.least[self.start]).filter(|&least| least != INFEASIBLE)
    }

    /// Returns at most `limit` optimal allocations: the index of each candidate's option.
    pub fn optima(&self, limit: usize) -> Vec<Vec<usize>> {
        let mut found = Vec::new();
        if self.least().is_none() {
            return found;
        }
        let mut path: Vec<EnumerationStep> = Vec::new();
        let mut at = EnumerationStep {
            state: self.start,
            slack: self.tables.len() as u64,
            choice: 0,
        };
        loop {
            if path.len() == self.tables.len() {
                found.push(path.iter().map(|step| step.choice).collect());
            } else if let Some((taken, next)) = self.tight(path.len(), at) {
                path.push(taken);
                at = next;
                continue;
            }
            match path.pop() {
                Some(step) if found.len() < limit => {
                    at = EnumerationStep {
                        choice: step.choice + 1,
                        ..step
                    };
                }
                _ => return found,
            }
        }
    }

    /// Returns the first option of candidate `i`, starting from `at.choice`, that increases the sum
    /// of prices by at most `at.slack` above the least sum. Also returns the next step of the
    /// enumeration.
    fn tight(&self, i: usize, at: EnumerationStep) -> Option<(EnumerationStep, EnumerationStep)> {
        let states = self.radix.states;
        let here = self.least[i * states + at.state];
        let next = &self.least[(i + 1) * states..];
        let vector = self.radix.counts(at.state);
        let from = self.tables[i].iter().enumerate().skip(at.choice);
        let fitting = from.filter(|(_, choice)| fits(&choice.take, &vector));
        let mut tight = fitting.filter_map(|(index, choice)| {
            let state = at.state - self.radix.index(&choice.take);
            let lost = choice.price.saturating_add(next[state]) - here;
            let slack = at.slack.checked_sub(lost)?;
            let taken = EnumerationStep {
                choice: index,
                ..at
            };
            let then = EnumerationStep {
                state,
                slack,
                choice: 0,
            };
            Some((taken, then))
        });
        tight.next()
    }
}

/// Position of the enumeration at one candidate: the remaining units (`state`), the permitted
/// increase of the sum of prices (`slack`), and the next option to try or the option taken
/// (`choice`).
#[derive(Debug, Clone, Copy)]
struct EnumerationStep {
    state: usize,
    slack: u64,
    choice: usize,
}

fn fits(take: &[u32], left: &[u32]) -> bool {
    take.iter().zip(left).all(|(t, l)| t <= l)
}
