// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that programs with busy-waiting threads are not given fewer cores than they started with,
//! and may return to that size.

use usher_model::{Curve, CurvePoint};
use usher_policy::Usher;

use crate::shapes::{bus_bound, busy_waits, perfect};
use crate::world::{TrueProgram, World, machine, profiled, truth};

#[test]
fn a_collapsing_program_is_never_narrowed() {
    let topology = machine(1, 2);
    for others in [1, 3] {
        let mut world = World::new(&topology);
        let mut usher = Usher::new(topology.clone());
        world.arrive(profiled(truth(1, busy_waits, 2.0), 2));
        for id in 2..2 + others {
            world.arrive(profiled(truth(id, bus_bound, 2.0), 2));
        }
        world.run(&mut usher, 2.0);
        assert_eq!(world.mask(1).len(), 2);
    }
}

#[test]
fn spinning_that_the_curve_shows_to_be_harmless_may_be_seated() {
    let topology = machine(1, 2);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    for id in 1..=2 {
        let mut spinner = profiled(truth(id, |c| c, 2.0), 2);
        spinner.program.spinners = 2;
        world.arrive(spinner);
    }
    world.run(&mut usher, 2.0);
    assert_eq!((world.mask(1).len(), world.mask(2).len()), (1, 1));
}

/// A program whose runtime chooses at its start how its threads wait.
fn chooses_wait_mode(id: u64, active_wait: Option<bool>) -> TrueProgram {
    TrueProgram {
        active_wait,
        ..profiled(truth(id, bus_bound, 2.0), 2)
    }
}

#[test]
fn programs_with_spinning_threads_are_not_narrowed() {
    for (active_wait, cores) in [(Some(false), 1), (None, 2), (Some(true), 2)] {
        let topology = machine(2, 1);
        let mut world = World::new(&topology);
        let mut usher = Usher::new(topology);
        world.arrive(chooses_wait_mode(1, active_wait));
        world.run(&mut usher, 2.0);
        world.arrive(chooses_wait_mode(2, Some(false)));
        world.run(&mut usher, 2.0);
        assert_eq!(world.mask(1).len(), cores, "{active_wait:?}");
    }
}

/// Alone, the program gains nothing from a second core. In time sharing, however, its threads would
/// rarely run at the same time.
#[test]
fn threads_that_would_spin_are_seated_rather_than_shared() {
    for (active_wait, seated) in [(false, false), (true, true)] {
        let topology = machine(2, 1);
        let mut world = World::new(&topology);
        let mut usher = Usher::new(topology);
        for id in 1..=2 {
            world.arrive(with_profile_of_waits(id, active_wait));
        }
        world.run(&mut usher, 1.0);
        assert_eq!(world.mask(1).len() == 1, seated, "{active_wait}");
    }
}

fn with_profile_of_waits(id: u64, active_wait: bool) -> TrueProgram {
    let mut program = profiled(truth(id, perfect, 2.0), 2);
    let rates = [(1, 1.0), (2, 1.95)];
    let point = |&(cores, rate): &(u32, f64)| CurvePoint {
        cores: f64::from(cores),
        rate,
        relative_error: 0.01,
        busy_cpus: Some(f64::from(cores) * 0.95),
    };
    let points = rates.iter().map(point).collect();
    program.program.profile = Some(Curve::new(points).unwrap());
    program.program.active_wait = Some(active_wait);
    TrueProgram {
        active_wait: Some(active_wait),
        ..program
    }
}

#[test]
fn an_attached_program_is_treated_as_spinning() {
    let topology = machine(2, 1);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    let mut attached = chooses_wait_mode(1, Some(true));
    attached.program.ran_before = true;
    world.arrive(attached);
    world.arrive(chooses_wait_mode(2, Some(false)));
    world.run(&mut usher, 2.0);
    assert_eq!(world.mask(1).len(), 2);
}

#[test]
fn a_program_started_on_a_seat_may_return_to_that_size() {
    let topology = machine(2, 1);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    for id in 1..=2 {
        world.arrive(chooses_wait_mode(id, Some(true)));
    }
    world.run(&mut usher, 1.0);
    assert_eq!((world.mask(1).len(), world.mask(2).len()), (1, 1));
    world.depart(2);
    world.run(&mut usher, 1.0);
    assert_eq!(world.mask(1).len(), 2);
    world.arrive(chooses_wait_mode(3, Some(true)));
    world.run(&mut usher, 1.0);
    assert_eq!((world.mask(1).len(), world.mask(3).len()), (1, 1));
}
