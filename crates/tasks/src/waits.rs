// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deadlock detection for runtimes that wait for one another.
//!
//! A task may wait for another runtime: run a graph on it, wait for its tokens or drop it. The
//! task's worker does nothing else meanwhile. If tasks of the other runtime wait for the first
//! runtime, all workers of both may wait forever. Each wait is therefore entered in a global table
//! and rejected if it would close a cycle. The wait is rejected even if enough workers are left for
//! both runtimes to proceed; a program that needs such waits must wait in one direction only. A
//! check takes time in the order of the number of current waits.

use crate::sync::StaticMutex;

/// The current waits, as pairs (waiting, awaited), with one entry per waiting task.
static WAITS: StaticMutex<Vec<(usize, usize)>> = StaticMutex::new(Vec::new());

/// An entry of the table of waits, removed when dropped.
#[derive(Debug)]
#[must_use]
pub struct RuntimeWait(usize, usize);

/// The wait would close a cycle of runtimes, directly or through others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadlockCycle;

impl RuntimeWait {
    /// Enters a wait of runtime `from` for runtime `to`. A runtime is identified by the address of
    /// its registry.
    ///
    /// # Errors
    /// If the wait would close a cycle.
    pub fn begin(from: usize, to: usize) -> Result<Self, DeadlockCycle> {
        let mut waits = WAITS.lock();
        if leads(&waits, to, from) {
            return Err(DeadlockCycle);
        }
        waits.push((from, to));
        Ok(Self(from, to))
    }
}

/// Returns whether `from` waits for `to`, directly or through others.
fn leads(waits: &[(usize, usize)], from: usize, to: usize) -> bool {
    let mut seen = vec![from];
    let mut at = 0;
    while let Some(&runtime) = seen.get(at) {
        at += 1;
        for &(waiting, other) in waits {
            if waiting == runtime && !seen.contains(&other) {
                seen.push(other);
            }
        }
    }
    seen.contains(&to)
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
        assert!(leads(&waits, 1, 4) && leads(&waits, 5, 4) && leads(&waits, 2, 2));
        assert!(!leads(&waits, 4, 1) && !leads(&waits, 3, 5) && !leads(&[], 1, 2));
        let cycle = [(1, 2), (2, 1)];
        assert!(leads(&cycle, 1, 2) && !leads(&cycle, 1, 3), "and it ends");
    }
}
