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
//! For `G` groups and `D` demands, pass 1 makes at most 2 (G + 1) packings, each in time of order
//! G^2 D^2. A step of pass 2 takes time of order G^2 D at most; the caller (`assign`) gives the
//! number of steps.

use super::interference::Interference;

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

/// Number of units of each demand in each group: `amounts[demand][group]`.
#[derive(Debug, Clone)]
pub(super) struct UnitPlacement {
    pub score: PlacementScore,
    pub amounts: Vec<Vec<u32>>,
}

/// A partial placement.
#[derive(Debug, Clone)]
pub(super) struct PartialPlacement<'a> {
    groups: &'a [UnitGroup],
    interference: &'a Interference,
    free: Vec<Vec<u32>>,
    candidates: Vec<Vec<usize>>,
    shared: u64,
    pieces: u64,
    interference_sum: u64,
    parents: u64,
}

impl<'a> PartialPlacement<'a> {
    fn new(groups: &'a [UnitGroup], interference: &'a Interference) -> Self {
        Self {
            groups,
            interference,
            free: groups.iter().map(|g| g.slots.clone()).collect(),
            candidates: vec![Vec::new(); groups.len()],
            shared: 0,
            pieces: 0,
            interference_sum: 0,
            parents: 0,
        }
    }

    fn score(&self, objective: Objective) -> PlacementScore {
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
    fn interference_of(&self, candidate: usize, group: usize) -> u64 {
        let others = self.candidates[group]
            .iter()
            .filter(|&&other| other != candidate);
        others
            .map(|&other| self.interference.pair(candidate, other))
            .sum()
    }

    fn at_parent(&self, candidate: usize, parent: usize) -> bool {
        let groups = self.groups.iter().zip(&self.candidates);
        groups
            .filter(|(group, _)| group.parent == parent)
            .any(|(_, candidates)| candidates.contains(&candidate))
    }

    /// Gives `count` units of a group to a demand. Returns whether the candidate had no units in
    /// the group before, which is the argument `new` of [`PartialPlacement::take`].
    fn give(&mut self, demand: &Demand, group: usize, count: u32) -> bool {
        self.free[group][demand.class] -= count;
        if self.candidates[group].contains(&demand.candidate) {
            return false;
        }
        self.interference_sum += self.interference_of(demand.candidate, group);
        self.parents += u64::from(!self.at_parent(demand.candidate, self.groups[group].parent));
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
            self.parents -= u64::from(!self.at_parent(demand.candidate, self.groups[group].parent));
            self.interference_sum -= self.interference_of(demand.candidate, group);
        }
    }

    /// Whether two groups are equivalent for this candidate and for all later candidates.
    fn alike(&self, a: usize, b: usize, candidate: usize) -> bool {
        let (here, there) = (&self.candidates[a], &self.candidates[b]);
        let company = match here.is_empty() && there.is_empty() {
            true => true,
            false => {
                self.interference.is_none()
                    && here.len().min(2) == there.len().min(2)
                    && here.contains(&candidate) == there.contains(&candidate)
            }
        };
        company && self.groups[a].parent == self.groups[b].parent && self.free[a] == self.free[b]
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
) -> UnitPlacement {
    let pieces_after = pieces_after(groups, demands);
    let floor = floor(groups, demands, objective, pieces_after[0]);
    let first = greedy(groups, demands, interference, objective, &floor);
    if groups.len() < 2 || demands.len() < 2 && first.score[1] <= 1 {
        return lowest_first(groups, demands, first);
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
            amounts: demands.iter().map(|demand| vec![demand.count]).collect(),
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
) -> UnitPlacement {
    let mut by_size: Vec<usize> = (0..groups.len()).collect();
    by_size.sort_by_key(|&g| groups[g].slots.iter().sum::<u32>());
    let alike = groups.windows(2).all(|pair| pair[0].slots == pair[1].slots);
    let orders = if alike { &[true][..] } else { &[true, false] };
    let mut best: Option<UnitPlacement> = None;
    let tries = match objective {
        Objective::Separate => floor[0] as usize..=groups.len(),
        Objective::LeastInterference => 0..=0,
    };
    for x in tries {
        for &small_shared in orders {
            let own: Vec<usize> = match small_shared {
                true => by_size[x..].to_vec(),
                false => by_size[..groups.len() - x].to_vec(),
            };
            let mut packing = Packing::new(groups, demands, interference);
            if objective == Objective::Separate {
                packing.give_whole(own.clone());
            }
            packing.fit_rest(|g| !own.contains(&g));
            packing.fit_rest(|_| true);
            let placed = packing.placed(objective);
            if best.as_ref().is_none_or(|b| placed.score < b.score) {
                best = Some(placed);
            }
        }
        if best.as_ref().is_some_and(|b| b.score[0] <= x as u64) {
            break;
        }
    }
    best.unwrap_or(UnitPlacement {
        score: [0; 4],
        amounts: Vec::new(),
    })
}

/// A placement under construction, with the unplaced rest of each demand.
struct Packing<'a> {
    placement: PartialPlacement<'a>,
    demands: &'a [Demand],
    left: Vec<u32>,
    amounts: Vec<Vec<u32>>,
}

impl<'a> Packing<'a> {
    fn new(groups: &'a [UnitGroup], demands: &'a [Demand], interference: &'a Interference) -> Self {
        Self {
            placement: PartialPlacement::new(groups, interference),
            demands,
            left: demands.iter().map(|demand| demand.count).collect(),
            amounts: vec![vec![0; groups.len()]; demands.len()],
        }
    }

    fn give(&mut self, demand: usize, group: usize) {
        let it = self.demands[demand];
        let count = self.left[demand].min(self.placement.free[group][it.class]);
        if count > 0 {
            self.placement.give(&it, group, count);
            self.left[demand] -= count;
            self.amounts[demand][group] += count;
        }
    }

    /// Demands that are not completely placed, largest rest first.
    fn with_rest(&self) -> Vec<usize> {
        let mut with_rest: Vec<usize> = (0..self.demands.len())
            .filter(|&i| self.left[i] > 0)
            .collect();
        with_rest.sort_by_key(|&i| std::cmp::Reverse(self.left[i]));
        with_rest
    }

    /// The first of the demands with the largest unplaced rest.
    fn largest_rest(&self) -> Option<usize> {
        let with_rest = (0..self.demands.len()).filter(|&i| self.left[i] > 0);
        with_rest.max_by_key(|&i| (self.left[i], std::cmp::Reverse(i)))
    }

    /// Gives each group in `own` to a single candidate, the candidate with the largest unplaced
    /// rest.
    fn give_whole(&mut self, mut own: Vec<usize>) {
        while let Some(demand) = self.largest_rest() {
            let class = self.demands[demand].class;
            let size = |g: usize| self.placement.groups[g].slots[class];
            own.retain(|&g| self.placement.candidates[g].is_empty());
            let left = self.left[demand];
            let usable = own.iter().copied().filter(|&g| size(g) > 0);
            let filled = usable.clone().filter(|&g| size(g) <= left);
            let chosen = filled
                .max_by_key(|&g| (size(g), std::cmp::Reverse(g)))
                .or_else(|| usable.min_by_key(|&g| (size(g), g)));
            let Some(group) = chosen else { return };
            let candidate = self.demands[demand].candidate;
            for other in 0..self.demands.len() {
                if self.demands[other].candidate == candidate {
                    self.give(other, group);
                }
            }
        }
    }

    /// Places the rest of each demand in the groups that `may` permits. If groups have enough free
    /// units for the whole rest, the group of least interference and best fit is chosen; otherwise
    /// the rest is divided among groups.
    fn fit_rest(&mut self, may: impl Fn(usize) -> bool) {
        for demand in self.with_rest() {
            let Demand {
                candidate, class, ..
            } = self.demands[demand];
            while self.left[demand] > 0 {
                let left = self.left[demand];
                let free = |g: usize| self.placement.free[g][class];
                let open = (0..self.placement.groups.len()).filter(|&g| may(g) && free(g) > 0);
                let whole = open.clone().filter(|&g| free(g) >= left);
                let chosen = whole
                    .min_by_key(|&g| (self.placement.interference_of(candidate, g), free(g), g))
                    .or_else(|| open.max_by_key(|&g| (free(g), std::cmp::Reverse(g))));
                match chosen {
                    Some(group) => self.give(demand, group),
                    None => break,
                }
            }
        }
    }

    fn placed(self, objective: Objective) -> UnitPlacement {
        UnitPlacement {
            score: self.placement.score(objective),
            amounts: self.amounts,
        }
    }
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
}

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
            self.best = UnitPlacement {
                score: self.placement.score(self.objective),
                amounts: self.amounts.clone(),
            };
            self.own = true;
            if self.best.score <= self.floor {
                self.done = true;
            }
            return;
        };
        let groups = self.placement.groups.len();
        let twins = (0..groups)
            .map(|g| {
                (0..g)
                    .rev()
                    .find(|&h| self.placement.alike(h, g, it.candidate))
            })
            .collect::<Vec<_>>();
        self.group(demand, 0, it.count, &twins);
    }

    /// Tries every amount that group `group` can give to the demand, largest amount first.
    fn group(&mut self, demand: usize, mut group: usize, left: u32, twins: &[Option<usize>]) {
        if left == 0 {
            if !self.cannot_improve(demand + 1) {
                self.demand(demand + 1);
            }
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
    for i in (0..demands.len()).rev() {
        let opens = i == 0 || demands[i - 1].candidate != demands[i].candidate;
        let largest = groups.iter().map(|g| g.slots[demands[i].class]).max();
        let least = u64::from(demands[i].count.div_ceil(largest.unwrap_or(1).max(1)));
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
    let over = |x: usize| total - chunks.iter().take(groups.len() - x).sum::<u64>();
    let free_units = |x: usize| sizes.iter().take(x).sum::<u64>();
    let shared = (0..groups.len())
        .find(|&x| over(x) <= free_units(x))
        .unwrap_or(0) as u64;
    let parents = needs.len() as u64;
    match objective {
        Objective::Separate => [shared, pieces, 0, parents],
        Objective::LeastInterference => [0, shared, pieces, parents],
    }
}
