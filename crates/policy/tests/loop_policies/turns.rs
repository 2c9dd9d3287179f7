// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that busy-wait and their neighbours take turns on all cores.

use proptest::prelude::*;
use usher_model::*;
use usher_policy::Usher;

use crate::MS;
use crate::shapes::{busy_waits, perfect};
use crate::world::{Truth, World, machine, truth};

/// With a profile in which it keeps that many CPUs busy on two cores.
fn known(mut truth: Truth, busy_cpus: f64) -> Truth {
    let point = |cores: f64| CurvePoint {
        cores,
        rate: (truth.speed)(cores),
        relative_error: 0.0,
        busy_cpus: Some(busy_cpus.min(cores)),
    };
    truth.program.profile = Some(Curve::new(vec![point(1.0), point(2.0)]).unwrap());
    truth.source = Some(ProgressSource::CpuTime);
    truth
}

fn spinner(id: u64) -> Truth {
    known(truth(id, busy_waits, 2.0), 2.0)
}

fn filler(id: u64) -> Truth {
    known(truth(id, perfect, 2.0), 2.0)
}

fn freezes(world: &World) -> usize {
    let freezes = |a: &&Action| matches!(a, Action::Freeze { .. });
    world.actions().iter().filter(freezes).count()
}

/// Who runs, by number.
fn running(world: &World, ids: &[u64]) -> Vec<u64> {
    let runs = |id: &u64| !world.is_frozen(*id);
    ids.iter().copied().filter(runs).collect()
}

fn world_of(programs: impl IntoIterator<Item = Truth>) -> (World, Usher) {
    let topology = machine(1, 2);
    let mut world = World::new(&topology);
    programs.into_iter().for_each(|truth| world.arrive(truth));
    (world, Usher::new(topology))
}

/// How much of so many seconds each had the machine to itself.
fn shares(world: &mut World, usher: &mut Usher, ids: &[u64], seconds: f64) -> Vec<f64> {
    let until_ns = world.at_ns + (seconds * 1e9) as u64;
    let mut alone_ns = vec![0; ids.len()];
    while world.at_ns < until_ns {
        let ns = world.turn(usher, until_ns - world.at_ns);
        if let [one] = running(world, ids)[..] {
            alone_ns[ids.iter().position(|&id| id == one).unwrap()] += ns;
        }
    }
    let share = |&ns: &u64| ns as f64 / 1e9 / seconds;
    alone_ns.iter().map(share).collect()
}

#[test]
fn each_has_the_whole_machine_for_an_equal_part_of_the_time() {
    let (mut world, mut usher) = world_of([spinner(1), filler(2)]);
    let shares = shares(&mut world, &mut usher, &[1, 2], 10.0);
    assert!(shares.iter().all(|s| (s - 0.5).abs() < 0.02), "{shares:?}");
    assert_eq!((world.mask(1).len(), world.mask(2).len()), (2, 2));
    let plan = world.log.iter().find_map(|(_, d)| d.plan.clone()).unwrap();
    assert!(plan.seats.iter().all(|seat| seat.mode == Mode::InTurn));
    assert!(plan.antt.unwrap() < plan.antt_time_sharing.unwrap());
}

#[test]
fn turns_are_as_long_as_weights_say() {
    let mut heavy = spinner(1);
    heavy.program.weight = 3.0;
    let (mut world, mut usher) = world_of([heavy, filler(2)]);
    let shares = shares(&mut world, &mut usher, &[1, 2], 10.0);
    assert!((shares[0] / shares[1] - 3.0).abs() < 0.2, "{shares:?}");
}

#[test]
fn nobody_is_stopped_who_was_attached_or_leaves_cores_unused_or_beside_nobody_that_spins() {
    let mut attached = filler(2);
    attached.program.ran_before = true;
    let unknown = Truth {
        source: Some(ProgressSource::CpuTime),
        ..truth(2, perfect, 2.0)
    };
    let mut bound = filler(2);
    bound.program.bound_to = Some(CpuSet::single(0));
    let serial = known(truth(2, |_| 1.0, 1.0), 1.0);
    let crowd = (1..=5).map(spinner).collect();
    for programs in [
        vec![spinner(1), attached],
        vec![spinner(1), unknown],
        vec![spinner(1), bound],
        vec![spinner(1), serial],
        vec![filler(1), filler(2)],
        crowd,
    ] {
        let (mut world, mut usher) = world_of(programs);
        world.run(&mut usher, 2.0);
        assert_eq!(freezes(&world), 0);
    }
}

#[test]
fn a_holder_that_leaves_cores_unused_has_company_within_50_ms() {
    let (mut world, mut usher) = world_of([spinner(1), filler(2)]);
    world.run(&mut usher, 1.0);
    world.set_demand(2, 1.0);
    let mut alone_ns = 0;
    for _ in 0..200 {
        let ns = world.turn(&mut usher, 100 * MS);
        let wasted = running(&world, &[1, 2]) == [2];
        alone_ns = if wasted { alone_ns + ns } else { 0 };
        assert!(alone_ns <= 50 * MS, "{} ms", alone_ns / MS);
    }
}

#[test]
fn everybody_goes_on_when_turns_end() {
    let (mut world, mut usher) = world_of([spinner(1), filler(2)]);
    world.run(&mut usher, 1.0);
    world.arrive(Truth {
        source: Some(ProgressSource::CpuTime),
        ..truth(3, perfect, 2.0)
    });
    world.turn(&mut usher, MS);
    assert_eq!(running(&world, &[1, 2, 3]), [1, 2, 3], "one is unknown");
    world.depart(3);
    world.run(&mut usher, 1.0);
    assert_eq!(running(&world, &[1, 2]).len(), 1, "again");
    world.depart(1);
    world.turn(&mut usher, MS);
    assert!(!world.is_frozen(2), "alone");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whoever comes and goes: somebody runs at any time, nobody is stopped
    /// for longer than the others' turns, and none is when nobody spins.
    #[test]
    fn nobody_starves(steps in prop::collection::vec((0..6u64, 0..3u8, 1..300u64), 1..30)) {
        let (mut world, mut usher) = world_of([]);
        let mut here = Vec::new();
        let mut stopped_ns = [0u64; 6];
        for (id, what, ms) in steps {
            if let Some(place) = here.iter().position(|&other| other == id) {
                here.remove(place);
                world.depart(id);
            } else {
                here.push(id);
                world.arrive(if what == 0 { spinner(id) } else { filler(id) });
            }
            stopped_ns[id as usize] = 0;
            let until_ns = world.at_ns + ms * MS;
            while world.at_ns < until_ns {
                let ns = world.turn(&mut usher, until_ns - world.at_ns);
                prop_assert!(here.is_empty() || !running(&world, &here).is_empty());
                for &id in &here {
                    let stopped = &mut stopped_ns[id as usize];
                    *stopped = if world.is_frozen(id) { *stopped + ns } else { 0 };
                    prop_assert!(*stopped <= 500 * MS, "{} ms", *stopped / MS);
                }
            }
        }
    }
}
