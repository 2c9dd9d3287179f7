// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packs demands into groups of units (pass 1 of module `place`).
//!
//! Ordered sets of the groups by their free units, for each class, give the best group for a
//! demand. A piece, which is a number of units of a group for a demand, takes time of order
//! log (groups). With interference, the groups with enough free units are compared one by one,
//! until the plan's budget of steps (`budget`) is used up; interference is then ignored.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use super::budget::StepBudget;
use super::interference::Interference;
use super::place::{Demand, Objective, PartialPlacement, UnitGroup, UnitPlacement};

/// Steps of a piece, or of a group in an ordered set.
const PIECE_STEPS: u64 = 200;

/// A placement under construction, with the unplaced rest of each demand.
pub(super) struct Packing<'a> {
    placement: PartialPlacement<'a>,
    demands: &'a [Demand],
    left: Vec<u32>,
    amounts: Vec<Vec<(usize, u32)>>,
    budget: &'a StepBudget,
}

/// The groups with units of a class, ordered by the number of these units, then by index.
type GroupsBySize = BTreeSet<(u32, usize)>;

/// The group with the fewest units, but at least `least` units.
fn smallest(groups: &GroupsBySize, least: u32) -> Option<usize> {
    groups.range((least, 0)..).next().map(|&(_, group)| group)
}

/// The first group with the most units, but at most `most` units.
fn largest(groups: &GroupsBySize, most: u32) -> Option<usize> {
    let (size, _) = groups.range(..=(most, usize::MAX)).next_back()?;
    smallest(groups, *size)
}

impl<'a> Packing<'a> {
    pub fn new(
        groups: &'a [UnitGroup],
        demands: &'a [Demand],
        interference: &'a Interference,
        budget: &'a StepBudget,
    ) -> Self {
        budget.spend(PIECE_STEPS * (groups.len() + demands.len()) as u64);
        Self {
            placement: PartialPlacement::new(groups, interference),
            demands,
            left: demands.iter().map(|demand| demand.count).collect(),
            amounts: vec![Vec::new(); demands.len()],
            budget,
        }
    }

    fn give(&mut self, demand: usize, group: usize) {
        let it = self.demands[demand];
        let count = self.left[demand].min(self.placement.free[group][it.class]);
        if count > 0 {
            self.budget.spend(PIECE_STEPS);
            self.placement.give(&it, group, count);
            self.left[demand] -= count;
            self.amounts[demand].push((group, count));
        }
    }

    /// For each class, the given groups with free units.
    fn by_free_units(&self, groups: impl Iterator<Item = usize> + Clone) -> Vec<GroupsBySize> {
        let classes = self.placement.groups.first().map_or(0, |g| g.slots.len());
        let of_class = |class: usize| {
            let sized = groups
                .clone()
                .map(|g| (self.placement.free[g][class], g))
                .filter(|&(free, _)| free > 0);
            sized.collect()
        };
        (0..classes).map(of_class).collect()
    }

    /// The demands of the candidate of a demand.
    fn of_candidate(&self, demand: usize) -> Range<usize> {
        let candidate = self.demands[demand].candidate;
        let same = |other: &&Demand| other.candidate == candidate;
        let before = self.demands[..demand].iter().rev().take_while(same);
        let after = self.demands[demand..].iter().take_while(same);
        demand - before.count()..demand + after.count()
    }

    /// Gives each group in `own` to a single candidate, the candidate with the largest unplaced
    /// rest.
    pub fn give_whole(&mut self, own: &[usize]) {
        let mut own = self.by_free_units(own.iter().copied());
        let entry = |left: &[u32], demand: usize| (left[demand], Reverse(demand));
        let with_rest = (0..self.demands.len()).map(|demand| entry(&self.left, demand));
        let mut with_rest: BTreeSet<_> = with_rest.filter(|entry| entry.0 > 0).collect();
        while let Some(&(left, Reverse(demand))) = with_rest.last() {
            let usable = &own[self.demands[demand].class];
            let Some(group) = largest(usable, left).or_else(|| smallest(usable, 0)) else {
                return;
            };
            for (class, groups) in own.iter_mut().enumerate() {
                groups.remove(&(self.placement.free[group][class], group));
            }
            for other in self.of_candidate(demand) {
                with_rest.remove(&entry(&self.left, other));
                self.give(other, group);
                if self.left[other] > 0 {
                    with_rest.insert(entry(&self.left, other));
                }
            }
        }
    }

    /// Places the rest of each demand, largest rest first, in the groups that `may` permits. If
    /// groups have enough free units for the whole rest, the group of least interference and best
    /// fit is chosen; otherwise the rest is divided among groups.
    pub fn fit_rest(&mut self, may: impl Fn(usize) -> bool) {
        let with_rest = (0..self.demands.len()).filter(|&i| self.left[i] > 0);
        let mut with_rest: Vec<usize> = with_rest.collect();
        if with_rest.is_empty() {
            return;
        }
        with_rest.sort_by_key(|&i| Reverse(self.left[i]));
        let groups = (0..self.placement.groups.len()).filter(|&g| may(g));
        let mut open = self.by_free_units(groups);
        for demand in with_rest {
            let Demand {
                candidate, class, ..
            } = self.demands[demand];
            while self.left[demand] > 0 {
                let open = &mut open[class];
                let chosen = self
                    .with_room(open, candidate, self.left[demand])
                    .or_else(|| largest(open, u32::MAX));
                let Some(group) = chosen else { break };
                open.remove(&(self.placement.free[group][class], group));
                self.give(demand, group);
                let free = self.placement.free[group][class];
                if free > 0 {
                    open.insert((free, group));
                }
            }
        }
    }

    /// The group of least interference and best fit, among those with room for `left` units.
    fn with_room(&self, open: &GroupsBySize, candidate: usize, left: u32) -> Option<usize> {
        if self.placement.interference.is_none() {
            return smallest(open, left);
        }
        let mut best: Option<(u64, u32, usize)> = None;
        for &(free, group) in open.range((left, 0)..) {
            let steps = 20 + 20 * self.placement.candidates[group].len() as u64;
            if !self.budget.charge(steps) {
                return smallest(open, left);
            }
            let key = (
                self.placement.interference_of(candidate, group),
                free,
                group,
            );
            best = Some(best.map_or(key, |best| best.min(key)));
        }
        best.map(|(.., group)| group)
    }

    pub fn placed(self, objective: Objective) -> UnitPlacement {
        UnitPlacement {
            score: self.placement.score(objective),
            amounts: self.amounts,
        }
    }
}
