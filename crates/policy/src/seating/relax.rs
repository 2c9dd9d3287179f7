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
//! *Lower bound*: kinds are ignored, and the total capacity `C`, in cores, is treated as divisible,
//! at a price `l` per core. Let `cost_i(x)` be the cost of candidate `i` on `x` cores. For every
//! `l` of 0 or more, `sum_i min_x (cost_i(x) + l x) - l C` is a lower bound of the costs of every
//! allocation (Lagrangian relaxation). Let `A` be weight x alone-best of a candidate, and let its
//! rate be `a + b x` between two points of its curve. Then `A / (a + b x) + l x` has its minimum at
//! an end or where `a + b x = sqrt(A b / l)`: each term has a closed form. The bound is concave in
//! `l`, and a ternary search of 90 rounds over the exponent of `l` (-60..60) finds a good `l`.
//!
//! gap = solution - bound >= solution - optimum.
//!
//! *Limits*: if every candidate needs one unit, the seeding finds an allocation whenever one exists
//! (chains are the augmenting paths of bipartite matching). If candidates need several units for
//! their spinning threads, the seeding can fail although an allocation exists, because a chain
//! leaves the number of units of the other candidates unchanged. [`allot`] then returns `None`, as
//! for an impossible allocation. The gap is not limited; no try is repeated.
//!
//! *Cost*, for `n` candidates, `U` units of `K` kinds and `P` points of all curves: growth makes at
//! most n U steps. The reason: each of at most U jumps invalidates at most n jumps. A step
//! evaluates at most 16 K costs and compares n jumps. Seeding takes at most U units, and a chain
//! tries at most n K² exchanges. Improvement tries at most 200,000 moves and
//! swaps in all. The lower bound takes about 180 P evaluations of a cost.

use std::collections::VecDeque;

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
) -> Option<(Allotment, f64)> {
    let allotment = good_allotment(candidates, classes)?;
    let gap = gap(candidates, classes, &allotment);
    Some((allotment, gap))
}

/// Returns a good allotment. Returns `None` if the seeding cannot serve all candidates. If
/// candidates need several units for their spinning threads, this can happen although an allocation
/// exists.
pub(super) fn good_allotment(
    candidates: &[SeatCandidate<'_>],
    classes: &[UnitClass],
) -> Option<Allotment> {
    let mut allocation = PartialAllocation::seeded(candidates, classes)?;
    allocation.grow();
    allocation.improve();
    Some(allocation.taken)
}

/// Returns an upper bound of the sum of costs of an allotment minus the least possible sum.
pub(super) fn gap(
    candidates: &[SeatCandidate<'_>],
    classes: &[UnitClass],
    allotment: &Allotment,
) -> f64 {
    let costs = candidates.iter().zip(allotment);
    let cost = |(candidate, take): (&SeatCandidate<'_>, &Vec<u32>)| {
        cost_of(candidate, classes, take).unwrap_or(f64::MAX)
    };
    let sum: f64 = costs.map(cost).sum();
    // Costs are positive, so 0 is a valid bound where the computed bound overflows.
    let bound = Some(lower_bound(candidates, classes)).filter(|bound| bound.is_finite());
    finite((sum - bound.unwrap_or(0.0)).max(0.0))
}

/// An allotment under construction.
struct PartialAllocation<'a> {
    candidates: &'a [SeatCandidate<'a>],
    classes: &'a [UnitClass],
    taken: Allotment,
    free: Vec<u32>,
    costs: Vec<f64>,
}

impl<'a> PartialAllocation<'a> {
    /// Gives every candidate units, those with the most cores first, until it has one unit and a
    /// core for each spinning thread. The candidates that may use the fewest units come first.
    /// Returns `None` if a candidate finds too few units, also by chains of exchanges.
    fn seeded(candidates: &'a [SeatCandidate<'a>], classes: &'a [UnitClass]) -> Option<Self> {
        let mut allocation = Self {
            candidates,
            classes,
            taken: vec![vec![0; classes.len()]; candidates.len()],
            free: classes.iter().map(|class| class.supply).collect(),
            costs: vec![f64::MAX; candidates.len()],
        };
        let open = |index: usize| -> u32 {
            let classes = classes.iter().filter(|class| class.open_to[index]);
            classes.map(|class| class.supply).sum()
        };
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|&index| {
            (
                open(index),
                std::cmp::Reverse(candidates[index].request.spinners),
            )
        });
        for index in order {
            while allocation.cost(index).is_none() {
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

    /// Returns `None` for a candidate without units or with fewer cores than spinning threads.
    fn cost(&self, index: usize) -> Option<f64> {
        self.cost_with(index, &self.taken[index])
    }

    fn cost_with(&self, index: usize, take: &[u32]) -> Option<f64> {
        let some = take.iter().any(|&count| count > 0);
        cost_of(&self.candidates[index], self.classes, take).filter(|_| some)
    }

    /// Returns the best jump of a candidate: its gain per core of capacity, the class and the
    /// number of the units. `None`: no jump lowers the cost.
    fn jump(&self, index: usize) -> Option<(f64, usize, u32)> {
        let mut best: Option<(f64, usize, u32)> = None;
        for (k, class) in self.classes.iter().enumerate() {
            if !class.open_to[index] {
                continue;
            }
            for units in 1..=self.free[k].min(JUMP_MAX) {
                let mut take = self.taken[index].clone();
                take[k] += units;
                let cost = self.cost_with(index, &take).unwrap_or(f64::MAX);
                let gain = (self.costs[index] - cost) / (f64::from(units) * class.capacity);
                if gain > 1e-12 && best.is_none_or(|(most, ..)| gain > most) {
                    best = Some((gain, k, units));
                }
            }
        }
        best
    }

    /// Takes the best jump of all candidates until no jump lowers the sum of costs. A jump for
    /// which too few units are left is computed again.
    fn grow(&mut self) {
        let mut jumps: Vec<_> = (0..self.candidates.len())
            .map(|index| self.jump(index))
            .collect();
        loop {
            let offers = jumps.iter().enumerate();
            let offers = offers.filter_map(|(index, jump)| Some((index, (*jump)?)));
            let best = offers.max_by(|a, b| a.1.0.total_cmp(&b.1.0).then(b.0.cmp(&a.0)));
            let Some((index, (_, class, units))) = best else {
                return;
            };
            if units <= self.free[class] {
                self.free[class] -= units;
                self.taken[index][class] += units;
                self.costs[index] = self.cost(index).unwrap_or(f64::MAX);
            }
            jumps[index] = self.jump(index);
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
                        if pairs > PAIRS_MAX {
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
        let (mut from, mut to) = (self.taken[a].clone(), self.taken[b].clone());
        let open = self.classes[out].open_to[b];
        let open_back = back.is_none_or(|k| k != out && self.classes[k].open_to[a] && to[k] > 0);
        if from[out] == 0 || !open || !open_back {
            return false;
        }
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

/// Lower bound of the sum of costs of every allocation.
pub(super) fn lower_bound(candidates: &[SeatCandidate<'_>], classes: &[UnitClass]) -> f64 {
    let total: f64 = classes
        .iter()
        .map(|c| c.capacity * f64::from(c.supply))
        .sum();
    let least = classes.iter().map(|c| c.capacity).fold(total, f64::min);
    let allowed_capacity: Vec<f64> = (0..candidates.len())
        .map(|index| {
            let open = classes.iter().filter(|class| class.open_to[index]);
            let open: f64 = open.map(|c| c.capacity * f64::from(c.supply)).sum();
            open.min(total - least * (candidates.len() - 1) as f64)
                .max(least)
        })
        .collect();
    // The price applies only to the capacity beyond the least capacity of each candidate. A price
    // on all capacity would make the bound the difference of two large numbers, and rounding errors
    // would dominate. The remaining rounding error is subtracted from the bound.
    let spare = (total - least * candidates.len() as f64).max(0.0);
    let at = |price: f64| -> f64 {
        let terms = candidates.iter().zip(&allowed_capacity);
        let sum: f64 = terms
            .map(|(g, &most)| cheapest(g, least, most, price))
            .sum();
        sum - price * spare - (sum.abs() + price * total) * 1e-12
    };
    let (mut low, mut high) = (-60.0, 60.0);
    for _ in 0..90 {
        let (left, right) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        match at(f64::exp2(left)) < at(f64::exp2(right)) {
            true => low = left,
            false => high = right,
        }
    }
    // Every price gives a valid bound, including 0.
    at(f64::exp2((low + high) / 2.0)).max(at(0.0))
}

/// Least value of cost(x) + price * (x - least) for `least..=most` cores.
fn cheapest(candidate: &SeatCandidate<'_>, least: f64, most: f64, price: f64) -> f64 {
    let total = |x: f64| candidate.cost(x) + price * (x - least);
    let inner = candidate.request.curve.points().iter().map(|p| p.cores);
    let inner = inner.filter(|&x| x > least && x < most);
    let ends: Vec<f64> = std::iter::once(least).chain(inner).chain([most]).collect();
    let mut best = ends.iter().map(|&x| total(x)).fold(f64::INFINITY, f64::min);
    for pair in ends.windows(2) {
        let (x0, x1) = (pair[0], pair[1]);
        let (r0, r1) = (
            candidate.request.curve.rate(x0),
            candidate.request.curve.rate(x1),
        );
        let slope = (r1 - r0) / (x1 - x0);
        let scale = candidate.request.weight * candidate.alone_best;
        let x = x0 + ((scale * slope / price).sqrt() - r0) / slope;
        if x > x0 && x < x1 {
            best = best.min(total(x));
        }
    }
    best
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
        let path = RecurrenceTable::new(&tables, supply).optima(1).pop()?;
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
            let allotment = allot(&candidates(&requests), &classes);
            let (taken, _) = allotment.unwrap_or_else(|| panic!("{spinners:?}"));
            for (index, take) in taken.iter().enumerate() {
                let cores: u32 = take.iter().zip(&classes).map(|(n, c)| n * c.cores).sum();
                assert!(cores >= spinners[index].max(1), "{spinners:?}: {taken:?}");
            }
        }
        let requests = [8, 8, 0].map(|spinners| request(&[(1, 1.0)], spinners));
        assert!(allot(&candidates(&requests), &classes).is_none());
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
            let allotment = allot(&candidates(&requests), &classes);
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
            let bound = lower_bound(&candidates, &classes);
            prop_assert!(bound <= optimum * (1.0 + 1e-9), "bound {bound}, optimum {optimum}");
            if let Some((taken, gap)) = allot(&candidates, &classes) {
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
