// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process tree of a program in one step of the planner. Each search takes time in proportion to
//! the number of processes that it visits.

use std::collections::{BTreeMap, BTreeSet};

use usher_model::TreeProcess;

use super::balance::OBSERVATION_NS;

/// The processes of a program by pid.
pub(super) struct Tree<'a> {
    pub by_pid: BTreeMap<i32, &'a TreeProcess>,
    children: BTreeMap<i32, Vec<i32>>,
}

impl<'a> Tree<'a> {
    pub fn new(processes: &'a [TreeProcess]) -> Self {
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for process in processes {
            let of_parent = children.entry(process.parent).or_default();
            of_parent.push(process.id.pid);
        }
        let by_pid = processes.iter().map(|process| (process.id.pid, process));
        Self {
            by_pid: by_pid.collect(),
            children,
        }
    }

    pub fn has_children(&self, pid: i32) -> bool {
        self.children.contains_key(&pid)
    }

    pub fn get(&self, pid: i32) -> Option<&'a TreeProcess> {
        self.by_pid.get(&pid).copied()
    }

    /// Returns a process and its ancestors in the program, the process first. The number of steps
    /// is bounded, because a reused pid could make a cycle.
    pub fn ancestors(&self, pid: i32) -> impl Iterator<Item = &'a TreeProcess> + '_ {
        let next = |process: &&'a TreeProcess| self.get(process.parent);
        std::iter::successors(self.get(pid), next).take(self.by_pid.len())
    }

    /// Returns a process and its descendants.
    pub fn below(&self, pid: i32) -> impl Iterator<Item = &'a TreeProcess> + '_ {
        let mut left = vec![pid];
        let mut visited = BTreeSet::new();
        let next = move || {
            while let Some(pid) = left.pop() {
                if visited.insert(pid) {
                    left.extend(self.children.get(&pid).into_iter().flatten());
                    return Some(pid);
                }
            }
            None
        };
        std::iter::from_fn(next).filter_map(|pid| self.get(pid))
    }

    /// Returns the most working threads of a process among a process and its descendants.
    pub fn working_threads(&self, pid: i32) -> u32 {
        let threads = self.below(pid).map(|process| process.working_threads);
        threads.max().unwrap_or(1)
    }

    /// Returns whether the main thread of a process or of a descendant runs or waits for a CPU.
    pub fn is_runnable(&self, pid: i32) -> bool {
        self.below(pid).any(|process| process.is_runnable)
    }

    /// Returns whether the threads of a process and of its descendants sleep. Threads other than the
    /// main thread are assumed to sleep if the CPU time of their process did not rise in
    /// [`OBSERVATION_NS`].
    pub fn is_asleep(&self, pid: i32, at_ns: u64) -> bool {
        let is_asleep = |process: &TreeProcess| {
            let idle_ns = process
                .idle_since_ns
                .map(|since_ns| at_ns.saturating_sub(since_ns));
            let is_idle = idle_ns.is_some_and(|idle_ns| idle_ns >= OBSERVATION_NS);
            let is_known = process.threads == 1 || is_idle;
            is_known && !process.is_runnable
        };
        self.below(pid).all(is_asleep)
    }
}
