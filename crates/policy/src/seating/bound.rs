// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lower bound of the sum of costs of every allocation of units to candidates.
//!
//! *Lower bound*: kinds are ignored, and the total capacity `C`, in cores, is treated as divisible,
//! at a price `l` per core. Let `cost_i(x)` be the cost of candidate `i` on `x` cores. For every
//! `l` of 0 or more, `sum_i min_x (cost_i(x) + l x) - l C` is a lower bound of the costs of every
//! allocation (Lagrangian relaxation). Let `A` be weight x alone-best of a candidate, and let its
//! rate be `a + b x` between two points of its curve. Then `A / (a + b x) + l x` has its minimum at
//! an end or where `a + b x = sqrt(A b / l)`: each term has a closed form. The bound is concave in
//! `l`, and a golden-section search of 75 rounds over the exponent of `l` (-60..60) finds a good
//! `l`.
//!
//! The search for `l` ends early when the plan's budget of steps (`budget`) is used up; every `l`
//! gives a valid bound.

use super::budget::StepBudget;
use super::candidate::{SeatCandidate, finite};
use super::units::UnitClass;

/// Number of prices that the search for the lower bound tries.
const PRICES_TRIED: u32 = 75;

/// Lower bound of the sum of costs of every allocation.
pub(super) fn lower_bound(
    candidates: &[SeatCandidate<'_>],
    classes: &[UnitClass],
    budget: &StepBudget,
) -> f64 {
    let total: f64 = classes
        .iter()
        .map(|c| c.capacity * f64::from(c.supply))
        .sum();
    let least = classes.iter().map(|c| c.capacity).fold(total, f64::min);
    let terms: Vec<CostTerm> = (candidates.iter().enumerate())
        .map(|(index, candidate)| {
            let open = classes.iter().filter(|class| class.open_to[index]);
            let open: f64 = open.map(|c| c.capacity * f64::from(c.supply)).sum();
            let most = open
                .min(total - least * (candidates.len() - 1) as f64)
                .max(least);
            CostTerm::new(candidate, least, most)
        })
        .collect();
    // The price applies only to the capacity beyond the least capacity of each candidate. A price
    // on all capacity would make the bound the difference of two large numbers, and rounding errors
    // would dominate. The remaining rounding error is subtracted from the bound.
    let spare = (total - least * candidates.len() as f64).max(0.0);
    let at = |price: f64| -> f64 {
        let sum: f64 = terms.iter().map(|term| term.cheapest(price)).sum();
        sum - price * spare - (sum.abs() + price * total) * 1e-12
    };
    let steps = terms.iter().map(|term| 5 + 20 * term.ends.len() as u64);
    let steps: u64 = steps.sum();
    budget.spend(steps * 4);
    // Every price gives a valid bound, including 0. A golden-section search finds a good price.
    let mut best = at(0.0);
    let golden = |from: f64, to: f64| from + 0.618_033_988_749_894_9 * (to - from);
    let (mut low, mut high) = (-60.0, 60.0);
    let (mut left, mut right) = (golden(high, low), golden(low, high));
    let (mut at_left, mut at_right) = (at(f64::exp2(left)), at(f64::exp2(right)));
    for _ in 0..PRICES_TRIED {
        best = best.max(at_left).max(at_right);
        if !budget.charge(steps) {
            break;
        }
        if at_left < at_right {
            low = left;
            (left, at_left) = (right, at_right);
            right = golden(low, high);
            at_right = at(f64::exp2(right));
        } else {
            high = right;
            (right, at_right) = (left, at_left);
            left = golden(high, low);
            at_left = at(f64::exp2(left));
        }
    }
    best.max(at_left).max(at_right)
}

/// The cost of a candidate as a function of its capacity, from the least capacity on.
struct CostTerm {
    /// Weight x alone-best: the cost is this number divided by the rate.
    scale: f64,
    /// The two ends and the points of the curve between: capacity, rate, cost.
    ends: Vec<(f64, f64, f64)>,
}

impl CostTerm {
    fn new(candidate: &SeatCandidate<'_>, least: f64, most: f64) -> Self {
        let curve = &candidate.request.curve;
        let inner = curve.points().iter().map(|p| p.cores);
        let inner = inner.filter(|&x| x > least && x < most);
        let ends = std::iter::once(least).chain(inner).chain([most]);
        Self {
            scale: candidate.request.weight * candidate.alone_best,
            ends: ends
                .map(|x| (x, curve.rate(x), candidate.cost(x)))
                .collect(),
        }
    }

    /// Least value of cost(x) + price * (x - least) between the ends.
    fn cheapest(&self, price: f64) -> f64 {
        let least = self.ends[0].0;
        let at_ends = self
            .ends
            .iter()
            .map(|&(x, _, cost)| cost + price * (x - least));
        let mut best = at_ends.fold(f64::INFINITY, f64::min);
        for pair in self.ends.windows(2) {
            let ((x0, r0, _), (x1, r1, _)) = (pair[0], pair[1]);
            let slope = (r1 - r0) / (x1 - x0);
            let rate = (self.scale * slope / price).sqrt();
            let x = x0 + (rate - r0) / slope;
            if x > x0 && x < x1 {
                best = best.min(finite(self.scale / rate) + price * (x - least));
            }
        }
        best
    }
}
