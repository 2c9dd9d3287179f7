// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the baseline policies that simulations compare with: PDPA, utilisation, lending and
//! fixed seats, each on the fluid model.

use usher_model::*;
use usher_policy::baselines::{FixedSeats, Lending, Pdpa, Utilisation};
use usher_policy::{Casas, Policy, by_name};

use crate::shapes::{medium, paper_machine, perfect, poor};
use crate::world::{World, profiled, truth};

/// Two programs that scale differently, after `seconds` under a policy.
fn after_a_while(policy: &mut dyn Policy, seconds: f64) -> World {
    let mut world = World::new(&paper_machine());
    world.arrive(truth(1, perfect, 48.0));
    world.arrive(truth(2, poor, 48.0));
    world.run(policy, seconds);
    world
}

fn sizes(world: &World) -> (usize, usize) {
    assert!(!world.mask(1).intersects(&world.mask(2)));
    (world.mask(1).len(), world.mask(2).len())
}

#[test]
fn pdpa_gives_cores_to_efficient_programs() {
    let world = after_a_while(&mut Pdpa::new(paper_machine()), 10.0);
    assert_eq!(sizes(&world), (42, 6));
}

#[test]
fn utilisation_gives_busy_programs_an_even_share() {
    let mut policy = Utilisation::new(paper_machine());
    let mut world = after_a_while(&mut policy, 10.0);
    assert_eq!(sizes(&world), (24, 24));
    world.set_demand(2, 5.0);
    world.run(&mut policy, 10.0);
    assert_eq!(sizes(&world), (42, 6), "shrunk to what it keeps busy");
}

#[test]
fn lending_lends_the_seats_of_another_policy_and_takes_them_back() {
    let topology = paper_machine();
    let mut policy = Lending::new(Casas::new(topology.clone()), topology);
    let mut world = World::new(&paper_machine());
    world.arrive(profiled(truth(1, medium, 48.0), 48));
    world.arrive(profiled(truth(2, medium, 48.0), 48));
    world.run(&mut policy, 6.0);
    assert_eq!(sizes(&world), (24, 24));
    world.set_demand(1, 1.0);
    world.run(&mut policy, 0.2);
    assert!(world.mask(2).len() > 24);
    world.set_demand(1, 48.0);
    world.run(&mut policy, 0.2);
    assert_eq!(sizes(&world), (24, 24));
}

#[test]
fn fixed_seats_are_the_configured_seats() {
    let seats = [("p1".to_owned(), CpuSet::range(0, 11))].into();
    let world = after_a_while(&mut FixedSeats::new(paper_machine(), seats), 1.0);
    assert_eq!((world.mask(1).len(), world.mask(2).len()), (12, 48));
}

/// The planner rejects a weight that is not positive.
#[test]
fn seats_are_released_and_reported_when_the_planner_rejects_the_programs() {
    let mut policy = by_name("equal", &paper_machine()).unwrap();
    let mut world = World::new(&paper_machine());
    world.arrive(truth(1, perfect, 48.0));
    world.arrive(truth(2, poor, 48.0));
    world.run(&mut policy, 5.0);
    let seats = [world.seat(1), world.seat(2)];
    assert!(seats.iter().all(Option::is_some));
    let mut bad = truth(3, medium, 48.0);
    bad.program.weight = 0.0;
    world.arrive(bad);
    world.run(&mut policy, 1.0);
    assert_eq!([1, 2, 3].map(|id| world.seat(id)), [None, None, None]);
    let notes = world.log.iter().flat_map(|(_, decision)| &decision.notes);
    let texts: Vec<&str> = notes.map(|note| note.text.as_str()).collect();
    assert!(
        texts.len() == 1 && texts[0].starts_with("no program has a seat"),
        "{texts:?}"
    );
    world.depart(3);
    world.run(&mut policy, 1.0);
    assert_eq!([world.seat(1), world.seat(2)], seats);
}
