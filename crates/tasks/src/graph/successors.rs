// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dependencies of a graph: for each task, the tasks that follow the task, and the number of
//! tasks that must run before the task.
//!
//! The successors of all tasks are in one array, sorted by task. A second array contains the index
//! at which the successors of each task begin. Building the arrays takes O(n + d log d) for n tasks
//! and d dependencies. A dependency that is declared repeatedly counts once. Finding the successors
//! of a task takes constant time.

use crate::sort;

/// The successors of each task, and the number of its dependencies.
#[derive(Debug)]
pub(super) struct Successors {
    /// The successors of task `i` are `tasks[first[i]..first[i + 1]]`.
    pub first: Vec<u32>,
    pub tasks: Vec<u32>,
    /// The number of dependencies of each task, by task number.
    pub waits: Vec<u32>,
}

impl Successors {
    /// Inverts the dependencies. The caller has checked that the numbers fit into 32 bits.
    pub fn new(count: usize, edges: &[(usize, usize)]) -> Self {
        let mut edges = edges.to_vec();
        sort::pairs(&mut edges);
        edges.dedup();
        let mut waits = vec![0; count];
        let mut first = vec![0; count + 1];
        for &(from, to) in &edges {
            first[from + 1] += 1;
            waits[to] += 1;
        }
        for task in 0..count {
            first[task + 1] += first[task];
        }
        let tasks = edges.iter().map(|&(_, to)| to as u32).collect();
        Self {
            first,
            tasks,
            waits,
        }
    }

    /// Number of tasks.
    pub fn count(&self) -> usize {
        self.waits.len()
    }

    /// Returns the successors of a task, in ascending order.
    pub fn of(&self, task: usize) -> &[u32] {
        &self.tasks[self.first[task] as usize..self.first[task + 1] as usize]
    }
}
