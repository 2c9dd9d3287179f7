// SPDX-License-Identifier: MIT OR Apache-2.0
//! The best static seats that perfect knowledge finds.
//!
//! Every way to share out the number of whole domains is predicted from the
//! programs' true curves alone; what they do to one another the curves do not
//! tell, so that the most promising ways are simulated, and the best of them is
//! taken. Domains go out one program after another: who shares a package with
//! whom is not varied.

use std::collections::BTreeMap;

use usher_model::{CpuSet, Topology};
use usher_policy::Policy;

use crate::horizon::{self, Horizon};
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::mix::Entrant;

/// Seats by program.
pub type Seats = BTreeMap<String, CpuSet>;

/// So many ways are simulated.
const CANDIDATES: usize = 6;
/// A look at each: long enough for the programs' own rounds.
const LOOK: Horizon = Horizon {
    settle_s: 1.0,
    steady_s: 4.0,
    repetitions: 3.0,
    scale: 1e3,
};

/// The best seats found, under a policy that is made from them.
pub fn seats(
    machine: &Machine,
    kernel: &Kernel,
    entrants: &[Entrant],
    policy: &dyn Fn(Seats) -> Box<dyn Policy>,
) -> Seats {
    let mut candidates = candidates(machine.topology(), entrants, CANDIDATES);
    let look = |seats: &Seats| {
        let seen = horizon::run(entrants, machine, kernel, policy(seats.clone()), &LOOK, 1);
        let weigh = |ntt: Vec<f64>| -> f64 {
            let each = entrants.iter().zip(ntt);
            each.map(|(entrant, ntt)| entrant.weight * ntt).sum()
        };
        // One in which somebody comes to nothing is no good.
        seen.map_or(f64::INFINITY, |seen| weigh(seen.ntt))
    };
    let antts: Vec<f64> = candidates.iter().map(look).collect();
    let best = (0..candidates.len()).min_by(|&a, &b| antts[a].total_cmp(&antts[b]));
    best.map_or_else(Seats::new, |at| candidates.swap_remove(at))
}

/// The best ways to give every program whole domains by the curves alone, the
/// very best first.
pub fn candidates(topology: &Topology, entrants: &[Entrant], most: usize) -> Vec<Seats> {
    let domains = topology.domains.len();
    let cores_max = topology.cores.len() as f64;
    let upto = |count: usize| {
        let all = topology.domains[..count].iter();
        all.map(|domain| domain.cores.len()).sum::<usize>() as f64
    };
    let ntt = |entrant: &Entrant, count: usize| {
        entrant.weight * entrant.alone.best_rate(cores_max) / entrant.alone.rate(upto(count))
    };
    let mut best: Vec<(f64, Vec<usize>)> = Vec::new();
    let mut counts = vec![1; entrants.len()];
    try_all(&mut counts, 0, domains, &mut |counts| {
        let sum: f64 = entrants.iter().zip(counts).map(|(e, &c)| ntt(e, c)).sum();
        let at = best.partition_point(|(other, _)| *other <= sum);
        if at < most {
            best.insert(at, (sum, counts.to_vec()));
            best.truncate(most);
        }
    });
    best.into_iter()
        .map(|(_, counts)| in_order(topology, entrants, &counts))
        .collect()
}

/// So many domains each, one program's after another's.
fn in_order(topology: &Topology, entrants: &[Entrant], counts: &[usize]) -> Seats {
    let mut next = 0;
    let mut seats = Seats::new();
    for (entrant, &count) in entrants.iter().zip(counts) {
        let own = topology.domains[next..next + count].iter();
        let cpus = own.fold(CpuSet::new(), |set, domain| set.or(&domain.cpus));
        seats.insert(entrant.name.clone(), cpus);
        next += count;
    }
    seats
}

/// Calls with every way to give each from `at` on one domain or more, at most
/// so many in all.
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
