// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of disks and interfaces under `usher`: delay of the foreground and throughput of
//! background work.

use proptest::prelude::*;
use usher_model::*;

use crate::compare::compare;
use crate::world::*;

fn step(work: u64, pause_ms: u64) -> Step {
    Step {
        work,
        pause_ns: pause_ms * MS,
    }
}

/// One background program beside a foreground with these steps, on a device with this service time.
fn beside(resource: Resource, service_ns: u64, depth: u32, steps: &[Step]) -> World {
    let mut world = World::new(2).device(resource, service_ns);
    world
        .foreground
        .push(Foreground::new(resource, steps.to_vec()));
    world.arrive(1, Regulation::Usher, resource, depth);
    world
}

#[test]
fn background_work_gets_nine_tenths_of_one_second_pauses() {
    for (resource, service_ns, depth) in [
        (DISK, 200_000, 1),
        (DISK, 200_000, 8),
        (DISK, 8 * MS, 1),
        (LINK, 100_000, 50),
    ] {
        for seconds in [1, 2, 5] {
            let on = step(seconds * S / service_ns, seconds * 1000);
            let came = compare(|| beside(resource, service_ns, depth, &[on]), 40 * S);
            assert!(came.delay <= 0.01, "{resource:?} {service_ns} {came:?}");
            assert!(came.idle_used >= 0.9, "{resource:?} {service_ns} {came:?}");
            assert!(
                came.stops_per_s <= 1.1,
                "{resource:?} {service_ns} {came:?}"
            );
            assert!(
                came.samples_per_s <= 35.0,
                "{resource:?} {service_ns} {came:?}"
            );
        }
    }
}

#[test]
fn a_request_every_50_ms_is_hardly_delayed() {
    let came = compare(|| beside(DISK, 200_000, 8, &[step(1, 50)]), 60 * S);
    assert!(came.delay <= 0.01, "{came:?}");
    assert!(came.idle_used > 0.02, "a share is left: {came:?}");
    assert!(came.stops_per_s <= 5.0, "{came:?}");
}

#[test]
fn a_request_a_second_hardly_stops_background_work() {
    for (service_ns, share) in [(200_000, 0.95), (8 * MS, 0.88)] {
        let came = compare(|| beside(DISK, service_ns, 1, &[step(1, 1000)]), 60 * S);
        assert!(came.delay <= 0.011, "{came:?}");
        assert!(came.idle_used >= share, "{came:?}");
    }
}

/// The number of packets that sockets still send is known only afterwards.
#[test]
fn queued_packets_are_charged() {
    for (depth, turns) in [(5, 0.1), (30, 0.03), (60, 0.015)] {
        let came = compare(|| beside(LINK, MS, depth, &[step(20, 200)]), 60 * S);
        assert!(came.delay <= 0.015, "{depth}: {came:?}");
        assert!(
            came.idle_used >= turns,
            "a share is left: {depth}: {came:?}"
        );
    }
}

/// On a slow disk each of several programs has an outstanding request when it is stopped.
#[test]
fn outstanding_requests_of_all_programs_are_charged() {
    for programs in [2, 4] {
        let make = || {
            let mut world = beside(DISK, 12 * MS, 1, &[step(5, 500)]);
            for id in 2..=programs {
                world.arrive(id, Regulation::Usher, DISK, 1);
            }
            world
        };
        let came = compare(make, 60 * S);
        assert!(came.delay <= 0.015, "{programs}: {came:?}");
        assert!(came.idle_used >= 0.05, "{programs}: {came:?}");
    }
}

/// The estimated cost of the next misprediction includes all programs, although no program uses the
/// disk while all are stopped.
#[test]
fn the_budget_covers_all_stopped_programs() {
    for pause_ms in [200, 500, 1000] {
        let make = || {
            let mut world = beside(DISK, 15 * MS, 1, &[step(2, pause_ms)]);
            for id in 2..=4 {
                world.arrive(id, Regulation::Usher, DISK, 1);
            }
            world
        };
        let came = compare(make, 60 * S);
        assert!(came.delay <= 0.0135, "{pause_ms}: {came:?}");
        assert!(came.idle_used >= 0.04, "{pause_ms}: {came:?}");
    }
}

#[test]
fn without_foreground_it_is_never_stopped_and_rarely_sampled() {
    for resource in [DISK, LINK] {
        for regulation in Regulation::ALL {
            let mut world = World::new(2).device(resource, MS);
            world.arrive(1, regulation, resource, 4);
            world.ignored = Some(resource);
            world.run_regulated(30 * S);
            assert_eq!(world.bg(1).stops, 0, "{regulation:?}");
            assert!(world.bg(1).work_ns >= 30 * S - MS);
            assert!(world.samples <= 310, "{regulation:?}: {}", world.samples);
        }
    }
}

#[test]
fn full_speed_within_100_ms_of_the_end() {
    for service_ns in [200_000, 8 * MS] {
        let on = step(10 * S / service_ns, 1_000_000);
        let mut world = beside(DISK, service_ns, 1, &[on]);
        let mut policy = regulated(2);
        while world.foreground[0].total < on.work {
            world.run(&mut policy, MS);
        }
        world.run(&mut policy, 100 * MS);
        let before = world.bg(1).work_ns;
        world.run(&mut policy, S);
        assert!(world.bg(1).work_ns - before >= S - MS, "{service_ns}");
    }
}

#[test]
fn work_on_another_disk_is_not_stopped() {
    let mut world = World::new(2).device(DISK, MS).device(DISK_2, MS);
    world
        .foreground
        .push(Foreground::new(DISK, vec![step(1, 0)]));
    world.arrive(1, Regulation::Usher, DISK, 1);
    world.arrive(2, Regulation::Usher, DISK_2, 1);
    world.arrive(3, Regulation::Eii, DISK_2, 1);
    world.arrive(4, Regulation::Eii, DISK, 1);
    world.run_regulated(9 * S);
    assert!(world.bg(1).work_ns < 50 * MS, "on the disk that is in use");
    assert!(world.bg(4).stops > 0, "likewise");
    assert_eq!((world.bg(2).stops, world.bg(3).stops), (0, 0));
}

/// The worst foreground: it returns whenever background work has just continued.
#[test]
fn an_adversary_gets_no_more_than_the_budget() {
    for (service_ns, depth) in [(200_000, 1), (200_000, 8), (8 * MS, 1)] {
        let mut world = beside(DISK, service_ns, depth, &[step(1, 1_000_000)]);
        let mut policy = regulated(2);
        let (mut ran, mut waited_ns) = (0, 0);
        for _ in 0..600_000 {
            world.run(&mut policy, MS / 10);
            ran = if world.bg(1).frozen { 0 } else { ran + 1 };
            waited_ns += u64::from(world.foreground[0].waits) * MS / 10;
            if ran >= 20 && !world.foreground[0].waits {
                world.foreground[0].wake();
            }
        }
        let served_ns = world.foreground[0].total * service_ns;
        let share = waited_ns.saturating_sub(served_ns) as f64 / 60e9;
        assert!(share <= 0.012, "{service_ns} {depth}: {share}");
        assert!(world.bg(1).stops <= 60 * 6, "{}", world.bg(1).stops);
        assert!(world.bg(1).stops >= 30, "{}", world.bg(1).stops);
    }
}

#[test]
fn without_notifications_it_still_stops() {
    let make = || {
        let mut world = beside(DISK, 200_000, 1, &[step(25_000, 5000)]);
        world.notifies = false;
        world
    };
    let came = compare(make, 60 * S);
    assert!(came.delay <= 0.02, "{came:?}");
    assert!(came.idle_used >= 0.9, "{came:?}");
    assert!(came.samples_per_s <= 12.0, "{came:?}");
}

/// Whether the foreground made a request between each continuation and the next stop.
fn stops_have_a_reason(log: &[(Observation, Decision)]) -> bool {
    let requests_of = |o: &Observation| {
        let usage = &o.metering.as_ref().unwrap().foreground;
        let disks = usage.disks.values().map(|d| d.requests);
        disks
            // Packets count, too, because a packet that leaves a queue now belongs to an earlier
            // call.
            .chain(usage.links.values().map(|l| l.sends + l.packets))
            .sum::<u64>()
    };
    let mut before = 0;
    log.iter().all(|(observation, decision)| {
        let has = |wanted: fn(&Action) -> bool| decision.actions.iter().any(wanted);
        if has(|a| matches!(a, Action::Thaw { .. })) {
            before = requests_of(observation);
        }
        !has(|a| matches!(a, Action::Freeze { .. })) || requests_of(observation) > before
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Work and pauses over orders of magnitude: 1..2000 requests, 1 ms..8 s.
    let one = (0.0..7.6f64, 0.0..9.0f64).prop_map(|(work, pause)| Step {
        work: work.exp() as u64,
        pause_ns: (pause.exp() * 1e6) as u64 / 100_000 * 100_000,
    });
    prop::collection::vec(one, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// The delay of the foreground is within the budget, stops are few, and no stop lasts more than
    /// 10 s. A second policy makes the same decisions.
    #[test]
    fn the_delay_is_bounded_for_any_foreground(
        steps in steps(),
        think_ms in 0..20u64,
        (resource, service_ns, depth) in prop::sample::select(vec![
            (DISK, 200_000, 1), (DISK, 200_000, 8), (DISK, MS, 4), (DISK, 8 * MS, 1), (DISK, 8 * MS, 8), (LINK, 100_000, 50), (LINK, MS, 30),
        ]),
    ) {
        let make = || {
            let mut world = beside(resource, service_ns, depth, &steps);
            world.foreground[0].think_ns = think_ms * MS;
            world
        };
        let ns = 30 * S;
        let came = compare(make, ns);
        // A queue that takes 64 ms to drain delays the foreground by 64 ms before the policy knows
        // its length.
        let is_deep = service_ns * u64::from(depth) > 10 * MS;
        let (share, once_ns) = if is_deep { (0.02, 300e6) } else { (0.015, 40e6) };
        let bound = share + once_ns / ns as f64;
        prop_assert!(came.delay <= bound, "{came:?}");
        prop_assert!(came.stops_per_s <= 8.0, "{came:?}");
        let mut runs = vec![];
        for _ in 0..2 {
            let mut world = make();
            world.keeps_log = true;
            let mut policy = regulated(2);
            for _ in 0..500 {
                world.run(&mut policy, 20 * MS);
                let bg = world.bg(1);
                prop_assert!(!bg.frozen || world.at_ns - bg.frozen_since_ns <= 10 * S + 40 * MS);
            }
            prop_assert!(stops_have_a_reason(&world.log));
            runs.push(world.log);
        }
        prop_assert!(runs[0] == runs[1]);
    }
}
