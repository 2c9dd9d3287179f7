// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that a policy releases all seats while another daemon plans the machine, and gives seats
//! to the programs present when the ban ends.

use usher_model::{Action, ProgramId};
use usher_policy::{NAMES, by_name};

use crate::shapes::{paper_machine, perfect, poor};
use crate::world::{World, profiled, truth};

fn two_programs() -> World {
    let mut world = World::new(&paper_machine());
    world.arrive(profiled(truth(1, perfect, 48.0), 48));
    world.arrive(profiled(truth(2, poor, 48.0), 48));
    world
}

fn is_free(world: &World) -> bool {
    [1, 2]
        .into_iter()
        .all(|id| world.seat(id).is_none() && !world.is_frozen(id))
}

#[test]
fn forbidden_seats_are_taken_back_and_given_again_when_allowed() {
    for name in NAMES.into_iter().filter(|name| *name != "linux") {
        let mut policy = by_name(name, &paper_machine()).unwrap();
        let mut world = two_programs();
        world.run(&mut policy, 5.0);
        assert!(!is_free(&world), "{name}: seats are given at first");
        let seats = [world.seat(1), world.seat(2)];
        world.forbid_seats(Some("another daemon"));
        world.step(&mut policy, 1);
        assert!(is_free(&world), "{name}: seats are taken back at once");
        world.run(&mut policy, 5.0);
        assert!(is_free(&world), "{name}: no seat is given meanwhile");
        world.forbid_seats(None);
        world.run(&mut policy, 5.0);
        assert_eq!([world.seat(1), world.seat(2)], seats, "{name}");
    }
}

#[test]
fn arrivals_and_departures_during_a_ban_are_known_afterwards() {
    let mut policy = by_name("equal", &paper_machine()).unwrap();
    let mut world = two_programs();
    world.forbid_seats(Some("another daemon"));
    world.run(&mut policy, 1.0);
    assert!(is_free(&world));
    world.depart(1);
    let before = world.actions().len();
    world.arrive(profiled(truth(3, poor, 48.0), 48));
    world.run(&mut policy, 1.0);
    world.forbid_seats(None);
    world.run(&mut policy, 1.0);
    let seats = [world.seat(2).unwrap(), world.seat(3).unwrap()];
    assert!(seats[0].and(&seats[1]).is_empty());
    let later = world.actions().split_off(before);
    assert!(later.iter().all(|action| action.program() != ProgramId(1)));
}

#[test]
fn failed_thaws_and_releases_of_a_ban_are_requested_again() {
    for name in NAMES.into_iter().filter(|name| *name != "linux") {
        let mut policy = by_name(name, &paper_machine()).unwrap();
        let mut world = two_programs();
        world.run(&mut policy, 5.0);
        world.forbid_seats(Some("another daemon"));
        world.refuses = 6;
        world.step(&mut policy, 1);
        assert!(!is_free(&world), "{name}: the actions fail");
        world.run(&mut policy, 5.0);
        assert!(is_free(&world), "{name}: seats are taken back later");
    }
}

#[test]
fn a_release_that_always_fails_is_not_requested_for_ever() {
    let mut policy = by_name("equal", &paper_machine()).unwrap();
    let mut world = two_programs();
    world.run(&mut policy, 5.0);
    world.forbid_seats(Some("another daemon"));
    world.refuses = u32::MAX;
    let before = world.actions().len();
    world.run(&mut policy, 60.0);
    let (first, middle) = (world.actions().split_off(before), world.actions().len());
    world.run(&mut policy, 60.0);
    let later = world.actions().split_off(middle);
    let is_thaw = |action: &&Action| matches!(action, Action::Thaw { .. });
    let releases = first.iter().filter(|action| !is_thaw(action)).count();
    assert_eq!(
        releases,
        2 * 9,
        "one request and eight more for each program"
    );
    // A program that stays stopped is worse than a request every five seconds.
    assert!(later.iter().all(|action| is_thaw(&action)), "{later:?}");
    assert!((20..=24).contains(&later.len()), "{}", later.len());
}
