// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checks can fail: each finds a policy, or a world, that is broken on
//! purpose; and none finds the policy that ships, on the same case.

use std::sync::Arc;

use usher_control::World as _;
use usher_model::*;
use usher_policy::{Equal, Policy, Usher};
use usher_topology::Source;

use super::case::{Case, Faults};
use super::checks::Checks;
use super::faults::Faulty;
use crate::hands::Backend;
use crate::kernel::Kernel;
use crate::script::{Memory, Op, Role, Script, Wait};
use crate::world::Guest;

const MS: u64 = 1_000_000;

/// A program of threads that work and sleep in turns.
fn guest(id: u64, threads: u32, work_ms: f64, sleep_ms: u64) -> Guest {
    let rates = (1..=12).map(|n| (n, f64::from(n).powf(0.6))).collect();
    let steps = vec![
        Op::Work {
            ns: 1e6 * work_ms,
            spread: 0.0,
        },
        Op::Sleep { ns: sleep_ms * MS },
        Op::Again { to: 0, times: 20 },
    ];
    Guest {
        arrival: Arrival {
            id: ProgramId(id),
            name: format!("p{id}"),
            weight: 1.0,
            profile: Curve::from_rates(&rates).ok(),
            spinners: 0,
            active_wait: Some(false),
            ran_before: false,
            stops_unseen: true,
            cpu_quota: None,
            llc_bytes: None,
            bandwidth_gbps: None,
            background: None,
            bound_to: None,
            pinned_to: None,
        },
        script: Arc::new(Script {
            name: format!("p{id}"),
            roles: vec![Role { threads, steps }],
            pools: vec![],
            queues: vec![],
            wait: Wait::Block,
            settles: false,
            memory: Memory::default(),
        }),
        at_ns: 0,
        repeats: true,
    }
}

/// Two programs that keep their cores busy, on twelve cores in two domains, and
/// nothing goes wrong.
fn case(policy: &'static str) -> Case {
    let spec = "package:2 numa:1 core:6 pu:1".to_owned();
    Case {
        seed: 0,
        policy,
        topology: usher_topology::load(Source::Synthetic(spec)).unwrap(),
        kernel: Kernel::default(),
        backend: Backend::Threads,
        guests: vec![guest(1, 12, 10.0, 1), guest(2, 12, 10.0, 1)],
        faults: Faults::default(),
    }
}

/// A policy whose decisions are spoilt.
struct Spoilt<F>(Box<dyn Policy>, F);

impl<F: FnMut(&Observation, &mut Decision)> Policy for Spoilt<F> {
    fn name(&self) -> &'static str {
        "spoilt"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        let mut decision = self.0.decide(observation);
        (self.1)(observation, &mut decision);
        decision
    }
}

/// What the checks say of the case's policy when its decisions are spoilt; it
/// must pass them unspoilt.
fn found(case: &Case, spoil: impl FnMut(&Observation, &mut Decision) + Clone) -> String {
    case.run().unwrap();
    let mut policy = || {
        let inner: Box<dyn Policy> = match case.policy {
            "usher" => Box::new(Usher::new(case.topology.clone())),
            _ => Box::new(Equal::new(case.topology.clone())),
        };
        Some(Spoilt(inner, spoil.clone()))
    };
    let broken = case.run_with(&mut policy, None).unwrap_err();
    assert!(!broken.last.is_empty(), "the last deeds are told");
    broken.what
}

fn assert_says(what: &str, expected: &str) {
    assert!(what.contains(expected), "{what}");
}

/// Seats everybody on one CPU of the first program's too.
fn intrude(_: &Observation, decision: &mut Decision) {
    for action in &mut decision.actions {
        if let Action::Seat { cpus, .. } = action {
            *cpus = cpus.or(&CpuSet::single(0));
        }
    }
}

#[test]
fn a_seat_that_is_not_the_plans_is_found() {
    assert_says(&found(&case("equal"), intrude), "and the plan says");
}

#[test]
fn a_cpu_with_two_owners_is_found() {
    // A rival's seats are not held against its plan, only against one another.
    let case = Case {
        policy: "pdpa",
        ..case("equal")
    };
    assert_says(&found(&case, intrude), "are both seated on 0");
}

#[test]
fn a_plan_with_a_cpu_in_two_seats_is_found() {
    let what = found(&case("equal"), |_, decision: &mut Decision| {
        for seat in decision.plan.iter_mut().flat_map(|plan| &mut plan.seats) {
            seat.cpus = seat.cpus.or(&CpuSet::single(0));
        }
    });
    assert_says(&what, "the plan has 0 in two seats");
}

#[test]
fn one_that_is_frozen_and_forgotten_is_found() {
    let mut frozen = false;
    let what = found(
        &case("usher"),
        move |seen: &Observation, decision: &mut Decision| {
            if let (false, Some(sample)) = (frozen, seen.programs.first()) {
                let program = sample.id;
                decision.actions.push(Action::Freeze { program });
                frozen = true;
            }
        },
    );
    assert_says(&what, "program 1 has stood still for");
}

#[test]
fn one_that_goes_on_for_an_instant_now_and_then_starves() {
    let mut frozen = false;
    let case = Case {
        // The other one has cores enough, so that nothing else is amiss.
        guests: vec![guest(1, 12, 10.0, 1), guest(2, 6, 10.0, 1)],
        ..case("usher")
    };
    let what = found(&case, move |_: &Observation, decision: &mut Decision| {
        let program = ProgramId(1);
        frozen = !frozen;
        let (action, ns) = match frozen {
            true => (Action::Freeze { program }, 300 * MS),
            false => (Action::Thaw { program }, MS / 100),
        };
        decision.actions.push(action);
        decision.wake_after_ns = Some(ns);
    });
    assert_says(&what, "program 1 has had");
}

#[test]
fn a_core_that_is_left_idle_while_another_program_waits_is_found() {
    let case = Case {
        // The first one uses next to nothing of its seat.
        guests: vec![guest(1, 2, 1.0, 60), guest(2, 24, 10.0, 1)],
        ..case("usher")
    };
    let what = found(&case, |_, decision: &mut Decision| {
        let Some(plan) = &mut decision.plan else {
            return;
        };
        plan.loans.clear();
        for action in &mut decision.actions {
            let program = action.program();
            if let Some(seat) = plan.seats.iter().find(|seat| seat.program == program) {
                let cpus = seat.cpus.clone();
                *action = Action::Seat { program, cpus };
            }
        }
    });
    assert_says(&what, "has idled for");
}

#[test]
fn acting_on_one_that_is_known_to_have_gone_is_found() {
    let mut case = case("equal");
    case.guests[0].repeats = false;
    let what = found(&case, |seen: &Observation, decision: &mut Decision| {
        let gone = |event: &&Event| matches!(event, Event::Departed(_));
        if seen.events.iter().find(gone).is_some() {
            let program = ProgramId(1);
            decision.actions.push(Action::Release { program });
        }
    });
    assert_says(&what, "of which it was told that it has gone");
}

// Worlds that are broken.

fn finished(case: &Case, spoil: impl FnOnce(&mut Faulty)) -> String {
    let mut world = Faulty::new(case);
    let events = world.observe(vec![]).events;
    assert_eq!(events.len(), 2);
    assert!(world.wait(Some(100 * MS)));
    spoil(&mut world);
    world.finish().unwrap_err().what
}

#[test]
fn what_was_done_past_the_journal_is_found_at_the_end() {
    let program = ProgramId(1);
    let cpus = CpuSet::single(3);
    for (action, what) in [
        (
            Action::Seat { program, cpus },
            "program 1 is still narrowed",
        ),
        (Action::Freeze { program }, "program 1 is still frozen"),
    ] {
        let what_is_found = finished(&case("equal"), |world| {
            world.inner.act(&action).unwrap();
        });
        assert_says(&what_is_found, what);
    }
}

#[test]
fn a_thread_that_stays_bound_or_stopped_is_found() {
    let what = finished(&case("equal"), |world| {
        let engine = world.inner.engine_mut();
        let thread = engine.threads_of(0)[5];
        engine.set_affinity(thread, &CpuSet::single(1));
    });
    assert_says(
        &what,
        "program 1 has a thread that has not got its affinity",
    );
    let what = finished(&case("equal"), |world| {
        let engine = world.inner.engine_mut();
        let thread = engine.threads_of(1)[0];
        engine.hold(thread, true);
    });
    assert_says(&what, "program 2 has a thread still stopped");
}

#[test]
fn lost_work_and_stolen_time_are_found() {
    let case = case("equal");
    let what = finished(&case, |world| {
        world.pass_all(2_000 * MS);
        world.inner.engine_mut().jobs[1].work_finished -= 1e6;
    });
    assert_says(&what, "program 2 has done");
    let what = finished(&case, |world| {
        let mut checks = Checks::new(&case);
        // As if time had begun only now.
        checks.looked_ns = world.inner.engine().now_ns();
        world.checks = checks;
    });
    assert_says(&what, "ns that there were");
}

#[test]
fn a_thread_that_runs_where_or_when_it_must_not_is_found() {
    let spoilt = |spoil: fn(&mut crate::engine::Engine)| {
        finished(&case("equal"), |world| {
            spoil(world.inner.engine_mut());
            world.checks.look(&mut world.inner);
        })
    };
    assert_says(
        &spoilt(|engine| engine.jobs.iter_mut().for_each(|job| job.frozen = true)),
        "although it is stopped",
    );
    assert_says(
        &spoilt(|engine| engine.cpus.iter_mut().for_each(|cpu| cpu.online = false)),
        "which is off line",
    );
    let nowhere = |engine: &mut crate::engine::Engine| {
        let nowhere = crate::machine::Mask::new(12);
        engine
            .jobs
            .iter_mut()
            .for_each(|job| job.mask = nowhere.clone());
    };
    assert_says(&spoilt(nowhere), "where it may not");
}
