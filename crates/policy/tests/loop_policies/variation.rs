// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of deliberate variation: which runs get narrower seats, and when the variation ends.

use proptest::prelude::*;
use usher_model::*;
use usher_policy::Usher;

use crate::world::{TrueProgram, World, machine, truth};
use crate::{MS, shapes::perfect};

/// A program without a counter of progress. Its profile has a point on all `cores` cores, and it
/// may lose `seconds` of its usual 10 s.
fn known(id: u64, cores: f64, seconds: f64) -> TrueProgram {
    let mut program = truth(id, perfect, cores);
    program.source = Some(ProgressSource::CpuTime);
    program.program.profile = Curve::new(vec![point(cores, 0.08)]).ok();
    program.program.variation = Some(VariationBudget {
        seconds,
        usual_seconds: 10.0,
        usual_cpus: cores,
        usual_slowdown: 1.0,
    });
    program
}

fn point(cores: f64, relative_error: f64) -> CurvePoint {
    CurvePoint {
        cores,
        rate: cores,
        relative_error,
        busy_cpus: Some(cores),
    }
}

/// Returns whether the last plan is a variation.
fn is_varied(world: &World) -> bool {
    let plans = world.log.iter().rev();
    let mut plans = plans.filter_map(|(_, decision)| decision.plan.as_ref());
    plans.next().is_some_and(|plan| !plan.varied.is_empty())
}

#[test]
fn programs_that_lack_a_point_get_disjoint_equal_seats_for_the_run() {
    let topology = machine(1, 2);
    let mut world = World::new(&topology);
    let mut policy = Usher::new(topology);
    world.arrive(known(1, 2.0, 2.5));
    world.arrive(known(2, 2.0, 2.5));
    world.run(&mut policy, 20.0);
    assert!(is_varied(&world));
    let seats = [1, 2].map(|id| world.seat(id).unwrap());
    assert_eq!(seats.each_ref().map(CpuSet::len), [1, 1]);
    assert!(!seats[0].intersects(&seats[1]));
    world.depart(2);
    world.run(&mut policy, 1.0);
    assert_eq!(
        world.seat(1),
        None,
        "alone, half of the machine would cost too much"
    );
}

#[test]
fn the_variation_ends_when_the_budget_is_used_up() {
    // A program with one thread beside a program with two threads: the second gets 4/3 CPUs from
    // the kernel, and loses a quarter of the time on one CPU.
    let topology = machine(1, 2);
    let mut world = World::new(&topology);
    let mut policy = Usher::new(topology);
    let mut single = known(1, 2.0, 2.5);
    single.demand = 1.0;
    let usual = single.program.variation.as_mut().unwrap();
    usual.usual_cpus = 1.0;
    world.arrive(single);
    world.arrive(known(2, 2.0, 2.5));
    world.run(&mut policy, 9.8);
    assert!(is_varied(&world));
    world.run(&mut policy, 0.4);
    assert!(!is_varied(&world));
    assert_eq!([world.seat(1), world.seat(2)], [None, None]);
    world.run(&mut policy, 30.0);
    assert!(!is_varied(&world), "the budget of this run is used up");
}

/// Returns two programs on `cores` cores with `seconds` of budget each; the first uses `narrow`
/// CPUs, the second all.
fn unequal(cores: f64, narrow: f64, seconds: f64) -> [TrueProgram; 2] {
    let mut first = known(1, cores, seconds);
    first.demand = narrow;
    first.program.variation.as_mut().unwrap().usual_cpus = narrow;
    [first, known(2, cores, seconds)]
}

#[test]
fn seats_are_near_the_kernels_shares_if_equal_seats_cost_too_much() {
    // The kernel would give 1.6 and 6.4 CPUs. Four CPUs cost the second program 37.5 % of the time,
    // and 2.25 s in 60 % of its usual run. Six CPUs cost at most 6.25 %.
    let topology = machine(4, 2);
    for (seconds, sizes) in [(2.3, Some([4, 4])), (2.2, Some([2, 6])), (0.3, None)] {
        let mut world = World::new(&topology);
        let mut policy = Usher::new(topology.clone());
        for program in unequal(8.0, 2.0, seconds) {
            world.arrive(program);
        }
        world.run(&mut policy, 2.0);
        assert_eq!(is_varied(&world), sizes.is_some(), "{seconds} s");
        let seats = [1, 2].map(|id| world.seat(id));
        let lengths = seats.each_ref().map(|seat| seat.as_ref().map(CpuSet::len));
        assert_eq!(lengths, sizes.map_or([None; 2], |sizes| sizes.map(Some)));
        if let [Some(first), Some(second)] = &seats {
            assert!(!first.intersects(second));
        }
    }
}

#[test]
fn seats_near_the_kernels_shares_stay_for_the_run() {
    let topology = machine(4, 2);
    let mut world = World::new(&topology);
    let mut policy = Usher::new(topology);
    for program in unequal(8.0, 2.0, 2.2) {
        world.arrive(program);
    }
    world.run(&mut policy, 1.0);
    let seats = [1, 2].map(|id| world.seat(id).unwrap());
    world.run(&mut policy, 20.0);
    assert!(is_varied(&world), "2.2 s last for 35 s");
    assert_eq!([1, 2].map(|id| world.seat(id).unwrap()), seats);
}

#[test]
fn a_short_budget_starts_no_variation() {
    let topology = machine(1, 2);
    let mut world = World::new(&topology);
    let mut policy = Usher::new(topology);
    // Half of the time on one CPU is lost, so that 60 % of 10 s need 3 s.
    world.arrive(known(1, 2.0, 2.9));
    world.run(&mut policy, 2.0);
    assert!(!is_varied(&world));
    world.depart(1);
    world.arrive(known(2, 2.0, 3.1));
    world.run(&mut policy, 2.0);
    assert!(is_varied(&world));
    assert_eq!(world.seat(2).map(|seat| seat.len()), Some(1));
}

#[test]
fn exact_points_and_missing_ordinary_runs_need_no_variation() {
    let topology = machine(1, 2);
    for (points, varies) in [
        (vec![point(1.0, 0.10), point(2.0, 0.05)], false),
        (vec![point(1.0, 0.11), point(2.0, 0.05)], true),
        (vec![point(1.0, 0.30)], false),
        (vec![], false),
    ] {
        let mut world = World::new(&topology);
        for id in 1..3 {
            let mut program = known(id, 2.0, 2.5);
            program.program.profile = Curve::new(points.clone()).ok();
            world.arrive(program);
        }
        world.run(&mut Usher::new(topology.clone()), 2.0);
        assert_eq!(is_varied(&world), varies, "{points:?}");
    }
}

/// A property of a program that forbids variation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Obstacle {
    None,
    NoBudget,
    SpentBudget,
    Weight,
    Bound,
    Pinned,
    Quota,
    Fixed,
    Attached,
    ActiveWait,
    Spinners,
}

impl Obstacle {
    const ALL: [Self; 11] = [
        Self::None,
        Self::NoBudget,
        Self::SpentBudget,
        Self::Weight,
        Self::Bound,
        Self::Pinned,
        Self::Quota,
        Self::Fixed,
        Self::Attached,
        Self::ActiveWait,
        Self::Spinners,
    ];

    fn apply(self, truth: &mut TrueProgram) {
        let program = &mut truth.program;
        let one: CpuSet = "0".parse().unwrap();
        match self {
            Self::None => {}
            Self::NoBudget => program.variation = None,
            Self::SpentBudget => program.variation.as_mut().unwrap().seconds = 0.0,
            Self::Weight => program.weight = 2.0,
            Self::Bound => program.bound_to = Some(one),
            Self::Pinned => program.pinned_to = Some(one),
            Self::Quota => program.cpu_quota = Some(1.5),
            Self::Fixed => program.cores = Some(1),
            Self::Attached => program.ran_before = true,
            Self::ActiveWait => {
                program.active_wait = Some(true);
                truth.active_wait = Some(true);
            }
            Self::Spinners => program.spinners = 2,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No program is varied beside a program that forbids it. The narrowed time never loses more
    /// than the budget plus one interval between decisions, and no variation follows. Every seat has
    /// the documented part of the CPUs that the kernel would give to the program.
    #[test]
    fn variation_respects_every_program_and_its_budget(
        cores in 1usize..5,
        domains in 1usize..4,
        programs in prop::collection::vec((0usize..11, 0.1f64..6.0, 0.2f64..1.0), 1..5),
    ) {
        let topology = machine(domains, cores);
        let all = (domains * cores) as f64;
        let mut world = World::new(&topology);
        let mut policy = Usher::new(topology.clone());
        let mut forbidden = false;
        let mut demands = Vec::new();
        for (id, &(obstacle, seconds, part)) in (1..).zip(&programs) {
            let mut program = known(id, all, seconds);
            let demand = (part * all).max(1.0);
            program.demand = demand;
            program.program.variation.as_mut().unwrap().usual_cpus = demand;
            let obstacle = Obstacle::ALL[obstacle];
            obstacle.apply(&mut program);
            let weight = obstacle == Obstacle::Weight && programs.len() == 1;
            forbidden |= obstacle != Obstacle::None && !weight;
            demands.push(demand);
            world.arrive(program);
        }
        let share = (all / demands.iter().sum::<f64>()).min(1.0);
        let mut lost = vec![0.0; programs.len()];
        let mut spent = false;
        let mut varied = false;
        while world.at_ns < 40_000 * MS {
            let passed_ns = world.step(&mut policy, 100 * MS);
            let plan = world.log.last().and_then(|(_, decision)| decision.plan.clone());
            varied = plan.map_or(varied, |plan| !plan.varied.is_empty());
            prop_assert!(!(varied && (forbidden || spent)));
            if !varied {
                continue;
            }
            let mut used = CpuSet::new();
            for (at, id) in (1..=programs.len() as u64).enumerate() {
                let seat = world.mask(id);
                prop_assert!(!seat.intersects(&used), "seats overlap");
                used = used.or(&seat);
                // The oracle of the loss: CPUs that the kernel would give, against the seat.
                let usual = demands[at] * share;
                let rate = (1.0 - seat.len() as f64 / usual).max(0.0);
                lost[at] += rate * passed_ns as f64 * 1e-9;
                let budget = programs[at].1;
                prop_assert!(lost[at] <= budget + 0.11, "{lost:?}");
                spent |= lost[at] > budget + 0.11 * rate;
                // The budget must last for 60 % of the usual 10 s.
                let least = (1.0 - budget / 6.0) * usual;
                prop_assert!(seat.len() as f64 >= least - 1e-6, "{seat} of at least {least} CPUs");
            }
        }
    }
}
