// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocation of units to candidates when the exact search of `allot` would need too many steps.
//! The result is a good solution and an upper bound of its distance from the optimum.
//!
//! A *unit* is a whole LLC domain or a whole core; a *candidate* is a program to be seated. Units
//! of one *kind* ([`UnitClass`]) have the same capacity, number of cores and permitted candidates.
//! The cost of a candidate is its weighted NTT; the sum of the costs is minimised.
//!
//! *Solution*:
//!
//! 1. Seeding: every candidate gets one unit. A candidate with spinning threads gets units until it
//!    has a core for each spinning thread. The candidates that may use the fewest units come first,
//!    and each takes the units with the most cores. If no permitted unit is free, units change
//!    hands along the shortest *chain*: the candidate takes a unit from a second candidate, which
//!    takes a unit of another kind in return, and so on until a kind has a free unit.
//! 2. Growth: a *jump* gives 1 to 16 units of one kind to one candidate. The jump that lowers the
//!    sum of costs most per capacity is taken, until no jump lowers the sum. Jumps of several units
//!    overcome plateaus of curves.
//! 3. Improvement: single units are moved and swapped between pairs of candidates while the sum of
//!    costs decreases. Growth follows each round over all pairs.
//!
//! gap = solution - bound >= solution - optimum, with the lower bound of module `bound`.
//!
//! *Limits*: if every candidate needs one unit, the seeding finds an allocation whenever one exists
//! (chains are the augmenting paths of bipartite matching). If candidates need several units for
//! their spinning threads, the seeding can fail although an allocation exists, because a chain
//! leaves the number of units of the other candidates unchanged. [`allot`] then returns `None`, as
//! for an impossible allocation. The gap is not limited; no try is repeated.
//!
//! *Cost*, for `n` candidates, `U` units of `K` kinds and `P` points of all curves: growth makes at
//! most U jumps that are taken and n + U that are not. A jump evaluates at most 16 K costs, and
//! takes log n comparisons. Seeding takes at most U units, and a chain tries at most n K²
//! exchanges. Improvement tries at most 200,000 moves and swaps in all. The lower bound takes 78 P
//! evaluations of a cost. All passes but the seeding end when the plan's budget of steps (`budget`)
//! is used up; units may then remain free, and the lower bound is lower.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use super::bound::lower_bound;
use super::budget::StepBudget;
use super::candidate::{SeatCandidate, finite};
use super::options::cost_of;
use super::units::{Allotment, UnitClass};

/// Largest number of units that a candidate may gain in one jump.
const JUMP_MAX: u32 = 16;

/// Maximum number of moves and swaps that `improve` tries in all its rounds.
const PAIRS_MAX: usize = 200_000;

/// Returns a good allotment, and an upper bound of its sum of costs minus the least possible sum.
/// Returns `None` if [`good_allotment`] does.
pub(super) fn allot(
    candidates: &[SeatCandidate<'_>],
    classes: &[UnitClass],
    budget: &StepBudget,
) -> Option<(Allotment, f64)> {
    // The lower bound gets a third of the steps.
    let reserved = budget.reserve(budget.left() / 3);
    let allotment = good_allotment(candidates, classes, budget);
    budget.release(reserved);
    let allotment = allotment?;
    let gap = gap(candidates, classes, &allotment, budget);
    Some((allotment, gap))
}

/// Returns a good allotment. Returns `None` if the seeding cannot serve all candidates. If
/// candidates need several units for their spinning threads, this can happen although an allocation
/// exists.
pub(super) fn good_allotment(
    candidates: &[SeatCandidate<'_>],
    classes: &[UnitClass],
    budget: &StepBudget,
) -> Option<Allotment> {
    let mut allocation = PartialAllocation::seeded(candidates, classes, budget)?;
    allocation.grow();
    allocation.improve();
    Some(allocation.taken)
}

/// Returns an upper bound of the sum of costs of an allotment minus the least possible sum.
pub(super) fn gap(
    candidates: &[SeatCandidate<'_>],
    classes: &[UnitClass],
    allotment: &Allotment,
    budget: &StepBudget,
) -> f64 {
    let costs = candidates.iter().zip(allotment);
    let cost = |(candidate, take): (&SeatCandidate<'_>, &Vec<u32>)| {
        cost_of(candidate, classes, take).unwrap_or(f64::MAX)
    };
    let sum: f64 = costs.map(cost).sum();
    // Costs are positive, so 0 is a valid bound where the computed bound overflows.
    let bound = Some(lower_bound(candidates, classes, budget)).filter(|bound| bound.is_finite());
    finite((sum - bound.unwrap_or(0.0)).max(0.0))
}

/// A number of units of a class for a candidate, and the gain: by how much the cost decreases, per
/// core of capacity. Jumps are ordered by their gain, then the first candidate is the greatest.
#[derive(Debug, Clone, Copy)]
struct Jump {
    gain: f64,
    candidate: usize,
    class: usize,
    units: u32,
}

impl Ord for Jump {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_gain = self.gain.total_cmp(&other.gain);
        by_gain.then(other.candidate.cmp(&self.candidate))
    }
}

impl PartialOrd for Jump {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Jump {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Jump {}

/// An allotment under construction.
struct PartialAllocation<'a> {
    candidates: &'a [SeatCandidate<'a>],
    classes: &'a [UnitClass],
    taken: Allotment,
    free: Vec<u32>,
    costs: Vec<f64>,
    budget: &'a StepBudget,
}

impl<'a> PartialAllocation<'a> {
    /// Gives every candidate units, those with the most cores first, until it has one unit and a
    /// core for each spinning thread. The candidates that may use the fewest units come first.
    /// Returns `None` if a candidate finds too few units, also by chains of exchanges.
    fn seeded(
        candidates: &'a [SeatCandidate<'a>],
        classes: &'a [UnitClass],
        budget: &'a StepBudget,
    ) -> Option<Self> {
        let mut allocation = Self {
            candidates,
            classes,
            taken: vec![vec![0; classes.len()]; candidates.len()],
            free: classes.iter().map(|class| class.supply).collect(),
            costs: vec![f64::MAX; candidates.len()],
            budget,
        };
        let open = |index: usize| -> u32 {
            let classes = classes.iter().filter(|class| class.open_to[index]);
            classes.map(|class| class.supply).sum()
        };
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_cached_key(|&index| {
            (
                open(index),
                std::cmp::Reverse(candidates[index].request.spinners),
            )
        });
        for index in order {
            while allocation.cost(index).is_none() {
                budget.spend(allocation.cost_steps());
                let class = (0..classes.len())
                    .filter(|&k| classes[k].open_to[index] && allocation.free[k] > 0)
                    .max_by_key(|&k| (classes[k].cores, std::cmp::Reverse(k)))
                    .or_else(|| allocation.free_by_chain(index))?;
                allocation.free[class] -= 1;
                allocation.taken[index][class] += 1;
            }
        }
        // Chains change the units of earlier candidates, so the costs are computed at the end.
        for index in 0..candidates.len() {
            allocation.costs[index] = allocation.cost(index)?;
        }
        Some(allocation)
    }

    /// Frees a unit that a candidate may use, by the shortest chain of exchanges, and returns the
    /// unit's class. Every candidate on the chain keeps its number of units and enough cores.
    /// Returns `None`, and changes nothing, if there is no such chain.
    fn free_by_chain(&mut self, index: usize) -> Option<usize> {
        let kinds = self.classes.len();
        // For each class reached: the candidate that gives up a unit of the previous class for a
        // unit of this class, and the previous class.
        let mut reached: Vec<Option<(usize, usize)>> = vec![None; kinds];
        let starts: Vec<bool> = self.classes.iter().map(|c| c.open_to[index]).collect();
        let mut queue: VecDeque<usize> = (0..kinds).filter(|&k| starts[k]).collect();
        while let Some(from) = queue.pop_front() {
            for to in (0..kinds).filter(|&k| !starts[k]) {
                if reached[to].is_some() {
                    continue;
                }
                if !self.budget.charge(4 * self.candidates.len() as u64) {
                    return None;
                }
                let holder = (0..self.candidates.len()).find(|&c| self.can_exchange(c, from, to));
                reached[to] = holder.map(|holder| (holder, from));
                match reached[to] {
                    Some(_) if self.free[to] > 0 => return self.exchange_along(&reached, to),
                    Some(_) => queue.push_back(to),
                    None => {}
                }
            }
        }
        None
    }

    /// Returns whether a candidate with a unit of the class `from` is also served by a unit of the
    /// class `to` instead.
    fn can_exchange(&self, index: usize, from: usize, to: usize) -> bool {
        if self.taken[index][from] == 0 || !self.classes[to].open_to[index] {
            return false;
        }
        self.budget.spend(self.cost_steps());
        let mut take = self.taken[index].clone();
        take[from] -= 1;
        take[to] += 1;
        self.cost_with(index, &take).is_some()
    }

    /// Carries out the exchanges of the chain that ends at the class `last`, which has a free unit.
    /// Returns the class that then has a free unit. A candidate may occur twice on a chain; if it
    /// would have too few cores, nothing changes and the result is `None`.
    fn exchange_along(&mut self, reached: &[Option<(usize, usize)>], last: usize) -> Option<usize> {
        let mut taken = self.taken.clone();
        let mut free = last;
        while let Some((holder, from)) = reached[free] {
            taken[holder][free] += 1;
            taken[holder][from] -= 1;
            self.cost_with(holder, &taken[holder])?;
            free = from;
        }
        self.free[last] -= 1;
        self.free[free] += 1;
        self.taken = taken;
        Some(free)
    }

    /// Steps to compute a cost.
    fn cost_steps(&self) -> u64 {
        60 + 3 * self.classes.len() as u64
    }

    /// Returns `None` for a candidate without units or with fewer cores than spinning threads.
    fn cost(&self, index: usize) -> Option<f64> {
        self.cost_with(index, &self.taken[index])
    }

    fn cost_with(&self, index: usize, take: &[u32]) -> Option<f64> {
        let some = take.iter().any(|&count| count > 0);
        cost_of(&self.candidates[index], self.classes, take).filter(|_| some)
    }

    /// Returns the best jump of a candidate. `None`: no jump lowers the cost, or the steps are used
    /// up.
    fn jump(&self, index: usize) -> Option<Jump> {
        let mut best: Option<Jump> = None;
        let mut take = self.taken[index].clone();
        for (class, it) in self.classes.iter().enumerate() {
            if !it.open_to[index] {
                continue;
            }
            let most = self.free[class].min(JUMP_MAX);
            if !self.budget.charge(self.cost_steps() * u64::from(most)) {
                return None;
            }
            for units in 1..=most {
                take[class] += 1;
                let cost = self.cost_with(index, &take).unwrap_or(f64::MAX);
                let gain = (self.costs[index] - cost) / (f64::from(units) * it.capacity);
                if gain > 1e-12 && best.is_none_or(|most| gain > most.gain) {
                    best = Some(Jump {
                        gain,
                        candidate: index,
                        class,
                        units,
                    });
                }
            }
            take[class] -= most;
        }
        best
    }

    /// Takes the best jump of all candidates until no jump lowers the sum of costs. A jump for
    /// which too few units are left is computed again.
    fn grow(&mut self) {
        let candidates = 0..self.candidates.len();
        let mut jumps: BinaryHeap<Jump> = candidates.filter_map(|c| self.jump(c)).collect();
        while let Some(Jump {
            candidate,
            class,
            units,
            ..
        }) = jumps.pop()
        {
            if units <= self.free[class] {
                self.free[class] -= units;
                self.taken[candidate][class] += units;
                self.costs[candidate] = self.cost(candidate).unwrap_or(f64::MAX);
            }
            jumps.extend(self.jump(candidate));
        }
    }

    /// Moves and swaps single units between pairs of candidates while the sum of costs decreases.
    fn improve(&mut self) {
        let kinds = self.classes.len();
        let mut pairs = 0;
        let mut better = true;
        while better {
            better = false;
            for a in 0..self.candidates.len() {
                for b in 0..self.candidates.len() {
                    for trade in 0..kinds * (kinds + 1) {
                        pairs += 1;
                        if pairs > PAIRS_MAX || !self.budget.charge(8) {
                            return;
                        }
                        let (out, back) = (trade % kinds, trade / kinds);
                        better |= a != b && self.trade(a, b, out, back.checked_sub(1));
                    }
                }
            }
            let before: f64 = self.costs.iter().sum();
            self.grow();
            better |= self.costs.iter().sum::<f64>() < before * (1.0 - 1e-12);
        }
    }

    /// Tries to move a unit from `a` to `b`, optionally in exchange for a unit of another class.
    fn trade(&mut self, a: usize, b: usize, out: usize, back: Option<usize>) -> bool {
        let open = self.classes[out].open_to[b];
        let open_back =
            back.is_none_or(|k| k != out && self.classes[k].open_to[a] && self.taken[b][k] > 0);
        if self.taken[a][out] == 0 || !open || !open_back {
            return false;
        }
        self.budget.spend(2 * self.cost_steps());
        let (mut from, mut to) = (self.taken[a].clone(), self.taken[b].clone());
        from[out] -= 1;
        to[out] += 1;
        if let Some(k) = back {
            to[k] -= 1;
            from[k] += 1;
        }
        let costs = (self.cost_with(a, &from), self.cost_with(b, &to));
        let (Some(cost_a), Some(cost_b)) = costs else {
            return false;
        };
        if cost_a + cost_b >= (self.costs[a] + self.costs[b]) * (1.0 - 1e-12) {
            return false;
        }
        (self.taken[a], self.taken[b]) = (from, to);
        (self.costs[a], self.costs[b]) = (cost_a, cost_b);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use usher_model::{Curve, ProgramId};

    use super::super::allot::RecurrenceTable;
    use super::super::options::{OptionTable, option_table, quantise};
    use super::super::{Request, candidate::SeatCandidate};
    use super::*;

    fn request(points: &[(u32, f64)], spinners: u32) -> Request {
        Request {
            id: ProgramId(0),
            name: String::new(),
            curve: Curve::from_rates(&points.iter().copied().collect()).unwrap(),
            weight: 1.0,
            spinners,
            llc_bytes: None,
            bandwidth_gbps: None,
            bound_to: None,
            pinned: false,
        }
    }

    fn unlimited() -> StepBudget {
        StepBudget::new(u64::MAX)
    }

    /// The least sum of costs, from the exact recurrence.
    fn exact(
        candidates: &[SeatCandidate<'_>],
        classes: &[UnitClass],
        supply: &[u32],
    ) -> Option<f64> {
        let units_max = supply.iter().sum::<u32>() - (candidates.len() as u32 - 1);
        let mut tables: Vec<OptionTable> = (0..candidates.len())
            .map(|index| option_table(&candidates[index], index, classes, units_max))
            .collect();
        quantise(&mut tables, 0);
        let path = RecurrenceTable::new(&tables, supply)
            .optima(1, &unlimited())
            .pop()?;
        Some(
            tables
                .iter()
                .zip(path)
                .map(|(table, at)| table[at].cost)
                .sum(),
        )
    }

    fn candidates(requests: &[Request]) -> Vec<SeatCandidate<'_>> {
        let candidate = |request| SeatCandidate {
            request,
            alone_best: 1.0,
            bound: None,
        };
        requests.iter().map(candidate).collect()
    }

    #[test]
    fn seeding_exchanges_units_that_earlier_candidates_hold() {
        // Candidates 0 and 1 may use two units each, and candidate 2 three units. Candidate 0 takes
        // the large unit, the only one that candidate 1 can share with it.
        let class = |cores: u32, open_to: [bool; 3]| UnitClass {
            capacity: f64::from(cores),
            cores,
            supply: 1,
            open_to: open_to.to_vec(),
        };
        let classes = [
            class(8, [true, true, true]),
            class(4, [true, false, true]),
            class(2, [false, true, true]),
        ];
        for spinners in [[0, 0, 0], [4, 0, 2], [3, 8, 2], [8, 2, 4]] {
            let requests = spinners.map(|spinners| request(&[(1, 1.0)], spinners));
            let allotment = allot(&candidates(&requests), &classes, &unlimited());
            let (taken, _) = allotment.unwrap_or_else(|| panic!("{spinners:?}"));
            for (index, take) in taken.iter().enumerate() {
                let cores: u32 = take.iter().zip(&classes).map(|(n, c)| n * c.cores).sum();
                assert!(cores >= spinners[index].max(1), "{spinners:?}: {taken:?}");
            }
        }
        let requests = [8, 8, 0].map(|spinners| request(&[(1, 1.0)], spinners));
        assert!(allot(&candidates(&requests), &classes, &unlimited()).is_none());
    }

    proptest! {
        #[test]
        fn seeding_of_single_units_succeeds_if_an_allocation_exists(
            supplies in prop::collection::vec((1u32..9, 0u32..3), 1..6),
            open in prop::collection::vec(prop::collection::vec(any::<bool>(), 6), 1..8),
        ) {
            let classes: Vec<UnitClass> = supplies.iter().enumerate().map(|(k, &(cores, supply))| UnitClass {
                capacity: f64::from(cores),
                cores,
                supply,
                open_to: open.iter().map(|row| row[k]).collect(),
            }).collect();
            // By Hall's theorem, an allocation exists if and only if every set of candidates may
            // use at least as many units as it has members.
            let feasible = (1..1_u32 << open.len()).all(|set| {
                let members = |row: usize| set >> row & 1 == 1;
                let usable = classes.iter().filter(|class| (0..open.len()).any(|row| members(row) && class.open_to[row]));
                usable.map(|class| class.supply).sum::<u32>() >= set.count_ones()
            });
            let requests: Vec<Request> = open.iter().map(|_| request(&[(1, 1.0)], 0)).collect();
            let allotment = allot(&candidates(&requests), &classes, &unlimited());
            prop_assert_eq!(allotment.is_some(), feasible);
            for (k, class) in classes.iter().enumerate() {
                let taken = allotment.iter().flat_map(|(taken, _)| taken.iter().map(move |take| take[k]));
                prop_assert!(taken.sum::<u32>() <= class.supply);
            }
        }

        #[test]
        fn the_gap_covers_the_optimum(
            kinds in prop::collection::vec((prop::sample::select(vec![0.5, 1.0, 4.0, 6.0]), 1u32..6), 1..4),
            programs in prop::collection::vec((
                prop::collection::btree_map(1u32..30, 0.5f64..20.0, 1..6),
                prop::sample::select(vec![0, 0, 0, 2]),
            ), 1..6),
            steps in prop::sample::select(vec![0, 1_000, 10_000, u64::MAX]),
        ) {
            let supply: Vec<u32> = kinds.iter().map(|kind| kind.1).collect();
            let served = programs.len().min(supply.iter().sum::<u32>() as usize);
            let programs = &programs[..served];
            let classes: Vec<UnitClass> = kinds
                .iter()
                .map(|&(capacity, supply)| UnitClass {
                    capacity,
                    cores: capacity.ceil() as u32,
                    supply,
                    open_to: vec![true; programs.len()],
                })
                .collect();
            let requests: Vec<Request> = programs
                .iter()
                .map(|(points, spinners)| request(&points.iter().map(|(&n, &r)| (n, r)).collect::<Vec<_>>(), *spinners))
                .collect();
            let candidates: Vec<SeatCandidate<'_>> = requests
                .iter()
                .map(|request| SeatCandidate { request, alone_best: request.curve.best_rate(30.0), bound: None })
                .collect();
            let Some(optimum) = exact(&candidates, &classes, &supply) else { return Ok(()) };
            let bound = lower_bound(&candidates, &classes, &unlimited());
            prop_assert!(bound <= optimum * (1.0 + 1e-9), "bound {bound}, optimum {optimum}");
            if let Some((taken, gap)) = allot(&candidates, &classes, &StepBudget::new(steps)) {
                let costs = candidates.iter().zip(&taken).map(|(g, take)| cost_of(g, &classes, take).unwrap());
                let sum: f64 = costs.sum();
                prop_assert!(sum >= optimum * (1.0 - 1e-9) && sum - gap <= optimum * (1.0 + 1e-9));
                for (k, &supply) in supply.iter().enumerate() {
                    prop_assert!(taken.iter().map(|take| take[k]).sum::<u32>() <= supply);
                }
            }
        }
    }
}
