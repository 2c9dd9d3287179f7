// SPDX-License-Identifier: MIT OR Apache-2.0
//! More programs than cores: a few programs per core instead of all programs on all cores.
//!
//! With more programs than cores, the planner gives no seats. Some programs, however, lose much of
//! the CPU time of a second core to waiting (barriers, spinning, a memory bus). On a single core,
//! such programs lose less, because their threads do not wait for threads on other cores. Each core
//! therefore becomes a *partition* that a few programs share in time. With `m` programs in a
//! partition, each has the predicted `NTT = m * alone-best / rate on that core`. (NTT: slow-down
//! against a run alone; alone-best: the best rate of the program alone on the machine.)
//!
//! No partitions are made if a program would collapse on one core (`spinners`) or is bound to CPUs,
//! or if there are more than four programs per core. The time is quadratic in the number of
//! programs, at most four times the number of cores.
//!
//! Partition sizes differ by at most one program, so that every program gets a fair share of time.
//! On cores of equal capacity, every assignment of programs to partitions of the same size has the
//! same mean NTT. If there are two sizes, the programs that lose most on one core get the smaller
//! partitions. This assignment is optimal, because the sum of products of two sequences is minimal
//! when the sequences are sorted in opposite order. Partitions are used only if they are better
//! than time sharing, by the same rules as for seats (module `seat_decision`).

use usher_model::{Plan, Seat, SeatMode, Topology};

use crate::seating::Request;

/// Largest number of programs per core. With more programs, it is unlikely that all programs are
/// busy, and the curves do not predict how programs share a core.
const PROGRAMS_PER_CORE_MAX: usize = 4;

/// Returns the plan with partitions. Returns `None` if there are enough cores for seats, if there
/// are too many programs per core, or if a program is bound to CPUs or busy-waits.
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
    // The programs that lose most are distributed first, to the smaller partitions. Among
    // partitions of one size, the direction alternates between rounds: each partition gets programs
    // that lose much and programs that lose little.
    let (size, larger) = (requests.len() / cores, requests.len() % cores);
    let sizes: Vec<usize> = (0..cores)
        .map(|core| size + usize::from(core >= cores - larger))
        .collect();
    let mut filled = vec![0; cores];
    let mut seats = Vec::new();
    for request in order {
        let core = next_partition(&sizes, &filled)?;
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

/// Returns the partition that gets the next program: of the smaller partitions that are not full,
/// the one with the fewest programs. The direction alternates between rounds, because otherwise the
/// first partition would get the first program of each round.
fn next_partition(sizes: &[usize], filled: &[usize]) -> Option<usize> {
    let open = (0..sizes.len()).filter(|&core| filled[core] < sizes[core]);
    open.min_by_key(|&core| {
        let forth = filled[core].is_multiple_of(2);
        let rank = if forth { core } else { sizes.len() - core };
        (sizes[core], filled[core], rank)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The programs are sorted by falling loss, and the cost of a program is its loss times the
    /// size of its partition: the sum is minimal if the sizes rise.
    #[test]
    fn the_programs_that_lose_most_get_the_smaller_partitions() {
        for cores in 2..=6 {
            for programs in cores + 1..=PROGRAMS_PER_CORE_MAX * cores {
                let (size, larger) = (programs / cores, programs % cores);
                let sizes: Vec<usize> = (0..cores)
                    .map(|core| size + usize::from(core >= cores - larger))
                    .collect();
                let mut filled = vec![0; cores];
                let order: Vec<usize> = (0..programs)
                    .map(|_| {
                        let core = next_partition(&sizes, &filled).unwrap();
                        filled[core] += 1;
                        sizes[core]
                    })
                    .collect();
                assert_eq!(filled, sizes);
                assert!(order.is_sorted(), "{programs} on {cores}: {order:?}");
            }
        }
    }
}
