// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of loans: idle seats are lent within 50 ms and reclaimed within 20 ms, and programs that
//! could not give back borrowed cores borrow no cores.

use usher_model::{CpuSet, ProgramId, ProgramSample};
use usher_policy::Usher;
use usher_policy::usher::lend::{Lender, LendingContext};

use crate::MS;
use crate::shapes::bus_bound;
use crate::turns::with_siblings;
use crate::world::{TrueProgram, World, machine, profiled, truth};

/// Two programs with equal seats; the first program then leaves its seat idle.
fn lender_and_borrower() -> (World, Usher) {
    let topology = machine(2, 8);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    // With these curves, an even split is best, and seats are better than sharing.
    world.arrive(profiled(truth(1, |c| c.powf(0.4), 16.0), 16));
    world.arrive(profiled(truth(2, |c| c.powf(0.4), 16.0), 16));
    world.run(&mut usher, 1.0);
    assert_eq!((world.mask(1).len(), world.mask(2).len()), (8, 8));
    (world, usher)
}

#[test]
fn idle_seats_are_lent_within_50_ms_and_reclaimed_within_20() {
    let (mut world, mut usher) = lender_and_borrower();
    world.set_demand(1, 1.0);
    let idle_ns = world.at_ns;
    while world.mask(2).len() < 15 && world.at_ns < idle_ns + 1000 * MS {
        world.step(&mut usher, 100 * MS);
    }
    assert!(
        world.at_ns - idle_ns <= 50 * MS,
        "lent after {} ms",
        (world.at_ns - idle_ns) / MS
    );
    assert_eq!(world.mask(1).len(), 8, "the owner may always use its own");
    world.run(&mut usher, 1.0);
    assert_eq!(world.mask(2).len(), 15, "lent for as long as it lies idle");
    world.set_demand(1, 16.0);
    let wanted_ns = world.at_ns;
    while world.mask(2).len() > 8 && world.at_ns < wanted_ns + 1000 * MS {
        world.step(&mut usher, 100 * MS);
    }
    assert!(
        world.at_ns - wanted_ns <= 20 * MS,
        "reclaimed after {} ms",
        (world.at_ns - wanted_ns) / MS
    );
}

#[test]
fn an_owner_without_a_wait_figure_lends_nothing() {
    let topology = machine(2, 8);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    let mut owner = profiled(truth(1, |c| c.powf(0.4), 16.0), 16);
    owner.pressure = false;
    world.arrive(owner);
    world.arrive(profiled(truth(2, |c| c.powf(0.4), 16.0), 16));
    world.run(&mut usher, 1.0);
    world.set_demand(1, 1.0);
    world.run(&mut usher, 1.0);
    assert_eq!(world.mask(2).len(), 8);
}

#[test]
fn a_program_that_slows_down_with_more_cores_borrows_nothing() {
    let topology = machine(2, 8);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    world.arrive(profiled(truth(1, |c| c.powf(0.4), 16.0), 16));
    world.arrive(profiled(
        truth(
            2,
            |c| c.min(8.0).powf(0.4) - 0.05 * (c - 8.0).max(0.0),
            16.0,
        ),
        16,
    ));
    world.run(&mut usher, 1.0);
    world.set_demand(1, 1.0);
    world.run(&mut usher, 1.0);
    assert!(world.mask(2).len() <= 8);
}

#[test]
fn a_program_that_may_rely_on_borrowed_cores_borrows_none() {
    let topology = machine(2, 8);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    let uneven = |id, active_wait| TrueProgram {
        active_wait,
        ..profiled(truth(id, |c| c.powf(0.4), 16.0), 16)
    };
    world.arrive(uneven(1, Some(false)));
    world.arrive(uneven(2, Some(true)));
    world.run(&mut usher, 1.0);
    world.set_demand(1, 1.0);
    world.run(&mut usher, 1.0);
    assert_eq!(world.mask(2).len(), 8);
}

#[test]
fn an_idle_partition_is_lent_and_reclaimed_by_any_of_its_programs() {
    let topology = machine(1, 2);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    for id in 1..=4 {
        world.arrive(profiled(truth(id, bus_bound, 2.0), 2));
    }
    world.run(&mut usher, 1.0);
    let pen = world.mask(1);
    let (inside, outside): (Vec<_>, Vec<_>) = (1..=4).partition(|&id| world.mask(id) == pen);
    inside.iter().for_each(|&id| world.set_demand(id, 0.0));
    world.run(&mut usher, 0.2);
    assert!(
        outside.iter().any(|&id| world.mask(id).len() == 2),
        "the idle core is used"
    );
    assert!(inside.iter().all(|&id| world.mask(id) == pen));
    world.set_demand(inside[1], 1.0);
    world.run(&mut usher, 0.04);
    assert!(
        outside.iter().all(|&id| world.mask(id).len() == 1),
        "and given back"
    );
}

#[test]
fn an_offline_cpu_is_in_no_seat() {
    let (mut world, mut usher) = lender_and_borrower();
    world.usable = CpuSet::range(0, 11);
    world.run(&mut usher, 1.0);
    let usable = world.usable.clone();
    let seats = [1, 2].map(|id| world.seat(id).unwrap());
    assert!(
        seats.iter().all(|seat| seat.is_subset(&usable)),
        "{seats:?}"
    );
}

#[test]
fn a_partly_owned_core_is_not_lent() {
    // Seed 182 of the fuzzer: each core has two hardware threads, CPUs 0 and 4, 1 and 5, and so on.
    // A program has bound itself to a single hardware thread of each of two cores.
    let topology = with_siblings(4);
    let seats = [(1, "0,2"), (2, "1,5")]
        .map(|(id, cpus)| (ProgramId(id), cpus.parse::<CpuSet>().unwrap()))
        .into();
    let ctx = LendingContext {
        topology: &topology,
        seats: &seats,
        gains: &|_, _, _| true,
        lends: &|_| true,
    };
    let mut lender = Lender::default();
    let sample = |id, cpus, tick: u64| ProgramSample {
        id: ProgramId(id),
        cpu_ns: cpus * tick * 8 * MS,
        // The second program always waits.
        wait_ns: Some((id - 1) * tick * 8 * MS),
        threads: 8,
        spinners: 0,
        active_wait: Some(false),
        progress: None,
        stopped: false,
    };
    // Time may start at 0; two ticks suffice for all figures.
    for tick in 0..=2 {
        let samples = [sample(1, 0, tick), sample(2, 2, tick)];
        lender.tick(tick * 8 * MS, &samples, &ctx);
    }
    let lent = lender.loans(&topology);
    let lent: Vec<_> = lent.iter().map(|loan| loan.cpus.to_string()).collect();
    assert_eq!(lent, ["3,7"], "the only core that is nobody's");
}
