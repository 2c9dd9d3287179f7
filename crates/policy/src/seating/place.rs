// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides how many units of which group (package, NUMA node, domain) each candidate gets.
//!
//! The amounts are fixed, so every placement has the same ANTT. The best placement by [`Score`] is
//! searched in two passes:
//!
//! 1. `greedy` packs: for x = 0, 1, 2, … it tries to use only x groups that hold several
//!    candidates. Each other group goes to the candidate with the largest remaining demand; the
//!    rest is fitted into the x groups. For groups of equal size, the final x is the least
//!    possible.
//! 2. `Search` is a branch and bound over the candidates in their order, each filling low groups
//!    first, over groups that still differ. It returns the best placement that comes first in that
//!    order or, when its step budget is spent, the best one found.
//!
//! Both are deterministic: the budget counts steps, not time.

use super::hurt::Hurt;

/// A group of units.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// Units of each class.
    pub slots: Vec<u32>,
    /// The larger group that contains this one.
    pub parent: usize,
}

/// Demand of a candidate for units of one class. All demands of a candidate are adjacent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub guest: usize,
    pub class: usize,
    pub count: u32,
}

/// Order of the placement goals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aim {
    /// Few shared groups, then few pieces, then little interference.
    Apart,
    /// Little interference, then few shared groups, then few pieces.
    Gentle,
}

/// Score of a placement; the smallest is best, compared lexicographically. The last component is
/// the number of (candidate, parent) pairs.
pub(super) type Score = [u64; 4];

/// Number of units of each demand in each group: `amounts[demand][group]`.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub score: Score,
    pub amounts: Vec<Vec<u32>>,
}

/// A partial placement.
#[derive(Debug, Clone)]
pub(super) struct Rooms<'a> {
    groups: &'a [Group],
    hurt: &'a Hurt,
    free: Vec<Vec<u32>>,
    guests: Vec<Vec<usize>>,
    shared: u64,
    pieces: u64,
    harm: u64,
    parents: u64,
}

impl<'a> Rooms<'a> {
    fn new(groups: &'a [Group], hurt: &'a Hurt) -> Self {
        Self {
            groups,
            hurt,
            free: groups.iter().map(|g| g.slots.clone()).collect(),
            guests: vec![Vec::new(); groups.len()],
            shared: 0,
            pieces: 0,
            harm: 0,
            parents: 0,
        }
    }

    fn score(&self, aim: Aim) -> Score {
        match aim {
            Aim::Apart => [self.shared, self.pieces, self.harm, self.parents],
            Aim::Gentle => [self.harm, self.shared, self.pieces, self.parents],
        }
    }

    /// Interference that this candidate would cause and suffer in a group.
    fn harm_of(&self, guest: usize, group: usize) -> u64 {
        let others = self.guests[group].iter().filter(|&&other| other != guest);
        others.map(|&other| self.hurt.pair(guest, other)).sum()
    }

    fn at_parent(&self, guest: usize, parent: usize) -> bool {
        let groups = self.groups.iter().zip(&self.guests);
        groups
            .filter(|(group, _)| group.parent == parent)
            .any(|(_, guests)| guests.contains(&guest))
    }

    /// Gives units; returns whether the candidate is new in the group, for
    /// [`PartialPlacement::take`].
    fn give(&mut self, item: &Item, group: usize, count: u32) -> bool {
        self.free[group][item.class] -= count;
        if self.guests[group].contains(&item.guest) {
            return false;
        }
        self.harm += self.harm_of(item.guest, group);
        self.parents += u64::from(!self.at_parent(item.guest, self.groups[group].parent));
        self.shared += u64::from(self.guests[group].len() == 1);
        self.pieces += 1;
        self.guests[group].push(item.guest);
        true
    }

    /// Undoes the last [`PartialPlacement::give`] to that group.
    fn take(&mut self, item: &Item, group: usize, count: u32, new: bool) {
        self.free[group][item.class] += count;
        if new {
            self.guests[group].pop();
            self.pieces -= 1;
            self.shared -= u64::from(self.guests[group].len() == 1);
            self.parents -= u64::from(!self.at_parent(item.guest, self.groups[group].parent));
            self.harm -= self.harm_of(item.guest, group);
        }
    }

    /// Whether two groups are equivalent for this candidate and all later ones.
    fn alike(&self, a: usize, b: usize, guest: usize) -> bool {
        let (here, there) = (&self.guests[a], &self.guests[b]);
        let company = match here.is_empty() && there.is_empty() {
            true => true,
            false => {
                self.hurt.is_none()
                    && here.len().min(2) == there.len().min(2)
                    && here.contains(&guest) == there.contains(&guest)
            }
        };
        company && self.groups[a].parent == self.groups[b].parent && self.free[a] == self.free[b]
    }
}

/// The best placement found within a number of search steps.
pub(super) fn place(
    groups: &[Group],
    items: &[Item],
    hurt: &Hurt,
    aim: Aim,
    steps: &mut u32,
) -> Placed {
    let pieces_after = pieces_after(groups, items);
    let floor = floor(groups, items, aim, pieces_after[0]);
    let first = greedy(groups, items, hurt, aim, &floor);
    if groups.len() < 2 || items.len() < 2 && first.score[1] <= 1 {
        return lowest_first(groups, items, first);
    }
    let mut search = Search {
        rooms: Rooms::new(groups, hurt),
        items,
        aim,
        pieces_after,
        amounts: vec![vec![0; groups.len()]; items.len()],
        best: first,
        own: false,
        done: false,
        floor,
        steps: *steps,
    };
    search.item(0);
    // Steps that remain after an early end are available to the next search.
    *steps = search.steps;
    search.best
}

/// Handles the case of a single group, where there is no choice.
fn lowest_first(groups: &[Group], items: &[Item], first: Placed) -> Placed {
    match groups.len() {
        1 => Placed {
            amounts: items.iter().map(|item| vec![item.count]).collect(),
            ..first
        },
        _ => first,
    }
}

/// Packs for the fewest shared groups; see the module documentation.
fn greedy(groups: &[Group], items: &[Item], hurt: &Hurt, aim: Aim, floor: &Score) -> Placed {
    let mut by_size: Vec<usize> = (0..groups.len()).collect();
    by_size.sort_by_key(|&g| groups[g].slots.iter().sum::<u32>());
    let alike = groups.windows(2).all(|pair| pair[0].slots == pair[1].slots);
    let orders = if alike { &[true][..] } else { &[true, false] };
    let mut best: Option<Placed> = None;
    let tries = match aim {
        Aim::Apart => floor[0] as usize..=groups.len(),
        Aim::Gentle => 0..=0,
    };
    for x in tries {
        for &small_shared in orders {
            let own: Vec<usize> = match small_shared {
                true => by_size[x..].to_vec(),
                false => by_size[..groups.len() - x].to_vec(),
            };
            let mut packing = Packing::new(groups, items, hurt);
            if aim == Aim::Apart {
                packing.give_whole(own.clone());
            }
            packing.fit_rest(|g| !own.contains(&g));
            packing.fit_rest(|_| true);
            let placed = packing.placed(aim);
            if best.as_ref().is_none_or(|b| placed.score < b.score) {
                best = Some(placed);
            }
        }
        if best.as_ref().is_some_and(|b| b.score[0] <= x as u64) {
            break;
        }
    }
    best.unwrap_or(Placed {
        score: [0; 4],
        amounts: Vec::new(),
    })
}

/// A placement under construction, with the rest of each demand.
struct Packing<'a> {
    rooms: Rooms<'a>,
    items: &'a [Item],
    left: Vec<u32>,
    amounts: Vec<Vec<u32>>,
}

impl<'a> Packing<'a> {
    fn new(groups: &'a [Group], items: &'a [Item], hurt: &'a Hurt) -> Self {
        Self {
            rooms: Rooms::new(groups, hurt),
            items,
            left: items.iter().map(|item| item.count).collect(),
            amounts: vec![vec![0; groups.len()]; items.len()],
        }
    }

    fn give(&mut self, item: usize, group: usize) {
        let it = self.items[item];
        let count = self.left[item].min(self.rooms.free[group][it.class]);
        if count > 0 {
            self.rooms.give(&it, group, count);
            self.left[item] -= count;
            self.amounts[item][group] += count;
        }
    }

    /// Demands with a rest, largest rest first.
    fn waiting(&self) -> Vec<usize> {
        let mut waiting: Vec<usize> = (0..self.items.len())
            .filter(|&i| self.left[i] > 0)
            .collect();
        waiting.sort_by_key(|&i| std::cmp::Reverse(self.left[i]));
        waiting
    }

    /// The first demand with the largest rest.
    fn neediest(&self) -> Option<usize> {
        let waiting = (0..self.items.len()).filter(|&i| self.left[i] > 0);
        waiting.max_by_key(|&i| (self.left[i], std::cmp::Reverse(i)))
    }

    /// Gives each of these groups to one candidate, that with the largest rest.
    fn give_whole(&mut self, mut own: Vec<usize>) {
        while let Some(item) = self.neediest() {
            let class = self.items[item].class;
            let size = |g: usize| self.rooms.groups[g].slots[class];
            own.retain(|&g| self.rooms.guests[g].is_empty());
            let left = self.left[item];
            let usable = own.iter().copied().filter(|&g| size(g) > 0);
            let filled = usable.clone().filter(|&g| size(g) <= left);
            let chosen = filled
                .max_by_key(|&g| (size(g), std::cmp::Reverse(g)))
                .or_else(|| usable.min_by_key(|&g| (size(g), g)));
            let Some(group) = chosen else { return };
            let guest = self.items[item].guest;
            for other in 0..self.items.len() {
                if self.items[other].guest == guest {
                    self.give(other, group);
                }
            }
        }
    }

    /// Fits the rests into the groups: whole in the group of least interference and best fit, else
    /// in pieces.
    fn fit_rest(&mut self, may: impl Fn(usize) -> bool) {
        for item in self.waiting() {
            let Item { guest, class, .. } = self.items[item];
            while self.left[item] > 0 {
                let left = self.left[item];
                let free = |g: usize| self.rooms.free[g][class];
                let open = (0..self.rooms.groups.len()).filter(|&g| may(g) && free(g) > 0);
                let whole = open.clone().filter(|&g| free(g) >= left);
                let chosen = whole
                    .min_by_key(|&g| (self.rooms.harm_of(guest, g), free(g), g))
                    .or_else(|| open.max_by_key(|&g| (free(g), std::cmp::Reverse(g))));
                match chosen {
                    Some(group) => self.give(item, group),
                    None => break,
                }
            }
        }
    }

    fn placed(self, aim: Aim) -> Placed {
        Placed {
            score: self.rooms.score(aim),
            amounts: self.amounts,
        }
    }
}

/// Branch and bound.
struct Search<'a> {
    rooms: Rooms<'a>,
    items: &'a [Item],
    aim: Aim,
    /// Least number of pieces that demands `i..` still add.
    pieces_after: Vec<u64>,
    amounts: Vec<Vec<u32>>,
    best: Placed,
    /// Whether `best` was found by the search itself: then only a better placement replaces it.
    own: bool,
    /// Whether `best` is known to be optimal.
    done: bool,
    /// Lower bound of all scores.
    floor: Score,
    steps: u32,
}

impl<'a> Search<'a> {
    fn hopeless(&self, from: usize) -> bool {
        let mut bound = self.rooms.score(self.aim);
        let pieces = match self.aim {
            Aim::Apart => 1,
            Aim::Gentle => 2,
        };
        bound[pieces] += self.pieces_after[from];
        match self.own {
            true => bound >= self.best.score,
            false => bound > self.best.score,
        }
    }

    fn item(&mut self, item: usize) {
        let Some(it) = self.items.get(item) else {
            self.best = Placed {
                score: self.rooms.score(self.aim),
                amounts: self.amounts.clone(),
            };
            self.own = true;
            if self.best.score <= self.floor {
                self.done = true;
            }
            return;
        };
        let groups = self.rooms.groups.len();
        let twins = (0..groups)
            .map(|g| (0..g).rev().find(|&h| self.rooms.alike(h, g, it.guest)))
            .collect::<Vec<_>>();
        self.group(item, 0, it.count, &twins);
    }

    /// Chooses the amount that group `group` gives to the demand, largest first.
    fn group(&mut self, item: usize, mut group: usize, left: u32, twins: &[Option<usize>]) {
        if left == 0 {
            if !self.hopeless(item + 1) {
                self.item(item + 1);
            }
            return;
        }
        let it = self.items[item];
        let free = |g: usize| self.rooms.free[g][it.class];
        let groups = self.rooms.groups.len();
        // Full groups are skipped here rather than by a recursive call each, so that the stack
        // depth stays near the number of demands.
        while group < groups && free(group) == 0 {
            group += 1;
        }
        let room: u32 = (group..groups).map(free).sum();
        if room < left {
            return;
        }
        let twin = twins[group].map_or(u32::MAX, |h| self.amounts[item][h]);
        for count in (0..=left.min(free(group)).min(twin)).rev() {
            if self.steps == 0 || self.done {
                return;
            }
            self.steps -= 1;
            if count == 0 {
                self.group(item, group + 1, left, twins);
                continue;
            }
            let new = self.rooms.give(&it, group, count);
            self.amounts[item][group] = count;
            if !self.hopeless(item + 1) {
                self.group(item, group + 1, left - count, twins);
            }
            self.amounts[item][group] = 0;
            self.rooms.take(&it, group, count, new);
        }
    }
}

/// Least number of pieces that each candidate needs, summed from each demand on.
fn pieces_after(groups: &[Group], items: &[Item]) -> Vec<u64> {
    let mut after = vec![0; items.len() + 1];
    for i in (0..items.len()).rev() {
        let opens = i == 0 || items[i - 1].guest != items[i].guest;
        let largest = groups.iter().map(|g| g.slots[items[i].class]).max();
        let least = u64::from(items[i].count.div_ceil(largest.unwrap_or(1).max(1)));
        after[i] = after[i + 1] + if opens { least } else { 0 };
    }
    after
}

/// A lower bound of all scores.
///
/// The groups of a single candidate take at most the largest chunks of the candidates' needs, cut
/// at the largest group. The rest must fit into the shared groups.
fn floor(groups: &[Group], items: &[Item], aim: Aim, pieces: u64) -> Score {
    let mut needs = std::collections::BTreeMap::<usize, u64>::new();
    for item in items {
        *needs.entry(item.guest).or_default() += u64::from(item.count);
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
    let room = |x: usize| sizes.iter().take(x).sum::<u64>();
    let shared = (0..groups.len()).find(|&x| over(x) <= room(x)).unwrap_or(0) as u64;
    let parents = needs.len() as u64;
    match aim {
        Aim::Apart => [shared, pieces, 0, parents],
        Aim::Gentle => [0, shared, pieces, parents],
    }
}
