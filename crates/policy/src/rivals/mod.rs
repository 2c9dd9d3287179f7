// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policies to compare with in simulations; none of them ships.
//!
//! - [`Pdpa`]: performance-driven processor allocation (Corbalán, Martorell,
//!   Labarta, OSDI 2000): as many cores as a program uses efficiently.
//! - [`Utilisation`]: as many cores as a program keeps busy, as the layers of
//!   scx_layered and the cells of scx_mitosis are sized.
//! - [`Lending`]: another policy's seats, lent while they are idle.
//! - [`Fixed`]: seats that somebody else has thought out.

mod fixed;
mod lending;
mod pdpa;
mod utilisation;

use std::collections::BTreeMap;

use usher_model::{CpuSet, Mode, Plan, ProgramId, Seat, Topology};

pub use self::fixed::Fixed;
pub use self::lending::Lending;
pub use self::pdpa::Pdpa;
pub use self::utilisation::Utilisation;
use crate::stage::Wanted;

/// Gives each program so many whole domains, those that it has as far as
/// possible. The sum must not exceed the domains that there are.
fn hand_out(
    topology: &Topology,
    before: &BTreeMap<ProgramId, Vec<usize>>,
    counts: &BTreeMap<ProgramId, usize>,
) -> BTreeMap<ProgramId, Vec<usize>> {
    let mut free: Vec<usize> = (0..topology.domains.len()).collect();
    let mut after: BTreeMap<ProgramId, Vec<usize>> = BTreeMap::new();
    for (id, &count) in counts {
        let kept = before.get(id).into_iter().flatten().copied();
        let kept: Vec<usize> = kept
            .filter(|domain| free.contains(domain))
            .take(count)
            .collect();
        free.retain(|domain| !kept.contains(domain));
        after.insert(*id, kept);
    }
    for (id, &count) in counts {
        let has = after.entry(*id).or_default();
        let missing = count.saturating_sub(has.len()).min(free.len());
        has.extend(free.drain(..missing));
        has.sort_unstable();
    }
    after
}

fn cpus_of(topology: &Topology, domains: &[usize]) -> CpuSet {
    let domains = domains.iter();
    domains.fold(CpuSet::new(), |set, &domain| {
        set.or(&topology.domains[domain].cpus)
    })
}

fn plan_of(topology: &Topology, seats: &BTreeMap<ProgramId, Vec<usize>>) -> Plan {
    let seat = |(&program, domains): (&ProgramId, &Vec<usize>)| Seat {
        program,
        cpus: cpus_of(topology, domains),
        domains: domains.clone(),
        mode: Mode::Seated,
        ntt: None,
    };
    Plan {
        seats: seats.iter().map(seat).collect(),
        ..Plan::default()
    }
}

fn wanted_of(topology: &Topology, seats: &BTreeMap<ProgramId, Vec<usize>>) -> Wanted {
    let seat = |(&id, domains): (&ProgramId, &Vec<usize>)| {
        let cpus = cpus_of(topology, domains);
        (id, (!cpus.is_empty()).then_some(cpus))
    };
    seats.iter().map(seat).collect()
}
