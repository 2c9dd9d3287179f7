// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deadlock detection for runtimes that wait for one another.
//!
//! A task of runtime A may wait for runtime B: it runs a graph on B, waits for the tasks of B or
//! drops B. The worker of the task runs no other task during the wait. If tasks of B wait for A at
//! the same time, all workers of A and B may wait forever. Therefore:
//!
//! 1. Each wait is recorded in a global table, as a pair (A, B), until it ends.
//! 2. A new wait of A for B is rejected if the table contains a path from B to A.
//!
//! A wait is also rejected if further workers of A and B could run the tasks. Waits of a program
//! for several runtimes must therefore not form a cycle. A check takes time at most quadratic in
//! the number of current waits, and a lock.

use std::collections::BTreeSet;

use crate::sync::StaticMutex;

/// The current waits, one pair for each waiting task: the runtime of the task, and the runtime for
/// which the task waits.
static WAITS: StaticMutex<Vec<(usize, usize)>> = StaticMutex::new(Vec::new());

/// A wait in the table of waits. The drop of this value removes the wait from the table.
#[derive(Debug)]
#[must_use]
pub struct RuntimeWait(usize, usize);

/// The error that a wait would close a cycle of two or more runtimes that wait for one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadlockCycle;

impl RuntimeWait {
    /// Records that a task of runtime `from` waits for runtime `to`. The address of its registry
    /// identifies a runtime.
    ///
    /// # Errors
    /// If the wait would close a cycle.
    pub fn begin(from: usize, to: usize) -> Result<Self, DeadlockCycle> {
        let mut waits = WAITS.lock();
        if leads_in(&waits, to, from) {
            return Err(DeadlockCycle);
        }
        waits.push((from, to));
        Ok(Self(from, to))
    }

    /// Records a wait as [`Self::begin`] does, also if it closes a cycle. Used for waits during
    /// which the worker of the task runs other tasks.
    pub fn record(from: usize, to: usize) -> Self {
        WAITS.lock().push((from, to));
        Self(from, to)
    }
}

/// Returns whether `from` waits for `to`, directly or through other runtimes that wait.
fn leads_in(waits: &[(usize, usize)], from: usize, to: usize) -> bool {
    let next = |&at: &usize, next: &mut Vec<usize>| {
        let of = waits.iter().filter(|&&(waiting, _)| waiting == at);
        next.extend(of.map(|&(_, other)| other));
    };
    leads(from, |&at| at == to, |&at| at, next)
}

/// Returns whether a path of waits leads from `from` to a node for which `is_end` returns true.
/// `address` identifies a node, and `next` adds the nodes for which a node waits to a list. Takes
/// time nearly linear in the number of waits on the paths.
pub(crate) fn leads<T>(
    from: T,
    is_end: impl Fn(&T) -> bool,
    address: impl Fn(&T) -> usize,
    next: impl Fn(&T, &mut Vec<T>),
) -> bool {
    let mut seen = BTreeSet::from([address(&from)]);
    let mut open = vec![from];
    let mut found = Vec::new();
    while let Some(at) = open.pop() {
        if is_end(&at) {
            return true;
        }
        next(&at, &mut found);
        open.extend(found.drain(..).filter(|other| seen.insert(address(other))));
    }
    false
}

impl Drop for RuntimeWait {
    fn drop(&mut self) {
        let mut waits = WAITS.lock();
        if let Some(at) = waits.iter().position(|&wait| wait == (self.0, self.1)) {
            waits.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_of_any_length_are_found() {
        let waits = [(1, 2), (2, 3), (1, 3), (5, 1), (3, 4)];
        assert!(leads_in(&waits, 1, 4) && leads_in(&waits, 5, 4) && leads_in(&waits, 2, 2));
        assert!(!leads_in(&waits, 4, 1) && !leads_in(&waits, 3, 5) && !leads_in(&[], 1, 2));
        let cycle = [(1, 2), (2, 1)];
        assert!(
            leads_in(&cycle, 1, 2) && !leads_in(&cycle, 1, 3),
            "and it ends"
        );
    }
}
