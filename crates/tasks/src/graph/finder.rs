// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the order for a graph whose tasks have no groups, while it is run.

use std::fmt;

use super::builder::Successors;
use super::order::{Known, Order};
use crate::dispatch::Groups;
use crate::pool::LANES;
use crate::trials::Trials;

/// Graphs of fewer tasks run as declared: their times tell too little.
const TASKS_MIN: usize = 256;

/// What was found about a graph that is run again and again.
#[derive(Debug)]
pub(super) struct Finder {
    after: Successors,
    data: Vec<usize>,
    code: Vec<usize>,
    /// By how many workers: what is best for one need not be for many, and whoever runs
    /// a graph on several runtimes in turn is not to begin anew each time.
    searches: Vec<(usize, Search)>,
    /// The one of the last run.
    present: usize,
    /// What the tasks' ranks say at present.
    applied: Option<Order>,
}

/// Orders, and how they have done.
#[derive(Debug)]
struct Search {
    orders: Vec<Order>,
    trials: Trials,
    runs: u64,
}

impl Search {
    fn of(orders: Vec<Order>) -> Self {
        let trials = Trials::new(orders.len());
        Self {
            orders,
            trials,
            runs: 0,
        }
    }
}

impl Finder {
    pub fn new(after: Successors, data: Vec<usize>, code: Vec<usize>) -> Self {
        Self {
            after,
            data,
            code,
            searches: Vec::new(),
            present: 0,
            applied: None,
        }
    }

    /// Before a run by so many workers: the ranks that tasks are to have from now
    /// on, where they change. Where there is no memory for those they stay as they are,
    /// until it is tried again.
    pub fn prepare(&mut self, workers: usize) -> Option<Vec<u32>> {
        let known = self.searches.iter().position(|(of, _)| *of == workers);
        self.present = known.unwrap_or(self.searches.len());
        // Whoever runs a graph once does not want to pay for looking at it.
        if known.is_none() {
            let search = Search::of(vec![self.likeliest()]);
            self.searches.push((workers, search));
        } else if self.searches[self.present].1.runs == 1 && self.is_worth_trials() {
            let orders = self.known().orders()?;
            self.searches[self.present].1 = Search::of(orders);
            self.searches[self.present].1.runs = 1;
        }
        let search = &mut self.searches[self.present].1;
        search.runs += 1;
        let order = search.orders[search.trials.way()];
        if self.applied == Some(order) {
            return None;
        }
        let ranks = self.known().ranks(order)?;
        self.applied = Some(order);
        Some(ranks)
    }

    fn is_worth_trials(&self) -> bool {
        self.after.count() >= TASKS_MIN
    }

    fn likeliest(&self) -> Order {
        match self.data.is_empty() {
            true => Order::Declared,
            false => Order::Data,
        }
    }

    fn known(&self) -> Known<'_> {
        Known {
            after: &self.after,
            data: &self.data,
            code: &self.code,
        }
    }

    /// Tasks are to have no groups from now on; whether they have had any.
    pub fn forget(&mut self) -> bool {
        self.applied.take().is_some()
    }

    /// A run took so long.
    pub fn ran(&mut self, ns: f64) {
        let Some((_, search)) = self.searches.get_mut(self.present) else {
            return;
        };
        // Where there was no memory for its ranks it ran in another order.
        if self.applied == Some(search.orders[search.trials.way()]) {
            search.trials.ran(ns);
        }
    }

    pub fn explain(&self) -> Explanation {
        let Some((_, search)) = self.searches.get(self.present) else {
            return Explanation {
                hinted: false,
                orders: Vec::new(),
                chosen: None,
            };
        };
        let tasks = self.after.count().max(1) as f64;
        let orders = search.orders.iter().enumerate();
        let tried = |(way, &order): (usize, &Order)| Tried {
            order,
            ns_per_task: search.trials.fastest_ns(way).map(|ns| ns / tasks),
        };
        // After one run nothing has been tried.
        let best = search
            .trials
            .best()
            .filter(|_| search.runs > 1 || !self.is_worth_trials());
        Explanation {
            hinted: false,
            orders: orders.map(tried).collect(),
            chosen: best.and_then(|way| search.orders.get(way)).copied(),
        }
    }
}

/// The groups that a rank stands for.
pub(super) fn groups_of(rank: u32, tasks: usize) -> Groups {
    // Group 0 is none, and lanes are as many as there are groups to tell apart.
    let bands = LANES as u64 - 1;
    Groups::new(
        1 + (u64::from(rank) * bands / tasks.max(1) as u64) as u32,
        0,
    )
}

/// In which order a graph's tasks are preferred, and why: by as many workers as ran it
/// last.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The tasks have groups, which settle it.
    pub hinted: bool,
    /// What was tried, the likeliest first.
    pub orders: Vec<Tried>,
    /// What was best; `None` while it is being found out, and where groups settle it.
    pub chosen: Option<Order>,
}

/// An order and how it did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tried {
    /// The order.
    pub order: Order,
    /// The fastest run's wall time in ns, by the number of tasks; `None`: not tried.
    pub ns_per_task: Option<f64>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.hinted {
            return writeln!(f, "by the groups that the tasks were given");
        }
        if self.orders.is_empty() {
            return writeln!(f, "not run yet");
        }
        writeln!(f, "  {:<24} {:>10}", "order", "ns a task")?;
        for Tried { order, ns_per_task } in &self.orders {
            let mark = if self.chosen == Some(*order) {
                '>'
            } else {
                ' '
            };
            let told = ns_per_task.map_or("-".to_owned(), |ns| format!("{ns:.1}"));
            writeln!(f, "{mark} {:<24} {told:>10}", order.to_string())?;
        }
        match self.chosen {
            Some(_) => Ok(()),
            None => writeln!(f, "still trying"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_workers_has_trials_of_its_own() {
        let edges: Vec<(usize, usize)> = (0..TASKS_MIN).map(|task| (task, task + 1)).collect();
        let after = Successors::new(TASKS_MIN + 1, &edges);
        let data = (0..=TASKS_MIN).rev().collect();
        let mut finder = Finder::new(after, data, Vec::new());
        // One worker likes the order of data, two the order of declaration.
        let liked = [Order::Data, Order::Declared];
        for _ in 0..50 {
            for workers in [1, 2] {
                finder.prepare(workers);
                let is_liked = finder.applied == Some(liked[workers - 1]);
                finder.ran(if is_liked { 100.0 } else { 200.0 });
            }
        }
        for workers in [1, 2] {
            finder.prepare(workers);
            assert_eq!(finder.explain().chosen, Some(liked[workers - 1]));
        }
    }
}
