// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the seats that `usher` gives from profiles and from measurements: optimal seats,
//! surveys of new programs, partitions, and the comparison with time sharing.

use usher_model::*;
use usher_policy::{Usher, by_name};

use crate::MS;
use crate::shapes::*;
use crate::world::{TrueProgram, World, machine, profiled, truth};

#[test]
fn programs_with_profiles_are_seated_at_once_and_optimally() {
    let topology = paper_machine();
    let speeds = [medium, poor, perfect, poor];
    let mut world = World::new(&topology);
    for (i, &speed) in speeds.iter().enumerate() {
        world.arrive(profiled(truth(i as u64 + 1, speed, 48.0), 48));
    }
    world.step(&mut Usher::new(topology), MS);
    assert!((antt_of(&world, &speeds, 48.0) - least_antt(&speeds, 8, 6)).abs() < 1e-9);
}

#[test]
fn a_cpu_quota_is_an_upper_limit_of_the_cores_of_a_program() {
    for name in ["usher", "equal"] {
        let topology = paper_machine();
        let mut world = World::new(&topology);
        let mut policy = by_name(name, &topology).unwrap();
        let mut limited = profiled(truth(1, perfect, 48.0), 48);
        limited.program.cpu_quota = Some(1.5);
        world.arrive(limited);
        world.arrive(profiled(truth(2, perfect, 48.0), 48));
        world.step(policy.as_mut(), MS);
        let cores = [1, 2].map(|id| world.mask(id).len());
        assert_eq!(cores, [6, 42], "{name}: one domain, and all others");
        world.limit(1, None);
        world.step(policy.as_mut(), MS);
        let cores = [1, 2].map(|id| world.mask(id).len());
        assert_eq!(cores, [24, 24], "{name}: without the quota");
    }
}

#[test]
fn a_seat_follows_the_bounds_of_a_program() {
    for name in ["usher", "equal"] {
        let topology = paper_machine();
        let mut world = World::new(&topology);
        let mut policy = by_name(name, &topology).unwrap();
        let mut bound = profiled(truth(1, perfect, 48.0), 48);
        bound.program.bound_to = Some("0-5".parse().unwrap());
        world.arrive(bound);
        world.arrive(profiled(truth(2, poor, 48.0), 48));
        for bounds in ["0-5", "0-11", "12-17", "0-47"] {
            let all: CpuSet = bounds.parse().unwrap();
            world.bind(1, bounds);
            world.step(policy.as_mut(), MS);
            let seat = world.seat(1).unwrap_or_default();
            assert!(seat.is_subset(&all), "{name}: {seat} leaves {bounds}");
            // The program scales perfectly, and its neighbour can run elsewhere.
            let least = all.len().min(12);
            assert!(seat.len() >= least, "{name}: {seat} of {bounds}");
        }
    }
}

#[test]
fn a_program_that_pins_its_threads_has_no_seat_and_others_are_seated_on_the_rest() {
    for name in ["usher", "equal"] {
        let topology = paper_machine();
        let mut world = World::new(&topology);
        let mut policy = by_name(name, &topology).unwrap();
        for (id, speed) in (1..).zip([perfect, poor, medium, poor]) {
            world.arrive(profiled(truth(id, speed, 48.0), 48));
        }
        world.step(policy.as_mut(), MS);
        let before: Vec<_> = (1..=4).map(|id| world.seat(id)).collect();
        assert!(before.iter().all(Option::is_some), "{name}: {before:?}");
        let pins: CpuSet = "0-5,47".parse().unwrap();
        world.pin(1, Some("0-5,47"));
        world.step(policy.as_mut(), MS);
        assert_eq!(world.seat(1), None, "{name}");
        for id in 2..=4 {
            let seat = world.seat(id).unwrap();
            assert!(!seat.intersects(&pins), "{name}: {id} has {seat}");
        }
        world.pin(1, Some("0-47"));
        world.step(policy.as_mut(), MS);
        let now: Vec<_> = (1..=4).map(|id| world.seat(id)).collect();
        assert_eq!(now, vec![None; 4], "{name}: nothing is left to seat on");
        world.pin(1, None);
        world.step(policy.as_mut(), MS);
        let now = (1..=4).map(|id| world.mask(id).len());
        let then = before.iter().flatten().map(CpuSet::len);
        assert!(now.eq(then), "{name}: without pins");
    }
}

#[test]
fn new_programs_are_measured_while_all_run_and_reach_the_optimum() {
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
fn each_new_program_briefly_gets_half_of_the_others_seats() {
    let topology = paper_machine();
    let speeds = [medium, poor, perfect, poor];
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    for (i, &speed) in speeds.iter().enumerate() {
        world.arrive(truth(i as u64 + 1, speed, 48.0));
    }
    let mut wide = Vec::new();
    while world.at_ns < 3_000 * MS {
        world.step(&mut usher, 10 * MS);
        let cores: Vec<usize> = (1..=4).map(|id| world.mask(id).len()).collect();
        if let Some(at) = cores.iter().position(|&cores| cores == 30) {
            assert_eq!(
                cores.iter().sum::<usize>(),
                48,
                "no core is idle: {cores:?}"
            );
            if wide.last() != Some(&at) {
                wide.push(at);
            }
        }
    }
    assert_eq!(wide, [0, 1, 2, 3], "each in turn, once");
    world.run(&mut usher, 10.0);
    let (got, least) = (antt_of(&world, &speeds, 48.0), least_antt(&speeds, 8, 6));
    assert!(
        got <= least * 1.02,
        "ANTT {got:.3}, least possible {least:.3}"
    );
}

/// With soft seats, the measured rate of a program on its seat would include its use of borrowed
/// CPUs.
#[test]
fn seats_are_not_soft_during_measurements() {
    let topology = paper_machine();
    let speeds = [medium, poor, perfect, poor];
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    for (i, &speed) in speeds.iter().enumerate() {
        world.arrive(truth(i as u64 + 1, speed, 48.0));
    }
    let mut measured = 0;
    while world.at_ns < 3_000 * MS {
        world.step(&mut usher, 10 * MS);
        let (_, decision) = world.log.last().unwrap();
        // A wide seat of 30 cores: the program's own 12 cores, and half of the 36 cores of the
        // other programs.
        if (1..=4).any(|id| world.mask(id).len() == 30) {
            measured += 1;
            assert_eq!(decision.soft_seats, Some(false), "at {} ns", world.at_ns);
        }
    }
    assert!(measured > 0, "nobody was measured");
    world.run(&mut usher, 20.0);
    let (_, decision) = world.log.last().unwrap();
    assert_eq!(decision.soft_seats, Some(true));
}

#[test]
fn an_interrupted_survey_leaves_valid_seats() {
    // A program arrives, departs or loses its CPUs at each moment of the survey.
    for step in 0..40_u64 {
        let topology = paper_machine();
        let mut world = World::new(&topology);
        let mut usher = Usher::new(topology);
        for id in 1..=3 {
            world.arrive(truth(id, [medium, poor, perfect][id as usize - 1], 48.0));
        }
        while world.at_ns < step * 40 * MS {
            world.step(&mut usher, 10 * MS);
        }
        match step % 3 {
            0 => world.arrive(truth(4, perfect, 48.0)),
            1 => world.depart(3),
            _ => world.usable = CpuSet::range(0, 41),
        }
        let ids = match step % 3 {
            0 => 1..=4,
            1 => 1..=2,
            _ => 1..=3,
        };
        let until_ns = world.at_ns + 12_000 * MS;
        while world.at_ns < until_ns {
            world.step(&mut usher, 10 * MS);
            assert!(ids.clone().all(|id| !world.mask(id).is_empty()));
            let plan = world.log.iter().rev().find_map(|(_, d)| d.plan.as_ref());
            let own = plan.iter().flat_map(|plan| &plan.seats);
            let own: Vec<_> = own.filter(|seat| seat.mode == SeatMode::Seated).collect();
            let cores: usize = own.iter().map(|seat| seat.cpus.len()).sum();
            let all = own.iter().fold(CpuSet::new(), |all, s| all.or(&s.cpus));
            assert_eq!(all.len(), cores, "step {step}: seats are disjoint");
        }
        let explores = world.log.iter().rev().take(100);
        let logged = explores.flat_map(|(_, d)| &d.notes);
        let still = logged
            .filter(|note| note.text.contains("for a moment"))
            .count();
        assert_eq!(still, 0, "step {step}: it comes to an end");
    }
}

#[test]
fn a_program_with_a_profile_gives_no_cores_to_a_survey() {
    let topology = paper_machine();
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    world.arrive(profiled(truth(1, perfect, 48.0), 48));
    for id in 2..=3 {
        world.arrive(truth(id, perfect, 48.0));
    }
    let mut widest = 0;
    while world.at_ns < 3_000 * MS {
        world.step(&mut usher, 10 * MS);
        let seat = world.seat(1).map_or(48, |seat| seat.len());
        assert!(seat >= 12, "half of what it has been given");
        widest = widest.max(world.seat(2).map_or(0, |seat| seat.len()));
    }
    assert_eq!(widest, 18, "its own 12 and half of the other newcomer's");
}

#[test]
fn the_reported_plan_equals_the_seats() {
    // Seed 56 of the fuzzer: half of a seat was given up for a trial, and no plan contained that
    // half.
    let speeds: [fn(f64) -> f64; 4] = [medium, poor, perfect, bus_bound];
    for case in 0..512_usize {
        let topology = paper_machine();
        let all = topology.all_cpus();
        let mut world = World::new(&topology);
        let mut usher = Usher::new(topology);
        let mut plan = Plan::default();
        for id in 0..3 {
            let newcomer = truth(id as u64, speeds[case >> (2 * id) & 3], 48.0);
            world.arrive(match case >> (6 + id) & 1 {
                0 => newcomer,
                _ => profiled(newcomer, 48),
            });
        }
        for turn in 0..60 {
            world.step(&mut usher, 100 * MS);
            plan = world.log[turn].1.plan.clone().unwrap_or(plan);
            for seat in plan.seats.iter().filter(|_| !plan.abstains) {
                let borrowed = plan.loans.iter().filter(|l| l.borrower == seat.program);
                let cpus = borrowed.fold(seat.cpus.clone(), |cpus, l| cpus.or(&l.cpus));
                let real = world.seat(seat.program.0).unwrap_or(all.clone());
                assert_eq!(real, cpus, "case {case}, program {}", seat.program);
            }
        }
    }
}

#[test]
fn cpu_time_alone_causes_no_seats() {
    let topology = paper_machine();
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    for id in 1..=3 {
        world.arrive(TrueProgram {
            source: Some(ProgressSource::CpuTime),
            ..truth(id, poor, 48.0)
        });
    }
    world.run(&mut usher, 10.0);
    assert_eq!(world.actions(), []);
    let mut plans = world.log.iter().filter_map(|(_, d)| d.plan.as_ref());
    let unmeasured = Abstention::Unmeasured((1..=3).map(ProgramId).collect());
    assert_eq!(
        plans.next_back().unwrap().abstention,
        Some(unmeasured),
        "{:?}",
        world.log
    );
}

#[test]
fn an_untrusted_figure_causes_no_seats() {
    let topology = paper_machine();
    for policy in ["usher", "casas"] {
        let mut world = World::new(&topology);
        let mut policy = by_name(policy, &topology).unwrap();
        for id in 1..=2 {
            world.arrive(TrueProgram {
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
fn seats_and_sharing_are_compared_once_and_the_better_is_kept() {
    let topology = paper_machine();
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    world.arrive(truth(1, poor, 48.0));
    world.arrive(truth(2, perfect, 48.0));
    world.run(&mut usher, 20.0);
    let notes = |fragment: &str| {
        let notes = world.log.iter().flat_map(|(_, d)| &d.notes);
        notes.filter(|note| note.text.contains(fragment)).count()
    };
    assert_eq!(notes("all CPUs for a moment"), 1);
    let mut plans = world.log.iter().filter_map(|(_, d)| d.plan.as_ref());
    let last = plans.next_back().unwrap();
    let (seats, sharing) = (last.antt.unwrap(), last.antt_time_sharing.unwrap());
    assert_eq!(last.abstains, seats >= sharing, "{seats} {sharing}");
}

#[test]
fn a_new_phase_is_detected_and_replanned() {
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
        after > 24 && after != before,
        "the program that scales now had {before} cores and has {after}"
    );
}

#[test]
fn repetitions_alone_suffice_to_learn_a_curve() {
    let topology = machine(2, 1);
    let mut world = World::new(&topology);
    let mut usher = Usher::new(topology);
    for id in 1..=2 {
        world.arrive(TrueProgram {
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
fn more_programs_than_cores_use_partitions_where_better() {
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

#[test]
fn partitions_are_even_and_the_smallest_go_to_the_largest_losses() {
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
fn a_profile_of_other_arguments_needs_a_higher_gain() {
    let seats = |speeds: [fn(f64) -> f64; 2], profile_match| {
        let topology = paper_machine();
        let mut world = World::new(&topology);
        for (id, speed) in (1..).zip(speeds) {
            let mut known = profiled(truth(id, speed, 48.0), 48);
            known.program.profile_match = profile_match;
            world.arrive(known);
        }
        world.step(&mut Usher::new(topology), MS);
        (1..=2).filter(|&id| world.seat(id).is_some()).count()
    };
    // Two programs on half of the cores each have an NTT of 1.87, and 1.41, instead of 2.
    let nearly_perfect = |cores: f64| cores.powf(0.9);
    let root = |cores: f64| cores.sqrt();
    assert_eq!(seats([nearly_perfect; 2], ProfileMatch::Exact), 2);
    assert_eq!(seats([nearly_perfect; 2], ProfileMatch::OtherArguments), 0);
    assert_eq!(seats([root; 2], ProfileMatch::OtherArguments), 2);
}

#[test]
fn usual_waits_raise_the_prediction_of_time_sharing_up_to_the_load() {
    // The first program uses one of four CPUs and the second all, so that the load is 1.25. The
    // kernel gives one and three CPUs: NTTs of 1 and 4/3 without usual waits.
    let topology = machine(2, 2);
    for (slowdown, ntt) in [(1.0, 1.0), (1.2, 1.2), (3.0, 1.25)] {
        let mut world = World::new(&topology);
        for (id, cpus) in [(1, 1.0), (2, 4.0)] {
            let mut program = profiled(truth(id, perfect, cpus), 4);
            let busy = |point: &CurvePoint| CurvePoint {
                busy_cpus: Some(point.cores.min(cpus)),
                rate: point.cores.min(cpus),
                ..*point
            };
            let points = program.program.profile.iter().flat_map(Curve::points);
            program.program.profile = Curve::new(points.map(busy).collect()).ok();
            program.program.variation = Some(VariationBudget {
                seconds: 0.0,
                usual_seconds: 10.0,
                usual_cpus: cpus,
                usual_slowdown: if id == 1 { slowdown } else { 1.0 },
            });
            world.arrive(program);
        }
        world.step(&mut Usher::new(topology.clone()), MS);
        let plan = world.log[0].1.plan.as_ref().unwrap();
        let antt = plan.antt_time_sharing.unwrap();
        let expected = f64::midpoint(ntt, 4.0 / 3.0);
        assert!(
            (antt - expected).abs() < 1e-6,
            "{slowdown}: {antt}, not {expected}"
        );
    }
}
