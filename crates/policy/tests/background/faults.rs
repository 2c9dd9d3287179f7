// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regulation under faults and limits: locks held by stopped programs, failed actions, departing
//! programs, missing figures, and the limits of stops and log lines.

use std::collections::BTreeSet;

use usher_model::*;
use usher_policy::Policy;

use crate::world::*;

/// A continuous foreground on the same disk as a background program.
fn contended(regulation: Regulation) -> World {
    let mut world = World::new(2).device(DISK, MS);
    let always = Step {
        work: 1,
        pause_ns: 0,
    };
    world.foreground.push(Foreground::new(DISK, vec![always]));
    world.arrive(1, regulation, DISK, 1);
    world.keeps_log = true;
    world
}

fn notes(world: &World) -> Vec<String> {
    let each = world.log.iter().flat_map(|(_, decision)| &decision.notes);
    each.map(|note| note.text.clone()).collect()
}

#[test]
fn a_program_that_blocks_the_foreground_continues_at_once() {
    for regulation in [Regulation::Usher, Regulation::Ipd] {
        let mut world = contended(regulation);
        let mut policy = regulated(2);
        world.run(&mut policy, S);
        assert!(world.bg(1).frozen);
        world.held = Some(BlockedProcess {
            blocked_by: ProgramId(1),
            pid: 42,
            waits_for: "a lock on /x".to_owned(),
        });
        let mut ran_ms = 0;
        for ms in 0..2000 {
            world.run(&mut policy, MS);
            ran_ms += u64::from(!world.bg(1).frozen);
            assert!(ran_ms > 0 || ms < 110, "{regulation:?}: at once");
        }
        world.held = None;
        assert!(ran_ms > 900, "{regulation:?}: {ran_ms}");
        let is_logged = |text: &String| text.contains("process 42 waits for a lock on /x");
        assert!(notes(&world).iter().any(is_logged));
        world.run(&mut policy, 2 * S);
        assert!(world.bg(1).frozen, "{regulation:?}: it is still in the way");
    }
}

#[test]
fn no_stop_lasts_more_than_ten_seconds() {
    let mut world = contended(Regulation::Usher);
    let mut policy = regulated(2);
    let mut longest_ns = 0;
    for _ in 0..6000 {
        world.run(&mut policy, 10 * MS);
        let bg = world.bg(1);
        if bg.frozen {
            longest_ns = longest_ns.max(world.at_ns - bg.frozen_since_ns);
        }
    }
    assert!(
        (9 * S..=10 * S + 20 * MS).contains(&longest_ns),
        "{longest_ns}"
    );
    let work_ms = world.bg(1).work_ns / MS;
    assert!(
        (100..250).contains(&work_ms),
        "50 ms in 10 s, shared: {work_ms}"
    );
}

#[test]
fn all_continue_when_the_foreground_ends() {
    for regulation in Regulation::ALL {
        let mut world = contended(regulation);
        let mut policy = regulated(2);
        world.run(&mut policy, 20 * S);
        world.foreground.clear();
        world.run(&mut policy, 17 * S);
        let before = world.bg(1).work_ns;
        world.run(&mut policy, 5 * S);
        assert_eq!(world.bg(1).work_ns - before, 5 * S, "{regulation:?}");
    }
}

#[test]
fn failed_actions_are_retried_and_logged() {
    for regulation in Regulation::ALL {
        let mut world = contended(regulation);
        let mut policy = regulated(2);
        world.refuses = 12;
        world.run(&mut policy, S);
        assert!(world.bg(1).frozen, "{regulation:?}");
        assert_eq!((world.refuses, world.bg(1).demoted), (0, None));
        let all = notes(&world).join("\n");
        assert!(all.contains("keeps its priorities"), "{all}");
        world.foreground.clear();
        world.refuses = 2;
        world.run(&mut policy, 17 * S);
        assert!(!world.bg(1).frozen, "{regulation:?}");
        assert!(notes(&world).iter().any(|t| t.contains("refused")));
    }
}

#[test]
fn a_failed_demotion_is_retried() {
    for regulation in Regulation::ALL {
        let mut world = contended(regulation);
        world.refuses = 2;
        world.run_regulated(100 * MS);
        assert!(world.bg(1).demoted.is_some(), "{regulation:?}");
        let is_logged = |text: &String| text.contains("keeps its priorities");
        assert!(!notes(&world).iter().any(is_logged));
    }
}

/// The figures of a stop are those of the last window, not totals.
#[test]
fn a_stop_is_reported_with_the_figures_of_its_window() {
    let mut world = World::new(2).device(DISK, MS);
    world.arrive(1, Regulation::Usher, DISK, 1);
    world.keeps_log = true;
    let mut policy = regulated(2);
    world.run(&mut policy, 20 * S);
    let always = Step {
        work: 1,
        pause_ns: 0,
    };
    world.foreground.push(Foreground::new(DISK, vec![always]));
    world.run(&mut policy, S);
    let reports = world
        .log
        .iter()
        .filter_map(|(_, d)| d.background_states.as_ref());
    let reason = reports
        .flatten()
        .find_map(|one| one.reason.clone())
        .unwrap();
    let per_ms = |count: u64| count as f64 * 1e6 / reason.window_ns as f64;
    assert!(per_ms(reason.background) <= 1.1, "{reason:?}");
    assert!(reason.foreground >= 1 && per_ms(reason.foreground) <= 1.1);
}

/// A sequence of short programs costs no more than one long program.
#[test]
fn a_budget_outlives_the_programs() {
    let stops = |programs: u64| {
        let mut world = World::new(2).device(DISK, MS);
        let often = Step {
            work: 1,
            pause_ns: 30 * MS,
        };
        world.foreground.push(Foreground::new(DISK, vec![often]));
        let mut policy = regulated(2);
        let mut stops = 0;
        for id in 1..=programs {
            world.arrive(id, Regulation::Usher, DISK, 1);
            world.run(&mut policy, 10 * S / programs);
            stops += world.bg(id).stops;
            world.depart(id);
            world.run(&mut policy, MS);
        }
        stops
    };
    // Each new program collides once before it is detected.
    assert!(stops(20) <= stops(1) + 20, "{} {}", stops(20), stops(1));
}

#[test]
fn a_program_is_demoted_on_arrival() {
    for (regulation, to) in [
        (Regulation::Usher, Demotion::Idle),
        (Regulation::Eii, Demotion::Nice),
        (Regulation::Ipd, Demotion::Nice),
    ] {
        let mut world = contended(regulation);
        world.run_regulated(10 * MS);
        assert_eq!(world.bg(1).demoted, Some(to));
    }
}

#[test]
fn no_action_is_taken_on_a_departed_program() {
    let mut world = contended(Regulation::Usher);
    let mut policy = regulated(2);
    world.run(&mut policy, S);
    world.arrive(2, Regulation::Eii, DISK, 1);
    world.run(&mut policy, S);
    world.depart(1);
    world.log.clear();
    world.run(&mut policy, 4 * S);
    world.depart(2);
    world.run(&mut policy, 4 * S);
    let acted: BTreeSet<_> = world
        .log
        .iter()
        .flat_map(|(_, d)| &d.actions)
        .map(Action::program)
        .collect();
    assert_eq!(acted, BTreeSet::from([ProgramId(2)]));
    let (_, last) = world
        .log
        .iter()
        .rev()
        .find(|(_, d)| d.background_states.is_some())
        .unwrap();
    assert_eq!(last.background_states, Some(vec![]));
    let (_, last) = world.log.last().unwrap();
    assert_eq!((last.wake_after_ns, last.scope), (None, SampleScope::All));
}

#[test]
fn without_figures_no_program_stays_stopped() {
    let mut world = contended(Regulation::Ipd);
    let mut policy = regulated(2);
    world.run(&mut policy, S);
    assert!(world.bg(1).frozen);
    let mut thawed = vec![];
    for index in 1..=20 {
        let observation = Observation {
            at_ns: world.at_ns + index * 100 * MS,
            usable: CpuSet::range(0, 1),
            events: vec![],
            failed: vec![],
            programs: vec![],
            metering: None,
        };
        thawed.extend(policy.decide(&observation).actions);
    }
    assert_eq!(
        thawed,
        [Action::Thaw {
            program: ProgramId(1)
        }]
    );
}

#[test]
fn reasons_are_logged_at_a_limited_rate() {
    let mut world = World::new(2).device(DISK, 200_000);
    let now_and_then = Step {
        work: 50,
        pause_ns: 190 * MS,
    };
    world
        .foreground
        .push(Foreground::new(DISK, vec![now_and_then]));
    world.arrive(1, Regulation::Usher, DISK, 1);
    world.keeps_log = true;
    world.run_regulated(20 * S);
    let messages = notes(&world);
    assert!(world.bg(1).stops > 60, "{}", world.bg(1).stops);
    assert!((20..=45).contains(&messages.len()), "{}", messages.len());
    for (text, start) in messages.iter().zip([
        "stopped: the foreground has just used disk 8:0;",
        "continues: disk 8:0 is quiet ",
        "stopped: the foreground uses disk 8:0 (",
    ]) {
        assert!(text.starts_with(start), "{text}");
    }
    assert!(
        messages
            .iter()
            .any(|text| text.contains("since the last report)"))
    );
    let mut background_states = world
        .log
        .iter()
        .rev()
        .filter_map(|(_, d)| d.background_states.as_ref());
    let last = &background_states.next().unwrap()[0];
    assert_eq!(last.regulation, Regulation::Usher);
    assert!((0.3..1.0).contains(&last.share), "{last:?}");
    assert!(last.stops.abs_diff(world.bg(1).stops) <= 1);
    assert_eq!(last.reason.as_ref().unwrap().resource, DISK);
}

#[test]
fn states_are_reported_when_they_change() {
    let mut world = World::new(2).device(DISK, MS);
    world.arrive(1, Regulation::Usher, DISK, 1);
    world.keeps_log = true;
    world.run_regulated(10 * S);
    let reports = world
        .log
        .iter()
        .filter(|(_, d)| d.background_states.is_some())
        .count();
    assert_eq!(reports, 1, "nothing happens");
}
