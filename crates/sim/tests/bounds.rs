// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that a run that cannot continue ends with a reason: deadlocks, endless steps, too many
//! events, invalid scripts. Also tests phases of programs and the limits of recordings.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use usher_sim::engine::{Engine, SimEvent};
use usher_sim::fault::Fault;
use usher_sim::kernel::Kernel;
use usher_sim::machine::{Costs, Machine};
use usher_sim::script::{BarrierWait, Memory, Op, Script, ThreadKind};

const SECOND: u64 = 1_000_000_000;

fn engine(spec: &str) -> Engine {
    let source = usher_topology::Source::Synthetic(spec.to_owned());
    let costs = Costs {
        core_speed: 1.0,
        latency: 1.0,
        node_gbps: 12.0,
        ..Costs::default()
    };
    let machine = Machine::new(usher_topology::load(source).unwrap(), costs);
    Engine::new(machine, Kernel::default(), 1)
}

fn script(roles: Vec<(u32, Vec<Op>)>, queues: Vec<u32>, wait: BarrierWait) -> Script {
    let role = |(threads, steps)| ThreadKind { threads, steps };
    Script {
        name: "p".to_owned(),
        roles: roles.into_iter().map(role).collect(),
        pools: vec![0],
        queues,
        wait,
        adaptive_spin: false,
        memory: Memory::default(),
    }
}

fn work(ms: f64) -> Op {
    Op::Work {
        ns: ms * 1e6,
        spread: 0.0,
    }
}

/// Runs a script for ten virtual seconds, and returns whether the run could continue.
fn outcome(script: Script, repeats: bool) -> Result<(), Fault> {
    script.check().unwrap();
    let mut engine = engine("core:2 pu:1");
    engine.arrive(Arc::new(script), repeats);
    while engine.now_ns() < 10 * SECOND {
        engine.run(10 * SECOND)?;
        let events = engine.take_sim_events();
        if events.contains(&SimEvent::Ended(0)) {
            return Ok(());
        }
    }
    Ok(())
}

#[test]
fn detects_deadlocks_at_locks_barriers_and_queues() {
    // Two threads take two locks in opposite order.
    let crosswise = |first, then| {
        vec![
            Op::Lock(first),
            work(1.0),
            Op::Lock(then),
            Op::Unlock(then),
            Op::Unlock(first),
        ]
    };
    let locks = script(
        vec![(1, crosswise(0, 1)), (1, crosswise(1, 0))],
        vec![],
        BarrierWait::Block,
    );
    // A thread ends without arriving at a barrier that waits for it.
    let leaves = |wait| {
        let roles = vec![
            (1, vec![work(1.0), Op::Barrier(0), Op::Barrier(0)]),
            (1, vec![work(1.0), Op::Barrier(0)]),
        ];
        script(roles, vec![], wait)
    };
    // The reader of a queue takes only one item, so that the queue becomes full.
    let full = script(
        vec![
            (1, vec![work(1.0), Op::Put(0), Op::Loop { to: 0, times: 9 }]),
            (1, vec![Op::Take(0)]),
        ],
        vec![2],
        BarrierWait::Block,
    );
    for (script, what) in [
        (locks, "a thread of role 0 waits in step 2 for lock 1"),
        (
            leaves(BarrierWait::Block),
            "a thread of role 0 waits in step 2 at barrier 0",
        ),
        (
            leaves(BarrierWait::Spin),
            "a thread of role 0 waits in step 2 at barrier 0",
        ),
        (
            leaves(BarrierWait::SpinThenBlock(5)),
            "a thread of role 0 waits in step 2 at barrier 0",
        ),
        (
            full,
            "a thread of role 0 waits in step 1 for free space in queue 0",
        ),
    ] {
        match outcome(script, false) {
            Err(Fault::Deadlock {
                program,
                waiter,
                at_s,
            }) => {
                assert_eq!((program.as_str(), waiter.as_str()), ("p", what));
                assert!(at_s <= 2.0);
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn long_sleep_and_frozen_program_are_no_deadlock() {
    let naps = vec![work(1.0), Op::Sleep { ns: 5 * SECOND }, work(1.0)];
    assert_eq!(
        outcome(script(vec![(2, naps)], vec![], BarrierWait::Block), false),
        Ok(())
    );
    let mut engine = engine("core:1 pu:1");
    let program = engine.arrive(
        Arc::new(script(
            vec![(1, vec![work(1.0)])],
            vec![],
            BarrierWait::Block,
        )),
        false,
    );
    engine.freeze(program, true);
    assert_eq!(engine.run(5 * SECOND), Ok(()));
}

#[test]
fn endless_steps_without_time_are_an_error() {
    // A thread puts an item into a queue and takes it again, four thousand million times.
    let own = vec![
        work(1.0),
        Op::Put(0),
        Op::Take(0),
        Op::Loop {
            to: 1,
            times: u32::MAX,
        },
    ];
    let storm = outcome(script(vec![(1, own)], vec![1], BarrierWait::Block), false);
    assert!(
        matches!(storm, Err(Fault::ZeroTimeLoop { .. })),
        "{storm:?}"
    );
    // The threads take items from an empty pool between two barriers, without end.
    let empty = vec![
        Op::Items {
            pool: 0,
            ns: 1e6,
            spread: 0.0,
        },
        Op::Barrier(0),
        Op::Loop {
            to: 0,
            times: u32::MAX,
        },
    ];
    let storm = outcome(
        script(vec![(1, empty.clone())], vec![], BarrierWait::Block),
        false,
    );
    assert!(
        matches!(storm, Err(Fault::ZeroTimeLoop { .. })),
        "{storm:?}"
    );
    // A program repeats, and its repetitions take no time.
    let nothing = outcome(
        script(vec![(1, empty[..1].to_vec())], vec![], BarrierWait::Block),
        true,
    );
    assert!(matches!(nothing, Err(Fault::NoWork { .. })), "{nothing:?}");
}

#[test]
fn endless_chain_of_wakeups_is_an_error() {
    let stages = 1_500;
    let mut roles = vec![(1, vec![work(1.0), Op::Put(0)])];
    for stage in 0..stages {
        roles.push((1, vec![Op::Take(stage), Op::Put(stage + 1)]));
    }
    roles.push((1, vec![Op::Take(stages)]));
    let chain = outcome(
        script(roles, vec![1; stages + 1], BarrierWait::Block),
        false,
    );
    assert!(matches!(chain, Err(Fault::WakeupChain { .. })), "{chain:?}");
}

#[test]
fn event_limit_ends_the_run_with_a_permanent_fault() {
    let mut engine = engine("core:1 pu:1");
    let tiny = vec![
        Op::Work {
            ns: 1.0,
            spread: 0.0,
        },
        Op::Loop {
            to: 0,
            times: u32::MAX,
        },
    ];
    engine.arrive(
        Arc::new(script(vec![(1, tiny)], vec![], BarrierWait::Block)),
        false,
    );
    engine.limit_events(10_000);
    let fault = engine.run(SECOND).unwrap_err();
    assert!(
        matches!(fault, Fault::Events { events: 10_000, .. }),
        "{fault}"
    );
    assert_eq!(engine.run(SECOND), Err(fault));
}

#[test]
fn rejects_invalid_scripts_with_name_and_reason() {
    let memory = |stall| {
        Op::Memory(Memory {
            stall,
            ..Memory::default()
        })
    };
    let cases: [(Vec<Op>, Vec<u32>, &str); 7] = [
        (
            vec![work(-1.0)],
            vec![],
            "role 0, step 0: work must be from 0 to 1e15 ns",
        ),
        (vec![work(f64::NAN)], vec![], "role 0, step 0: work must be"),
        (
            vec![work(1.0), memory(1.5)],
            vec![],
            "role 0, step 1: stall must be less than 1, not 1.5",
        ),
        (
            vec![work(1.0), Op::Put(1)],
            vec![1],
            "role 0, step 1: the program has no queue 1",
        ),
        (
            vec![work(1.0), Op::Put(0)],
            vec![1],
            "no thread of the program takes from queue 0",
        ),
        (
            vec![Op::Take(0), work(1.0)],
            vec![1],
            "no thread of the program puts into queue 0",
        ),
        (vec![memory(0.5)], vec![], "the program has no work"),
    ];
    for (steps, queues, want) in cases {
        let error = script(vec![(1, steps)], queues, BarrierWait::Block)
            .check()
            .unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
    }
    let many = script(
        vec![(u32::MAX, vec![work(1.0)]), (u32::MAX, vec![work(1.0)])],
        vec![],
        BarrierWait::Block,
    );
    let message = many.check().unwrap_err().to_string();
    assert!(
        message.contains("8589934590 threads; the maximum is 16384"),
        "{message}"
    );
}

#[test]
fn phase_sets_memory_use_until_the_next_phase() {
    // Two threads run alone on a node with 12 GB/s. Each has a demand of 12 GB/s and a stall share
    // of 0.9, so that they take almost twice as long as without contention.
    let hungry = Memory {
        stall: 0.9,
        gbps: 12.0,
        ..Memory::default()
    };
    let steps = |phase: Option<Memory>| {
        let mut steps = vec![work(1000.0), work(1000.0)];
        if let Some(memory) = phase {
            steps.insert(1, Op::Barrier(0));
            steps.insert(2, Op::Memory(memory));
        }
        steps
    };
    let seconds =
        |phase: Option<Memory>| {
            let mut engine = engine("numa:1 core:2 pu:1");
            engine.arrive(
                Arc::new(script(vec![(2, steps(phase))], vec![], BarrierWait::Block)),
                true,
            );
            let mut times = Vec::new();
            while times.len() < 2 {
                engine.run(100 * SECOND).unwrap();
                times.extend(engine.take_sim_events().into_iter().filter_map(
                    |event| match event {
                        SimEvent::Repeated { seconds, .. } => Some(seconds),
                        SimEvent::Ended(_) => None,
                    },
                ));
            }
            times
        };
    let calm = seconds(None);
    let phased = seconds(Some(hungry));
    assert!((calm[0] - 2.0).abs() < 0.01, "{calm:?}");
    assert!((2.7..3.1).contains(&phased[0]), "{phased:?}");
    // Each repetition starts again with the memory behaviour of the script, not with that of the
    // last phase.
    assert!((phased[1] / phased[0] - 1.0).abs() < 0.01, "{phased:?}");
}

#[test]
fn recorded_spans_add_up_to_cpu_time_without_overlap() {
    let mut engine = engine("core:2 pu:1");
    engine.record(usize::MAX);
    let steps = || vec![work(3.0), Op::Barrier(0), Op::Loop { to: 0, times: 50 }];
    for _ in 0..3 {
        let script = script(vec![(2, steps())], vec![], BarrierWait::Block);
        engine.arrive(Arc::new(script), false);
    }
    let mut ended = 0;
    while ended < 3 {
        engine.run(100 * SECOND).unwrap();
        let events = engine.take_sim_events();
        ended += events
            .iter()
            .filter(|n| matches!(n, SimEvent::Ended(_)))
            .count();
    }
    let mut spans = engine.recording().spans;
    let total_ns: u64 = spans.iter().map(|span| span.to_ns - span.from_ns).sum();
    let work_ns = 3 * 2 * 50 * 3_000_000_u64;
    assert!(
        total_ns >= work_ns && total_ns < work_ns + work_ns / 20,
        "{total_ns}"
    );
    spans.sort_by_key(|span| (span.cpu, span.from_ns));
    for pair in spans.windows(2) {
        assert!(pair[0].cpu != pair[1].cpu || pair[0].to_ns <= pair[1].from_ns);
    }
}

#[test]
fn recording_is_bounded_and_states_its_end() {
    let mut engine = engine("core:1 pu:1");
    engine.record(5);
    for _ in 0..2 {
        engine.arrive(
            Arc::new(script(
                vec![(1, vec![work(100.0)])],
                vec![],
                BarrierWait::Block,
            )),
            false,
        );
    }
    engine.run(SECOND).unwrap();
    let recording = engine.recording();
    assert!((5..=6).contains(&recording.spans.len()));
    assert!(recording.until_ns < 50_000_000);
    assert!(
        recording
            .spans
            .iter()
            .all(|span| span.to_ns <= recording.until_ns)
    );
}
