// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mutation tests of the fuzz checkers: each checker must detect a policy or a world with a
//! deliberate fault, and accept the same case without the fault.

use std::sync::Arc;

use usher_control::World as _;
use usher_model::*;
use usher_policy::{Equal, Policy, Usher};
use usher_topology::Source;

use super::case::{FaultProbabilities, FuzzCase};
use super::checks::CheckerState;
use super::faults::FaultyWorld;
use crate::actuator::Backend;
use crate::kernel::Kernel;
use crate::script::{BarrierWait, Memory, Op, Script, ThreadKind};
use crate::world::PlannedArrival;

const MS: u64 = 1_000_000;

/// Returns a program with threads that alternate between work and sleep.
fn planned(id: u64, threads: u32, work_ms: f64, sleep_ms: u64) -> PlannedArrival {
    let rates = (1..=12).map(|n| (n, f64::from(n).powf(0.6))).collect();
    let steps = vec![
        Op::Work {
            ns: 1e6 * work_ms,
            spread: 0.0,
        },
        Op::Sleep { ns: sleep_ms * MS },
        Op::Loop { to: 0, times: 20 },
    ];
    PlannedArrival {
        arrival: Arrival {
            id: ProgramId(id),
            name: format!("p{id}"),
            weight: 1.0,
            profile: Curve::from_rates(&rates).ok(),
            profile_match: ProfileMatch::Exact,
            spinners: 0,
            active_wait: Some(false),
            ran_before: false,
            stops_unseen: true,
            cpu_quota: None,
            cores: None,
            variation: None,
            llc_bytes: None,
            bandwidth_gbps: None,
            background: None,
            bound_to: None,
            pinned_to: None,
        },
        script: Arc::new(Script {
            name: format!("p{id}"),
            roles: vec![ThreadKind { threads, steps }],
            pools: vec![],
            queues: vec![],
            wait: BarrierWait::Block,
            adaptive_spin: false,
            memory: Memory::default(),
        }),
        at_ns: 0,
        repeats: true,
    }
}

/// Returns a case without injected faults: two programs that keep their cores busy, on twelve cores
/// in two domains.
fn case(policy: &'static str) -> FuzzCase {
    let spec = "package:2 numa:1 core:6 pu:1".to_owned();
    FuzzCase {
        seed: 0,
        policy,
        topology: usher_topology::load(Source::Synthetic(spec)).unwrap(),
        kernel: Kernel::default(),
        backend: Backend::Threads,
        arrivals: vec![planned(1, 12, 10.0, 1), planned(2, 12, 10.0, 1)],
        faults: FaultProbabilities::default(),
    }
}

/// A policy (field 0) with a function (field 1) that changes its decisions.
struct FaultyPolicy<F>(Box<dyn Policy>, F);

impl<F: FnMut(&Observation, &mut Decision)> Policy for FaultyPolicy<F> {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        let mut decision = self.0.decide(observation);
        (self.1)(observation, &mut decision);
        decision
    }
}

/// Returns the violation that the checkers find if `spoil` changes the policy's decisions. Without
/// the change, the case must pass.
fn found(case: &FuzzCase, spoil: impl FnMut(&Observation, &mut Decision) + Clone) -> String {
    case.run().unwrap();
    let mut policy = || {
        let inner: Box<dyn Policy> = match case.policy {
            "usher" => Box::new(Usher::new(case.topology.clone())),
            _ => Box::new(Equal::new(case.topology.clone())),
        };
        Some(FaultyPolicy(inner, spoil.clone()))
    };
    let violation = case.run_with(&mut policy, None).unwrap_err();
    assert!(!violation.last.is_empty(), "the log is empty");
    violation.what
}

fn assert_contains(what: &str, expected: &str) {
    assert!(what.contains(expected), "{what}");
}

/// Adds a CPU of the first program to every seat.
fn intrude(_: &Observation, decision: &mut Decision) {
    for action in &mut decision.actions {
        if let Action::Seat { cpus, .. } = action {
            *cpus = cpus.or(&CpuSet::single(0));
        }
    }
}

#[test]
fn detects_seat_that_differs_from_plan() {
    assert_contains(&found(&case("equal"), intrude), "but its planned CPUs are");
}

#[test]
fn detects_cpu_with_two_owners() {
    // For the policy `pdpa`, the checker compares seats with one another, not with the plan.
    let case = FuzzCase {
        policy: "pdpa",
        ..case("equal")
    };
    assert_contains(&found(&case, intrude), "both contain the CPUs 0");
}

#[test]
fn detects_plan_with_cpu_in_two_seats() {
    let what = found(&case("equal"), |_, decision: &mut Decision| {
        for seat in decision.plan.iter_mut().flat_map(|plan| &mut plan.seats) {
            seat.cpus = seat.cpus.or(&CpuSet::single(0));
        }
    });
    assert_contains(&what, "the plan has the CPUs 0 in two seats");
}

#[test]
fn detects_program_that_stays_frozen() {
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
    assert_contains(&what, "program 1 has been stopped for");
}

#[test]
fn detects_starvation_of_mostly_frozen_program() {
    let mut frozen = false;
    let case = FuzzCase {
        // The other program has enough cores, so that it causes no second violation.
        arrivals: vec![planned(1, 12, 10.0, 1), planned(2, 6, 10.0, 1)],
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
    assert_contains(&what, "program 1 starves: it received");
}

#[test]
fn detects_idle_core_while_another_program_waits() {
    let case = FuzzCase {
        // The first program uses little of its seat.
        arrivals: vec![planned(1, 2, 1.0, 60), planned(2, 24, 10.0, 1)],
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
    assert_contains(&what, "has been idle for");
}

#[test]
fn detects_action_on_departed_program() {
    let mut case = case("equal");
    case.arrivals[0].repeats = false;
    let what = found(&case, |seen: &Observation, decision: &mut Decision| {
        let gone = |event: &&Event| matches!(event, Event::Departed(_));
        if seen.events.iter().find(gone).is_some() {
            let program = ProgramId(1);
            decision.actions.push(Action::Release { program });
        }
    });
    assert_contains(&what, "after its departure was reported");
}

// Tests with a deliberate fault in the world.

fn finished(case: &FuzzCase, spoil: impl FnOnce(&mut FaultyWorld)) -> String {
    let mut world = FaultyWorld::new(case);
    let events = world.observe(vec![]).events;
    assert_eq!(events.len(), 2);
    assert!(world.wait(Some(100 * MS)));
    spoil(&mut world);
    world.finish().unwrap_err().what
}

#[test]
fn detects_changes_outside_the_journal_at_the_end() {
    let program = ProgramId(1);
    let cpus = CpuSet::single(3);
    for (action, what) in [
        (Action::Seat { program, cpus }, "program 1 still has a seat"),
        (Action::Freeze { program }, "program 1 is still frozen"),
    ] {
        let what_is_found = finished(&case("equal"), |world| {
            world.inner.act(&action).unwrap();
        });
        assert_contains(&what_is_found, what);
    }
}

#[test]
fn detects_thread_left_bound_or_stopped() {
    let what = finished(&case("equal"), |world| {
        let engine = world.inner.engine_mut();
        let thread = engine.threads_of(0)[5];
        engine.set_affinity(thread, &CpuSet::single(1));
    });
    assert_contains(
        &what,
        "program 1 has a thread without its original affinity",
    );
    let what = finished(&case("equal"), |world| {
        let engine = world.inner.engine_mut();
        let thread = engine.threads_of(1)[0];
        engine.set_signal_stopped(thread, true);
    });
    assert_contains(&what, "program 2 has a thread that is still stopped");
}

#[test]
fn detects_lost_work_and_excess_cpu_time() {
    let case = case("equal");
    let what = finished(&case, |world| {
        world.advance(2_000 * MS);
        world.inner.engine_mut().os.tasks.jobs[1].work_finished -= 1e6;
    });
    assert_contains(&what, "program 2 did");
    let what = finished(&case, |world| {
        let mut checks = CheckerState::new(&case);
        // The checker starts only now, and does not count the CPU time that was available before.
        checks.checked_ns = world.inner.engine().now_ns();
        world.checks = checks;
    });
    assert_contains(&what, "ns were available");
}

#[test]
fn detects_thread_on_wrong_cpu_or_while_stopped() {
    let spoilt = |spoil: fn(&mut crate::engine::Engine)| {
        finished(&case("equal"), |world| {
            spoil(world.inner.engine_mut());
            world.checks.check(&mut world.inner);
        })
    };
    assert_contains(
        &spoilt(|engine| {
            engine
                .os
                .tasks
                .jobs
                .iter_mut()
                .for_each(|job| job.frozen = true)
        }),
        "although the thread is stopped",
    );
    assert_contains(
        &spoilt(|engine| engine.cpus.iter_mut().for_each(|cpu| cpu.online = false)),
        "although the CPU is offline",
    );
    let nowhere = |engine: &mut crate::engine::Engine| {
        let nowhere = crate::machine::Mask::new(12);
        engine
            .os
            .tasks
            .jobs
            .iter_mut()
            .for_each(|job| job.mask = nowhere.clone());
    };
    assert_contains(&spoilt(nowhere), "outside the CPUs that the thread may use");
}
