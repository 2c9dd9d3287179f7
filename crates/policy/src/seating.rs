// SPDX-License-Identifier: MIT OR Apache-2.0
//! ANTT-optimal seating (paper 1, sections 3.1 and 3.3).
//!
//! The result is the allocation with the least `ANTT = sum of weight * NTT / number of programs`,
//! where `NTT = alone-best / rate on the program's own cores`. The alone-best is the best rate of
//! the program alone on the machine. The curve of the program predicts both rates. Among
//! allocations of equal ANTT, these rules choose the placement, in this order:
//!
//! 1. every unit makes its program faster (other units stay free, to be lent or given to the next
//!    program that arrives);
//! 2. fewest packages that hold several programs;
//! 3. fewest (program, package) pairs;
//! 4. least interference at memory controllers, where bandwidths are known (`interference`);
//! 5. fewest domains in use;
//! 6. programs that come first by name, then by id, have the smaller seat, then the lowest
//!    packages.
//!
//! Inside each package, these rules are applied to the NUMA nodes of the package. Inside each node,
//! the first program by name has the lowest domains.
//!
//! The *units* of an allocation are whole LLC domains if there are at least as many domains as
//! programs. If there are fewer domains, or if whole domains cannot give every busy-waiting program
//! enough cores, the units are whole cores; the hardware threads of a core are never separated. If
//! the units are cores, the core counts give the least ANTT, too. The placement of cores minimises,
//! in this order, the interference in shared domains, the number of shared domains, and the number
//! of programs that straddle two domains. With more programs than cores there are no seats: all
//! programs share all CPUs, and each program is predicted to have them for an equal part of the
//! time.
//!
//! A program that busy-waits never gets fewer cores than it has spinning threads. If there are too
//! few cores to meet this rule for all busy-waiting programs, all programs are left to the kernel:
//! a program without a seat would run on the seats of the other programs, and these seats would
//! have no effect.
//!
//! A program bound to CPUs is seated on units that lie completely inside its binding, the CPUs that
//! it is bound to. If there is no such unit, the program keeps its binding and shares the CPUs with
//! other programs that are bound to them. No other program is then seated on a core of the binding.
//! The alone-best of a bound program is its best rate on the CPUs of the binding. A binding to an
//! empty set or to CPUs that this machine does not have is ignored.
//!
//! Exactness: the ANTT is the least possible if the exact search (`search`, `allot`) stays within
//! the budget of steps of the plan (`budget`). Beyond the budget, `relax` computes an allocation,
//! and `search` or `bound` an upper bound of its distance from the least ANTT;
//! [`Seating::ended_by_budget`] is then set, unless the bound is 0. The placement rules are met
//! exactly if the search of `place` stays within its limits.
//!
//! Cost: at most [`STEPS_MAX`] steps, which are about 50 ms of CPU time, for up to about 4,000
//! programs (`budget` names the limits), and time of order programs x CPUs / 64. At most four attempts share the steps: whole domains, single cores,
//! each also around bound programs. An attempt fails if there are too few suitable units. If the
//! exact search is not made, an attempt can also fail although a seating exists (see `relax`). If
//! all attempts fail, all programs share the CPUs.
//!
//! Errors: a weight that is not positive, two requests with the same id, or a machine without
//! cores. The number of programs is not limited.

mod allot;
mod assign;
mod bound;
mod budget;
mod candidate;
mod interference;
mod options;
mod packing;
mod place;
mod relax;
mod request;
mod search;
mod units;

pub use budget::{SEARCH_STEPS_MAX, STEPS_MAX};
pub use request::Request;

use usher_model::{CpuSet, Plan, ProgramId, Seat, SeatMode, Topology};

use crate::timeshare::time_sharing;
use assign::{SeatAssignment, split_domains, whole_domains};
use budget::StepBudget;
use candidate::{SeatCandidate, finite};

/// A seating with its optimality gap.
#[derive(Debug, Clone, PartialEq)]
pub struct Seating {
    /// The seats.
    pub plan: Plan,
    /// Upper bound of (ANTT - least possible ANTT); 0 if the seating is optimal.
    pub gap: f64,
    /// Whether the search for the least ANTT ended by its budget of steps. A seating with a gap
    /// above 0 is not known to be optimal for this reason alone.
    pub ended_by_budget: bool,
    /// Steps of all passes (`budget`). The number depends on the machine and the requests alone.
    pub steps: u64,
}

/// Reason why planning failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SeatingError {
    /// A weight is not a positive number.
    #[error("the weight of '{name}' must be a positive number, not {weight}")]
    Weight {
        /// Name of the program.
        name: String,
        /// The rejected weight.
        weight: f64,
    },
    /// Two requests have the same id.
    #[error("the programs '{first}' and '{second}' have the same number {id}")]
    Twice {
        /// The id.
        id: ProgramId,
        /// The program that comes first by name.
        first: String,
        /// The other program.
        second: String,
    },
    /// The machine has no cores.
    #[error("the topology '{machine}' has no core that the program '{name}' may use")]
    NoCore {
        /// The machine's name.
        machine: String,
        /// The program that comes first by name.
        name: String,
    },
}

/// Returns the seating with the least predicted ANTT; see the module documentation. The order of
/// the requests does not matter.
///
/// # Errors
/// Returns an error if a request is invalid or the machine has no core.
pub fn seat(topology: &Topology, requests: &[Request]) -> Result<Seating, SeatingError> {
    seat_within(topology, requests, SEARCH_STEPS_MAX)
}

/// Returns the seating as [`seat`] does, but the passes that only improve the plan end after
/// `search_steps` steps instead of [`SEARCH_STEPS_MAX`].
///
/// # Errors
/// As [`seat`].
pub fn seat_within(
    topology: &Topology,
    requests: &[Request],
    search_steps: u64,
) -> Result<Seating, SeatingError> {
    let mut order: Vec<&Request> = requests.iter().collect();
    order.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    check(topology, &order)?;
    if order.is_empty() {
        return Ok(Seating {
            plan: Plan::default(),
            gap: 0.0,
            ended_by_budget: false,
            steps: 0,
        });
    }
    let budget = StepBudget::new(search_steps);
    let all = topology.all_cpus();
    let whole = topology.cores.iter().map(|core| core.capacity).sum();
    let candidates: Vec<SeatCandidate<'_>> = order
        .iter()
        .map(|request| SeatCandidate::new(topology, &all, whole, request))
        .collect();
    let (mut seats, quality) = seats(topology, &all, &candidates, &budget);
    let mean =
        |ntts: &mut dyn Iterator<Item = f64>| finite(ntts.sum::<f64>() / candidates.len() as f64);
    let weighted = candidates.iter().zip(&seats);
    let antt = mean(&mut weighted.map(|(g, s)| g.request.weight * s.ntt.unwrap_or(1.0)));
    let shared = order.iter().map(|&request| request.clone());
    let shared = time_sharing(topology, &shared.collect::<Vec<_>>());
    let sharing = mean(&mut order.iter().zip(shared).map(|(r, ntt)| r.weight * ntt));
    seats.sort_by_key(|seat| seat.program);
    let plan = Plan {
        seats,
        loans: Vec::new(),
        antt: Some(antt),
        antt_time_sharing: Some(sharing),
        abstains: false,
        abstention: None,
        varied: Default::default(),
    };
    Ok(Seating {
        plan,
        gap: finite(quality.gap / candidates.len() as f64),
        ended_by_budget: quality.ended_by_budget,
        steps: budget.used(),
    })
}

fn check(topology: &Topology, order: &[&Request]) -> Result<(), SeatingError> {
    if let Some(bad) = order
        .iter()
        .find(|r| !(r.weight.is_finite() && r.weight > 0.0))
    {
        return Err(SeatingError::Weight {
            name: bad.name.clone(),
            weight: bad.weight,
        });
    }
    let mut by_id = order.to_vec();
    by_id.sort_by_key(|request| request.id);
    if let Some(pair) = by_id.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(SeatingError::Twice {
            id: pair[0].id,
            first: pair[0].name.clone(),
            second: pair[1].name.clone(),
        });
    }
    match order.first() {
        Some(first) if topology.cores.is_empty() => Err(SeatingError::NoCore {
            machine: topology.name.clone(),
            name: first.name.clone(),
        }),
        _ => Ok(()),
    }
}

/// A method to seat candidates on a machine; returns `None` if it cannot seat all candidates.
type SeatingMethod = fn(&Topology, &[SeatCandidate<'_>], &StepBudget) -> Option<SeatAssignment>;

/// The gap of the weighted sum, and whether the search ended by its budget.
#[derive(Debug, Clone, Copy)]
struct Quality {
    gap: f64,
    ended_by_budget: bool,
}

impl Quality {
    const OPTIMAL: Self = Self {
        gap: 0.0,
        ended_by_budget: false,
    };

    fn of(assigned: &SeatAssignment) -> Self {
        Self {
            gap: assigned.gap,
            ended_by_budget: assigned.ended_by_budget,
        }
    }
}

/// Returns the seats in the order of the candidates, and their quality.
fn seats(
    topology: &Topology,
    all: &CpuSet,
    candidates: &[SeatCandidate<'_>],
    budget: &StepBudget,
) -> (Vec<Seat>, Quality) {
    if candidates.len() > topology.cores.len() {
        let whole = topology.capacity_of(all);
        let ntt = |g: &SeatCandidate<'_>| {
            let capacity = g
                .bound
                .as_ref()
                .map_or(whole, |_| allowed_capacity(topology, all, g));
            finite(candidates.len() as f64 * g.ntt(capacity))
        };
        return (share(topology, all, candidates, ntt), Quality::OPTIMAL);
    }
    let methods: [SeatingMethod; 2] = [whole_domains, split_domains];
    let pinned = candidates.iter().any(|candidate| candidate.request.pinned);
    for method in methods {
        if let Some(assigned) = method(topology, candidates, budget).filter(|_| !pinned) {
            return (
                seated(topology, candidates, &assigned),
                Quality::of(&assigned),
            );
        }
        if let Some(found) = seat_around_bound(topology, all, candidates, method, budget) {
            return found;
        }
    }
    let requests: Vec<Request> = candidates.iter().map(|g| g.request.clone()).collect();
    let mut ntts = time_sharing(topology, &requests).into_iter();
    let seats = share(topology, all, candidates, |_| ntts.next().unwrap_or(1.0));
    (seats, Quality::OPTIMAL)
}

/// Leaves every bound program on the CPUs of its binding, and seats the other programs on cores
/// that no bound program may use.
fn seat_around_bound(
    topology: &Topology,
    all: &CpuSet,
    candidates: &[SeatCandidate<'_>],
    method: SeatingMethod,
    budget: &StepBudget,
) -> Option<(Vec<Seat>, Quality)> {
    let bounds = || {
        candidates
            .iter()
            .filter_map(|candidate| candidate.bound.as_ref())
    };
    let taken = bounds().fold(CpuSet::new(), |taken, bound| taken.or(bound));
    if taken.is_empty() {
        return None;
    }
    let kept = all.minus(&topology.cpus_of_cores(topology.cores_in(&taken)));
    let free: Vec<SeatCandidate<'_>> = candidates
        .iter()
        .filter(|g| g.bound.is_none())
        .cloned()
        .collect();
    let assigned = match free.is_empty() {
        true => SeatAssignment {
            seats: Vec::new(),
            capacities: Vec::new(),
            gap: 0.0,
            ended_by_budget: false,
        },
        false => method(&topology.restrict(&kept).ok()?, &free, budget)?,
    };
    let mut others = seated(topology, &free, &assigned).into_iter();
    let seats = candidates
        .iter()
        .filter_map(|candidate| match &candidate.bound {
            None => others.next(),
            Some(bound) => {
                let whole = topology.cpus_of_cores(topology.cores_in(bound));
                let sharers = bounds().filter(|other| other.intersects(&whole)).count();
                Some(keep_in_binding(topology, all, candidate, sharers))
            }
        });
    Some((seats.collect(), Quality::of(&assigned)))
}

/// Leaves a bound program on the CPUs of its binding. The CPUs are its seat if no other program is
/// bound to the same cores; otherwise the programs are predicted to have the CPUs for equal parts
/// of the time.
fn keep_in_binding(
    topology: &Topology,
    all: &CpuSet,
    candidate: &SeatCandidate<'_>,
    sharers: usize,
) -> Seat {
    let cpus = allowed_cpus(all, candidate);
    let lacks_cores = topology.cores_in(&cpus).len() < candidate.request.spinners as usize;
    let mode = match sharers > 1 || lacks_cores || candidate.request.pinned {
        true => SeatMode::Shared,
        false => SeatMode::Seated,
    };
    let ntt = finite(sharers as f64 * candidate.ntt(topology.capacity_of(&cpus)));
    seat_on(topology, candidate, cpus, mode, ntt)
}

/// CPUs that a candidate may use: its binding, restricted to CPUs that exist.
fn allowed_cpus(all: &CpuSet, candidate: &SeatCandidate<'_>) -> CpuSet {
    let bound = candidate.bound.as_ref().map(|bound| bound.and(all));
    bound
        .filter(|b| !b.is_empty())
        .unwrap_or_else(|| all.clone())
}

/// Capacity of the CPUs that a candidate may use.
fn allowed_capacity(topology: &Topology, all: &CpuSet, candidate: &SeatCandidate<'_>) -> f64 {
    topology.capacity_of(&allowed_cpus(all, candidate))
}

/// Lets every candidate share all CPUs that it may use.
fn share(
    topology: &Topology,
    all: &CpuSet,
    candidates: &[SeatCandidate<'_>],
    mut ntt: impl FnMut(&SeatCandidate<'_>) -> f64,
) -> Vec<Seat> {
    let domains = topology.domains_in(all);
    let seat = |candidate: &SeatCandidate<'_>| {
        let cpus = allowed_cpus(all, candidate);
        Seat {
            program: candidate.request.id,
            domains: match cpus == *all {
                true => domains.clone(),
                false => topology.domains_in(&cpus),
            },
            cpus,
            mode: SeatMode::Shared,
            ntt: Some(ntt(candidate)),
        }
    };
    candidates.iter().map(seat).collect()
}

fn seated(
    topology: &Topology,
    candidates: &[SeatCandidate<'_>],
    assigned: &SeatAssignment,
) -> Vec<Seat> {
    let seats = assigned.seats.iter().zip(&assigned.capacities);
    let pairs = candidates.iter().zip(seats);
    pairs
        .map(|(candidate, (cpus, &capacity))| {
            let ntt = candidate.ntt(capacity);
            seat_on(topology, candidate, cpus.clone(), SeatMode::Seated, ntt)
        })
        .collect()
}

fn seat_on(
    topology: &Topology,
    candidate: &SeatCandidate<'_>,
    cpus: CpuSet,
    mode: SeatMode,
    ntt: f64,
) -> Seat {
    Seat {
        program: candidate.request.id,
        domains: topology.domains_in(&cpus),
        cpus,
        mode,
        ntt: Some(ntt),
    }
}
