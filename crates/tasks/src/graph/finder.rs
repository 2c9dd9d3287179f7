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
    orders: Vec<Order>,
    trials: Trials,
    /// What the tasks' ranks say at present.
    applied: Option<Order>,
    /// By how many workers it was run; other numbers are other trials.
    workers: usize,
    runs: u64,
}

impl Finder {
    pub fn new(after: Successors, data: Vec<usize>, code: Vec<usize>) -> Self {
        Self {
            after,
            data,
            code,
            orders: Vec::new(),
            trials: Trials::new(1),
            applied: None,
            workers: 0,
            runs: 0,
        }
    }

    /// Before a run by so many workers: the ranks that tasks are to have from now
    /// on, where they change.
    pub fn prepare(&mut self, workers: usize) -> Option<Vec<u32>> {
        if self.workers != workers {
            self.workers = workers;
            self.runs = 0;
        }
        // Whoever runs a graph once does not want to pay for looking at it.
        match self.runs {
            0 => self.try_orders(vec![self.likeliest()]),
            1 if self.is_worth_trials() => self.try_orders(self.known().orders()),
            _ => {}
        }
        self.runs += 1;
        let order = self.orders[self.trials.way()];
        let is_new = self.applied.replace(order) != Some(order);
        is_new.then(|| self.known().ranks(order))
    }

    fn is_worth_trials(&self) -> bool {
        self.after.count() >= TASKS_MIN
    }

    fn try_orders(&mut self, orders: Vec<Order>) {
        self.trials = Trials::new(orders.len());
        self.orders = orders;
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
        self.trials.ran(ns);
    }

    pub fn explain(&self) -> Explanation {
        let tasks = self.after.count().max(1) as f64;
        let orders = self.orders.iter().enumerate();
        let tried = |(way, &order): (usize, &Order)| Tried {
            order,
            ns_per_task: self.trials.fastest_ns(way).map(|ns| ns / tasks),
        };
        // After one run nothing has been tried.
        let best = self
            .trials
            .best()
            .filter(|_| self.runs > 1 || !self.is_worth_trials());
        Explanation {
            hinted: false,
            orders: orders.map(tried).collect(),
            chosen: best.and_then(|way| self.orders.get(way)).copied(),
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

/// In which order a graph's tasks are preferred, and why.
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
