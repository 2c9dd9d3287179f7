// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of turns: a spinning program and its neighbours have all cores of the machine alternately,
//! for times in proportion to the square roots of their weights, and no program starves.

use proptest::prelude::*;
use usher_model::*;
use usher_policy::Usher;

use crate::MS;
use crate::shapes::{busy_waits, perfect};
use crate::world::{TrueProgram, World, machine, truth};

/// Adds a profile in which the program keeps `busy_cpus` busy on `cores_max` cores.
fn known(mut truth: TrueProgram, cores_max: f64, busy_cpus: f64) -> TrueProgram {
    let point = |cores: f64| CurvePoint {
        cores,
        rate: (truth.speed)(cores),
        relative_error: 0.0,
        busy_cpus: Some(busy_cpus.min(cores)),
    };
    let counts = [1.0, cores_max / 2.0, cores_max];
    let mut points = counts.map(point).to_vec();
    points.dedup_by_key(|point| point.cores as u64);
    truth.program.profile = Some(Curve::new(points).unwrap());
    truth.source = Some(ProgressSource::CpuTime);
    truth.demand = busy_cpus;
    truth
}

/// The program's curve collapses on one core.
fn spinner(id: u64) -> TrueProgram {
    known(truth(id, busy_waits, 2.0), 2.0, 2.0)
}

fn filler(id: u64) -> TrueProgram {
    known(truth(id, perfect, 2.0), 2.0, 2.0)
}

/// The program's threads wait in a runtime that spins.
fn waits_actively(mut program: TrueProgram) -> TrueProgram {
    program.program.active_wait = Some(true);
    program.active_wait = Some(true);
    program
}

fn needs_16(cores: f64) -> f64 {
    if cores < 16.0 { 0.2 * cores } else { cores }
}

fn needs_8(cores: f64) -> f64 {
    if cores < 8.0 { 0.2 * cores } else { cores }
}

fn freezes(world: &World) -> usize {
    let freezes = |a: &&Action| matches!(a, Action::Freeze { .. });
    world.actions().iter().filter(freezes).count()
}

/// Ids of the running programs.
fn running(world: &World, ids: &[u64]) -> Vec<u64> {
    let runs = |id: &u64| !world.is_frozen(*id);
    ids.iter().copied().filter(runs).collect()
}

fn on(topology: Topology, programs: impl IntoIterator<Item = TrueProgram>) -> (World, Usher) {
    let mut world = World::new(&topology);
    programs.into_iter().for_each(|truth| world.arrive(truth));
    (world, Usher::new(topology))
}

fn on_two_cores(programs: impl IntoIterator<Item = TrueProgram>) -> (World, Usher) {
    on(machine(1, 2), programs)
}

/// A machine of cores with two hardware threads each.
pub fn with_siblings(cores: usize) -> Topology {
    let mut topology = machine(1, cores);
    let second = |core: usize| (cores + core) as u32;
    topology.cpus.extend((0..cores).map(|core| Cpu {
        os: second(core),
        core,
    }));
    for (index, core) in topology.cores.iter_mut().enumerate() {
        core.cpus = core.cpus.or(&CpuSet::single(second(index)));
    }
    let all = topology.all_cpus();
    topology.domains[0].cpus = all.clone();
    topology.packages[0].cpus = all.clone();
    topology.nodes[0].cpus = all;
    topology.check().unwrap();
    topology
}

/// Seconds for which each program had the machine to itself.
fn shares(world: &mut World, usher: &mut Usher, ids: &[u64], seconds: f64) -> Vec<f64> {
    let until_ns = world.at_ns + (seconds * 1e9) as u64;
    let mut alone_ns = vec![0; ids.len()];
    while world.at_ns < until_ns {
        let ns = world.step(usher, until_ns - world.at_ns);
        if let [one] = running(world, ids)[..] {
            alone_ns[ids.iter().position(|&id| id == one).unwrap()] += ns;
        }
    }
    let share = |&ns: &u64| ns as f64 / 1e9 / seconds;
    alone_ns.iter().map(share).collect()
}

#[test]
fn each_program_has_the_machine_for_an_equal_time() {
    let (mut world, mut usher) = on_two_cores([spinner(1), filler(2)]);
    let shares = shares(&mut world, &mut usher, &[1, 2], 10.0);
    assert!(shares.iter().all(|s| (s - 0.5).abs() < 0.02), "{shares:?}");
    assert_eq!((world.mask(1).len(), world.mask(2).len()), (2, 2));
    let plan = world.log.iter().find_map(|(_, d)| d.plan.clone()).unwrap();
    assert!(plan.seats.iter().all(|seat| seat.mode == SeatMode::InTurn));
    assert!(plan.antt.unwrap() < plan.antt_time_sharing.unwrap());
}

#[test]
fn a_partly_busy_program_does_not_share_its_turns() {
    let most = |id| known(truth(id, needs_16, 16.0), 16.0, 12.0);
    let (mut world, mut usher) = on(machine(1, 16), [most(1), most(2)]);
    let shares = shares(&mut world, &mut usher, &[1, 2], 10.0);
    assert!(shares.iter().all(|s| (s - 0.5).abs() < 0.02), "{shares:?}");
}

#[test]
fn one_thread_a_core_fills_a_machine_with_hardware_threads() {
    let ranks = |id| known(truth(id, needs_8, 8.0), 8.0, 8.0);
    let (mut world, mut usher) = on(with_siblings(8), (1..=4).map(ranks));
    world.run(&mut usher, 1.0);
    assert!(freezes(&world) > 5, "{}", freezes(&world));
}

#[test]
fn turn_lengths_follow_the_roots_of_the_weights() {
    let mut heavy = spinner(1);
    heavy.program.weight = 4.0;
    let (mut world, mut usher) = on_two_cores([heavy, filler(2)]);
    let shares = shares(&mut world, &mut usher, &[1, 2], 10.0);
    assert!((shares[0] / shares[1] - 2.0).abs() < 0.2, "{shares:?}");
}

/// Runs the programs for some time, in which sharing is measured to be ten times slower than
/// running alone for each program. Returns the number of stops.
fn freezes_with_slow_sharing(programs: Vec<TrueProgram>) -> usize {
    let ids: Vec<_> = programs.iter().map(|truth| truth.program.id.0).collect();
    let speeds: Vec<_> = programs.iter().map(|truth| truth.speed).collect();
    let (mut world, mut usher) = on_two_cores(programs);
    world.run(&mut usher, 1.0);
    for _ in 0..4 {
        world.run(&mut usher, 10.0);
        for (&id, speed) in ids.iter().zip(&speeds) {
            world.repeated(id, 10.0 / speed(2.0));
        }
    }
    world.run(&mut usher, 1.0);
    freezes(&world)
}

#[test]
fn only_launched_unbound_busy_programs_are_stopped_and_only_for_a_spinning_program() {
    assert!(freezes_with_slow_sharing(vec![spinner(1), filler(2)]) > 5);
    let mut attached = filler(2);
    attached.program.ran_before = true;
    let mut seen = filler(2);
    seen.program.stops_unseen = false;
    let mut bound = filler(2);
    bound.program.bound_to = Some(CpuSet::single(0));
    let serial = known(truth(2, |_| 1.0, 1.0), 2.0, 1.0);
    for programs in [
        vec![spinner(1), attached],
        vec![spinner(1), seen],
        vec![spinner(1), bound],
        vec![spinner(1), serial],
        vec![filler(1), filler(2)],
        (1..=5).map(spinner).collect(),
    ] {
        assert_eq!(freezes_with_slow_sharing(programs), 0);
    }
}

#[test]
fn an_idle_holder_shares_within_50_ms_until_it_is_busy() {
    let (mut world, mut usher) = on_two_cores([spinner(1), filler(2)]);
    world.run(&mut usher, 1.0);
    world.set_demand(2, 0.1);
    let mut alone_ns = 0;
    for _ in 0..200 {
        let ns = world.step(&mut usher, 100 * MS);
        let wasted = running(&world, &[1, 2]) == [2];
        alone_ns = if wasted { alone_ns + ns } else { 0 };
        assert!(alone_ns <= 50 * MS, "{} ms", alone_ns / MS);
    }
    world.set_demand(2, 2.0);
    world.run(&mut usher, 0.5);
    let shares = shares(&mut world, &mut usher, &[1, 2], 4.0);
    assert!(shares.iter().all(|s| (s - 0.5).abs() < 0.05), "{shares:?}");
}

#[test]
fn no_program_is_stopped_while_all_sleep() {
    let (mut world, mut usher) = on_two_cores([spinner(1), filler(2)]);
    world.run(&mut usher, 1.0);
    world.set_demand(1, 0.0);
    world.set_demand(2, 0.0);
    world.run(&mut usher, 1.0);
    let (before, entries) = (freezes(&world), world.log.len());
    world.run(&mut usher, 10.0);
    assert_eq!(freezes(&world), before);
    assert_eq!(running(&world, &[1, 2]), [1, 2]);
    assert!(world.log.len() - entries <= 101);
    world.set_demand(1, 2.0);
    world.set_demand(2, 2.0);
    world.run(&mut usher, 1.0);
    assert!(freezes(&world) > before);
}

#[test]
fn all_programs_continue_when_turns_end() {
    let (mut world, mut usher) = on_two_cores([spinner(1), filler(2)]);
    world.run(&mut usher, 1.0);
    world.arrive(TrueProgram {
        source: Some(ProgressSource::CpuTime),
        ..truth(3, perfect, 2.0)
    });
    world.step(&mut usher, MS);
    assert_eq!(running(&world, &[1, 2, 3]), [1, 2, 3], "one is unknown");
    world.depart(3);
    world.run(&mut usher, 1.0);
    assert_eq!(running(&world, &[1, 2]).len(), 1, "again");
    world.usable = CpuSet::single(0);
    world.run(&mut usher, 0.1);
    world.depart(1);
    world.step(&mut usher, MS);
    assert!(!world.is_frozen(2), "alone");
}

#[test]
fn failed_freezes_and_thaws_are_retried() {
    for refuses in 1..8 {
        let (mut world, mut usher) = on_two_cores([spinner(1), filler(2)]);
        world.run(&mut usher, 1.0);
        world.refuses = refuses;
        world.run(&mut usher, 2.0);
        assert!(!running(&world, &[1, 2]).is_empty(), "{refuses}");
        world.depart(1);
        world.run(&mut usher, 0.1);
        assert!(!world.is_frozen(2), "{refuses}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// At any time a program runs, and no program is stopped for longer than three turns of other
    /// programs, whichever programs arrive and depart.
    #[test]
    fn no_program_starves(steps in prop::collection::vec((any::<prop::sample::Index>(), 0..4u8, 1..300u64), 1..40)) {
        let (mut world, mut usher) = on_two_cores([]);
        let mut here: Vec<u64> = Vec::new();
        let mut stopped_ns = std::collections::BTreeMap::new();
        for (next_id, (which, what, ms)) in (1u64..).zip(steps) {
            if what == 0 && !here.is_empty() {
                let leaver = here.remove(which.index(here.len()));
                world.depart(leaver);
            } else if here.len() < 4 {
                here.push(next_id);
                world.arrive(match what {
                    1 => spinner(next_id),
                    2 => waits_actively(filler(next_id)),
                    _ => filler(next_id),
                });
            }
            let until_ns = world.at_ns + ms * MS;
            while world.at_ns < until_ns {
                let ns = world.step(&mut usher, until_ns - world.at_ns);
                prop_assert!(here.is_empty() || !running(&world, &here).is_empty());
                for &id in &here {
                    let stopped = stopped_ns.entry(id).or_insert(0);
                    *stopped = if world.is_frozen(id) { *stopped + ns } else { 0 };
                    prop_assert!(*stopped <= 300 * MS, "{} ms", *stopped / MS);
                }
            }
        }
    }
}
