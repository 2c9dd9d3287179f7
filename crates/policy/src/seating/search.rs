// SPDX-License-Identifier: MIT OR Apache-2.0
//! Solves the recurrence of `allot` only for states that can belong to an optimal allocation.
//!
//! *Problem*: with several classes of units, the numbers of states multiply, although few of them
//! matter. *Idea*: bounds from prices of units (Lagrangian relaxation), as in branch and bound.
//!
//! 1. *Upper bound*: the sum of prices of an allocation that `relax` found.
//! 2. *Lower bound*: each class of units has a price `l[k]` of 0 or more. With the reduced price
//!    `price_i(c) + l c` of each option, the sum over the candidates of the least reduced prices,
//!    minus `l supply`, is a lower bound of every allocation. A subgradient method with steps after
//!    Polyak improves `l` for a fixed number of evaluated options ([`ASCENT_STEPS`]).
//! 3. *Better upper bound*: a beam search takes the options of one candidate after the other, and
//!    keeps the [`BEAM_STATES`] states with the least bounds. From each state it tries the
//!    [`BEAM_OPTIONS`] fitting options with the least reduced prices.
//! 4. *Options*: an option remains if its reduced price exceeds the candidate's least by at most
//!    the difference of both bounds.
//! 5. *States*: candidates take their options one after the other. A state (the remaining units)
//!    remains if the least sum of prices up to it, plus the lower bound for the other candidates,
//!    does not exceed the upper bound. The options of a candidate are tried by rising reduced
//!    price, so that the first option beyond the bound ends the loop.
//! 6. The recurrence is evaluated backwards along the options that step 5 kept: an option of an
//!    optimal allocation never exceeds the bound.
//!
//! All comparisons permit a slack for the rounding of prices (`options`): every allocation within
//! the slack of the least sum remains, so that `RecurrenceTable::optima` returns the same
//! allocations as without bounds.
//!
//! The search ends without a result after a number of tried options ([`TRIED_MAX`]), or when the
//! plan's budget of steps (`budget`) is used up. The lower bound remains valid.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::budget::StepBudget;
use super::options::{AllocationOption, MixedRadix, OptionTable};

/// Maximum number of options that the search tries in all states.
pub(super) const TRIED_MAX: u64 = 600_000;

/// The same maximum where all states can be evaluated afterwards.
pub(super) const TRIED_BEFORE_ALL_MAX: u64 = 300_000;

/// Steps of an entry of a map.
const MAP_STEPS: u64 = 60;

/// A map from states.
pub(super) type StateMap<V> = BTreeMap<usize, V>;

/// Number of states that the beam search keeps for each candidate.
const BEAM_STATES: usize = 64;

/// Number of options that the beam search tries from each state.
const BEAM_OPTIONS: usize = 64;

/// Number of options that the improvement of the lower bound evaluates, in all rounds.
const ASCENT_STEPS: usize = 1_000_000;

/// Maximum number of rounds of the improvement.
const ROUNDS_MAX: usize = 200;

/// The prices of units, and the lower bound that follows.
#[derive(Debug, Clone)]
struct UnitPrices {
    of_class: Vec<f64>,
    /// The least reduced price of each candidate.
    least: Vec<f64>,
    /// The lower bound of the sum of prices.
    bound: f64,
}

/// The result of a search: the kept options and states, or nothing.
#[derive(Debug)]
pub(super) struct Search {
    /// Lower bound of the sum of prices of every allocation.
    pub bound: f64,
    /// An allocation below the given upper bound: its sum of prices, and the index of each
    /// candidate's option.
    pub better: Option<(u64, Vec<usize>)>,
    /// For each candidate the indices of the kept options, rising.
    pub options: Vec<Vec<usize>>,
    /// For each candidate and at the end: the least sum of prices from the state on. `None` if the
    /// budget of steps was spent.
    pub layers: Option<Vec<StateMap<u64>>>,
}

/// Searches for the allocations whose sum of prices is at most `upper`.
pub(super) fn search(
    tables: &[OptionTable],
    supply: &[u32],
    radix: &MixedRadix,
    upper: u64,
    tried_max: u64,
    budget: &StepBudget,
) -> Search {
    let prices = ascend(tables, supply, upper as f64, budget);
    let mut forward = Forward {
        tables,
        radix,
        prices: &prices,
        limit: f64::INFINITY,
        tried_max,
        budget,
    };
    let better = forward.beam().filter(|(sum, _)| *sum < upper);
    let upper = better.as_ref().map_or(upper, |(sum, _)| *sum) as f64;
    forward.limit = upper + tables.len() as f64 + 64.0 + upper * 1e-12;
    let gap = forward.limit - prices.bound;
    let mut options: Vec<Vec<usize>> = Vec::new();
    for (table, least) in tables.iter().zip(&prices.least) {
        let kept = (0..table.len()).filter(|&at| prices.reduced(&table[at]) - least <= gap);
        options.push(kept.collect());
    }
    let layers = forward.layers(&options).map(|layers| backward(&layers));
    Search {
        bound: prices.bound,
        better,
        options,
        layers,
    }
}

impl UnitPrices {
    fn reduced(&self, option: &AllocationOption) -> f64 {
        option.price as f64 + cost(&self.of_class, &option.take)
    }
}

fn cost(prices: &[f64], take: &[u32]) -> f64 {
    prices
        .iter()
        .zip(take)
        .map(|(p, &t)| p * f64::from(t))
        .sum()
}

/// Improves the prices of units from 0 on.
fn ascend(tables: &[OptionTable], supply: &[u32], upper: f64, budget: &StepBudget) -> UnitPrices {
    let options: usize = tables.iter().map(Vec::len).sum();
    let steps = options as u64 * (4 + 2 * supply.len() as u64);
    budget.spend(steps);
    let rounds = (ASCENT_STEPS / (options * supply.len()).max(1)).clamp(1, ROUNDS_MAX);
    let (mut best, mut demand) = evaluate(tables, supply, vec![0.0; supply.len()]);
    let mut present = best.clone();
    let mut scale = 1.0;
    let mut since_better = 0;
    for _ in 0..rounds {
        let excess: Vec<f64> = demand
            .iter()
            .zip(supply)
            .zip(&present.of_class)
            .map(|((&taken, &supply), &price)| {
                let excess = taken as f64 - f64::from(supply);
                if price > 0.0 { excess } else { excess.max(0.0) }
            })
            .collect();
        let norm: f64 = excess.iter().map(|x| x * x).sum();
        if norm == 0.0 || !budget.charge(steps) {
            break;
        }
        let step = scale * (upper - present.bound).max(upper * 1e-12) / norm;
        let moved = present.of_class.iter().zip(&excess);
        let moved = moved
            .map(|(price, x)| (price + step * x).max(0.0))
            .collect();
        (present, demand) = evaluate(tables, supply, moved);
        match present.bound > best.bound {
            true => {
                best = present.clone();
                since_better = 0;
            }
            false => since_better += 1,
        }
        if since_better == 5 {
            scale /= 2.0;
            since_better = 0;
        }
    }
    best
}

/// Returns the lower bound for prices of units, and the units that the candidates' cheapest options
/// take in all.
fn evaluate(tables: &[OptionTable], supply: &[u32], of_class: Vec<f64>) -> (UnitPrices, Vec<u64>) {
    let mut demand = vec![0; supply.len()];
    let mut least = Vec::with_capacity(tables.len());
    for table in tables {
        let mut cheapest = (f64::INFINITY, None);
        for option in table {
            let reduced = option.price as f64 + cost(&of_class, &option.take);
            if reduced < cheapest.0 {
                cheapest = (reduced, Some(option));
            }
        }
        least.push(cheapest.0);
        for (demand, &taken) in demand
            .iter_mut()
            .zip(cheapest.1.iter().flat_map(|o| &o.take))
        {
            *demand += u64::from(taken);
        }
    }
    let bound = least.iter().sum::<f64>() - cost(&of_class, supply);
    let prices = UnitPrices {
        of_class,
        least,
        bound,
    };
    (prices, demand)
}

/// An option as the search tries it.
struct Trial<'a> {
    /// Index in the table.
    at: usize,
    take: &'a [u32],
    step: usize,
    units: u32,
    price: u64,
    reduced: f64,
}

/// The states before one candidate takes its option.
#[derive(Debug, Default)]
struct StateLayer {
    index: StateMap<u32>,
    /// Each state, with the least sum of prices up to it.
    states: Vec<(usize, u64)>,
    /// The options of the candidate that do not exceed the bound.
    edges: Vec<Edge>,
}

/// An option in a state: indices of the states of this layer and of the next, and the price.
#[derive(Debug, Clone, Copy)]
struct Edge {
    from: u32,
    to: u32,
    price: u64,
}

impl StateLayer {
    /// Enters a state with a sum of prices up to it. Returns the index of the state.
    fn enter(&mut self, state: usize, sum: u64) -> u32 {
        match self.index.entry(state) {
            Entry::Occupied(entry) => {
                let at = *entry.get();
                let least = &mut self.states[at as usize].1;
                *least = sum.min(*least);
                at
            }
            Entry::Vacant(entry) => {
                self.states.push((state, sum));
                *entry.insert(self.states.len() as u32 - 1)
            }
        }
    }
}

/// The first pass: which states can be reached within the limit.
struct Forward<'a> {
    tables: &'a [OptionTable],
    radix: &'a MixedRadix,
    prices: &'a UnitPrices,
    limit: f64,
    tried_max: u64,
    budget: &'a StepBudget,
}

impl Forward<'_> {
    /// Steps to compare an option with the remaining units.
    fn fit_steps(&self) -> u64 {
        3 + self.prices.of_class.len() as u64
    }

    /// Returns the states before each candidate and at the end; `None` if the steps are used up.
    fn layers(&self, options: &[Vec<usize>]) -> Option<Vec<StateLayer>> {
        let mut tried = 0;
        let mut after: f64 = self.prices.least.iter().sum();
        let mut layer = StateLayer::default();
        layer.enter(self.radix.states - 1, 0);
        let mut layers = Vec::with_capacity(self.tables.len() + 1);
        for (i, kept) in options.iter().enumerate() {
            after -= self.prices.least[i];
            let trials = self.trials(i, kept)?;
            let mut next = StateLayer::default();
            for from in 0..layer.states.len() {
                let before = layer.edges.len();
                let options = self.try_options(i, (from, after), &trials, &mut layer, &mut next);
                tried += options;
                let entries = 1 + (layer.edges.len() - before) as u64;
                let steps = MAP_STEPS * entries + self.fit_steps() * options;
                if tried > self.tried_max || !self.budget.charge(steps) {
                    return None;
                }
            }
            layers.push(layer);
            layer = next;
        }
        layers.push(layer);
        Some(layers)
    }

    /// Adds the options of candidate `i` in the state `from`, for which the other candidates add at
    /// least `after` to the sum of prices. Returns the number of options tried.
    fn try_options(
        &self,
        i: usize,
        (from, after): (usize, f64),
        trials: &[Trial<'_>],
        layer: &mut StateLayer,
        next: &mut StateLayer,
    ) -> u64 {
        let (state, sum) = layer.states[from];
        let left = self.radix.counts(state);
        let units: u32 = left.iter().sum();
        let base = sum as f64 + after - cost(&self.prices.of_class, &left);
        for (tried, trial) in trials.iter().enumerate() {
            if base + trial.reduced > self.limit {
                return tried as u64 + 1;
            }
            if self.fits(i, trial, &left, units) {
                layer.edges.push(Edge {
                    from: from as u32,
                    to: next.enter(state - trial.step, sum.saturating_add(trial.price)),
                    price: trial.price,
                });
            }
        }
        trials.len() as u64
    }

    /// Whether candidate `i` may take the option, so that a unit is left for each later candidate.
    fn fits(&self, i: usize, trial: &Trial<'_>, left: &[u32], units: u32) -> bool {
        let serves_others = trial.units as usize + self.tables.len() <= units as usize + i + 1;
        serves_others && trial.take.iter().zip(left).all(|(t, l)| t <= l)
    }

    /// Returns the best allocation of the beam search: its sum of prices, and the index of each
    /// candidate's option.
    fn beam(&self) -> Option<(u64, Vec<usize>)> {
        // The sum of prices of each state, the state before, and the option between both.
        let mut layers: Vec<BTreeMap<usize, (u64, usize, usize)>> =
            vec![BTreeMap::from([(self.radix.states - 1, (0, 0, 0))])];
        for (i, table) in self.tables.iter().enumerate() {
            let trials = self.trials(i, &(0..table.len()).collect::<Vec<_>>())?;
            let mut next: BTreeMap<usize, (u64, usize, usize)> = BTreeMap::new();
            for (state, sum) in self.best_states(layers.last()?)? {
                let left = self.radix.counts(state);
                let units: u32 = left.iter().sum();
                let (mut tried, mut fitting) = (0, 0);
                for trial in &trials {
                    tried += 1;
                    if !self.fits(i, trial, &left, units) {
                        continue;
                    }
                    let found = (sum.saturating_add(trial.price), state, trial.at);
                    let least = next.entry(state - trial.step).or_insert(found);
                    *least = (*least).min(found);
                    fitting += 1;
                    if fitting == BEAM_OPTIONS {
                        break;
                    }
                }
                let steps = MAP_STEPS * (1 + fitting as u64) + self.fit_steps() * tried;
                if !self.budget.charge(steps) {
                    return None;
                }
            }
            layers.push(next);
        }
        let last = layers.last()?.iter();
        let (&end, &(sum, ..)) = last.min_by_key(|(state, (sum, ..))| (*sum, **state))?;
        let mut path = Vec::with_capacity(self.tables.len());
        let mut state = end;
        for layer in layers[1..].iter().rev() {
            let (_, before, at) = layer[&state];
            path.push(at);
            state = before;
        }
        path.reverse();
        Some((sum, path))
    }

    /// The states with the least bounds, and their sums of prices; `None` if the steps are used up.
    fn best_states(
        &self,
        layer: &BTreeMap<usize, (u64, usize, usize)>,
    ) -> Option<Vec<(usize, u64)>> {
        if !self.budget.charge(2 * MAP_STEPS * layer.len() as u64) {
            return None;
        }
        let with_bound = |(&state, &(sum, ..)): (&usize, &(u64, usize, usize))| {
            let left = self.radix.counts(state);
            (sum as f64 - cost(&self.prices.of_class, &left), state, sum)
        };
        let mut states: Vec<(f64, usize, u64)> = layer.iter().map(with_bound).collect();
        states.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        states.truncate(BEAM_STATES);
        let states = states.into_iter().map(|(_, state, sum)| (state, sum));
        Some(states.collect())
    }

    /// The kept options of a candidate by rising reduced price; `None` if the steps are used up.
    fn trials(&self, candidate: usize, kept: &[usize]) -> Option<Vec<Trial<'_>>> {
        if !self.budget.charge(MAP_STEPS * kept.len() as u64) {
            return None;
        }
        let of_option = |&at: &usize| {
            let option = &self.tables[candidate][at];
            Trial {
                at,
                take: &option.take,
                step: self.radix.index(&option.take),
                units: option.units,
                price: option.price,
                reduced: self.prices.reduced(option),
            }
        };
        let mut trials: Vec<Trial<'_>> = kept.iter().map(of_option).collect();
        trials.sort_by(|a, b| a.reduced.total_cmp(&b.reduced));
        Some(trials)
    }
}

/// The second pass: the least sum of prices from each state on. The first pass has counted the steps
/// of both passes.
fn backward(layers: &[StateLayer]) -> Vec<StateMap<u64>> {
    let mut sums: Vec<StateMap<u64>> = Vec::with_capacity(layers.len());
    let mut next: Vec<Option<u64>> = Vec::new();
    for (i, layer) in layers.iter().enumerate().rev() {
        let is_last = i + 1 == layers.len();
        let mut least = vec![is_last.then_some(0); layer.states.len()];
        for edge in &layer.edges {
            let Some(rest) = next[edge.to as usize] else {
                continue;
            };
            let sum = edge.price.saturating_add(rest);
            let least = &mut least[edge.from as usize];
            *least = Some(least.map_or(sum, |least| least.min(sum)));
        }
        let states = layer.states.iter().zip(&least);
        sums.push(
            states
                .filter_map(|(&(state, _), least)| Some((state, (*least)?)))
                .collect(),
        );
        next = least;
    }
    sums.reverse();
    sums
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::allot::RecurrenceTable;
    use super::super::options::quantise;
    use super::*;

    /// A table with a random cost for each vector of at most `units_max` units.
    fn table(supply: &[u32], costs: &[f64], units_max: u32) -> OptionTable {
        let radix = MixedRadix::new(supply);
        let mut table: OptionTable = (1..radix.states)
            .map(|index| {
                let take = radix.counts(index);
                let units = take.iter().sum();
                AllocationOption {
                    cost: costs[index % costs.len()] / f64::from(units),
                    take,
                    units,
                    price: 0,
                }
            })
            .filter(|option| option.units <= units_max)
            .collect();
        table.sort_by_key(|option| option.units);
        table
    }

    proptest! {
        #[test]
        fn bounds_keep_all_optimal_allocations(
            supply in prop::collection::vec(1u32..5, 1..4),
            costs in prop::collection::vec(prop::collection::vec(1u32..6, 1..40), 1..5),
            above in 0u64..3,
        ) {
            let all: u32 = supply.iter().sum();
            let costs = &costs[..costs.len().min(all as usize)];
            let units_max = all - (costs.len() as u32 - 1);
            let mut tables: Vec<OptionTable> = costs
                .iter()
                .map(|costs| {
                    let costs: Vec<f64> = costs.iter().map(|&cost| f64::from(cost)).collect();
                    table(&supply, &costs, units_max)
                })
                .collect();
            quantise(&mut tables, 0);
            let complete = RecurrenceTable::new(&tables, &supply);
            let least = complete.least().unwrap();
            let upper = least + least / 4 * above;
            let budget = StepBudget::new(u64::MAX);
            let radix = MixedRadix::new(&supply);
            let found = search(&tables, &supply, &radix, upper, TRIED_MAX, &budget);
            prop_assert!(found.bound <= least as f64 * (1.0 + 1e-9));
            let searched = RecurrenceTable::searched(&tables, &supply, found).unwrap();
            prop_assert_eq!(searched.least(), Some(least));
            prop_assert_eq!(searched.optima(200, &budget), complete.optima(200, &budget));
        }
    }
}
