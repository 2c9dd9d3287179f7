// SPDX-License-Identifier: MIT OR Apache-2.0
//! The seats of the runs of a measurement: which core counts are measured, on which CPUs, and the
//! policy that gives these CPUs to a program.

use std::collections::BTreeSet;

use usher_model::{Action, CoreId, CpuSet, Decision, Event, Observation, Topology};
use usher_policy::Policy;

/// Maximum number of cores of a machine that is measured at all core counts. Larger machines are
/// measured only at powers of two and at whole domains.
const ALL_COUNTS_MAX: u32 = 8;
/// Maximum number of domains of a machine that is measured at whole domains. Machines with more
/// domains are measured only at powers of two.
const ALL_DOMAINS_MAX: usize = 16;

/// Returns the core counts at which curves are measured by default. On a small machine these are
/// all counts. On other machines these are powers of two, the cores of whole domains, and all
/// cores.
pub fn default_counts(topology: &Topology) -> Vec<u32> {
    let all = topology.cores.len() as u32;
    if all <= ALL_COUNTS_MAX {
        return (1..=all).collect();
    }
    let mut counts: BTreeSet<u32> = (0..32).map(|bit| 1 << bit).collect();
    if topology.domains.len() <= ALL_DOMAINS_MAX {
        let sizes = topology.domains.iter().map(|d| d.cores.len() as u32);
        counts.extend(sizes.scan(0, |sum, size| {
            *sum += size;
            Some(*sum)
        }));
    }
    counts.insert(all);
    counts.into_iter().filter(|&n| n <= all).collect()
}

/// Returns the seat with this number of cores. The seat fills the domains one after another, the
/// fastest domain first.
pub fn seat_of(topology: &Topology, cores: u32) -> CpuSet {
    let mut domains: Vec<_> = topology.domains.iter().collect();
    let fastest = |cores: &[CoreId]| {
        let capacities = cores.iter().map(|&c| topology.cores[c].capacity);
        capacities.fold(0.0, f64::max)
    };
    domains.sort_by(|a, b| fastest(&b.cores).total_cmp(&fastest(&a.cores)));
    let in_order = domains.into_iter().flat_map(|d| d.cores.iter().copied());
    topology.cpus_of_cores(in_order.take(cores as usize))
}

/// A policy that seats every program on the CPUs to which the program is bound.
#[derive(Debug)]
pub(crate) struct SeatAsBound;

impl Policy for SeatAsBound {
    fn name(&self) -> &'static str {
        "as-bound"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        let seat = |event: &Event| match event {
            Event::Arrived(program) => Some(Action::Seat {
                program: program.id,
                cpus: program.bound_to.clone()?,
            }),
            _ => None,
        };
        Decision {
            actions: observation.events.iter().filter_map(seat).collect(),
            ..Decision::default()
        }
    }
}
