// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs that cannot go on end with a reason; phases; recording.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use usher_sim::engine::{Engine, News};
use usher_sim::fault::Fault;
use usher_sim::kernel::Kernel;
use usher_sim::machine::{Costs, Machine};
use usher_sim::script::{Memory, Op, Role, Script, Wait};

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

fn script(roles: Vec<(u32, Vec<Op>)>, queues: Vec<u32>, wait: Wait) -> Script {
    let role = |(threads, steps)| Role { threads, steps };
    Script {
        name: "p".to_owned(),
        roles: roles.into_iter().map(role).collect(),
        pools: vec![0],
        queues,
        wait,
        settles: false,
        memory: Memory::default(),
    }
}

fn work(ms: f64) -> Op {
    Op::Work {
        ns: ms * 1e6,
        spread: 0.0,
    }
}

/// What becomes of a script within ten virtual seconds.
fn outcome(script: Script, repeats: bool) -> Result<(), Fault> {
    script.check().unwrap();
    let mut engine = engine("core:2 pu:1");
    engine.arrive(Arc::new(script), repeats);
    while engine.now_ns() < 10 * SECOND {
        engine.run(10 * SECOND)?;
        let news = engine.take_news();
        if news.contains(&News::Ended(0)) {
            return Ok(());
        }
    }
    Ok(())
}

#[test]
fn threads_that_wait_for_one_another_are_found_however_they_wait() {
    // Two locks taken in opposite order.
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
        Wait::Block,
    );
    // One thread leaves before the barrier that counts on it.
    let leaves = |wait| {
        let roles = vec![
            (1, vec![work(1.0), Op::Barrier(0), Op::Barrier(0)]),
            (1, vec![work(1.0), Op::Barrier(0)]),
        ];
        script(roles, vec![], wait)
    };
    // A queue whose reader takes one item only.
    let full = script(
        vec![
            (
                1,
                vec![work(1.0), Op::Put(0), Op::Again { to: 0, times: 9 }],
            ),
            (1, vec![Op::Take(0)]),
        ],
        vec![2],
        Wait::Block,
    );
    for (script, what) in [
        (locks, "role 0, step 2 waits for lock 1"),
        (leaves(Wait::Block), "role 0, step 2 waits at barrier 0"),
        (leaves(Wait::Spin), "role 0, step 2 waits at barrier 0"),
        (
            leaves(Wait::SpinThenBlock(5)),
            "role 0, step 2 waits at barrier 0",
        ),
        (full, "role 0, step 1 waits for a place in queue 0"),
    ] {
        match outcome(script, false) {
            Err(Fault::Deadlock { program, who, at_s }) => {
                assert_eq!((program.as_str(), who.as_str()), ("p", what));
                assert!(at_s <= 2.0);
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn a_long_nap_and_a_stopped_program_are_no_deadlock() {
    let naps = vec![work(1.0), Op::Sleep { ns: 5 * SECOND }, work(1.0)];
    assert_eq!(
        outcome(script(vec![(2, naps)], vec![], Wait::Block), false),
        Ok(())
    );
    let mut engine = engine("core:1 pu:1");
    let program = engine.arrive(
        Arc::new(script(vec![(1, vec![work(1.0)])], vec![], Wait::Block)),
        false,
    );
    engine.freeze(program, true);
    assert_eq!(engine.run(5 * SECOND), Ok(()));
}

#[test]
fn steps_without_time_are_a_storm_that_ends() {
    // One thread gives itself an item and takes it, four thousand million times.
    let own = vec![
        work(1.0),
        Op::Put(0),
        Op::Take(0),
        Op::Again {
            to: 1,
            times: u32::MAX,
        },
    ];
    let storm = outcome(script(vec![(1, own)], vec![1], Wait::Block), false);
    assert!(matches!(storm, Err(Fault::Storm { .. })), "{storm:?}");
    // A pool that holds nothing, between two barriers.
    let empty = vec![
        Op::Items {
            pool: 0,
            ns: 1e6,
            spread: 0.0,
        },
        Op::Barrier(0),
        Op::Again {
            to: 0,
            times: u32::MAX,
        },
    ];
    let storm = outcome(script(vec![(1, empty.clone())], vec![], Wait::Block), false);
    assert!(matches!(storm, Err(Fault::Storm { .. })), "{storm:?}");
    // A repetition that takes no time, and is to be repeated.
    let nothing = outcome(
        script(vec![(1, empty[..1].to_vec())], vec![], Wait::Block),
        true,
    );
    assert!(matches!(nothing, Err(Fault::Nothing { .. })), "{nothing:?}");
}

#[test]
fn a_chain_of_threads_that_wake_one_another_ends() {
    let stages = 1_500;
    let mut roles = vec![(1, vec![work(1.0), Op::Put(0)])];
    for stage in 0..stages {
        roles.push((1, vec![Op::Take(stage), Op::Put(stage + 1)]));
    }
    roles.push((1, vec![Op::Take(stages)]));
    let chain = outcome(script(roles, vec![1; stages + 1], Wait::Block), false);
    assert!(matches!(chain, Err(Fault::Chain { .. })), "{chain:?}");
}

#[test]
fn a_limit_of_events_holds_and_the_fault_stays() {
    let mut engine = engine("core:1 pu:1");
    let tiny = vec![
        Op::Work {
            ns: 1.0,
            spread: 0.0,
        },
        Op::Again {
            to: 0,
            times: u32::MAX,
        },
    ];
    engine.arrive(
        Arc::new(script(vec![(1, tiny)], vec![], Wait::Block)),
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
fn scripts_that_make_no_sense_are_refused_by_name() {
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
            "role 0, step 1: stall must be below 1, not 1.5",
        ),
        (
            vec![work(1.0), Op::Put(1)],
            vec![1],
            "role 0, step 1: there is no queue 1",
        ),
        (
            vec![work(1.0), Op::Put(0)],
            vec![1],
            "nobody takes anything out of queue 0",
        ),
        (
            vec![Op::Take(0), work(1.0)],
            vec![1],
            "nobody puts anything into queue 0",
        ),
        (vec![memory(0.5)], vec![], "it has no work"),
    ];
    for (steps, queues, want) in cases {
        let error = script(vec![(1, steps)], queues, Wait::Block)
            .check()
            .unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
    }
    let many = script(
        vec![(u32::MAX, vec![work(1.0)]), (u32::MAX, vec![work(1.0)])],
        vec![],
        Wait::Block,
    );
    let said = many.check().unwrap_err().to_string();
    assert!(
        said.contains("8589934590 threads, the most is 16384"),
        "{said}"
    );
}

#[test]
fn a_phase_changes_what_the_program_asks_of_memory_until_the_next() {
    // Alone on a node that carries 12 GB/s: two threads that ask for 12 each
    // and wait for memory all but a tenth of the time take almost twice as long.
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
    let seconds = |phase: Option<Memory>| {
        let mut engine = engine("numa:1 core:2 pu:1");
        engine.arrive(
            Arc::new(script(vec![(2, steps(phase))], vec![], Wait::Block)),
            true,
        );
        let mut times = Vec::new();
        while times.len() < 2 {
            engine.run(100 * SECOND).unwrap();
            times.extend(
                engine
                    .take_news()
                    .into_iter()
                    .filter_map(|news| match news {
                        News::Repeated { seconds, .. } => Some(seconds),
                        News::Ended(_) => None,
                    }),
            );
        }
        times
    };
    let calm = seconds(None);
    let phased = seconds(Some(hungry));
    assert!((calm[0] - 2.0).abs() < 0.01, "{calm:?}");
    assert!((2.7..3.1).contains(&phased[0]), "{phased:?}");
    // A repetition begins with the program's own memory again.
    assert!((phased[1] / phased[0] - 1.0).abs() < 0.01, "{phased:?}");
}

#[test]
fn what_is_recorded_adds_up_to_the_cpu_time_and_nobody_has_a_cpu_twice() {
    let mut engine = engine("core:2 pu:1");
    engine.record(usize::MAX);
    let steps = || vec![work(3.0), Op::Barrier(0), Op::Again { to: 0, times: 50 }];
    for _ in 0..3 {
        let script = script(vec![(2, steps())], vec![], Wait::Block);
        engine.arrive(Arc::new(script), false);
    }
    let mut ended = 0;
    while ended < 3 {
        engine.run(100 * SECOND).unwrap();
        let news = engine.take_news();
        ended += news.iter().filter(|n| matches!(n, News::Ended(_))).count();
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
fn a_recording_is_bounded_and_says_until_when() {
    let mut engine = engine("core:1 pu:1");
    engine.record(5);
    for _ in 0..2 {
        engine.arrive(
            Arc::new(script(vec![(1, vec![work(100.0)])], vec![], Wait::Block)),
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
