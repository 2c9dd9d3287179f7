// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loop policies on a machine of fluids.

#![allow(clippy::unwrap_used)]

mod world;

use proptest::prelude::*;
use usher_model::*;
use usher_policy::{Casas, Usher, by_name};
use world::{Truth, World, machine, profiled, truth};

const MS: u64 = 1_000_000;

fn perfect(cores: f64) -> f64 {
    cores
}

/// Gains little beyond six cores: the paper's red class.
fn poor(cores: f64) -> f64 {
    cores.min(6.0) + (cores - 6.0).max(0.0) * 0.05
}

/// Gains half of each core beyond twelve: yellow.
fn medium(cores: f64) -> f64 {
    cores.min(12.0) + (cores - 12.0).max(0.0) * 0.3
}

fn paper_machine() -> Topology {
    machine(8, 6)
}

/// The least ANTT over all allocations of whole domains, by enumeration.
fn least_antt(speeds: &[fn(f64) -> f64], domains: usize, cores_each: usize) -> f64 {
    fn go(speeds: &[fn(f64) -> f64], left: usize, each: usize, best: f64) -> f64 {
        let Some((speed, rest)) = speeds.split_first() else {
            return 0.0;
        };
        (1..=left - rest.len())
            .map(|d| speed(best) / speed((d * each) as f64) + go(rest, left - d, each, best))
            .fold(f64::INFINITY, f64::min)
    }
    go(speeds, domains, cores_each, (domains * cores_each) as f64) / speeds.len() as f64
}

fn antt_of(world: &World, speeds: &[fn(f64) -> f64], cores: f64) -> f64 {
    let ntt = |(i, speed): (usize, &fn(f64) -> f64)| {
        speed(cores) / speed(world.mask(i as u64 + 1).len() as f64)
    };
    speeds.iter().enumerate().map(ntt).sum::<f64>() / speeds.len() as f64
}

#[test]
fn programs_with_profiles_are_seated_at_once_and_optimally() {
    let topology = paper_machine();
    let speeds = [medium, poor, perfect, poor];
    let mut world = World::new(&topology);
    for (i, &speed) in speeds.iter().enumerate() {
        world.arrive(profiled(truth(i as u64 + 1, speed, 48.0), 48));
    }
    world.turn(&mut Usher::new(topology), MS);
    assert!((antt_of(&world, &speeds, 48.0) - least_antt(&speeds, 8, 6)).abs() < 1e-9);
}

#[test]
fn newcomers_are_learnt_while_all_run_and_end_up_near_the_optimum() {
    let topology = paper_machine();
    let speeds = [medium, poor, poor, medium];
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    for (i, &speed) in speeds.iter().enumerate() {
        world.arrive(truth(i as u64 + 1, speed, 48.0));
        world.run(&mut usher, 0.7);
    }
    world.run(&mut usher, 20.0);
    assert!(
        !world
            .actions()
            .iter()
            .any(|a| matches!(a, Action::Freeze { .. })),
        "nobody is stopped"
    );
    let (got, least) = (antt_of(&world, &speeds, 48.0), least_antt(&speeds, 8, 6));
    assert!(
        got <= least * 1.10,
        "ANTT {got:.3}, least possible {least:.3}"
    );
}

#[test]
fn cpu_time_alone_moves_nobody() {
    let topology = paper_machine();
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    for id in 1..=3 {
        world.arrive(Truth {
            source: Some(ProgressSource::CpuTime),
            ..truth(id, poor, 48.0)
        });
    }
    world.run(&mut usher, 10.0);
    assert_eq!(world.actions(), []);
    let notes: Vec<_> = world.log.iter().flat_map(|(_, d)| &d.notes).collect();
    assert!(
        notes.iter().any(|n| n.text.contains("cpu-time")),
        "{notes:?}"
    );
}

#[test]
fn a_figure_that_is_not_trusted_moves_nobody() {
    let topology = paper_machine();
    for policy in ["usher", "casas"] {
        let mut world = World::new(&topology);
        let mut policy = by_name(policy, &topology).unwrap();
        for id in 1..=2 {
            world.arrive(Truth {
                source: Some(ProgressSource::Instructions),
                confidence: 0.2,
                ..truth(id, poor, 48.0)
            });
        }
        world.run(&mut *policy, 5.0);
        let freezes = |a: &Action| matches!(a, Action::Freeze { .. });
        assert!(!world.actions().iter().any(freezes), "no trial by it");
        if policy.name() == "usher" {
            assert_eq!(world.actions(), []);
        }
    }
}

#[test]
fn the_kernel_is_left_alone_where_seats_gain_nothing() {
    let topology = machine(1, 2);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    for id in 1..=2 {
        world.arrive(profiled(truth(id, perfect, 2.0), 2));
    }
    world.run(&mut usher, 5.0);
    assert_eq!(world.actions(), []);
    let plan = world
        .log
        .iter()
        .filter_map(|(_, d)| d.plan.clone())
        .next_back()
        .unwrap();
    assert!(plan.abstains);
    assert!(plan.antt_time_sharing.is_some());
}

#[test]
fn a_new_phase_is_noticed_and_planned_anew() {
    let topology = paper_machine();
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    world.arrive(truth(1, medium, 48.0));
    world.arrive(truth(2, poor, 48.0));
    world.run(&mut usher, 10.0);
    let before = world.mask(2).len();
    world.set_speed(1, |cores| poor(cores) * 0.2);
    world.set_speed(2, |cores| perfect(cores) * 3.0);
    world.run(&mut usher, 40.0);
    let after = world.mask(2).len();
    assert!(
        after > before,
        "the program that scales now had {before} cores and has {after}"
    );
}

/// Two programs with equal seats, one of which then leaves its own idle.
fn lender_and_borrower() -> (World, Usher) {
    let topology = machine(2, 8);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    // Curves that make an even split best, and seats better than sharing.
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
        world.turn(&mut usher, 100 * MS);
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
        world.turn(&mut usher, 100 * MS);
    }
    assert!(
        world.at_ns - wanted_ns <= 20 * MS,
        "reclaimed after {} ms",
        (world.at_ns - wanted_ns) / MS
    );
}

#[test]
fn an_owner_that_cannot_be_seen_to_wait_lends_nothing() {
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
fn programs_that_tell_nothing_but_their_repetitions_are_learnt() {
    let topology = machine(2, 1);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    for id in 1..=2 {
        world.arrive(Truth {
            source: Some(ProgressSource::CpuTime),
            ..truth(id, bus_bound, 2.0)
        });
    }
    world.run(&mut usher, 1.0);
    assert_eq!(world.mask(1).len(), 2, "nothing is known yet");
    for _ in 0..20 {
        let apart = !world.mask(1).intersects(&world.mask(2));
        let rate = if apart {
            bus_bound(1.0)
        } else {
            bus_bound(2.0) / 2.0
        };
        world.run(&mut usher, 1.05 / rate);
        world.repeated(1, 1.0 / rate);
        world.repeated(2, 1.0 / rate);
    }
    assert_eq!((world.mask(1).len(), world.mask(2).len()), (1, 1));
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

/// Gains a little from a second core: barriers, spinning, a memory bus.
fn bus_bound(cores: f64) -> f64 {
    cores.min(1.0) + 0.2 * (cores - 1.0).max(0.0)
}

#[test]
fn more_programs_than_cores_share_pens_where_that_is_better() {
    let topology = machine(1, 2);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    for id in 1..=4 {
        world.arrive(profiled(truth(id, bus_bound, 2.0), 2));
    }
    world.run(&mut usher, 1.0);
    let masks: Vec<_> = (1..=4).map(|id| world.mask(id)).collect();
    assert!(masks.iter().all(|mask| mask.len() == 1), "{masks:?}");
    assert_eq!(masks.iter().filter(|mask| mask.contains(0)).count(), 2);
}

/// Collapses on one core.
fn busy_waits(cores: f64) -> f64 {
    if cores < 2.0 { 0.2 * cores } else { cores }
}

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

/// A program whose runtime settles at its start how its threads wait.
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

/// Alone it gains nothing from a second core that time sharing would deny it;
/// sharing, its threads would seldom meet.
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

#[test]
fn one_that_would_count_on_borrowed_cores_borrows_none() {
    let topology = machine(2, 8);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    let uneven = |id, active_wait| Truth {
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
fn an_idle_pen_is_lent_and_reclaimed_by_any_of_its_programs() {
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
fn pens_hold_even_numbers_and_those_that_lose_most_have_the_smaller() {
    let topology = machine(1, 2);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    world.arrive(profiled(truth(1, |c| c.min(1.0), 2.0), 2));
    world.arrive(profiled(truth(2, |c| c.min(1.0), 2.0), 2));
    world.arrive(profiled(
        truth(3, |c| c.min(1.0) + 0.5 * (c - 1.0).max(0.0), 2.0),
        2,
    ));
    world.run(&mut usher, 1.0);
    let alone = world.mask(3);
    assert_eq!(alone.len(), 1);
    assert!((1..=2).all(|id| !world.mask(id).intersects(&alone)));
}

#[test]
fn an_offline_cpu_is_in_nobodys_seat() {
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
fn casas_stops_the_others_for_a_trial_and_lets_them_go_on() {
    let topology = paper_machine();
    let mut world = World::new(&topology);
    let mut casas = Casas::new(topology);
    world.arrive(truth(1, medium, 48.0));
    world.run(&mut casas, 5.0);
    world.arrive(truth(2, poor, 48.0));
    world.run(&mut casas, 0.5);
    assert!(world.is_frozen(1) && !world.is_frozen(2));
    world.run(&mut casas, 5.0);
    assert!(!world.is_frozen(1) && !world.is_frozen(2));
    let speeds = [medium, poor];
    assert!((antt_of(&world, &speeds, 48.0) - least_antt(&speeds, 8, 6)).abs() < 1e-6);
}

#[test]
fn a_trial_ends_when_its_program_dies_or_tells_nothing() {
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

/// What may happen to the machine between two looks.
#[derive(Debug, Clone)]
enum Happening {
    Arrive { kind: u8, profiled: bool },
    Depart(u8),
    Demand(u8, u8),
    Usable(u16),
    Pass(u16),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (0..3u8, any::<bool>()).prop_map(|(kind, profiled)| Happening::Arrive { kind, profiled }),
        (0..8u8).prop_map(Happening::Depart),
        (0..8u8, 0..16u8).prop_map(|(id, demand)| Happening::Demand(id, demand)),
        (1..u16::MAX).prop_map(Happening::Usable),
        (1..400u16).prop_map(Happening::Pass),
        (1..400u16).prop_map(Happening::Pass),
    ]
}

fn happen(world: &mut World, next_id: &mut u64, happening: &Happening, topology: &Topology) -> u64 {
    match *happening {
        Happening::Arrive {
            kind,
            profiled: has_profile,
        } if *next_id < 8 => {
            *next_id += 1;
            let speed = [perfect, poor, medium][usize::from(kind)];
            let newcomer = truth(*next_id, speed, 16.0);
            world.arrive(if has_profile {
                profiled(newcomer, 16)
            } else {
                newcomer
            });
        }
        Happening::Arrive { .. } => {}
        Happening::Depart(id) => world.depart(u64::from(id)),
        Happening::Demand(id, demand) => world.set_demand(u64::from(id), f64::from(demand)),
        Happening::Usable(bits) => {
            let usable: CpuSet = (0..16).filter(|cpu| bits & (1 << cpu) != 0).collect();
            world.usable = usable.and(&topology.all_cpus());
        }
        Happening::Pass(ms) => return u64::from(ms) * MS,
    }
    0
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens: the owners' seats are disjoint, loans come out of
    /// somebody's seat or nobody's, nobody has nothing, `usher` freezes
    /// nobody, and deciding again gives the same decisions.
    #[test]
    fn seats_stay_disjoint_whatever_happens(happenings in prop::collection::vec(happening(), 1..40), name in prop::sample::select(vec!["equal", "casas", "usher"])) {
        let topology = machine(4, 4);
        let mut runs = Vec::new();
        for _ in 0..2 {
            let mut policy = by_name(name, &topology).unwrap();
            let mut world = World::new(&topology);
            let mut next_id = 0;
            for h in &happenings {
                let pass_ns = happen(&mut world, &mut next_id, h, &topology).max(1);
                let until_ns = world.at_ns + pass_ns;
                while world.at_ns < until_ns {
                    world.turn(&mut *policy, until_ns - world.at_ns);
                    let (_, decision) = world.log.last().unwrap();
                    if let Some(plan) = &decision.plan {
                        check_plan(plan, &world.usable)?;
                    }
                    if name == "usher" {
                        let freezes = decision.actions.iter().any(|a| matches!(a, Action::Freeze { .. }));
                        prop_assert!(!freezes);
                    }
                }
            }
            runs.push(world.log);
        }
        prop_assert_eq!(&runs[0], &runs[1]);
    }
}

fn check_plan(plan: &Plan, usable: &CpuSet) -> Result<(), TestCaseError> {
    let mut taken = CpuSet::new();
    for seat in plan.seats.iter().filter(|seat| seat.mode == Mode::Seated) {
        prop_assert!(!seat.cpus.is_empty());
        prop_assert!(
            seat.cpus.is_subset(usable),
            "{:?} beyond {:?}",
            seat.cpus,
            usable
        );
        prop_assert!(
            !seat.cpus.intersects(&taken),
            "two seats on {:?}",
            seat.cpus.and(&taken)
        );
        taken = taken.or(&seat.cpus);
    }
    for loan in &plan.loans {
        let from = match loan.owner {
            Some(owner) => plan
                .seats
                .iter()
                .find(|s| s.program == owner)
                .unwrap()
                .cpus
                .clone(),
            None => usable.minus(&taken),
        };
        prop_assert!(loan.owner != Some(loan.borrower));
        prop_assert!(loan.cpus.is_subset(&from), "{loan:?} is not its owner's");
    }
    Ok(())
}
