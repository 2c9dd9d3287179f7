// SPDX-License-Identifier: MIT OR Apache-2.0
//! More programs than cores: a few programs per core instead of all programs on all cores.
//!
//! The planner leaves such programs on one shared set. But some programs lose much of a second core
//! to waiting (barriers, spinning, a memory bus). On a single core they waste less, because their
//! threads do not wait for threads on other cores. Each core therefore becomes a *partition* that a
//! few programs share in time. With `m` programs in a partition, each has the predicted `NTT = m *
//! alone-best / rate on that core`.
//!
//! If any program would collapse on one core (`spinners`), no partitions are made.
//!
//! Partition sizes differ by at most one program, so that every program gets a fair share of time.
//! With partitions of one size, every assignment has the same mean. With two sizes, the programs
//! that lose most on one core get the smaller partitions. This is optimal, since the sum of
//! products of two sequences is minimal when they are sorted in opposite order. Whether partitions
//! are better than the kernel is decided as for seats.

use usher_model::{Plan, Seat, SeatMode, Topology};

use crate::seating::Request;

/// Largest number of programs per core. With more programs it is unlikely that all are busy, and
/// their curves do not predict how they share.
const PROGRAMS_PER_CORE_MAX: usize = 4;

/// Partitions for these programs; `None` if there are enough cores for seats, too many programs, or
/// a program that is bound to CPUs.
pub fn partitions(topology: &Topology, requests: &[Request]) -> Option<Plan> {
    let cores = topology.cores.len();
    let fits =
        requests.len() > cores && requests.len() <= PROGRAMS_PER_CORE_MAX * cores && cores > 1;
    if !fits
        || requests
            .iter()
            .any(|r| r.bound_to.is_some() || r.spinners > 1)
    {
        return None;
    }
    let cores_max = topology.capacity_of(&topology.all_cpus());
    let alone = |r: &Request| r.curve.best_rate(cores_max) / r.curve.rate(1.0);
    let mut order: Vec<&Request> = requests.iter().collect();
    order.sort_by(|a, b| {
        let loss = |r: &Request| r.weight * alone(r);
        loss(b)
            .total_cmp(&loss(a))
            .then_with(|| (&a.name, a.id).cmp(&(&b.name, b.id)))
    });
    // Programs are dealt out in alternating direction. The first cores have the smaller partitions
    // and get the programs that lose most; each partition gets programs of every kind.
    let (size, larger) = (requests.len() / cores, requests.len() % cores);
    let sizes: Vec<usize> = (0..cores)
        .map(|core| size + usize::from(core >= cores - larger))
        .collect();
    let mut filled = vec![0; cores];
    let mut seats = Vec::new();
    for (turn, request) in order.iter().enumerate() {
        let core = next_partition(turn, &sizes, &filled)?;
        filled[core] += 1;
        let programs = sizes[core] as f64;
        let speed = topology.cores[core].capacity;
        let rate = request.curve.rate(speed);
        seats.push(Seat {
            program: request.id,
            cpus: topology.cores[core].cpus.clone(),
            domains: vec![topology.cores[core].domain],
            mode: SeatMode::Shared,
            ntt: Some(programs * request.curve.best_rate(cores_max) / rate),
        });
    }
    seats.sort_by_key(|seat| seat.program);
    let weight = |seat: &Seat| {
        requests
            .iter()
            .find(|r| r.id == seat.program)
            .map_or(1.0, |r| r.weight)
    };
    let sum: f64 = seats
        .iter()
        .map(|seat| weight(seat) * seat.ntt.unwrap_or(1.0))
        .sum();
    Some(Plan {
        antt: Some(sum / seats.len() as f64),
        seats,
        ..Plan::default()
    })
}

/// The emptiest partition; the direction alternates so that the first programs of the order are not
/// all put together.
fn next_partition(turn: usize, sizes: &[usize], filled: &[usize]) -> Option<usize> {
    let open = (0..sizes.len()).filter(|&core| filled[core] < sizes[core]);
    let forth = (turn / sizes.len()).is_multiple_of(2);
    open.min_by_key(|&core| (filled[core], if forth { core } else { sizes.len() - core }))
}
