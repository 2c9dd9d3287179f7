// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the trials of a single program under policy `casas`, as in paper 1: other programs are
//! stopped for a trial and continue afterwards.

use usher_policy::Casas;

use crate::shapes::{antt_of, least_antt, medium, paper_machine, poor};
use crate::world::{World, truth};

#[test]
fn casas_stops_the_others_for_a_trial_and_continues_them() {
    let topology = paper_machine();
    let mut world = World::new(&topology);
    let mut casas = Casas::new(topology);
    world.arrive(truth(1, medium, 48.0));
    world.run(&mut casas, 5.0);
    world.arrive(truth(2, poor, 48.0));
    world.run(&mut casas, 0.5);
    assert!(world.is_frozen(1) && !world.is_frozen(2));
    let soft_seats = |world: &World| world.log.last().unwrap().1.soft_seats;
    assert_eq!(soft_seats(&world), Some(false), "a trial is measured");
    world.run(&mut casas, 5.0);
    assert!(!world.is_frozen(1) && !world.is_frozen(2));
    assert_eq!(soft_seats(&world), Some(true));
    let speeds = [medium, poor];
    assert!((antt_of(&world, &speeds, 48.0) - least_antt(&speeds, 8, 6)).abs() < 1e-6);
}

#[test]
fn a_trial_ends_when_its_program_ends_or_reports_no_progress() {
    for dies in [true, false] {
        let topology = paper_machine();
        let mut world = World::new(&topology);
        let mut casas = Casas::new(topology);
        world.arrive(truth(1, medium, 48.0));
        world.run(&mut casas, 5.0);
        world.arrive(truth(2, if dies { poor } else { |_| 0.0 }, 48.0));
        world.run(&mut casas, 0.2);
        assert!(world.is_frozen(1));
        if dies {
            world.depart(2);
        }
        world.run(&mut casas, 10.0);
        assert!(!world.is_frozen(1));
    }
}
