// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPUs: what waiting costs, and what the paper's test cannot see.

use usher_model::*;

use crate::compare::compare;
use crate::world::*;

/// So many foreground threads, on for that long and off for that long, beside
/// so many background threads.
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

/// A look at a machine with those figures, at whose first a program arrives.
fn a_look(at_ns: u64, metering: &Metering) -> Observation {
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
fn one_thread_beside_48_is_seen_by_its_waits_and_not_by_the_papers_test() {
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
fn where_the_kernel_does_its_part_nothing_is_stopped() {
    for (cpus, threads) in [(2, 1), (4, 3), (48, 1)] {
        let make = || beside(cpus, threads, 0.005, ALWAYS, cpus, Regulation::Usher);
        let came = compare(make, 30 * S);
        assert_eq!(came.stops_per_s, 0.0, "{came:?}");
        assert!(came.delay <= 0.01 && came.idle_used >= 0.99, "{came:?}");
    }
}

#[test]
fn who_comes_and_goes_each_second_leaves_the_pauses() {
    let make = || beside(2, 2, 0.02, (1000, 1000), 2, Regulation::Usher);
    let came = compare(make, 60 * S);
    assert!(came.delay <= 0.012, "{came:?}");
    assert!(came.idle_used >= 0.9, "{came:?}");
}

#[test]
fn a_foreground_that_leaves_nothing_is_left_alone() {
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
fn waits_beside_idle_cpus_are_nobodys_fault() {
    // Eight threads, of which two at a time may run: waits, and half is idle.
    let mut metering = no_metering(4);
    let mut policy = regulated(4);
    let mut frozen = 0;
    for look in 0..400u64 {
        let at_ns = look * 50 * MS;
        metering.cpu_read_ns = at_ns;
        metering.idle_ns = at_ns * 3 / 2;
        metering.foreground.cpu_ns = at_ns * 2;
        metering.foreground.wait_ns = at_ns * 6;
        let usage = metering.background.entry(ProgramId(1)).or_default();
        usage.cpu_ns = at_ns / 2;
        let observation = a_look(at_ns, &metering);
        let decision = usher_policy::Policy::decide(&mut policy, &observation);
        let freezes = |a: &&Action| matches!(a, Action::Freeze { .. });
        frozen += decision.actions.iter().filter(freezes).count();
    }
    assert_eq!(frozen, 0);
}

#[test]
fn background_work_makes_room_where_threads_crowd_until_a_cpu_is_idle() {
    let mut metering = no_metering(4);
    let mut policy = regulated(4);
    let mut look = |at_ms: u64, crowds: u64| {
        let at_ns = at_ms * MS;
        metering.cpu_read_ns = at_ns;
        metering.rq_imbalances = crowds;
        metering.idle_ns = at_ns;
        metering.foreground.cpu_ns = at_ns;
        let usage = metering.background.entry(ProgramId(1)).or_default();
        usage.cpu_ns = at_ns.min(60 * MS) * 2;
        let observation = a_look(at_ns, &metering);
        let decision = usher_policy::Policy::decide(&mut policy, &observation);
        let has = |wanted: fn(&Action) -> bool| decision.actions.iter().any(wanted);
        let stops = has(|action| matches!(action, Action::Freeze { .. }));
        let goes_on = has(|action| matches!(action, Action::Thaw { .. }));
        (stops, goes_on)
    };
    // Crowds of the time before it came are nobody's business.
    for at_ms in [0, 20, 40] {
        assert!(!look(at_ms, 3).0);
    }
    assert!(look(60, 4).0);
    assert!(look(80, 4).1, "a CPU was idle since");
}

#[test]
fn a_cpu_that_is_seen_idle_is_used_without_a_look_at_all_threads() {
    let vacancy = |since_ms: Option<u64>, cpus: u32| {
        Some(Vacancy {
            since_ns: since_ms.map(|ms| ms * MS),
            cpus,
            alone_ns: None,
        })
    };
    let mut metering = no_metering(2);
    let mut policy = regulated(2);
    let mut look = |at_ms: u64, crowds: u64, vacancy: Option<Vacancy>| {
        // CPU times are read until 20 ms, and not again.
        let read_ns = at_ms.min(20) * MS;
        metering.cpu_read_ns = read_ns;
        metering.rq_imbalances = crowds;
        metering.vacancy = vacancy;
        let usage = metering.background.entry(ProgramId(1)).or_default();
        usage.cpu_ns = read_ns * 2;
        let observation = a_look(at_ms * MS, &metering);
        let decision = usher_policy::Policy::decide(&mut policy, &observation);
        let goes_on = |action: &Action| matches!(action, Action::Thaw { .. });
        let wake_ms = decision.wake_after_ns.map(|ns| ns / MS);
        (decision.actions.iter().any(goes_on), wake_ms)
    };
    look(0, 0, vacancy(None, 0));
    look(20, 1, vacancy(None, 0));
    assert_eq!(
        look(40, 1, vacancy(None, 0)),
        (false, Some(100)),
        "all busy"
    );
    assert_eq!(
        look(50, 1, vacancy(Some(45), 1)),
        (false, Some(20)),
        "too short"
    );
    assert!(look(61, 1, vacancy(Some(45), 1)).0);
}

#[test]
fn a_debt_keeps_nobody_off_cpus_that_no_foreground_uses() {
    for watched in [true, false] {
        let mut metering = no_metering(2);
        let mut policy = regulated(2);
        let mut goes_on_ms = None;
        for at_ms in (0..2000).step_by(10) {
            let at_ns = at_ms * MS;
            // Three foreground threads on two CPUs, of which one waits for background
            // work, until they have ended after a second.
            let busy_ns = at_ns.min(S);
            metering.cpu_read_ns = at_ns - at_ns % (20 * MS);
            metering.idle_ns = metering.cpu_read_ns.saturating_sub(S) * 2;
            metering.foreground.cpu_ns = metering.cpu_read_ns.min(S) * 3 / 2;
            metering.foreground.wait_ns = metering.cpu_read_ns.min(S) * 3 / 2;
            metering.vacancy = watched.then_some(Vacancy {
                since_ns: (busy_ns < at_ns).then_some(S),
                cpus: if busy_ns < at_ns { 2 } else { 0 },
                alone_ns: (busy_ns < at_ns).then_some(S),
            });
            let usage = metering.background.entry(ProgramId(1)).or_default();
            usage.cpu_ns = metering.cpu_read_ns.min(100 * MS) / 2;
            let decision = usher_policy::Policy::decide(&mut policy, &a_look(at_ns, &metering));
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
fn nobody_is_stopped_for_the_sake_of_a_foreground_that_has_gone() {
    for gone in [true, false] {
        let mut metering = no_metering(2);
        let mut policy = regulated(2);
        let mut stops = 0;
        for at_ms in [0, 500, 520] {
            let at_ns = at_ms * MS;
            // Read half a second apart; the foreground ended 20 ms before the second.
            metering.cpu_read_ns = at_ns.min(500 * MS);
            metering.foreground.cpu_ns = metering.cpu_read_ns;
            metering.foreground.wait_ns = metering.cpu_read_ns;
            metering.vacancy = Some(Vacancy {
                since_ns: None,
                cpus: 0,
                alone_ns: (gone && at_ms > 0).then_some(480 * MS),
            });
            let usage = metering.background.entry(ProgramId(1)).or_default();
            usage.cpu_ns = metering.cpu_read_ns;
            let decision = usher_policy::Policy::decide(&mut policy, &a_look(at_ns, &metering));
            let freezes = |action: &&Action| matches!(action, Action::Freeze { .. });
            stops += decision.actions.iter().filter(freezes).count();
        }
        assert_eq!(stops, usize::from(!gone));
    }
}
