// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of background work on the CPUs: the cost of waits, and cases that the paper's test cannot
//! detect.

use usher_model::*;

use crate::compare::compare;
use crate::world::*;

/// Foreground threads that alternate between running and pausing, beside background threads.
fn beside(
    cpus: u32,
    threads: u32,
    leak: f64,
    on_off_ms: (u64, u64),
    depth: u32,
    by: Regulation,
) -> World {
    let mut world = World::new(cpus);
    world.leak = leak;
    let step = Step {
        work: on_off_ms.0,
        pause_ns: on_off_ms.1 * MS,
    };
    let mut foreground = Foreground::new(Resource::Cpu, vec![step]);
    foreground.threads = threads;
    world.foreground.push(foreground);
    world.arrive(1, by, Resource::Cpu, depth);
    world
}

/// An observation with the figures `metering`. A program arrives with the first observation.
fn observation_of(at_ns: u64, metering: &Metering) -> Observation {
    let arrives = Event::Arrived(Box::new(program(1, Some(Regulation::Usher))));
    Observation {
        at_ns,
        usable: CpuSet::range(0, metering.cpus - 1),
        events: if at_ns == 0 { vec![arrives] } else { vec![] },
        failed: vec![],
        programs: vec![],
        metering: Some(metering.clone()),
    }
}

const ALWAYS: (u64, u64) = (1_000_000, 0);

#[test]
fn waits_reveal_one_thread_beside_48_that_the_papers_test_misses() {
    let make = |by| move || beside(48, 1, 0.3, ALWAYS, 48, by);
    let ours = compare(make(Regulation::Usher), 30 * S);
    assert!(ours.delay <= 0.015, "{ours:?}");
    assert!(ours.idle_used > 0.01, "{ours:?}");
    assert!(ours.stops_per_s <= 2.0, "{ours:?}");
    let eii = compare(make(Regulation::Eii), 30 * S);
    assert_eq!(eii.stops_per_s, 0.0, "its share is 98 %");
    assert!(eii.delay > 0.4, "{eii:?}");
}

#[test]
fn without_waits_nothing_is_stopped() {
    for (cpus, threads) in [(2, 1), (4, 3), (48, 1)] {
        let make = || beside(cpus, threads, 0.005, ALWAYS, cpus, Regulation::Usher);
        let came = compare(make, 30 * S);
        assert_eq!(came.stops_per_s, 0.0, "{came:?}");
        assert!(came.delay <= 0.01 && came.idle_used >= 0.99, "{came:?}");
    }
}

#[test]
fn background_work_uses_the_pauses_of_an_alternating_foreground() {
    let make = || beside(2, 2, 0.02, (1000, 1000), 2, Regulation::Usher);
    let came = compare(make, 60 * S);
    assert!(came.delay <= 0.012, "{came:?}");
    assert!(came.idle_used >= 0.9, "{came:?}");
}

#[test]
fn a_foreground_without_idle_cpus_is_not_disturbed() {
    let mut world = beside(2, 8, 0.1, ALWAYS, 2, Regulation::Usher);
    let mut policy = regulated(2);
    world.run(&mut policy, S);
    let stops = world.bg(1).stops;
    world.run(&mut policy, 9 * S);
    assert_eq!(
        (stops, world.bg(1).stops),
        (1, 1),
        "it waits by itself: no reason to try"
    );
    assert!(world.bg(1).frozen);
    world.foreground.clear();
    world.run(&mut policy, 100 * MS);
    assert!(
        !world.bg(1).frozen,
        "what waits there were has gone with it"
    );
}

#[test]
fn waits_beside_idle_cpus_are_not_charged() {
    // Eight threads, of which two may run at a time: threads wait while half of the CPUs are idle.
    let mut metering = no_metering(4);
    let mut policy = regulated(4);
    let mut frozen = 0;
    for index in 0..400u64 {
        let at_ns = index * 50 * MS;
        metering.cpu_read_ns = at_ns;
        metering.idle_ns = at_ns * 3 / 2;
        metering.foreground.cpu_ns = at_ns * 2;
        metering.foreground.wait_ns = at_ns * 6;
        let usage = metering.background.entry(ProgramId(1)).or_default();
        usage.cpu_ns = at_ns / 2;
        let observation = observation_of(at_ns, &metering);
        let decision = usher_policy::Policy::decide(&mut policy, &observation);
        let freezes = |a: &&Action| matches!(a, Action::Freeze { .. });
        frozen += decision.actions.iter().filter(freezes).count();
    }
    assert_eq!(frozen, 0);
}

#[test]
fn an_imbalance_stops_background_work_until_a_cpu_is_idle() {
    let mut metering = no_metering(4);
    let mut policy = regulated(4);
    let mut decide = |at_ms: u64, rq_imbalances: u64| {
        let at_ns = at_ms * MS;
        metering.cpu_read_ns = at_ns;
        metering.rq_imbalances = rq_imbalances;
        metering.idle_ns = at_ns;
        metering.foreground.cpu_ns = at_ns;
        let usage = metering.background.entry(ProgramId(1)).or_default();
        usage.cpu_ns = at_ns.min(60 * MS) * 2;
        let observation = observation_of(at_ns, &metering);
        let decision = usher_policy::Policy::decide(&mut policy, &observation);
        let has = |wanted: fn(&Action) -> bool| decision.actions.iter().any(wanted);
        let stops = has(|action| matches!(action, Action::Freeze { .. }));
        let goes_on = has(|action| matches!(action, Action::Thaw { .. }));
        (stops, goes_on)
    };
    // Imbalances from before the program arrived do not count.
    for at_ms in [0, 20, 40] {
        assert!(!decide(at_ms, 3).0);
    }
    assert!(decide(60, 4).0);
    assert!(decide(80, 4).1, "a CPU was idle since");
}

#[test]
fn an_idle_cpu_is_used_without_reading_cpu_times() {
    let idle_cpus = |since_ms: Option<u64>, cpus: u32| {
        Some(IdleCpus {
            since_ns: since_ms.map(|ms| ms * MS),
            cpus,
            background_only_since_ns: None,
        })
    };
    let mut metering = no_metering(2);
    let mut policy = regulated(2);
    let mut decide = |at_ms: u64, rq_imbalances: u64, idle_cpus: Option<IdleCpus>| {
        // CPU times are read until 20 ms, and not again.
        let read_ns = at_ms.min(20) * MS;
        metering.cpu_read_ns = read_ns;
        metering.rq_imbalances = rq_imbalances;
        metering.idle_cpus = idle_cpus;
        let usage = metering.background.entry(ProgramId(1)).or_default();
        usage.cpu_ns = read_ns * 2;
        let observation = observation_of(at_ms * MS, &metering);
        let decision = usher_policy::Policy::decide(&mut policy, &observation);
        let goes_on = |action: &Action| matches!(action, Action::Thaw { .. });
        let wake_ms = decision.wake_after_ns.map(|ns| ns / MS);
        (decision.actions.iter().any(goes_on), wake_ms)
    };
    decide(0, 0, idle_cpus(None, 0));
    decide(20, 1, idle_cpus(None, 0));
    assert_eq!(
        decide(40, 1, idle_cpus(None, 0)),
        (false, Some(100)),
        "all busy"
    );
    assert_eq!(
        decide(50, 1, idle_cpus(Some(45), 1)),
        (false, Some(20)),
        "too short"
    );
    assert!(decide(61, 1, idle_cpus(Some(45), 1)).0);
}

#[test]
fn a_debt_does_not_stop_work_on_cpus_without_foreground() {
    for watched in [true, false] {
        let mut metering = no_metering(2);
        let mut policy = regulated(2);
        let mut goes_on_ms = None;
        for at_ms in (0..2000).step_by(10) {
            let at_ns = at_ms * MS;
            // Three foreground threads on two CPUs: one thread waits for background work. All
            // threads end after a second.
            let busy_ns = at_ns.min(S);
            metering.cpu_read_ns = at_ns - at_ns % (20 * MS);
            metering.idle_ns = metering.cpu_read_ns.saturating_sub(S) * 2;
            metering.foreground.cpu_ns = metering.cpu_read_ns.min(S) * 3 / 2;
            metering.foreground.wait_ns = metering.cpu_read_ns.min(S) * 3 / 2;
            metering.idle_cpus = watched.then_some(IdleCpus {
                since_ns: (busy_ns < at_ns).then_some(S),
                cpus: if busy_ns < at_ns { 2 } else { 0 },
                background_only_since_ns: (busy_ns < at_ns).then_some(S),
            });
            let usage = metering.background.entry(ProgramId(1)).or_default();
            usage.cpu_ns = metering.cpu_read_ns.min(100 * MS) / 2;
            let decision =
                usher_policy::Policy::decide(&mut policy, &observation_of(at_ns, &metering));
            let goes_on = |action: &Action| matches!(action, Action::Thaw { .. });
            if at_ns > S && decision.actions.iter().any(goes_on) {
                goes_on_ms.get_or_insert(at_ms - 1000);
            }
        }
        let goes_on_ms = goes_on_ms.unwrap();
        assert!(
            (60..=90).contains(&goes_on_ms),
            "{watched}: {goes_on_ms} ms"
        );
    }
}

#[test]
fn a_departed_foreground_causes_no_stop() {
    for gone in [true, false] {
        let mut metering = no_metering(2);
        let mut policy = regulated(2);
        let mut stops = 0;
        for at_ms in [0, 500, 520] {
            let at_ns = at_ms * MS;
            // CPU times are read half a second apart. The foreground ended 20 ms before the second
            // reading.
            metering.cpu_read_ns = at_ns.min(500 * MS);
            metering.foreground.cpu_ns = metering.cpu_read_ns;
            metering.foreground.wait_ns = metering.cpu_read_ns;
            metering.idle_cpus = Some(IdleCpus {
                since_ns: None,
                cpus: 0,
                background_only_since_ns: (gone && at_ms > 0).then_some(480 * MS),
            });
            let usage = metering.background.entry(ProgramId(1)).or_default();
            usage.cpu_ns = metering.cpu_read_ns;
            let decision =
                usher_policy::Policy::decide(&mut policy, &observation_of(at_ns, &metering));
            let freezes = |action: &&Action| matches!(action, Action::Freeze { .. });
            stops += decision.actions.iter().filter(freezes).count();
        }
        assert_eq!(stops, usize::from(!gone));
    }
}
