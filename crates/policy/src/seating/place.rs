// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides how many units of which group (package, NUMA node, domain) each candidate gets.
//!
//! A *unit* is a whole LLC domain or a whole core; a *candidate* is a program to be seated. A
//! *demand* is the number of units of one class that a candidate gets in all groups together.
//!
//! The number of units of each candidate is fixed: every placement has the same ANTT. The best
//! placement by [`PlacementScore`] is searched in two passes:
//!
//! 1. `greedy`: for x = 0, 1, 2, … it tries a placement in which only x groups are shared by
//!    several candidates. Every other group goes to the candidate with the largest remaining
//!    demand. The remaining demands are fitted into the x shared groups. For groups of equal size,
//!    the first x that succeeds is the least possible.
//! 2. `PlacementSearch`: a branch and bound that places the demands in their order, each in the
//!    lowest groups first. Of several equivalent groups, the search tries only the lowest group.
//!    The search returns the first of the best placements in this order or, when its budget of
//!    steps is spent, the best placement found.
//!
//! Both passes are deterministic, because the budget is a number of steps instead of a time.
//!
//! For `G` groups, `D` demands and `P` pieces, pass 1 makes at most 2 (G + 1) packings, each in time
//! of order (G + D + P) log (G + D); with interference, a piece takes time of order G. A step of
//! pass 2 takes time of order G log G; the caller (`assign`) gives the number of steps. Both passes
//! end, too, when the plan's budget of steps (`budget`) is used up: pass 1 after its first packing.

use std::collections::BTreeMap;

use super::budget::StepBudget;
use super::interference::Interference;
use super::packing::Packing;

/// A group of units.
#[derive(Debug, Clone)]
pub(super) struct UnitGroup {
    /// Number of units of each class in the group.
    pub slots: Vec<u32>,
    /// The larger group that contains this group.
    pub parent: usize,
}

/// Demand of a candidate for units of one class. In a list of demands, all demands of a candidate
/// are adjacent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    pub candidate: usize,
    pub class: usize,
    pub count: u32,
}

/// Order of the placement goals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Objective {
    /// Few groups that several candidates share, then few pieces, which are (candidate, group)
    /// pairs, then little interference.
    Separate,
    /// Little interference, then few groups that several candidates share, then few pieces, which
    /// are (candidate, group) pairs.
    LeastInterference,
}

/// Score of a placement. Scores are compared lexicographically; the smallest score is the best. The
/// first three components are the goals of the [`Objective`] in their order, the last is the number
/// of (candidate, parent group) pairs.
pub(super) type PlacementScore = [u64; 4];

/// The groups of each demand, each with a number of units. A group may occur several times; the
/// numbers then add up.
#[derive(Debug, Clone)]
pub(super) struct UnitPlacement {
    pub score: PlacementScore,
    pub amounts: Vec<Vec<(usize, u32)>>,
}

/// A partial placement.
#[derive(Debug, Clone)]
pub(super) struct PartialPlacement<'a> {
    pub groups: &'a [UnitGroup],
    pub interference: &'a Interference,
    pub free: Vec<Vec<u32>>,
    pub candidates: Vec<Vec<usize>>,
    /// The number of groups in a parent group with units of a candidate.
    at_parent: BTreeMap<(usize, usize), u32>,
    shared: u64,
    pieces: u64,
    interference_sum: u64,
    parents: u64,
}

impl<'a> PartialPlacement<'a> {
    pub fn new(groups: &'a [UnitGroup], interference: &'a Interference) -> Self {
        Self {
            groups,
            interference,
            free: groups.iter().map(|g| g.slots.clone()).collect(),
            candidates: vec![Vec::new(); groups.len()],
            at_parent: BTreeMap::new(),
            shared: 0,
            pieces: 0,
            interference_sum: 0,
            parents: 0,
        }
    }

    pub fn score(&self, objective: Objective) -> PlacementScore {
        match objective {
            Objective::Separate => [
                self.shared,
                self.pieces,
                self.interference_sum,
                self.parents,
            ],
            Objective::LeastInterference => [
                self.interference_sum,
                self.shared,
                self.pieces,
                self.parents,
            ],
        }
    }

    /// Sum of the interference between a candidate and each other candidate in a group.
    pub fn interference_of(&self, candidate: usize, group: usize) -> u64 {
        let others = self.candidates[group]
            .iter()
            .filter(|&&other| other != candidate);
        others
            .map(|&other| self.interference.pair(candidate, other))
            .sum()
    }

    /// Gives `count` units of a group to a demand. Returns whether the candidate had no units in
    /// the group before, which is the argument `new` of [`PartialPlacement::take`].
    pub fn give(&mut self, demand: &Demand, group: usize, count: u32) -> bool {
        self.free[group][demand.class] -= count;
        if self.candidates[group].contains(&demand.candidate) {
            return false;
        }
        self.interference_sum += self.interference_of(demand.candidate, group);
        let at_parent = (demand.candidate, self.groups[group].parent);
        let at_parent = self.at_parent.entry(at_parent).or_default();
        self.parents += u64::from(*at_parent == 0);
        *at_parent += 1;
        self.shared += u64::from(self.candidates[group].len() == 1);
        self.pieces += 1;
        self.candidates[group].push(demand.candidate);
        true
    }

    /// Undoes the last [`PartialPlacement::give`] of units of the group.
    fn take(&mut self, demand: &Demand, group: usize, count: u32, new: bool) {
        self.free[group][demand.class] += count;
        if new {
            self.candidates[group].pop();
            self.pieces -= 1;
            self.shared -= u64::from(self.candidates[group].len() == 1);
            let at_parent = (demand.candidate, self.groups[group].parent);
            let at_parent = self.at_parent.entry(at_parent).or_default();
            *at_parent -= 1;
            self.parents -= u64::from(*at_parent == 0);
            self.interference_sum -= self.interference_of(demand.candidate, group);
        }
    }

    /// For each group, the last group before it that is equivalent for this candidate and for all
    /// later candidates.
    fn twins(&self, candidate: usize) -> Vec<Option<usize>> {
        let mut last = BTreeMap::new();
        let twin = |group: usize| {
            let candidates = &self.candidates[group];
            // With interference, no two groups in use are equivalent.
            let alone = !candidates.is_empty() && !self.interference.is_none();
            let key = (
                self.groups[group].parent,
                alone.then_some(group),
                candidates.len().min(2),
                candidates.contains(&candidate),
                &self.free[group],
            );
            last.insert(key, group)
        };
        (0..self.groups.len()).map(twin).collect()
    }
}

/// Returns the best placement found within `steps` search steps, and reduces `steps` by the steps
/// used.
pub(super) fn place(
    groups: &[UnitGroup],
    demands: &[Demand],
    interference: &Interference,
    objective: Objective,
    steps: &mut u32,
    budget: &StepBudget,
) -> UnitPlacement {
    let pieces_after = pieces_after(groups, demands);
    let floor = floor(groups, demands, objective, pieces_after[0]);
    let first = greedy(groups, demands, interference, objective, &floor, budget);
    if groups.len() < 2 || demands.len() < 2 && first.score[1] <= 1 {
        return lowest_first(groups, demands, first);
    }
    if groups.len() * demands.len() > AMOUNTS_MAX {
        return first;
    }
    let mut search = PlacementSearch {
        placement: PartialPlacement::new(groups, interference),
        demands,
        objective,
        pieces_after,
        amounts: vec![vec![0; groups.len()]; demands.len()],
        best: first,
        own: false,
        done: false,
        floor,
        steps: *steps,
        budget,
    };
    search.demand(0);
    // Steps that remain after an early end are available to the next search.
    *steps = search.steps;
    search.best
}

/// Handles the case of a single group, where there is no choice.
fn lowest_first(groups: &[UnitGroup], demands: &[Demand], first: UnitPlacement) -> UnitPlacement {
    match groups.len() {
        1 => UnitPlacement {
            amounts: demands
                .iter()
                .map(|demand| vec![(0, demand.count)])
                .collect(),
            ..first
        },
        _ => first,
    }
}

/// Computes a placement with few shared groups (pass 1 in the module documentation).
fn greedy(
    groups: &[UnitGroup],
    demands: &[Demand],
    interference: &Interference,
    objective: Objective,
    floor: &PlacementScore,
    budget: &StepBudget,
) -> UnitPlacement {
    let mut by_size: Vec<usize> = (0..groups.len()).collect();
    by_size.sort_by_cached_key(|&g| groups[g].slots.iter().sum::<u32>());
    let alike = groups.windows(2).all(|pair| pair[0].slots == pair[1].slots);
    let orders = if alike { &[true][..] } else { &[true, false] };
    let mut best: Option<UnitPlacement> = None;
    let tries = match objective {
        Objective::Separate => floor[0] as usize..=groups.len(),
        Objective::LeastInterference => 0..=0,
    };
    for x in tries {
        for &small_shared in orders {
            if best.is_some() && budget.left() == 0 {
                break;
            }
            let own = match small_shared {
                true => &by_size[x..],
                false => &by_size[..groups.len() - x],
            };
            let mut packing = Packing::new(groups, demands, interference, budget);
            if objective == Objective::Separate {
                packing.give_whole(own);
            }
            let mut is_own = vec![false; groups.len()];
            own.iter().for_each(|&g| is_own[g] = true);
            packing.fit_rest(|g| !is_own[g]);
            packing.fit_rest(|_| true);
            let placed = packing.placed(objective);
            if best.as_ref().is_none_or(|b| placed.score < b.score) {
                best = Some(placed);
            }
        }
        if budget.left() == 0 || best.as_ref().is_some_and(|b| b.score[0] <= x as u64) {
            break;
        }
    }
    best.unwrap_or(UnitPlacement {
        score: [0; 4],
        amounts: Vec::new(),
    })
}

/// Branch-and-bound search for the best placement (pass 2 in the module documentation).
struct PlacementSearch<'a> {
    placement: PartialPlacement<'a>,
    demands: &'a [Demand],
    objective: Objective,
    /// Element `i`: least number of pieces that the demands `i..` add.
    pieces_after: Vec<u64>,
    amounts: Vec<Vec<u32>>,
    best: UnitPlacement,
    /// Whether `best` was found by this search. If true, only a better placement replaces `best`;
    /// if false, an equally good placement also replaces `best`.
    own: bool,
    /// Whether `best` is known to be optimal.
    done: bool,
    /// Lower bound of all scores.
    floor: PlacementScore,
    steps: u32,
    budget: &'a StepBudget,
}

/// Maximum number of (demand, group) pairs for which the search is made.
const AMOUNTS_MAX: usize = 1 << 20;

impl<'a> PlacementSearch<'a> {
    fn cannot_improve(&self, from: usize) -> bool {
        let mut bound = self.placement.score(self.objective);
        let pieces = match self.objective {
            Objective::Separate => 1,
            Objective::LeastInterference => 2,
        };
        bound[pieces] += self.pieces_after[from];
        match self.own {
            true => bound >= self.best.score,
            false => bound > self.best.score,
        }
    }

    fn demand(&mut self, demand: usize) {
        let Some(it) = self.demands.get(demand) else {
            self.best = self.placed();
            self.own = true;
            if self.best.score <= self.floor {
                self.done = true;
            }
            return;
        };
        if !self.charge(100) {
            return;
        }
        let twins = self.placement.twins(it.candidate);
        self.group(demand, 0, it.count, &twins);
    }

    /// The complete placement.
    fn placed(&self) -> UnitPlacement {
        self.budget
            .spend((self.demands.len() * self.placement.groups.len()) as u64);
        let of_demand = |amounts: &Vec<u32>| {
            let amounts = amounts.iter().copied().enumerate();
            amounts.filter(|&(_, count)| count > 0).collect()
        };
        UnitPlacement {
            score: self.placement.score(self.objective),
            amounts: self.amounts.iter().map(of_demand).collect(),
        }
    }

    /// Uses a number of steps of the plan's budget for each group. Ends the search, and returns
    /// false, if they are used up.
    fn charge(&mut self, each: u64) -> bool {
        let charged = self
            .budget
            .charge(100 + each * self.placement.groups.len() as u64);
        if !charged {
            self.steps = 0;
        }
        charged
    }

    /// Tries every amount that group `group` can give to the demand, largest amount first.
    fn group(&mut self, demand: usize, mut group: usize, left: u32, twins: &[Option<usize>]) {
        if left == 0 {
            if !self.cannot_improve(demand + 1) {
                self.demand(demand + 1);
            }
            return;
        }
        if !self.charge(2) {
            return;
        }
        let it = self.demands[demand];
        let free = |g: usize| self.placement.free[g][it.class];
        let groups = self.placement.groups.len();
        // This loop skips full groups. With a recursive call for each full group, the stack would
        // be much deeper than the number of demands.
        while group < groups && free(group) == 0 {
            group += 1;
        }
        let free_units: u32 = (group..groups).map(free).sum();
        if free_units < left {
            return;
        }
        let twin = twins[group].map_or(u32::MAX, |h| self.amounts[demand][h]);
        for count in (0..=left.min(free(group)).min(twin)).rev() {
            if self.steps == 0 || self.done {
                return;
            }
            self.steps -= 1;
            if count == 0 {
                self.group(demand, group + 1, left, twins);
                continue;
            }
            let new = self.placement.give(&it, group, count);
            self.amounts[demand][group] = count;
            if !self.cannot_improve(demand + 1) {
                self.group(demand, group + 1, left - count, twins);
            }
            self.amounts[demand][group] = 0;
            self.placement.take(&it, group, count, new);
        }
    }
}

/// Element `i`: least number of pieces that the demands `i..` need.
fn pieces_after(groups: &[UnitGroup], demands: &[Demand]) -> Vec<u64> {
    let mut after = vec![0; demands.len() + 1];
    let classes = groups.first().map_or(0, |group| group.slots.len());
    let largest: Vec<u32> = (0..classes)
        .map(|class| groups.iter().map(|g| g.slots[class]).max().unwrap_or(0))
        .collect();
    for i in (0..demands.len()).rev() {
        let opens = i == 0 || demands[i - 1].candidate != demands[i].candidate;
        let largest = largest[demands[i].class].max(1);
        let least = u64::from(demands[i].count.div_ceil(largest));
        after[i] = after[i + 1] + if opens { least } else { 0 };
    }
    after
}

/// A lower bound of all scores.
///
/// The need of each candidate is cut into chunks of at most the size of the largest group. A group
/// with a single candidate holds at most one chunk: all such groups together hold at most the
/// largest chunks. The rest of the needs must fit into the shared groups.
fn floor(
    groups: &[UnitGroup],
    demands: &[Demand],
    objective: Objective,
    pieces: u64,
) -> PlacementScore {
    let mut needs = std::collections::BTreeMap::<usize, u64>::new();
    for demand in demands {
        *needs.entry(demand.candidate).or_default() += u64::from(demand.count);
    }
    let mut sizes: Vec<u64> = groups
        .iter()
        .map(|g| g.slots.iter().map(|&s| u64::from(s)).sum())
        .collect();
    sizes.sort_by_key(|&size| std::cmp::Reverse(size));
    let largest = sizes.first().copied().unwrap_or(0).max(1);
    let mut chunks = Vec::new();
    for &need in needs.values() {
        chunks.extend((0..need / largest).map(|_| largest));
        chunks.push(need % largest);
    }
    chunks.sort_by_key(|&chunk| std::cmp::Reverse(chunk));
    let total: u64 = needs.values().sum();
    let chunks = sums(&chunks);
    let sizes = sums(&sizes);
    let first = |sums: &[u64], count: usize| sums[count.min(sums.len() - 1)];
    let over = |x: usize| total - first(&chunks, groups.len() - x);
    let free_units = |x: usize| first(&sizes, x);
    let shared = (0..groups.len())
        .find(|&x| over(x) <= free_units(x))
        .unwrap_or(0) as u64;
    let parents = needs.len() as u64;
    match objective {
        Objective::Separate => [shared, pieces, 0, parents],
        Objective::LeastInterference => [0, shared, pieces, parents],
    }
}

/// The sums of the first 0, 1, 2, … numbers.
fn sums(numbers: &[u64]) -> Vec<u64> {
    let mut sum = 0;
    let rest = numbers.iter().map(|number| {
        sum += number;
        sum
    });
    std::iter::once(0).chain(rest).collect()
}
