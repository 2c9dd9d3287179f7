// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs with busy-waiting threads are not narrowed.

use usher_model::{Curve, CurvePoint};
use usher_policy::Usher;

use crate::shapes::{bus_bound, busy_waits, perfect};
use crate::world::{Truth, World, machine, profiled, truth};

#[test]
fn a_program_that_collapses_is_never_squeezed() {
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
fn settles(id: u64, active_wait: Option<bool>) -> Truth {
    Truth {
        active_wait,
        ..profiled(truth(id, bus_bound, 2.0), 2)
    }
}

#[test]
fn nobody_is_narrowed_whose_threads_would_go_on_spinning() {
    for (active_wait, cores) in [(Some(false), 1), (None, 2), (Some(true), 2)] {
        let topology = machine(2, 1);
        let mut world = World::new(&topology);
        let mut usher = Usher::new(topology);
        world.arrive(settles(1, active_wait));
        world.run(&mut usher, 2.0);
        world.arrive(settles(2, Some(false)));
        world.run(&mut usher, 2.0);
        assert_eq!(world.mask(1).len(), cores, "{active_wait:?}");
    }
}

/// Alone, the program gains nothing from a second core that time sharing would deny it. In time
/// sharing, its threads would rarely run at the same time.
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

fn with_profile_of_waits(id: u64, active_wait: bool) -> Truth {
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
    Truth {
        active_wait: Some(active_wait),
        ..program
    }
}

#[test]
fn one_that_was_taken_in_while_it_ran_has_settled_too() {
    let topology = machine(2, 1);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    let mut attached = settles(1, Some(true));
    attached.program.ran_before = true;
    world.arrive(attached);
    world.arrive(settles(2, Some(false)));
    world.run(&mut usher, 2.0);
    assert_eq!(world.mask(1).len(), 2);
}

#[test]
fn what_settled_on_a_seat_may_go_back_to_one_of_that_size() {
    let topology = machine(2, 1);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    for id in 1..=2 {
        world.arrive(settles(id, Some(true)));
    }
    world.run(&mut usher, 1.0);
    assert_eq!((world.mask(1).len(), world.mask(2).len()), (1, 1));
    world.depart(2);
    world.run(&mut usher, 1.0);
    assert_eq!(world.mask(1).len(), 2);
    world.arrive(settles(3, Some(true)));
    world.run(&mut usher, 1.0);
    assert_eq!((world.mask(1).len(), world.mask(3).len()), (1, 1));
}
