// SPDX-License-Identifier: MIT OR Apache-2.0
//! Oracle: finds the best static seats with perfect knowledge of the programs.
//!
//! 1. Predict the ANTT (weighted mean of the slow-downs against a run alone) of every distribution
//!    of whole domains from the programs' true curves. For d domains and p programs, the number of
//!    distributions is the binomial coefficient "d choose p".
//! 2. Simulate the six best distributions, because the curves do not include interference between
//!    programs.
//! 3. Select the distribution with the lowest simulated ANTT.
//!
//! Domains are assigned in order, program by program; which programs share a package is not varied.
//!
//! Limits: a simulation covers 5 virtual seconds. Every distribution is evaluated, however many
//! there are; module `trial` rejects mixes with more than 2,000,000. With more programs than
//! domains, there is no distribution, and no program gets a seat. A distribution under which a
//! simulation fails is used only if all six fail.

use std::collections::BTreeMap;

use usher_model::{CpuSet, Topology};
use usher_policy::Policy;

use crate::extrapolation::{self, Extrapolation};
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::mix::MixEntry;

/// Seats by program name.
pub type SeatsByName = BTreeMap<String, CpuSet>;

/// Number of distributions that are simulated.
const CANDIDATES: usize = 6;
/// Length of each simulation, which is long enough for the programs' own cycles.
const LENGTH: Extrapolation = Extrapolation {
    settle_s: 1.0,
    steady_s: 4.0,
    repetitions: 3.0,
    scale: 1e3,
};

/// Finds the best seats. `policy` creates the policy that runs programs on given seats.
pub fn seats(
    machine: &Machine,
    kernel: &Kernel,
    entries: &[MixEntry],
    policy: &dyn Fn(SeatsByName) -> Box<dyn Policy>,
) -> SeatsByName {
    let mut candidates = candidates(machine.topology(), entries, CANDIDATES);
    let weighted_antt = |seats: &SeatsByName| {
        let forecast =
            extrapolation::run(entries, machine, kernel, policy(seats.clone()), &LENGTH, 1);
        let weighted_sum = |ntt: Vec<f64>| -> f64 {
            let each = entries.iter().zip(ntt);
            each.map(|(entry, ntt)| entry.weight * ntt).sum()
        };
        // A distribution under which a program starves is excluded.
        forecast.map_or(f64::INFINITY, |forecast| weighted_sum(forecast.ntt))
    };
    let antts: Vec<f64> = candidates.iter().map(weighted_antt).collect();
    let best = (0..candidates.len()).min_by(|&a, &b| antts[a].total_cmp(&antts[b]));
    best.map_or_else(SeatsByName::new, |at| candidates.swap_remove(at))
}

/// Returns the best distributions of whole domains according to the curves alone, the best
/// distribution first.
pub fn candidates(topology: &Topology, entries: &[MixEntry], most: usize) -> Vec<SeatsByName> {
    let domains = topology.domains.len();
    let cores_max = topology.cores.len() as f64;
    let upto = |count: usize| {
        let all = topology.domains[..count].iter();
        all.map(|domain| domain.cores.len()).sum::<usize>() as f64
    };
    let ntt = |entry: &MixEntry, count: usize| {
        entry.weight * entry.alone.best_rate(cores_max) / entry.alone.rate(upto(count))
    };
    let mut best: Vec<(f64, Vec<usize>)> = Vec::new();
    let mut counts = vec![1; entries.len()];
    try_all(&mut counts, 0, domains, &mut |counts| {
        let sum: f64 = entries.iter().zip(counts).map(|(e, &c)| ntt(e, c)).sum();
        let at = best.partition_point(|(other, _)| *other <= sum);
        if at < most {
            best.insert(at, (sum, counts.to_vec()));
            best.truncate(most);
        }
    });
    best.into_iter()
        .map(|(_, counts)| in_order(topology, entries, &counts))
        .collect()
}

/// Assigns domains to the programs in order: the first program gets the first domains.
fn in_order(topology: &Topology, entries: &[MixEntry], counts: &[usize]) -> SeatsByName {
    let mut next = 0;
    let mut seats = SeatsByName::new();
    for (entry, &count) in entries.iter().zip(counts) {
        let own = topology.domains[next..next + count].iter();
        let cpus = own.fold(CpuSet::new(), |set, domain| set.or(&domain.cpus));
        seats.insert(entry.name.clone(), cpus);
        next += count;
    }
    seats
}

/// Calls `call` with every distribution of at most `left` domains among the programs from index
/// `at` on, in which each of these programs has at least one domain.
fn try_all(counts: &mut Vec<usize>, at: usize, left: usize, call: &mut dyn FnMut(&[usize])) {
    if at == counts.len() {
        call(counts);
        return;
    }
    let others = counts.len() - at - 1;
    for count in 1..=left.saturating_sub(others) {
        counts[at] = count;
        try_all(counts, at + 1, left - count, call);
    }
}
