// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program to be seated: its request, its best rate alone, and the CPUs that it is bound to.
//! Computes the program's NTT (run time divided by the run time alone at best) by equation 1 of
//! paper 1, and its weighted NTT. The planner minimises the sum of weighted NTTs.
//!
//! Capacities are in cores: the sum of the relative speeds of the cores. NTTs and costs that are
//! not finite are replaced by the largest finite number. Each computation takes the time of one
//! search in the curve.

use usher_model::{CpuSet, Topology};

use super::request::Request;

/// A program to be seated.
#[derive(Debug, Clone)]
pub(super) struct SeatCandidate<'a> {
    pub request: &'a Request,
    /// The best rate of the program alone on the machine, or alone on the CPUs that it is bound to,
    /// on any number of cores.
    pub alone_best: f64,
    /// The CPUs that the program is bound to; `None`: the program may use all CPUs.
    pub bound: Option<CpuSet>,
}

impl<'a> SeatCandidate<'a> {
    /// Creates a candidate. A binding to no CPU of this machine, or to all its CPUs, is ignored.
    /// Exception: if a program pinned its threads to all CPUs, the binding is kept, because other
    /// programs can get no seats beside it.
    /// `all` are the CPUs of the machine, and `whole` is their capacity.
    pub fn new(machine: &Topology, all: &CpuSet, whole: f64, request: &'a Request) -> Self {
        let bound = request
            .bound_to
            .clone()
            .filter(|bound| bound.intersects(all))
            .filter(|bound| request.pinned || !all.is_subset(bound));
        let allowed_capacity = match &bound {
            Some(bound) => machine.capacity_of(bound),
            None => whole,
        };
        Self {
            request,
            alone_best: request.curve.best_rate(allowed_capacity),
            bound,
        }
    }

    /// Whether the candidate may use all of these CPUs.
    pub fn may_use(&self, cpus: &CpuSet) -> bool {
        // The first CPU decides for most sets, in constant time.
        let has_first = |bound: &CpuSet| cpus.first().is_none_or(|cpu| bound.contains(cpu));
        let mut bound = self.bound.iter();
        bound.all(|bound| has_first(bound) && cpus.is_subset(bound))
    }

    /// NTT on own cores with the given capacity (paper 1, equation 1): the run time divided by the
    /// run time at the alone-best.
    pub fn ntt(&self, capacity: f64) -> f64 {
        finite(self.alone_best / self.request.curve.rate(capacity))
    }

    /// The candidate's contribution to the sum of weighted NTTs.
    pub fn cost(&self, capacity: f64) -> f64 {
        finite(self.request.weight * self.ntt(capacity))
    }
}

/// Replaces NaN and infinity by the largest finite number. Quotients may overflow, because a curve
/// may contain rates of very different magnitude.
pub(super) fn finite(x: f64) -> f64 {
    match x.is_nan() {
        true => f64::MAX,
        false => x.min(f64::MAX),
    }
}
