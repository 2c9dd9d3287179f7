// SPDX-License-Identifier: MIT OR Apache-2.0
//! Orders of a graph's tasks that caches may like, where nobody has said anything.
//!
//! An order gives each task a rank. It is a wish: tasks run when they are ready, and
//! among those that are, the ones of the lowest ranks are preferred, as far as 255
//! bands of ranks tell them apart. A band is what a temporal group would be, and the
//! successor with the next rank what a spatial one would give (paper 5 leaves finding
//! the groups open).
//!
//! What is likely to be good:
//!
//! - *as declared*: a program that makes its tasks in loops makes them in the order
//!   in which it would have run them;
//! - *by data*, where the addresses are known: tasks on the same data one after the
//!   other, and neighbours after one another;
//! - *by code*, where the entries are known: all tasks of one kind together;
//! - *along chains*: loops may be nested the wrong way round. In a graph that comes
//!   from loops most dependencies join task *i* and task *i + step* for a few steps,
//!   one for each loop. To follow one step as far as it goes, and only then to go on
//!   with the task declared next, makes that loop the innermost;
//! - *depth first*: a successor as soon as it can run, for graphs without such steps.
//!
//! Which of them is best is found out by running them: see `trials`.

use std::cmp::Reverse;
use std::fmt;
use std::iter::repeat_n;

use super::builder::Successors;

/// Steps whose chains are looked at, at most.
const STEPS_MAX: usize = 4;
/// Orders, at most.
const ORDERS_MAX: usize = STEPS_MAX + 4;
/// A step counts where one in so many tasks has a successor at it.
const STEP_SHARE: usize = 16;

/// An order of a graph's tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As declared.
    Declared,
    /// By the addresses of their data.
    Data,
    /// By their entries.
    Code,
    /// Along dependencies of tasks that were declared so many apart.
    Chains {
        /// How many.
        step: usize,
    },
    /// Successors first.
    Depth,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Declared => f.write_str("as declared"),
            Self::Data => f.write_str("by data"),
            Self::Code => f.write_str("by code"),
            Self::Chains { step } => write!(f, "along steps of {step}"),
            Self::Depth => f.write_str("depth first"),
        }
    }
}

/// What is known of a graph's tasks.
#[derive(Debug)]
pub(super) struct Known<'a> {
    pub after: &'a Successors,
    /// By task, or empty: the addresses of their data.
    pub data: &'a [usize],
    /// By task, or empty: their entries.
    pub code: &'a [usize],
}

impl Known<'_> {
    /// The orders that may be worth a trial, the likeliest first; no two alike. `None`:
    /// there is no memory to find them.
    pub fn orders(&self) -> Option<Vec<Order>> {
        let mut orders = list(ORDERS_MAX, [])?;
        if differ(self.data) {
            orders.push(Order::Data);
        }
        orders.push(Order::Declared);
        let steps = self.steps()?.into_iter();
        orders.extend(steps.map(|step| Order::Chains { step }));
        if differ(self.code) {
            orders.push(Order::Code);
        }
        orders.push(Order::Depth);
        let mut seen: Vec<Vec<u32>> = list(ORDERS_MAX, [])?;
        let mut found = list(ORDERS_MAX, [])?;
        for order in orders {
            let ranks = self.ranks(order)?;
            if !seen.contains(&ranks) {
                seen.push(ranks);
                found.push(order);
            }
        }
        Some(found)
    }

    /// The rank of each task, from 0; `None`: there is no memory for them.
    pub fn ranks(&self, order: Order) -> Option<Vec<u32>> {
        let sequence = match order {
            Order::Declared => self.declared()?,
            Order::Data => self.sorted_by(self.data)?,
            Order::Code => self.sorted_by(self.code)?,
            Order::Chains { step } => self.chains(step)?,
            Order::Depth => self.depth_first()?,
        };
        let mut ranks = list(sequence.len(), repeat_n(0, sequence.len()))?;
        for (rank, &task) in sequence.iter().enumerate() {
            ranks[task as usize] = rank as u32;
        }
        Some(ranks)
    }

    fn declared(&self) -> Option<Vec<u32>> {
        let count = self.after.count();
        list(count, 0..count as u32)
    }

    fn sorted_by(&self, keys: &[usize]) -> Option<Vec<u32>> {
        let mut sequence = self.declared()?;
        // Stable sorting takes memory.
        sequence.sort_unstable_by_key(|&task| (keys.get(task as usize), task));
        Some(sequence)
    }

    /// The usual distances between a task and a successor, the most usual first.
    fn steps(&self) -> Option<Vec<usize>> {
        let tasks = 0..self.after.count();
        let of = |task: usize| {
            let next = self.after.of(task).iter();
            next.filter_map(move |&next| (next as usize).checked_sub(task))
        };
        let mut all = list(self.after.tasks.len(), tasks.flat_map(of))?;
        all.sort_unstable();
        let least = (self.after.count() / STEP_SHARE).max(1);
        let usual = all
            .chunk_by(|one, other| one == other)
            .map(|same| (same[0], same.len()))
            .filter(|&(_, count)| count >= least);
        let mut steps = list(all.len() / least, usual)?;
        steps.sort_unstable_by_key(|&(step, count)| (Reverse(count), step));
        list(STEPS_MAX, steps.into_iter().map(|(step, _)| step))
    }

    /// From each task that has not come yet, on by that step as long as there is a
    /// dependency to follow.
    fn chains(&self, step: usize) -> Option<Vec<u32>> {
        let count = self.after.count();
        let mut has_come = list(count, repeat_n(false, count))?;
        let mut sequence = list(count, [])?;
        for head in 0..count {
            let mut at = head;
            while !has_come[at] {
                has_come[at] = true;
                sequence.push(at as u32);
                let next = at.saturating_add(step);
                if self.after.of(at).binary_search(&(next as u32)).is_err() {
                    break;
                }
                at = next;
            }
        }
        Some(sequence)
    }

    /// As one worker runs it that goes on with the first of the tasks that it has
    /// made ready, and else with what it has made ready last.
    fn depth_first(&self) -> Option<Vec<u32>> {
        let count = self.after.count();
        let mut waits = list(count, self.after.waits.iter().copied())?;
        let sources = (0..count as u32).filter(|&task| self.after.waits[task as usize] == 0);
        let mut stack = list(count, sources.rev())?;
        let mut sequence = list(count, [])?;
        while let Some(task) = stack.pop() {
            sequence.push(task);
            for &next in self.after.of(task as usize).iter().rev() {
                waits[next as usize] -= 1;
                if waits[next as usize] == 0 {
                    stack.push(next);
                }
            }
        }
        Some(sequence)
    }
}

/// The first so many at most, in a list that has room for as many; `None`: there is no
/// memory for it.
fn list<T>(most: usize, items: impl IntoIterator<Item = T>) -> Option<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(most).ok()?;
    list.extend(items.into_iter().take(most));
    Some(list)
}

fn differ(keys: &[usize]) -> bool {
    keys.windows(2).any(|pair| pair[0] != pair[1])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Blocks in rows, each in stages, which wait for the block to the left and the
    /// one above; numbered by `number(row, column, stage)`.
    fn wavefront(number: impl Fn(usize, usize, usize) -> usize) -> Successors {
        let mut edges = Vec::new();
        for (row, column, stage) in all() {
            let task = number(row, column, stage);
            if stage > 0 {
                edges.push((number(row, column, stage - 1), task));
            }
            if column > 0 {
                edges.push((number(row, column - 1, stage), task));
            }
            if row > 0 {
                edges.push((number(row - 1, column, stage), task));
            }
        }
        Successors::new(ROWS * COLUMNS * STAGES, &edges)
    }

    const ROWS: usize = 5;
    const COLUMNS: usize = 7;
    const STAGES: usize = 3;

    fn all() -> impl Iterator<Item = (usize, usize, usize)> {
        (0..ROWS).flat_map(|row| {
            (0..COLUMNS).flat_map(move |column| (0..STAGES).map(move |stage| (row, column, stage)))
        })
    }

    #[test]
    fn loops_nested_the_wrong_way_round_are_turned() {
        let by_stage = |row, column, stage| (stage * ROWS + row) * COLUMNS + column;
        let after = wavefront(by_stage);
        let known = Known {
            after: &after,
            data: &[],
            code: &[],
        };
        let step = ROWS * COLUMNS;
        assert!(known.orders().unwrap().contains(&Order::Chains { step }));
        let ranks = known.ranks(Order::Chains { step }).unwrap();
        let in_order: Vec<u32> = all()
            .map(|(row, column, stage)| ranks[by_stage(row, column, stage)])
            .collect();
        assert!(in_order.is_sorted(), "{in_order:?}");
    }

    #[test]
    fn the_same_order_is_tried_once() {
        let after = wavefront(|row, column, stage| (row * COLUMNS + column) * STAGES + stage);
        let data: Vec<usize> = (0..after.count()).map(|task| task / STAGES * 64).collect();
        let known = Known {
            after: &after,
            data: &data,
            code: &[7; ROWS * COLUMNS * STAGES],
        };
        let orders = known.orders().unwrap();
        assert_eq!(orders[0], Order::Data);
        assert!(!orders.contains(&Order::Declared) && !orders.contains(&Order::Code));
        assert!(!orders.contains(&Order::Chains { step: 1 }));
    }

    proptest! {
        #[test]
        fn every_order_ranks_each_task_once(
            count in 1..80_usize,
            edges in prop::collection::vec((0..80_usize, 0..80_usize), 0..200),
            data in prop::collection::vec(0..10_usize, 80),
        ) {
            let forward = edges.iter().map(|&(a, b)| (a % count, b % count)).filter(|(a, b)| a < b);
            let edges: Vec<(usize, usize)> = forward.collect();
            let after = Successors::new(count, &edges);
            let known = Known { after: &after, data: &data[..count], code: &data[80 - count..] };
            for order in known.orders().unwrap() {
                let mut ranks = known.ranks(order).unwrap();
                if order == Order::Depth {
                    prop_assert!(edges.iter().all(|&(a, b)| ranks[a] < ranks[b]));
                }
                ranks.sort_unstable();
                prop_assert!(ranks.iter().enumerate().all(|(at, &rank)| at == rank as usize));
            }
        }
    }
}
