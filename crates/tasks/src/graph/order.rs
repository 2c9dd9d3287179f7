// SPDX-License-Identifier: MIT OR Apache-2.0
//! Candidate orders for the tasks of a graph without groups.
//!
//! An order gives each task a rank; of two ready tasks, the task of lower rank runs first by
//! preference. The ranks are divided into 255 bands, and the tasks of a band form a temporal group.
//! After a task, a worker prefers the successor of the next rank, which has the effect of a spatial
//! group. Paper 5 does not describe how to find groups.
//!
//! The candidates:
//!
//! - *as declared*: a program that creates its tasks in loops usually creates them in the order in
//!   which a sequential version would run them;
//! - *by data*, if the addresses are known: tasks on the same data in succession, then tasks on
//!   neighbouring data;
//! - *by code*, if the entries (code addresses) are known: tasks with the same entry in succession;
//! - *along chains*, for up to 4 steps: in a graph that was created by nested loops, most
//!   dependencies connect task *i* and task *i + step*, with a different *step* for each loop.
//!   Starting from the first declared task, this order follows one step from task to task, until
//!   there is no dependency by that step. Then it continues with the next declared task that is not
//!   in the order yet. The effect is that the loop of that step becomes the innermost loop;
//! - *depth first*, for graphs without such steps: each successor as soon as it is ready.
//!
//! There are at most 8 candidates. Computing an order takes O(n log n + d log d) for n tasks and d
//! dependencies. The memory is about 50 bytes per task and 8 bytes per dependency. Runs of the
//! graph show which order is fastest (`trials`). If there is no memory, the functions return
//! `None`.

use std::fmt;
use std::iter::repeat_n;

use super::successors::Successors;
use crate::sort;

/// Maximum number of steps along which an order is tried.
const STEPS_MAX: usize = 4;
/// Maximum number of candidate orders.
const ORDERS_MAX: usize = STEPS_MAX + 4;
/// Divisor of the minimum frequency of a step: a step is considered if at least one sixteenth of
/// the tasks have a successor at that distance.
const STEP_SHARE: usize = 16;

/// An order of a graph's tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskOrder {
    /// The order of declaration.
    Declared,
    /// By the addresses of the tasks' data.
    Data,
    /// By the entries (code addresses) of the tasks.
    Code,
    /// Along dependencies between tasks with numbers that differ by `step`.
    Chains {
        /// Difference of the numbers of successor and task.
        step: usize,
    },
    /// Depth first: each successor as soon as it is ready.
    Depth,
}

impl fmt::Display for TaskOrder {
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

/// The declared dependencies, data and code of a graph's tasks, from which orders are computed.
#[derive(Debug)]
pub(super) struct GraphInfo<'a> {
    pub after: &'a Successors,
    /// The address of each task's data, by task number. Empty if no task declares data.
    pub data: &'a [usize],
    /// The address of each task's entry, by task number. Empty if no task declares code.
    pub code: &'a [usize],
}

impl GraphInfo<'_> {
    /// Returns the candidate orders, sorted by expected speed, and the index of the declared order.
    /// Of orders with equal ranks, only the first is returned. `None` if there is no memory.
    pub fn orders(&self) -> Option<(Vec<TaskOrder>, usize)> {
        let mut orders = try_collect(ORDERS_MAX, [])?;
        if has_distinct(self.data) {
            orders.push(TaskOrder::Data);
        }
        orders.push(TaskOrder::Declared);
        let steps = self.steps()?.into_iter();
        orders.extend(steps.map(|step| TaskOrder::Chains { step }));
        if has_distinct(self.code) {
            orders.push(TaskOrder::Code);
        }
        orders.push(TaskOrder::Depth);
        let mut seen: Vec<Vec<u32>> = try_collect(ORDERS_MAX, [])?;
        let mut found = try_collect(ORDERS_MAX, [])?;
        for order in orders {
            let ranks = self.ranks(order)?;
            if !seen.contains(&ranks) {
                seen.push(ranks);
                found.push(order);
            }
        }
        let is_declared = |ranks: &Vec<u32>| ranks.is_sorted();
        let declared = seen.iter().position(is_declared)?;
        Some((found, declared))
    }

    /// Returns the rank of each task, from 0. `None` if there is no memory.
    pub fn ranks(&self, order: TaskOrder) -> Option<Vec<u32>> {
        let sequence = match order {
            TaskOrder::Declared => self.declared()?,
            TaskOrder::Data => self.sorted_by(self.data)?,
            TaskOrder::Code => self.sorted_by(self.code)?,
            TaskOrder::Chains { step } => self.chains(step)?,
            TaskOrder::Depth => self.depth_first()?,
        };
        let mut ranks = try_collect(sequence.len(), repeat_n(0, sequence.len()))?;
        for (rank, &task) in sequence.iter().enumerate() {
            ranks[task as usize] = rank as u32;
        }
        Some(ranks)
    }

    fn declared(&self) -> Option<Vec<u32>> {
        let count = self.after.count();
        try_collect(count, 0..count as u32)
    }

    fn sorted_by(&self, keys: &[usize]) -> Option<Vec<u32>> {
        let mut sequence = self.declared()?;
        // A missing key counts as 0.
        let key = |task: u32| keys.get(task as usize).map_or(0, |&key| key as u64);
        sort::by_key(&mut sequence, &key);
        Some(sequence)
    }

    /// Returns frequent distances between a task and a successor, the most frequent first.
    fn steps(&self) -> Option<Vec<usize>> {
        let tasks = 0..self.after.count();
        let of = |task: usize| {
            let next = self.after.of(task).iter();
            next.filter_map(move |&next| (next as usize).checked_sub(task))
        };
        let all = tasks.flat_map(of).map(|step| (step, 0));
        let mut all = try_collect(self.after.tasks.len(), all)?;
        sort::pairs(&mut all);
        let least = (self.after.count() / STEP_SHARE).max(1);
        let usual = all
            .chunk_by(|one, other| one == other)
            .filter(|same| same.len() >= least)
            // The most frequent step comes first, and of equally frequent steps the shortest.
            .map(|same| (usize::MAX - same.len(), same[0].0));
        let mut steps = try_collect(all.len() / least, usual)?;
        sort::pairs(&mut steps);
        try_collect(STEPS_MAX, steps.into_iter().map(|(_, step)| step))
    }

    /// Returns the order along a step. From each task that is not yet in the sequence, the function
    /// follows dependencies by that step until there is none.
    fn chains(&self, step: usize) -> Option<Vec<u32>> {
        let count = self.after.count();
        let mut is_placed = try_collect(count, repeat_n(false, count))?;
        let mut sequence = try_collect(count, [])?;
        for head in 0..count {
            let mut at = head;
            while !is_placed[at] {
                is_placed[at] = true;
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

    /// Returns the order of a single worker. After each task, that worker runs the first task that
    /// it has made ready by this task; if there is none, the waiting task that was made ready last.
    fn depth_first(&self) -> Option<Vec<u32>> {
        let count = self.after.count();
        let mut waits = try_collect(count, self.after.waits.iter().copied())?;
        let sources = (0..count as u32).filter(|&task| self.after.waits[task as usize] == 0);
        let mut stack = try_collect(count, sources.rev())?;
        let mut sequence = try_collect(count, [])?;
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

/// Collects at most `most` items into a list of capacity `most`; `None` if there is no memory.
fn try_collect<T>(most: usize, items: impl IntoIterator<Item = T>) -> Option<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(most).ok()?;
    list.extend(items.into_iter().take(most));
    Some(list)
}

fn has_distinct(keys: &[usize]) -> bool {
    keys.windows(2).any(|pair| pair[0] != pair[1])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a graph of blocks in rows, each in stages. A task depends on the previous stage of
    /// its block, and on the same stage of the block to the left and of the block above. The tasks
    /// are numbered by `number(row, column, stage)`.
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
    fn chain_order_swaps_badly_nested_loops() {
        let by_stage = |row, column, stage| (stage * ROWS + row) * COLUMNS + column;
        let after = wavefront(by_stage);
        let info = GraphInfo {
            after: &after,
            data: &[],
            code: &[],
        };
        let step = ROWS * COLUMNS;
        assert!(
            info.orders()
                .unwrap()
                .0
                .contains(&TaskOrder::Chains { step })
        );
        let ranks = info.ranks(TaskOrder::Chains { step }).unwrap();
        let in_order: Vec<u32> = all()
            .map(|(row, column, stage)| ranks[by_stage(row, column, stage)])
            .collect();
        assert!(in_order.is_sorted(), "{in_order:?}");
    }

    #[test]
    fn duplicate_orders_are_dropped() {
        let after = wavefront(|row, column, stage| (row * COLUMNS + column) * STAGES + stage);
        let data: Vec<usize> = (0..after.count()).map(|task| task / STAGES * 64).collect();
        let info = GraphInfo {
            after: &after,
            data: &data,
            code: &[7; ROWS * COLUMNS * STAGES],
        };
        let (orders, declared) = info.orders().unwrap();
        assert_eq!((orders[0], declared), (TaskOrder::Data, 0));
        assert!(!orders.contains(&TaskOrder::Declared) && !orders.contains(&TaskOrder::Code));
        assert!(!orders.contains(&TaskOrder::Chains { step: 1 }));
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
            let info = GraphInfo { after: &after, data: &data[..count], code: &data[80 - count..] };
            for order in info.orders().unwrap().0 {
                let mut ranks = info.ranks(order).unwrap();
                if order == TaskOrder::Depth {
                    prop_assert!(edges.iter().all(|&(a, b)| ranks[a] < ranks[b]));
                }
                ranks.sort_unstable();
                prop_assert!(ranks.iter().enumerate().all(|(at, &rank)| at == rank as usize));
            }
        }
    }
}
