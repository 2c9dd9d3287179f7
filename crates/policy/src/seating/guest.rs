// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request as the planner sees it: with its alone-best and its bounds.

use usher_model::{CpuSet, Topology};

use super::Request;

/// One program to be seated.
#[derive(Debug, Clone)]
pub(super) struct Guest<'a> {
    pub request: &'a Request,
    /// Its rate when it has the machine, or what it is bound to, to itself:
    /// the best over 1 to N cores.
    pub alone_best: f64,
    /// The CPUs that it is bound to; `None` when that is no restriction.
    pub bound: Option<CpuSet>,
}

impl<'a> Guest<'a> {
    /// A binding to nothing here, or to the whole machine, is none. A program that
    /// pinned its threads to the whole machine leaves nothing to others.
    pub fn new(machine: &Topology, all: &CpuSet, request: &'a Request) -> Self {
        let bound = request
            .bound_to
            .clone()
            .filter(|bound| bound.intersects(all))
            .filter(|bound| request.pinned || !all.is_subset(bound));
        let reach = match &bound {
            Some(bound) => machine.capacity_of(bound),
            None => machine.cores.iter().map(|core| core.capacity).sum(),
        };
        Self {
            request,
            alone_best: request.curve.best_rate(reach),
            bound,
        }
    }

    /// Whether it may sit on all of these CPUs.
    pub fn may_use(&self, cpus: &CpuSet) -> bool {
        self.bound
            .as_ref()
            .is_none_or(|bound| cpus.is_subset(bound))
    }

    /// Normalised turnaround time on cores of its own (paper 1, equation 1):
    /// how many times longer it takes than at its alone-best.
    pub fn ntt(&self, capacity: f64) -> f64 {
        finite(self.alone_best / self.request.curve.rate(capacity))
    }

    /// What that adds to the sum of weighted NTTs.
    pub fn cost(&self, capacity: f64) -> f64 {
        finite(self.request.weight * self.ntt(capacity))
    }
}

/// Curves may hold rates so far apart that their quotient overflows.
pub(super) fn finite(x: f64) -> f64 {
    match x.is_nan() {
        true => f64::MAX,
        false => x.min(f64::MAX),
    }
}
