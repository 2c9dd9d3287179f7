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
//! steps. With several classes, the numbers of states multiply: module `search` evaluates only the
//! states that bounds permit. If that takes too long, all states are evaluated if their number of
//! work, [`work`], is at most [`WORK_MAX`] steps of the budget (`budget`); otherwise the caller uses
//! `relax`.
//!
//! The optimal allocations are the paths along which the recurrence holds with equality, apart from
//! the rounding of the prices; [`RecurrenceTable::optima`] enumerates them in a fixed order.
//!
//! Memory of all states: (n + 1) x the number of states, 8 bytes each; the number of states is the
//! product of `supply + 1` over the classes. Enumerating an optimal allocation takes at most as
//! many steps as all candidates together have options. If the units cannot serve all candidates,
//! there is no allocation.

use super::budget::StepBudget;
use super::options::{MixedRadix, OptionTable};
use super::search::{Search, StateMap};

/// Maximum number of steps over all states.
pub(super) const WORK_MAX: u64 = 30_000_000;

/// Steps to try an option in the enumeration of the optimal allocations.
const TRY_STEPS: u64 = 30;

const INFEASIBLE: u64 = u64::MAX;

/// Upper bound of the steps of [`RecurrenceTable::of_options`] for this many candidates. Over a
/// single class of units, an option in a state takes one step, otherwise six.
pub(super) fn work(candidates: usize, supply: &[u32]) -> u64 {
    let (spare, steps) = match supply {
        [m] => (vec![(*m as usize).saturating_sub(candidates) as u64], 1),
        _ => (supply.iter().map(|&m| u64::from(m)).collect(), 6),
    };
    let pairs = spare
        .iter()
        .map(|m| (m + 1) * (m + 2) / 2)
        .fold(steps, u64::saturating_mul);
    pairs.saturating_mul(candidates as u64)
}

/// The solved recurrence.
#[derive(Debug)]
pub(super) struct RecurrenceTable<'a> {
    tables: &'a [OptionTable],
    radix: MixedRadix,
    start: usize,
    /// For each candidate the indices of the options that an optimal allocation may contain.
    options: Vec<Vec<usize>>,
    least: LeastSums,
}

/// The sums `least[i][s]` of the recurrence.
#[derive(Debug)]
enum LeastSums {
    /// All states. Row `i` has `states` entries.
    All { states: usize, sums: Vec<u64> },
    /// The states that an optimal allocation may contain.
    Some(Vec<StateMap<u64>>),
}

impl LeastSums {
    fn of(&self, candidate: usize, state: usize) -> u64 {
        match self {
            Self::All { states, sums } => sums[candidate * states + state],
            Self::Some(layers) => layers[candidate].get(&state).copied().unwrap_or(INFEASIBLE),
        }
    }
}

impl<'a> RecurrenceTable<'a> {
    /// Solves the recurrence in all states, for all options of the candidates.
    #[cfg(test)]
    pub fn new(tables: &'a [OptionTable], supply: &[u32]) -> Self {
        let options = tables.iter().map(|table| (0..table.len()).collect());
        Self::of_options(tables, supply, options.collect())
    }

    /// Solves the recurrence in all states, for options that can belong to an optimal allocation.
    pub fn of_options(tables: &'a [OptionTable], supply: &[u32], options: Vec<Vec<usize>>) -> Self {
        let radix = MixedRadix::new(supply);
        let states = radix.states;
        let packing = Packing::new(supply);
        let vectors: Vec<Vec<u32>> = (0..states).map(|s| radix.counts(s)).collect();
        let packed: Vec<u64> = vectors.iter().map(|v| packing.pack(v)).collect();
        let units: Vec<usize> = vectors
            .iter()
            .map(|v| v.iter().sum::<u32>() as usize)
            .collect();
        let all = supply.iter().sum::<u32>() as usize;
        let candidates = tables.len();
        let mut least = vec![INFEASIBLE; (candidates + 1) * states];
        least[candidates * states..].fill(0);
        for (i, kept) in options.iter().enumerate().rev() {
            let (head, next) = least.split_at_mut((i + 1) * states);
            let table: Vec<FlatOption> = kept
                .iter()
                .map(|&at| &tables[i][at])
                .map(|option| FlatOption {
                    packed: packing.pack(&option.take),
                    step: radix.index(&option.take),
                    units: option.units as usize,
                    price: option.price,
                })
                .collect();
            // Each earlier candidate has taken at least one unit, and each later candidate needs at
            // least one unit.
            let reachable = |s: &usize| units[*s] + i <= all && units[*s] + i >= candidates;
            for state in (0..states).filter(reachable) {
                let small = table.partition_point(|c| c.units <= units[state]);
                let mut sum = INFEASIBLE;
                for choice in &table[..small] {
                    // With a single class, every option in `table[..small]` fits.
                    let fits = match packing.is_exact {
                        true => packing.fits(choice.packed, packed[state]),
                        false => fits(&radix.counts(choice.step), &vectors[state]),
                    };
                    if fits {
                        sum = sum.min(choice.price.saturating_add(next[state - choice.step]));
                    }
                }
                head[i * states + state] = sum;
            }
        }
        Self {
            tables,
            start: states - 1,
            radix,
            options,
            least: LeastSums::All {
                states,
                sums: least,
            },
        }
    }

    /// Returns the solution of a search that ended within its budget.
    pub fn searched(tables: &'a [OptionTable], supply: &[u32], search: Search) -> Option<Self> {
        let radix = MixedRadix::new(supply);
        Some(Self {
            tables,
            start: radix.states - 1,
            radix,
            options: search.options,
            least: LeastSums::Some(search.layers?),
        })
    }

    /// The least sum of prices; `None` when not all candidates can be served.
    pub fn least(&self) -> Option<u64> {
        Some(self.least.of(0, self.start)).filter(|&least| least != INFEASIBLE)
    }

    /// Returns at most `limit` optimal allocations: the index of each candidate's option. If the
    /// steps are used up, no further allocation is searched after the first.
    pub fn optima(&self, limit: usize, budget: &StepBudget) -> Vec<Vec<usize>> {
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
                if budget.left() == 0 {
                    return found;
                }
            } else if let Some((taken, next)) = self.tight(path.len(), at, budget) {
                path.push(taken);
                at = next;
                continue;
            }
            match path.pop() {
                Some(step) if found.len() < limit && (budget.left() > 0 || found.is_empty()) => {
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
    fn tight(
        &self,
        i: usize,
        at: EnumerationStep,
        budget: &StepBudget,
    ) -> Option<(EnumerationStep, EnumerationStep)> {
        let here = self.least.of(i, at.state);
        let vector = self.radix.counts(at.state);
        let kept = &self.options[i];
        let first = kept.partition_point(|&index| index < at.choice);
        let mut tried = 0;
        let from = kept[first..].iter().map(|&index| {
            tried += 1;
            (index, &self.tables[i][index])
        });
        let fitting = from.filter(|(_, choice)| fits(&choice.take, &vector));
        let mut tight = fitting.filter_map(|(index, choice)| {
            let state = at.state - self.radix.index(&choice.take);
            let next = self.least.of(i + 1, state);
            if next == INFEASIBLE {
                return None;
            }
            let lost = choice.price.saturating_add(next) - here;
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
        let found = tight.next();
        budget.spend(TRY_STEPS * (1 + tried));
        found
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

/// An option without indirections, for the loop over all states.
struct FlatOption {
    packed: u64,
    step: usize,
    units: usize,
    price: u64,
}

/// Packs the counts of units into one word, with a guard bit above each count. A vector fits into
/// another if the difference of the words, with the guard bits set in the latter, borrows no guard
/// bit.
struct Packing {
    shifts: Vec<u32>,
    guards: u64,
    /// Whether the counts fit into a word.
    is_exact: bool,
}

impl Packing {
    fn new(supply: &[u32]) -> Self {
        let mut shifts = Vec::new();
        let mut guards = 0u64;
        let mut bits = 0;
        for &count in supply {
            let width = u32::BITS - count.leading_zeros();
            shifts.push(bits.min(63));
            guards |= 1u64.checked_shl(bits + width).unwrap_or(0);
            bits += width + 1;
        }
        Self {
            shifts,
            guards,
            is_exact: bits <= 64,
        }
    }

    fn pack(&self, counts: &[u32]) -> u64 {
        if !self.is_exact {
            return 0;
        }
        let shifted = counts.iter().zip(&self.shifts);
        shifted
            .map(|(&count, &shift)| u64::from(count) << shift)
            .sum()
    }

    fn fits(&self, take: u64, left: u64) -> bool {
        ((left | self.guards) - take) & self.guards == self.guards
    }
}

fn fits(take: &[u32], left: &[u32]) -> bool {
    take.iter().zip(left).all(|(t, l)| t <= l)
}
