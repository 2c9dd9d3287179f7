// SPDX-License-Identifier: MIT OR Apache-2.0
//! More programs than cores: a few programs a core instead of all on all.
//!
//! The planner leaves such programs on one shared set. But a program that
//! loses much of a second core to waiting (barriers, spinning, a memory bus)
//! wastes it less on one core, and there it cannot be kept waiting by a thread
//! that the kernel runs elsewhere. So each core becomes a *pen* that a few
//! programs share in time: with `m` programs in it, each is predicted
//! `NTT = m * alone-best / rate on that core`.
//!
//! Where a program would collapse on one core (`spinners`), there are none.
//!
//! Pens differ by at most one program, so that nobody has less than his share
//! of time. With pens of one size every assignment has the same mean; with two
//! sizes the programs that lose most on one core get the smaller ones, which
//! is optimal (the sum of products of two rows is least when one rises as the
//! other falls). Whether pens beat the kernel at all is weighed as for seats.

use usher_model::{Mode, Plan, Seat, Topology};

use crate::seating::Request;

/// With more programs a core than this they are hardly all busy, and their
/// curves say little of how they will share.
const PEN_MAX: usize = 4;

/// Pens for these programs; `None` where there are cores enough for seats, too
/// many programs, or one that is bound to CPUs.
pub fn pens(topology: &Topology, requests: &[Request]) -> Option<Plan> {
    let cores = topology.cores.len();
    let fits = requests.len() > cores && requests.len() <= PEN_MAX * cores && cores > 1;
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
    // Dealt out in turn, to and fro: the first cores get the smaller pens and
    // the programs that lose most; each pen gets some of every kind.
    let (size, larger) = (requests.len() / cores, requests.len() % cores);
    let sizes: Vec<usize> = (0..cores)
        .map(|core| size + usize::from(core >= cores - larger))
        .collect();
    let mut filled = vec![0; cores];
    let mut seats = Vec::new();
    for (turn, request) in order.iter().enumerate() {
        let core = next_pen(turn, &sizes, &filled)?;
        filled[core] += 1;
        let programs = sizes[core] as f64;
        let speed = topology.cores[core].capacity;
        let rate = request.curve.rate(speed);
        seats.push(Seat {
            program: request.id,
            cpus: topology.cores[core].cpus.clone(),
            domains: vec![topology.cores[core].domain],
            mode: Mode::Shared,
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

/// The pen that is filled least, to and fro so that the first in order do not
/// all meet.
fn next_pen(turn: usize, sizes: &[usize], filled: &[usize]) -> Option<usize> {
    let open = (0..sizes.len()).filter(|&core| filled[core] < sizes[core]);
    let forth = (turn / sizes.len()).is_multiple_of(2);
    open.min_by_key(|&core| (filled[core], if forth { core } else { sizes.len() - core }))
}
