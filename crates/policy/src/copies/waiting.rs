// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the copies of a group that wait while other copies of the group start processes.
//!
//! **Problem.** Python's fork server and its resource tracker are children of one process, run one
//! executable, and have similar command lines. Both are therefore copies. The tracker sleeps, and
//! the forks of the server do all work on the server's half of the seat.
//!
//! **Rule.** A copy waits while another copy of its group has child processes, and
//!
//! 1. the copy has one thread and no child processes,
//! 2. each scan of the last `WAIT_NS` found the copy asleep and its CPU time unchanged (in steps of
//!    10 ms), and the copy had used less than `MATURE_NS` of CPU time by then (the start of an
//!    interpreter), and
//! 3. the copy has used at most `WAKE_NS` of CPU time since it last slept in this sense.
//!
//! The seat is divided among the other copies. A waiting copy stays confined to the part that it had
//! before. The others may use this part too, until the copy works: each scan checks the rule, and
//! the next division contains the copy again. A pool that a waiting copy starts therefore has the
//! right size, and a copy that has worked keeps its part.
//!
//! *Limits.* A copy that works for less than 10 ms at a time may count as waiting; it keeps its own
//! part, but shares it. A pool that another copy starts meanwhile has the size of the larger part.
//!
//! *Cost.* O(n) for n copies, and the time of two divisions after each change.

use std::collections::BTreeSet;

use usher_model::{CpuSet, Topology, TreeProcess};

use super::{CopyState, Group, MATURE_NS, Tree, divide};

/// Time for which a copy must sleep before it waits.
const WAIT_NS: u64 = 20_000_000;
/// CPU time that a waiting copy may use between two sleeps.
const WAKE_NS: u64 = 20_000_000;

impl Group {
    /// Updates which copies wait.
    pub(super) fn note_waiting(&mut self, at_ns: u64, tree: &Tree<'_>) {
        let mut copies = self.copies.keys();
        let has_launcher = copies.any(|process| tree.has_children(process.pid));
        for (process, copy) in &mut self.copies {
            let Some(found) = tree.get(process.pid) else {
                continue;
            };
            let can_wait = has_launcher && found.threads == 1 && !tree.has_children(process.pid);
            let is_asleep = is_asleep(found, at_ns);
            let used_ns = found.cpu_ns.saturating_sub(copy.slept_cpu_ns);
            copy.state = match copy.state {
                CopyState::Confined if can_wait && is_asleep && found.cpu_ns < MATURE_NS => {
                    CopyState::Waiting
                }
                CopyState::Waiting if !can_wait || used_ns > WAKE_NS => CopyState::Confined,
                state => state,
            };
            if is_asleep {
                copy.slept_cpu_ns = found.cpu_ns;
            }
        }
    }

    /// Divides the CPUs of the launcher among the slots. Waiting copies get the part that they have
    /// if no copy waits.
    pub(super) fn divide(&mut self, topology: &Topology, base: &CpuSet) {
        let copies = self.copies.values();
        let waiting = copies.filter(|copy| copy.state == CopyState::Waiting);
        let waiting: BTreeSet<usize> = waiting.map(|copy| copy.slot).collect();
        let wanted = (base.clone(), self.slots, waiting);
        if self.divided.as_ref() == Some(&wanted) {
            return;
        }
        let (_, _, waiting) = &wanted;
        self.parts = divide(topology, base, self.slots);
        if !waiting.is_empty() {
            let others = divide(topology, base, self.slots - waiting.len());
            let slots = (0..self.slots).filter(|slot| !waiting.contains(slot));
            for (slot, part) in slots.zip(others) {
                self.parts[slot] = part;
            }
        }
        self.divided = Some(wanted);
    }
}

fn is_asleep(process: &TreeProcess, at_ns: u64) -> bool {
    let since_ns = process.idle_since_ns;
    since_ns.is_some_and(|since_ns| at_ns.saturating_sub(since_ns) >= WAIT_NS)
}
