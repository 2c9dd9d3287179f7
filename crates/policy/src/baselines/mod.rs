// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policies for comparison in simulations; none of them is part of the product.
//!
//! - [`Pdpa`]: performance-driven processor allocation (Corbalán, Martorell, Labarta, OSDI 2000):
//!   as many cores as a program uses efficiently.
//! - [`Utilisation`]: as many cores as a program keeps busy, as scx_layered sizes its layers and
//!   scx_mitosis its cells.
//! - [`Lending`]: another policy's seats, whose idle cores are lent.
//! - [`FixedSeats`]: seats that were chosen in advance.
//! - [`Oversubscribe`] and [`Gang`]: the two ways in which Slurm shares a node.
//!
//! This file also holds the common part of [`Pdpa`] and [`Utilisation`]: seats of whole domains.
//! The seats are recomputed once per period, and when a program arrives, departs or changes its
//! limits. Each program keeps its domains where possible, and then gets free domains in the
//! order of ids. A program without a domain is left to the kernel. The assignment takes time of
//! order domains x (domains + programs).

mod fixed;
mod lending;
mod pdpa;
mod slurm;
mod utilisation;

use std::collections::BTreeMap;

use usher_model::{
    CpuSet, Decision, Observation, Plan, Program, ProgramId, Seat, SeatMode, Topology,
};

pub use self::fixed::FixedSeats;
pub use self::lending::Lending;
pub use self::pdpa::Pdpa;
pub use self::slurm::{Gang, Oversubscribe, RequestedCores};
pub use self::utilisation::Utilisation;
use crate::action_diff::{ActionDiff, DesiredSeats};
use crate::simple::track_programs;

/// Seats of whole domains, which a policy recomputes once per period.
#[derive(Debug)]
struct PeriodicSeats {
    topology: Topology,
    period_ns: u64,
    programs: BTreeMap<ProgramId, Program>,
    seats: BTreeMap<ProgramId, Vec<usize>>,
    considered_ns: u64,
    diff: ActionDiff,
}

/// Whether the seats must be recomputed.
enum PeriodDue {
    /// The seats are not due yet. The decision only sets the time of the next call.
    Later(Box<Decision>),
    /// The seats must be recomputed now. `changed`: programs arrived or departed; `seconds`: time
    /// since the seats were last recomputed.
    Now { changed: bool, seconds: f64 },
}

impl PeriodicSeats {
    fn new(topology: Topology, period_ns: u64) -> Self {
        Self {
            topology,
            period_ns,
            programs: BTreeMap::new(),
            seats: BTreeMap::new(),
            considered_ns: 0,
            diff: ActionDiff::default(),
        }
    }

    /// Processes an observation.
    fn update(&mut self, observation: &Observation) -> PeriodDue {
        let changed = track_programs(&mut self.programs, &observation.events);
        self.diff.mark_failed(&observation.failed);
        self.seats.retain(|id, _| self.programs.contains_key(id));
        let at_ns = observation.at_ns;
        let due_ns = self.considered_ns + self.period_ns;
        if !changed && at_ns < due_ns {
            return PeriodDue::Later(Box::new(Decision {
                wake_after_ns: Some(due_ns - at_ns),
                ..Decision::default()
            }));
        }
        let seconds = at_ns.saturating_sub(self.considered_ns).max(1) as f64 / 1e9;
        self.considered_ns = at_ns;
        PeriodDue::Now { changed, seconds }
    }

    /// Number of domains of a program.
    fn domains_of(&self, program: ProgramId) -> usize {
        self.seats.get(&program).map_or(0, Vec::len)
    }

    /// Gives each program the number of domains in `counts`.
    fn give(&mut self, counts: &BTreeMap<ProgramId, usize>) -> Decision {
        self.seats = assign_domains(&self.topology, &self.seats, counts);
        Decision {
            actions: self.diff.move_to(&wanted_of(&self.topology, &self.seats)),
            plan: Some(plan_of(&self.topology, &self.seats)),
            wake_after_ns: Some(self.period_ns),
            ..Decision::default()
        }
    }
}

/// Assigns to each program the number of whole domains in `counts`, where possible domains that
/// the program already has. The sum of `counts` must not exceed the number of domains.
fn assign_domains(
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
        let domains = after.entry(*id).or_default();
        let missing = count.saturating_sub(domains.len()).min(free.len());
        domains.extend(free.drain(..missing));
        domains.sort_unstable();
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
    // A program that got no domain, because there are fewer domains than programs, is left to the
    // kernel.
    let everywhere: Vec<usize> = (0..topology.domains.len()).collect();
    let seat = |(&program, domains): (&ProgramId, &Vec<usize>)| {
        let (domains, mode) = match domains.is_empty() {
            true => (&everywhere, SeatMode::Shared),
            false => (domains, SeatMode::Seated),
        };
        Seat {
            program,
            cpus: cpus_of(topology, domains),
            domains: domains.clone(),
            mode,
            ntt: None,
        }
    };
    Plan {
        seats: seats.iter().map(seat).collect(),
        ..Plan::default()
    }
}

fn wanted_of(topology: &Topology, seats: &BTreeMap<ProgramId, Vec<usize>>) -> DesiredSeats {
    let seat = |(&id, domains): (&ProgramId, &Vec<usize>)| {
        let cpus = cpus_of(topology, domains);
        (id, (!cpus.is_empty()).then_some(cpus))
    };
    seats.iter().map(seat).collect()
}
