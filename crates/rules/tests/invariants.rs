// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of invariants after random sequences of events, on the host build of the scheduler:
//!
//! - The counts of waiting threads are right.
//! - No CPU is idle while a thread waits that may run on it.
//! - No clock moves backwards.
//! - After a tick, no thread shares a core although it may run on an idle core.

mod common;

use common::rig::{Rig, Shape, State, WHY_ONLY_HERE, has, set};
use common::{MS, SETTINGS};
use proptest::prelude::*;
use usher_rules::sched::{HostSettings, HostVariant, Task};
use usher_rules::select_cpu::CpuWords;

const SHAPES: [Shape; 6] = [
    Shape(1, 1, 1, 1),
    Shape(1, 1, 3, 1),
    Shape(1, 1, 3, 2),
    Shape(1, 2, 2, 2),
    Shape(2, 2, 1, 2),
    Shape(1, 3, 2, 1),
];

#[derive(Debug, Clone, Copy)]
enum Event {
    Create { mm: u64, cpus: u64, weight: u32 },
    WakeOrStop(prop::sample::Index),
    Pass(u64),
    Yield(prop::sample::Index),
    SetCpus(prop::sample::Index, u64),
    Tick,
}

fn event() -> impl Strategy<Value = Event> {
    let any_thread = || any::<prop::sample::Index>();
    // A third of the masks contains all CPUs, and a third contains one CPU.
    let cpus = || {
        prop_oneof![
            Just(u64::MAX),
            any::<u64>(),
            (0..12_u32).prop_map(|cpu| 1 << cpu)
        ]
    };
    let weight = prop_oneof![Just(100_u32), Just(300), Just(33)];
    prop_oneof![
        3 => (1..6_u64, cpus(), weight)
            .prop_map(|(mm, cpus, weight)| Event::Create { mm, cpus, weight }),
        8 => any_thread().prop_map(Event::WakeOrStop),
        4 => (0..9 * MS).prop_map(Event::Pass),
        1 => any_thread().prop_map(Event::Yield),
        1 => (any_thread(), cpus()).prop_map(|(thread, cpus)| Event::SetCpus(thread, cpus)),
        1 => Just(Event::Tick),
    ]
}

fn mask(shape: Shape, bits: u64) -> CpuWords {
    let words = set((0..shape.cpus()).filter(|cpu| bits >> cpu & 1 == 1));
    if words[0] == 0 { set([0]) } else { words }
}

fn apply(rig: &mut Rig, event: Event) {
    let shape = rig.shape;
    match event {
        Event::Create { mm, cpus, weight } => {
            let cpus = mask(shape, cpus);
            let cpu = cpus[0].trailing_zeros();
            let task = Task {
                mm: mm << 12,
                cpu,
                ran_ns: 1,
                weight,
                cpus,
                ..Task::default()
            };
            let thread = rig.create(task);
            rig.wake(thread);
        }
        Event::WakeOrStop(index) if !rig.threads.is_empty() => {
            let thread = index.index(rig.threads.len());
            match rig.state(thread) {
                State::Asleep => rig.wake(thread),
                _ => rig.stop(thread),
            }
        }
        Event::Pass(ns) => rig.pass(ns),
        Event::Yield(index) => {
            let cpu = index.index(shape.cpus());
            rig.sched.yield_now(cpu);
            rig.settle();
        }
        Event::SetCpus(index, cpus) if !rig.threads.is_empty() => {
            let thread = index.index(rig.threads.len());
            // The mask of a running thread is left unchanged, because the thread would stay on its
            // CPU.
            if matches!(rig.state(thread), State::On(_)) {
                return;
            }
            rig.threads[thread].cpus = mask(shape, cpus);
            let cpus = rig.threads[thread].cpus;
            rig.sched.set_cpus(rig.threads[thread].id, &cpus);
            rig.settle();
        }
        Event::Tick => (0..shape.cpus()).for_each(|cpu| rig.tick(cpu)),
        _ => {}
    }
}

/// Returns a running thread that shares its core although it may run on an idle core, and a CPU of
/// the idle core.
fn shares_in_vain(rig: &Rig) -> Option<(usize, usize)> {
    let cores = |cpu: &usize| rig.is_core_idle(*cpu);
    rig.threads.iter().enumerate().find_map(|(number, thread)| {
        let State::On(cpu) = thread.state else {
            return None;
        };
        let others = rig.shape.core(cpu).filter(|&other| !rig.is_idle(other));
        let is_shared = others.count() > 1;
        let idle = rig
            .all()
            .filter(cores)
            .find(|&other| has(&thread.cpus, other));
        idle.filter(|_| is_shared).map(|idle| (number, idle))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn counts_are_right_and_no_cpu_idles_in_vain(
        at in 0..SHAPES.len(),
        smt: bool,
        aggregate: bool,
        has_node_masks: bool,
        ticks: bool,
        events in proptest::collection::vec(event(), 1..80),
    ) {
        let shape = SHAPES[at];
        let settings = HostSettings { smt: smt.into(), aggregate: aggregate.into(), ..SETTINGS };
        let nodes = if has_node_masks { (1 << shape.0) - 1 } else { 0 };
        let variant = HostVariant { nodes, ..HostVariant::default() };
        let mut rig = Rig::with(shape, settings, variant);
        let llcs = shape.0 * shape.1;
        let mut clocks = vec![0_u64; llcs];
        for &event in &events {
            apply(&mut rig, event);
            rig.check(false);
            for (llc, before) in clocks.iter_mut().enumerate() {
                let clock = rig.sched.llc(llc).clock;
                prop_assert!(clock.wrapping_sub(*before) as i64 >= 0, "a clock moved backwards");
                *before = clock;
            }
            if smt && ticks {
                apply(&mut rig, Event::Tick);
                prop_assert_eq!(shares_in_vain(&rig), None);
            }
        }
        let tally = rig.tally();
        prop_assert_eq!(tally.switches, rig.began.len() as u64);
        prop_assert_eq!(tally.space_switches, space_switches(&rig, &events));
        let left = rig.threads.iter().enumerate().filter(|(number, thread)| {
            thread.state == State::Waiting && rig.task(*number).why != WHY_ONLY_HERE
        });
        prop_assert!(tally.queued + tally.soon >= left.count() as u64);
    }
}

/// Counts the switches in which a thread followed a thread of another address space on the same
/// CPU.
fn space_switches(rig: &Rig, events: &[Event]) -> u64 {
    let mms: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Create { mm, .. } => Some(*mm),
            _ => None,
        })
        .collect();
    let mut last = vec![0; rig.shape.cpus()];
    let mut switches = 0;
    for &(thread, cpu) in &rig.began {
        switches += u64::from(last[cpu] != mms[thread]);
        last[cpu] = mms[thread];
    }
    switches
}
