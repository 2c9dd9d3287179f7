// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the selection of an idle CPU by the whole scheduler, on its host build. The selected
//! CPU is compared with the result of a search over all CPUs, for random masks and random busy CPUs
//! on machines of several shapes.

mod common;

use common::rig::{Rig, Shape, State, WHY_IDLE_CORE, WHY_IDLE_THREAD, has, set};
use common::{MS, SETTINGS};
use proptest::prelude::*;
use usher_rules::sched::{HostSettings, HostVariant, Task};
use usher_rules::select_cpu::CpuWords;

const SHAPES: [Shape; 6] = [
    Shape(1, 1, 4, 1),
    Shape(1, 2, 3, 2),
    Shape(2, 1, 2, 2),
    Shape(3, 2, 2, 2),
    Shape(2, 2, 10, 2),
    Shape(2, 3, 25, 1),
];

fn rig(shape: Shape, smt: bool, has_node_masks: bool) -> Rig {
    let settings = HostSettings {
        smt: smt.into(),
        ..SETTINGS
    };
    let nodes = if has_node_masks {
        (1 << shape.0) - 1
    } else {
        0
    };
    let variant = HostVariant {
        nodes,
        ..HostVariant::default()
    };
    Rig::with(shape, settings, variant)
}

/// Returns the best idle CPU of `cpus`. With `smt`, CPUs of idle cores come first; among equal
/// CPUs, the nearest comes first, and then the lowest number.
fn best(rig: &Rig, smt: bool, cpus: &CpuWords, last: usize) -> Option<usize> {
    let idle = rig.all().filter(|&cpu| has(cpus, cpu) && rig.is_idle(cpu));
    idle.min_by_key(|&cpu| {
        let shares = smt && !rig.is_core_idle(cpu);
        (shares, rig.shape.distance(cpu, last), cpu)
    })
}

/// Returns the set of CPUs that the bits of random numbers represent.
fn chosen(numbers: &[u64; 3], cpus: usize) -> CpuWords {
    set((0..cpus).filter(|cpu| numbers[cpu / 64] >> (cpu % 64) & 1 == 1))
}

/// Random sets of CPUs, often with few or with many CPUs.
fn any_cpus() -> impl Strategy<Value = [u64; 3]> {
    let both = |merge: fn(u64, u64) -> u64| {
        (any::<[u64; 3]>(), any::<[u64; 3]>())
            .prop_map(move |(a, b)| [0, 1, 2].map(|at| merge(a[at], b[at])))
    };
    prop_oneof![
        both(|a, b| a & b),
        both(|a, b| a | b),
        any::<[u64; 3]>(),
        Just([u64::MAX; 3])
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn woken_thread_runs_on_the_best_idle_cpu(
        at in 0..SHAPES.len(),
        smt: bool,
        has_node_masks: bool,
        busy in any_cpus(),
        allowed in any_cpus(),
        last in any::<prop::sample::Index>(),
        lost in 0..3_u32,
    ) {
        let shape = SHAPES[at];
        let mut rig = rig(shape, smt, has_node_masks);
        let busy = chosen(&busy, shape.cpus());
        for cpu in rig.all().filter(|&cpu| has(&busy, cpu)) {
            rig.start(1, [cpu]);
            prop_assert!(!rig.is_idle(cpu));
        }
        let last = last.index(shape.cpus());
        let mut cpus = chosen(&allowed, shape.cpus());
        // The kernel calls select_cpu only for threads that may migrate.
        cpus[0] |= 3;
        let task = Task { mm: 2 << 12, cpu: last as u32, ran_ns: 1, cpus, ..Task::default() };
        let thread = rig.create(task);
        // The first claims of the thread fail, as if other threads had claimed the best CPUs first.
        let mut others = cpus;
        let mut due = best(&rig, smt, &others, last);
        let is_shared = |rig: &Rig, cpu| !rig.is_core_idle(cpu);
        if shape.3 == 1 {
            for _ in 0..lost {
                let Some(cpu) = due else { break };
                others[cpu / 64] &= !(1 << (cpu % 64));
                due = best(&rig, smt, &others, last);
            }
            rig.sched.lose_claims(lost);
        }
        let why = due.map(|cpu| match is_shared(&rig, cpu) {
            true => WHY_IDLE_THREAD,
            false => WHY_IDLE_CORE,
        });
        let before = rig.tally();
        rig.wake(thread);
        rig.sched.lose_claims(0);
        let after = rig.tally();
        // If all suitable CPUs were lost, the state of the thread is not checked, because in
        // reality other threads would run on these CPUs.
        if due.is_some() || best(&rig, smt, &cpus, last).is_none() && others == cpus {
            prop_assert_eq!(rig.state(thread), due.map_or(State::Waiting, State::On));
        }
        if let Some(why) = why {
            prop_assert_eq!(rig.task(thread).why, why);
            let cores = u64::from(why == WHY_IDLE_CORE);
            prop_assert_eq!(after.idle_cores - before.idle_cores, cores);
            prop_assert_eq!(after.idle_threads - before.idle_threads, 1 - cores);
        }
        prop_assert_eq!(after.borrowed, 0);
    }

    /// A preempted thread moves to the best idle CPU that it may run on.
    #[test]
    fn preempted_thread_moves_to_an_idle_cpu(
        at in 0..SHAPES.len(),
        has_node_masks: bool,
        busy in any_cpus(),
        allowed in any_cpus(),
        first in any::<prop::sample::Index>(),
    ) {
        let shape = SHAPES[at];
        let mut rig = rig(shape, true, has_node_masks);
        let first = first.index(shape.cpus());
        let thread = rig.start(2, [first]);
        prop_assert_eq!(rig.state(thread), State::On(first));
        let busy = chosen(&busy, shape.cpus());
        for cpu in rig.all().filter(|&cpu| cpu != first && has(&busy, cpu)) {
            rig.start(1, [cpu]);
        }
        let mut cpus = chosen(&allowed, shape.cpus());
        cpus[first / 64] |= 1 << (first % 64);
        cpus[0] |= 3;
        rig.threads[thread].cpus = cpus;
        rig.sched.set_cpus(rig.threads[thread].id, &cpus);
        // Another thread, which may run only on the CPU `first`, takes that CPU.
        let other = rig.add(3, [first]);
        let due = best(&rig, true, &cpus, first);
        let before = rig.tally();
        rig.wake(other);
        rig.pass(40 * MS);
        let on = match rig.state(thread) {
            State::On(cpu) => Some(cpu),
            _ => None,
        };
        match due {
            Some(due) => {
                prop_assert_eq!(on, Some(due));
                prop_assert!(rig.tally().moved > before.moved);
            }
            None => prop_assert!(on.is_none() || on == Some(first)),
        }
    }
}

/// During a suspend, CPUs become idle without a call of `update_idle`. The next tick finds them.
#[test]
fn tick_finds_cpus_that_became_idle_in_bypass() {
    for cpus in [4, 100] {
        let mut rig = rig(Shape(1, 1, cpus, 1), true, false);
        let busy: Vec<usize> = rig.all().map(|cpu| rig.start(1, [cpu])).collect();
        rig.sched.set_bypassed(true);
        rig.stop(busy[cpus - 1]);
        rig.sched.set_bypassed(false);
        let all = rig.all();
        let before = rig.start(2, all.clone());
        assert_eq!(rig.state(before), State::Waiting, "the CPU counts as busy");
        rig.stop(before);
        rig.tick(0);
        let after = rig.start(2, all);
        assert_eq!(rig.state(after), State::On(cpus - 1));
    }
}

/// A waking thread finds the only idle CPU even if it is in another node and in another word of a
/// CPU set.
#[test]
fn only_idle_cpu_is_found_from_anywhere() {
    for (shape, cpus) in [
        (Shape(2, 3, 25, 1), [0, 63, 64, 149]),
        (Shape(4, 1, 3, 2), [0, 7, 13, 23]),
    ] {
        for has_node_masks in [false, true] {
            let mut rig = rig(shape, true, has_node_masks);
            let busy: Vec<usize> = rig.all().map(|cpu| rig.start(1, [cpu])).collect();
            for idle in cpus {
                rig.stop(busy[idle]);
                for last in cpus {
                    let task = Task {
                        cpu: last as u32,
                        ran_ns: 1,
                        cpus: set(rig.all()),
                        ..Task::default()
                    };
                    let thread = rig.create(task);
                    rig.wake(thread);
                    assert_eq!(rig.state(thread), State::On(idle), "{shape:?} from {last}");
                    rig.stop(thread);
                }
                rig.wake(busy[idle]);
            }
        }
    }
}
