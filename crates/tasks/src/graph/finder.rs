// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a fast order for a graph without groups, by trials during the runs of the graph.
//!
//! 1. The first run uses the declared order. A graph that runs once therefore does not pay for a
//!    search.
//! 2. Before the second run, `order` proposes up to 8 candidate orders.
//! 3. Each following run uses a candidate that `trials` selects, and `trials` gets the run's time.
//! 4. After enough runs `trials` chooses the fastest order, which later runs use, if it is at least
//!    5 % faster than the declared order. Otherwise, it chooses the declared order.
//!
//! An order gives each task a rank. Ranks become temporal and spatial groups of the tasks
//! ([`groups_of`]), which the workers obey. Each number of workers has a search of its own, because
//! the fastest order may depend on it. Graphs with fewer than 256 tasks ([`TASKS_MIN`]) keep the
//! order of step 1, because their run times vary too much for comparisons.
//!
//! Bounds: With 8 candidates, a search takes at most 24 trial runs, or 72 if they take less than 2
//! ms each; repeated searches and the cost of trials are described in `trials`. Proposing the
//! candidates takes about 8 times the time of computing an order (`order`). A change of the order
//! takes time in proportion to n log n + d log d for n tasks and d dependencies. If there is no
//! memory for the ranks, the order stays unchanged. The searches of all numbers of workers are kept
//! as long as the graph.

use std::fmt;

use super::order::{GraphInfo, TaskOrder};
use super::successors::Successors;
use crate::dispatch::Groups;
use crate::pool::T_QUEUES;
use crate::trials::AlternativeTrials;

/// Minimum number of tasks of a graph for a search. The run times of smaller graphs vary too much,
/// so smaller graphs always run in the declared order.
const TASKS_MIN: usize = 256;

/// The candidate orders of a graph, and the state of their trials.
#[derive(Debug)]
pub(super) struct OrderFinder {
    after: Successors,
    data: Vec<usize>,
    code: Vec<usize>,
    /// Whether the graph keeps the declared order, without a search.
    keeps_order: bool,
    /// The searches, each with its number of workers. The best order may depend on the number of
    /// workers. A graph that runs alternately on two runtimes continues both searches.
    searches: Vec<(usize, OrderSearch)>,
    /// Index of the search used by the last run.
    current: usize,
    /// The order that the tasks' current groups express; `None` if no order is applied.
    applied: Option<TaskOrder>,
}

/// Candidate orders and their trials.
#[derive(Debug)]
struct OrderSearch {
    orders: Vec<TaskOrder>,
    trials: AlternativeTrials,
    runs: u64,
}

impl OrderSearch {
    /// `baseline` is the index of the declared order.
    fn new(orders: Vec<TaskOrder>, baseline: usize) -> Self {
        let trials = AlternativeTrials::new(orders.len(), baseline);
        Self {
            orders,
            trials,
            runs: 0,
        }
    }
}

impl OrderFinder {
    pub fn new(after: Successors, data: Vec<usize>, code: Vec<usize>) -> Self {
        Self {
            after,
            data,
            code,
            keeps_order: false,
            searches: Vec::new(),
            current: 0,
            applied: None,
        }
    }

    /// Returns a finder that always uses the declared order.
    pub fn that_keeps_order(after: Successors) -> Self {
        Self {
            keeps_order: true,
            ..Self::new(after, Vec::new(), Vec::new())
        }
    }

    /// Prepares a run by this number of workers. Returns new ranks of the tasks if the order
    /// changes. If there is no memory for the ranks, returns `None`: the order is unchanged, and
    /// the next run tries again.
    pub fn prepare(&mut self, workers: usize) -> Option<Vec<u32>> {
        let known = self
            .searches
            .iter()
            .position(|(count, _)| *count == workers);
        self.current = known.unwrap_or(self.searches.len());
        // The first run uses the declared order, because a graph that is run once must not pay for
        // a search.
        if known.is_none() {
            let search = OrderSearch::new(vec![TaskOrder::Declared], 0);
            self.searches.push((workers, search));
        } else if self.searches[self.current].1.runs == 1 && self.is_worth_trials() {
            let (orders, declared) = self.info().orders()?;
            self.searches[self.current].1 = OrderSearch::new(orders, declared);
            self.searches[self.current].1.runs = 1;
        }
        let search = &mut self.searches[self.current].1;
        search.runs += 1;
        let order = search.orders[search.trials.current()];
        if self.applied == Some(order) {
            return None;
        }
        let ranks = self.info().ranks(order)?;
        self.applied = Some(order);
        Some(ranks)
    }

    fn is_worth_trials(&self) -> bool {
        !self.keeps_order && self.after.count() >= TASKS_MIN
    }

    fn info(&self) -> GraphInfo<'_> {
        GraphInfo {
            after: &self.after,
            data: &self.data,
            code: &self.code,
        }
    }

    /// Prepares a run without an order of this module. Returns whether such an order was applied
    /// before.
    pub fn forget(&mut self) -> bool {
        self.applied.take().is_some()
    }

    /// Records the time of a run.
    pub fn record(&mut self, ns: f64) {
        let Some((_, search)) = self.searches.get_mut(self.current) else {
            return;
        };
        // If there was no memory for the ranks of the order, the run used another order, and its
        // time is ignored.
        if self.applied == Some(search.orders[search.trials.current()]) {
            search.trials.record(ns);
        }
    }

    pub fn explain(&self) -> Explanation {
        let Some((_, search)) = self.searches.get(self.current) else {
            return Explanation {
                hinted: false,
                orders: Vec::new(),
                chosen: None,
            };
        };
        let tasks = self.after.count().max(1) as f64;
        let orders = search.orders.iter().enumerate();
        let tried = |(alternative, &order): (usize, &TaskOrder)| TriedOrder {
            order,
            ns_per_task: search.trials.fastest_ns(alternative).map(|ns| ns / tasks),
        };
        // Before the second run, no candidates were tried, so there is no best order.
        let best = search
            .trials
            .best()
            .filter(|_| search.runs > 1 || !self.is_worth_trials());
        Explanation {
            hinted: false,
            orders: orders.map(tried).collect(),
            chosen: best
                .and_then(|alternative| search.orders.get(alternative))
                .copied(),
        }
    }
}

/// Returns the groups that express a rank among this number of tasks.
pub(super) fn groups_of(rank: u32, tasks: usize) -> Groups {
    // Group 0 means no group, so 255 of the 256 queues remain. Each of them gets one band of ranks.
    let bands = T_QUEUES as u64 - 1;
    Groups::new(
        1 + (u64::from(rank) * bands / tasks.max(1) as u64) as u32,
        0,
    )
}

/// The order in which a graph's tasks run by preference, with the measured times that led to it. It
/// is valid for the number of workers of the last run.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// Whether the tasks have groups, which determine the order.
    pub hinted: bool,
    /// The candidate orders, sorted by expected speed.
    pub orders: Vec<TriedOrder>,
    /// The chosen order; `None` while the search is in progress, and if declared groups determine
    /// the order.
    pub chosen: Option<TaskOrder>,
}

/// An order and its measured time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TriedOrder {
    /// The order.
    pub order: TaskOrder,
    /// Wall time of the fastest run in this order in ns, divided by the number of tasks; `None` if
    /// the order was not tried.
    pub ns_per_task: Option<f64>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.hinted {
            return writeln!(
                f,
                "order of the tasks: by the groups that the program assigned to the tasks"
            );
        }
        if self.orders.is_empty() {
            return writeln!(f, "the graph has not run yet");
        }
        writeln!(f, "  {:<24} {:>10}", "order", "ns/task")?;
        for TriedOrder { order, ns_per_task } in &self.orders {
            let mark = if self.chosen == Some(*order) {
                '>'
            } else {
                ' '
            };
            let time = ns_per_task.map_or("-".to_owned(), |ns| format!("{ns:.1}"));
            writeln!(f, "{mark} {:<24} {time:>10}", order.to_string())?;
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
    fn a_graph_keeps_its_order_on_request() {
        let after = Successors::new(2 * TASKS_MIN, &[(0, TASKS_MIN)]);
        let mut finder = OrderFinder::that_keeps_order(after);
        for run in 0..100 {
            finder.prepare(1);
            assert_eq!(finder.applied, Some(TaskOrder::Declared), "run {run}");
            finder.record(100.0);
        }
        let explained = finder.explain();
        assert_eq!(explained.chosen, Some(TaskOrder::Declared));
        assert_eq!(explained.orders.len(), 1);
    }

    #[test]
    fn each_number_of_workers_has_trials_of_its_own() {
        let edges: Vec<(usize, usize)> = (0..TASKS_MIN).map(|task| (task, task + 1)).collect();
        let after = Successors::new(TASKS_MIN + 1, &edges);
        let data = (0..=TASKS_MIN).rev().collect();
        let mut finder = OrderFinder::new(after, data, Vec::new());
        // With these simulated times, one worker is fastest in the order of the data addresses, and
        // two workers are fastest in the declared order.
        let fastest = [TaskOrder::Data, TaskOrder::Declared];
        for _ in 0..50 {
            for workers in [1, 2] {
                finder.prepare(workers);
                let is_fastest = finder.applied == Some(fastest[workers - 1]);
                finder.record(if is_fastest { 100.0 } else { 200.0 });
            }
        }
        for workers in [1, 2] {
            finder.prepare(workers);
            assert_eq!(finder.explain().chosen, Some(fastest[workers - 1]));
        }
    }
}
