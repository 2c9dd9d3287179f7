// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of each candidate (the numbers of units that it may get), and their costs as whole
//! numbers.
//!
//! A *unit* is a whole LLC domain or a whole core; a *candidate* is a program to be seated. NTT is
//! the run time divided by the run time alone at best, ANTT the weighted mean of the NTTs.
//!
//! The cost of an option is the candidate's weighted NTT. Sums of floating-point numbers depend on
//! the order of addition: two allocations of equal ANTT could compare unequal, and the rules for
//! ties would never apply. Costs are therefore rounded to whole multiples of a unit, called
//! *prices*, whose sums are exact. The unit is 2^-44 of the sum of the least costs of all
//! candidates. Each price is off by at most half a unit: two sums of `n` prices that differ by at
//! most `n` units (relatively, by `n` * 6e-14) count as equal.
//!
//! A table has at most one option for each vector of unit counts: the product of `supply + 1` over
//! the classes of units. Building a table takes that number of steps, each with one search in the
//! curve. Prices are limited to 2^62 / `n`; `quantise` returns the limit.

use super::candidate::SeatCandidate;
use super::units::UnitClass;

/// One possible allocation to a candidate.
#[derive(Debug, Clone)]
pub(super) struct AllocationOption {
    /// Number of units of each class.
    pub take: Vec<u32>,
    /// Total number of units.
    pub units: u32,
    /// The candidate's weighted NTT with these units.
    pub cost: f64,
    /// The cost in whole units, see [`quantise`].
    pub price: u64,
}

/// A candidate's options, by rising number of units. An option is left out if another option has no
/// more units of any class and costs no more. A seat is thus never larger than useful.
pub(super) type OptionTable = Vec<AllocationOption>;

/// Maps vectors of counts to numbers from 0 to `states - 1`, as the digits of a mixed-radix number:
/// count `k` is from 0 to `supply[k]`.
#[derive(Debug)]
pub(super) struct MixedRadix {
    strides: Vec<usize>,
    supply: Vec<u32>,
    /// Number of vectors.
    pub states: usize,
}

/// Maximum number of vectors that are numbered.
const STATES_MAX: usize = 1 << 40;

impl MixedRadix {
    /// Returns the number of vectors, unless it is too large to be used.
    pub fn states(supply: &[u32]) -> Option<usize> {
        let product = supply
            .iter()
            .try_fold(1usize, |product, &m| product.checked_mul(m as usize + 1))?;
        Some(product).filter(|&states| states <= STATES_MAX)
    }

    pub fn new(supply: &[u32]) -> Self {
        let mut states = 1;
        let strides = supply
            .iter()
            .map(|&m| {
                let stride = states;
                states *= m as usize + 1;
                stride
            })
            .collect();
        Self {
            strides,
            supply: supply.to_vec(),
            states,
        }
    }

    pub fn index(&self, counts: &[u32]) -> usize {
        counts
            .iter()
            .zip(&self.strides)
            .map(|(&c, &stride)| c as usize * stride)
            .sum()
    }

    pub fn counts(&self, index: usize) -> Vec<u32> {
        self.strides
            .iter()
            .zip(&self.supply)
            .map(|(&stride, &m)| (index / stride % (m as usize + 1)) as u32)
            .collect()
    }
}

/// Steps to build the tables of all candidates, with this number of vectors over all tables.
pub(super) fn table_steps(vectors: u64, classes: usize) -> u64 {
    vectors * (50 + 10 * classes as u64)
}

/// The options of the candidate at `index`, which may take at most `units_max` units.
pub(super) fn option_table(
    candidate: &SeatCandidate<'_>,
    index: usize,
    classes: &[UnitClass],
    units_max: u32,
) -> OptionTable {
    let supply: Vec<u32> = classes
        .iter()
        .map(|class| match class.open_to[index] {
            true => class.supply.min(units_max),
            false => 0,
        })
        .collect();
    let radix = MixedRadix::new(&supply);
    // For each vector, by its index: the least cost of the vector itself and of all vectors that
    // have no more units of any class.
    let mut below = vec![f64::INFINITY; radix.states];
    let mut table = Vec::new();
    for index in 1..radix.states {
        let take = radix.counts(index);
        let units: u32 = take.iter().sum();
        let cost = cost_of(candidate, classes, &take).filter(|_| units <= units_max);
        let rest = take.iter().zip(&radix.strides).filter(|(t, _)| **t > 0);
        let least = rest
            .map(|(_, &stride)| below[index - stride])
            .fold(f64::INFINITY, f64::min);
        below[index] = least.min(cost.unwrap_or(f64::INFINITY));
        if let Some(cost) = cost.filter(|c| *c < least * (1.0 - 1e-12)) {
            table.push(AllocationOption {
                take,
                units,
                cost,
                price: 0,
            });
        }
    }
    table.sort_by_key(|choice| choice.units);
    table
}

/// The candidate's cost for a number of units of each class; `None` if the units have fewer cores
/// than the candidate has spinning threads.
pub(super) fn cost_of(
    candidate: &SeatCandidate<'_>,
    classes: &[UnitClass],
    take: &[u32],
) -> Option<f64> {
    let mut capacity = 0.0;
    let mut cores = 0;
    for (&count, class) in take.iter().zip(classes) {
        capacity += f64::from(count) * class.capacity;
        cores += count * class.cores;
    }
    (cores >= candidate.request.spinners).then(|| candidate.cost(capacity))
}

/// Computes the prices, with the unit doubled `coarser` times. Returns the cap to which prices are
/// limited, and the unit; a price at the cap is meaningless.
pub(super) fn quantise(tables: &mut [OptionTable], coarser: i32) -> (u64, f64) {
    let least = |table: &OptionTable| table.iter().map(|c| c.cost).fold(f64::MAX, f64::min);
    let floor: f64 = tables.iter().map(least).sum();
    let unit = floor.min(f64::MAX) * f64::exp2(f64::from(coarser - 44));
    let cap = (1 << 62) / tables.len().max(1) as u64;
    for choice in tables.iter_mut().flatten() {
        choice.price = ((choice.cost / unit).round() as u64).min(cap);
    }
    (cap, unit)
}
