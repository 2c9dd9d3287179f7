// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exchanges copies between parts of the seat, if several copies wait for the CPUs of one part
//! while another part is idle.
//!
//! The kernel cannot balance copies that are confined to different CPUs. If a part is shared by
//! several copies (more copies than CPUs), it may have two running copies while all copies of
//! another part sleep. An exchange of a running and a sleeping copy changes neither the number of
//! copies per part nor the number of CPUs that a copy can use. Thread pools keep their size.
//!
//! A copy that exchanges messages with its launcher often sleeps for a short time. Copies are
//! therefore exchanged only if [`OBSERVATIONS`] successive observations, [`OBSERVATION_NS`] or more
//! apart, show the same pair of parts, and the next exchange needs further observations. The state
//! of a process with several threads is that of its main thread; such a copy counts as sleeping only
//! if its CPU time did not rise in [`OBSERVATION_NS`] either.
//!
//! *Cost.* O(n) for n processes, and one comparison of each pair of parts.

use std::collections::BTreeMap;

use usher_model::{CpuSet, ProcessId};

use super::{CopyState, Group, Tree};

/// Number of successive observations that must find the same idle and overloaded part before copies
/// are exchanged.
const OBSERVATIONS: u32 = 2;
/// Shortest time between two observations: the kernel counts CPU time in steps of 10 ms.
pub(super) const OBSERVATION_NS: u64 = 10_000_000;

/// An overloaded and an idle part, found by several successive observations.
#[derive(Debug, Default)]
pub(super) struct Imbalance {
    parts: Option<(CpuSet, CpuSet)>,
    observations: u32,
    /// Time from which the next observation may be made.
    due_ns: u64,
}

impl Imbalance {
    /// Records an observation. Returns whether it was made often enough.
    fn record(&mut self, parts: Option<(CpuSet, CpuSet)>) -> bool {
        self.observations = match parts.is_some() && self.parts == parts {
            true => self.observations + 1,
            false => u32::from(parts.is_some()),
        };
        self.parts = parts;
        self.observations >= OBSERVATIONS
    }
}

/// The confined copies of one part.
#[derive(Debug, Default)]
struct Load {
    running: Vec<ProcessId>,
    sleeping: Vec<ProcessId>,
    /// Whether another copy may run or sleep.
    has_unknown: bool,
}

impl Group {
    /// Exchanges at most one pair of copies.
    pub(super) fn balance(&mut self, at_ns: u64, tree: &Tree<'_>) {
        if at_ns < self.imbalance.due_ns {
            return;
        }
        self.imbalance.due_ns = at_ns + OBSERVATION_NS;
        let loads = self.loads(at_ns, tree);
        let pair = exchange(&loads);
        let observed = pair.map(|(from, to, ..)| (from.clone(), to.clone()));
        if !self.imbalance.record(observed) {
            return;
        }
        let Some((_, _, running, sleeping)) = pair else {
            return;
        };
        let slot = |process| self.copies.get(process).map(|copy| copy.slot);
        if let (Some(from), Some(to)) = (slot(&running), slot(&sleeping)) {
            self.move_to(running, to);
            self.move_to(sleeping, from);
        }
        self.imbalance.record(None);
    }

    fn move_to(&mut self, process: ProcessId, slot: usize) {
        if let Some(copy) = self.copies.get_mut(&process) {
            copy.slot = slot;
        }
    }

    fn loads(&self, at_ns: u64, tree: &Tree<'_>) -> BTreeMap<CpuSet, Load> {
        let mut loads: BTreeMap<CpuSet, Load> = BTreeMap::new();
        for (&process, copy) in &self.copies {
            let part = self.parts.get(copy.slot);
            let Some(part) = part.filter(|_| copy.state == CopyState::Confined) else {
                continue;
            };
            let load = loads.entry(part.clone()).or_default();
            match tree.is_runnable(process.pid) {
                true => load.running.push(process),
                false if tree.is_asleep(process.pid, at_ns) => load.sleeping.push(process),
                false => load.has_unknown = true,
            }
        }
        loads
    }
}

/// Returns an overloaded part, an idle part of the same size, a running copy of the first part, and
/// a sleeping copy of the second part.
fn exchange(loads: &BTreeMap<CpuSet, Load>) -> Option<(&CpuSet, &CpuSet, ProcessId, ProcessId)> {
    let (from, load) = loads.iter().max_by_key(|(_, load)| load.running.len())?;
    let running = *load.running.get(from.len())?;
    let is_idle = |(to, load): &(&CpuSet, &Load)| {
        let sleeps = load.running.is_empty() && !load.has_unknown;
        to.len() == from.len() && sleeps && !load.sleeping.is_empty()
    };
    let (to, load) = loads.iter().find(is_idle)?;
    Some((from, to, running, *load.sleeping.first()?))
}
