// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of seats with a fixed number of cores, in all policies.

use std::collections::BTreeMap;

use proptest::prelude::*;
use usher_model::*;
use usher_policy::{NAMES, by_name};

use crate::MS;
use crate::shapes::{medium, perfect, poor};
use crate::world::{TrueProgram, World, machine, profiled, truth};

fn fixed(id: u64, cores: u32) -> TrueProgram {
    let mut program = truth(id, perfect, 16.0);
    program.source = None;
    program.program.cores = Some(cores);
    program
}

#[test]
fn a_fixed_program_gets_its_cores_without_a_profile() {
    for name in NAMES {
        let topology = machine(4, 4);
        let mut world = World::new(&topology);
        let mut policy = by_name(name, &topology).unwrap();
        world.arrive(fixed(1, 3));
        world.step(policy.as_mut(), MS);
        assert_eq!(world.mask(1).to_string(), "0-2", "{name}");
        let plan = world.log[0].1.plan.clone().unwrap();
        assert_eq!(plan.seats[0].mode, SeatMode::Seated, "{name}");
        assert!(!plan.abstains, "{name}");
        let notes = &world.log[0].1.notes;
        let note = "the seat is fixed at 3 cores by --cores or a rule";
        let note = notes.iter().find(|one| one.text == note);
        let note = note.unwrap_or_else(|| panic!("{name}: {notes:?}"));
        assert_eq!(note.topic, NoteTopic::FixedSeat, "{name}");
    }
}

#[test]
fn a_program_without_a_seat_runs_beside_the_fixed_cores_and_is_released_afterwards() {
    for name in NAMES {
        let topology = machine(2, 4);
        let mut world = World::new(&topology);
        let mut policy = by_name(name, &topology).unwrap();
        let mut unknown = truth(1, perfect, 16.0);
        unknown.source = None;
        world.arrive(unknown);
        world.step(policy.as_mut(), MS);
        world.arrive(fixed(2, 4));
        world.run(policy.as_mut(), 1.0);
        assert_eq!(world.mask(2).to_string(), "0-3", "{name}");
        assert_eq!(world.mask(1).to_string(), "4-7", "{name}");
        world.depart(2);
        world.run(policy.as_mut(), 1.0);
        assert_eq!(world.mask(1).to_string(), "0-7", "{name}");
    }
}

#[test]
fn other_programs_get_the_plan_of_the_remaining_machine() {
    for name in ["usher", "equal"] {
        let topology = machine(4, 4);
        let others = |world: &mut World| {
            for (id, speed) in (1..).zip([perfect, poor, medium]) {
                world.arrive(profiled(truth(id, speed, 16.0), 16));
            }
        };
        let mut world = World::new(&topology);
        let mut policy = by_name(name, &topology).unwrap();
        world.arrive(fixed(9, 4));
        others(&mut world);
        world.step(policy.as_mut(), MS);
        let rest = topology.restrict(&CpuSet::range(4, 15)).unwrap();
        let mut small = World::new(&rest);
        others(&mut small);
        small.step(by_name(name, &rest).unwrap().as_mut(), MS);
        for id in 1..=3 {
            assert_eq!(world.mask(id), small.mask(id), "{name}: program {id}");
        }
        let antt = |world: &World| world.log[0].1.plan.as_ref().unwrap().antt;
        assert_eq!(antt(&world), antt(&small), "{name}");
    }
}

#[test]
fn a_fixed_seat_of_all_cores_is_shared() {
    let topology = machine(1, 2);
    let mut world = World::new(&topology);
    let mut policy = by_name("usher", &topology).unwrap();
    world.arrive(fixed(1, 2));
    world.arrive(truth(2, poor, 1.0));
    world.step(policy.as_mut(), MS);
    assert_eq!([1, 2].map(|id| world.mask(id).len()), [2, 2]);
    let plan = world.log[0].1.plan.clone().unwrap();
    assert!(plan.seats.iter().all(|seat| seat.mode == SeatMode::Shared));
}

#[test]
fn forbidden_seats_release_fixed_programs_and_pinned_ones_have_none() {
    let topology = machine(1, 4);
    let mut world = World::new(&topology);
    let mut policy = by_name("usher", &topology).unwrap();
    world.arrive(fixed(1, 2));
    world.step(policy.as_mut(), MS);
    world.pin(1, Some("3"));
    world.step(policy.as_mut(), MS);
    assert_eq!(world.seat(1), None);
    world.pin(1, None);
    world.step(policy.as_mut(), MS);
    assert_eq!(world.mask(1).len(), 2);
    world.forbid_seats(Some("another daemon plans this machine"));
    world.step(policy.as_mut(), MS);
    assert_eq!(world.seat(1), None);
    world.forbid_seats(None);
    world.step(policy.as_mut(), MS);
    assert_eq!(world.mask(1).len(), 2);
}

/// An event between two samples.
#[derive(Debug, Clone)]
enum RandomEvent {
    Arrive { kind: u8, cores: Option<u32> },
    Depart(u8),
    Usable(u16),
    Refuse(u8),
    Pass(u16),
}

fn random_event() -> impl Strategy<Value = RandomEvent> {
    let cores = prop::option::of(1..9u32);
    prop_oneof![
        (0..3u8, cores).prop_map(|(kind, cores)| RandomEvent::Arrive { kind, cores }),
        (1..8u8).prop_map(RandomEvent::Depart),
        (1..u16::MAX).prop_map(RandomEvent::Usable),
        (1..3u8).prop_map(RandomEvent::Refuse),
        (1..400u16).prop_map(RandomEvent::Pass),
    ]
}

/// Checks the masks of all programs. `sizes`: the fixed number of cores of each program.
fn check(world: &World, sizes: &BTreeMap<u64, Option<u32>>) -> Result<(), TestCaseError> {
    let usable = world.usable.len();
    let fixed: Vec<(u64, usize)> = sizes
        .iter()
        .filter_map(|(&id, cores)| Some((id, (*cores)? as usize)))
        .collect();
    let mut taken = CpuSet::new();
    let sum: usize = fixed.iter().map(|&(_, cores)| cores).sum();
    for &(id, cores) in &fixed {
        let mask = world.mask(id);
        prop_assert_eq!(mask.len(), cores.min(usable), "program {}", id);
        prop_assert!(sum > usable || !mask.intersects(&taken), "program {}", id);
        taken = taken.or(&mask);
    }
    for (&id, _) in sizes.iter().filter(|(_, cores)| cores.is_none()) {
        let mask = world.mask(id);
        prop_assert!(!mask.is_empty(), "program {}", id);
        let is_apart = !mask.intersects(&taken) || taken.len() == usable;
        prop_assert!(is_apart, "program {} on {}, fixed {}", id, mask, taken);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn fixed_seats_keep_their_size_and_stay_apart(
        name in prop::sample::select(NAMES.to_vec()),
        events in prop::collection::vec(random_event(), 1..40),
    ) {
        let topology = machine(4, 4);
        let mut world = World::new(&topology);
        let mut policy = by_name(name, &topology).unwrap();
        let mut sizes = BTreeMap::new();
        let mut next_id = 0;
        for event in &events {
            match *event {
                RandomEvent::Arrive { kind, cores } if sizes.len() < 7 => {
                    next_id += 1;
                    let speed = [perfect, poor, medium][usize::from(kind)];
                    let mut one = profiled(truth(next_id, speed, 16.0), 16);
                    one.program.cores = cores;
                    sizes.insert(next_id, cores);
                    world.arrive(one);
                }
                RandomEvent::Depart(id) => {
                    world.depart(u64::from(id));
                    sizes.remove(&u64::from(id));
                }
                RandomEvent::Usable(bits) => {
                    let usable: CpuSet = (0..16).filter(|cpu| bits & (1 << cpu) != 0).collect();
                    world.usable = usable;
                }
                RandomEvent::Refuse(count) => world.refuses = u32::from(count),
                RandomEvent::Arrive { .. } | RandomEvent::Pass(_) => {}
            }
            world.step(policy.as_mut(), MS);
            // Failed actions are requested again at the next decisions.
            while world.refuses > 0 || matches!(event, RandomEvent::Refuse(_)) {
                let before = world.refuses;
                world.step(policy.as_mut(), MS);
                if before == 0 || before == world.refuses {
                    world.refuses = 0;
                    break;
                }
            }
            world.step(policy.as_mut(), MS);
            check(&world, &sizes)?;
            if let RandomEvent::Pass(ms) = *event {
                world.run(policy.as_mut(), f64::from(ms) / 1e3);
                check(&world, &sizes)?;
            }
        }
    }
}
