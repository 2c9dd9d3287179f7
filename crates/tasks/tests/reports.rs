// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of what a runtime reports: traces, counters, and the orders that it has found.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use usher_tasks::{
    ColorBy, Counters, Graph, GraphBuilder, Groups, Policy, TaskOrder, WorkerPlaces,
};
use usher_tasks::{Runtime, Trace, TraceError};
use usher_topology::{Source, load};

const ROWS: usize = 12;
const COLUMNS: usize = 20;
const STAGES: usize = 4;
const TASKS: usize = ROWS * COLUMNS * STAGES;

/// Returns a graph of blocks in rows, each in stages, declared stage by stage. `groups(row, column,
/// stage)` computes the groups of a task.
fn wavefront<B: Fn(usize) + Sync>(
    groups: impl Fn(usize, usize, usize) -> Groups,
    body: B,
) -> Graph<B> {
    let mut builder = GraphBuilder::new();
    let number = |row: usize, column: usize, stage: usize| (stage * ROWS + row) * COLUMNS + column;
    for stage in 0..STAGES {
        for row in 0..ROWS {
            for column in 0..COLUMNS {
                let task = builder.task_in(groups(row, column, stage));
                if stage > 0 {
                    builder.after(task, number(row, column, stage - 1));
                }
                if column > 0 {
                    builder.after(task, number(row, column - 1, stage));
                }
                if row > 0 {
                    builder.after(task, number(row - 1, column, stage));
                }
            }
        }
    }
    builder.build(body).unwrap()
}

fn by_row(row: usize, _: usize, stage: usize) -> Groups {
    Groups::new(row as u32 + 1, stage as u32 + 1)
}

fn without(_: usize, _: usize, _: usize) -> Groups {
    Groups::NONE
}

const POLICIES: [Policy; 4] = [
    Policy::Usher,
    Policy::Paper {
        t_groups: ROWS as u32 + 1,
        s_groups: STAGES as u32 + 1,
    },
    Policy::Fcfs,
    Policy::Lcfs,
];

fn assert_whole(trace: &Trace, workers: usize) {
    assert_eq!((trace.workers, trace.lost), (workers, 0));
    let tasks: BTreeSet<u64> = trace.spans.iter().map(|span| span.task).collect();
    assert_eq!((trace.spans.len(), tasks.len()), (TASKS, TASKS));
    for pair in trace.spans.windows(2) {
        assert!(pair[0].start_ns <= pair[0].end_ns);
        let same = pair[0].worker == pair[1].worker;
        assert!(!same || pair[0].end_ns <= pair[1].start_ns, "{pair:?}");
        assert!(pair[0].worker <= pair[1].worker);
    }
}

#[test]
fn every_task_is_in_the_trace_with_its_groups() {
    for policy in POLICIES {
        for workers in [1, 3] {
            let runtime = Runtime::with_policy(workers, policy).unwrap();
            let mut graph = wavefront(by_row, |_| ());
            runtime.run(&mut graph).unwrap();
            assert_eq!(runtime.trace(), Trace::default());
            runtime.start_trace(TASKS).unwrap();
            runtime.run(&mut graph).unwrap();
            runtime.stop_trace();
            runtime.run(&mut graph).unwrap();
            let trace = runtime.trace();
            assert_whole(&trace, workers);
            for span in &trace.spans {
                let (stage, place) = (span.task as usize / (ROWS * COLUMNS), span.task as usize);
                let row = place / COLUMNS % ROWS;
                assert_eq!(span.groups, by_row(row, 0, stage));
            }
        }
    }
}

#[test]
fn a_trace_keeps_the_latest_and_counts_lost_spans() {
    let runtime = Runtime::new(1).unwrap();
    runtime.start_trace(100).unwrap();
    runtime.run(&mut wavefront(by_row, |_| ())).unwrap();
    let trace = runtime.trace();
    assert_eq!((trace.spans.len(), trace.lost), (100, TASKS as u64 - 100));
    runtime.start_trace(1).unwrap();
    assert_eq!((runtime.trace().spans.len(), runtime.trace().lost), (0, 0));
}

#[test]
fn each_trace_keeps_the_number_it_was_started_with() {
    let runtime = Runtime::new(1).unwrap();
    let mut graph = wavefront(by_row, |_| ());
    for spans in [100, 1, 101, 0, 1000, 3] {
        runtime.start_trace(spans).unwrap();
        runtime.run(&mut graph).unwrap();
        let trace = runtime.trace();
        let kept = spans.min(TASKS);
        assert_eq!(
            (trace.spans.len(), trace.lost),
            (kept, (TASKS - kept) as u64)
        );
    }
}

#[test]
fn a_failed_start_of_a_trace_changes_nothing() {
    let runtime = Runtime::new(1).unwrap();
    let mut graph = wavefront(by_row, |_| ());
    runtime.start_trace(100).unwrap();
    runtime.run(&mut graph).unwrap();
    let before = runtime.trace();
    for spans_per_worker in [usize::MAX, 1 << 59, 1 << 31] {
        let expected = TraceError::Memory {
            spans_per_worker,
            workers: 1,
        };
        assert_eq!(runtime.start_trace(spans_per_worker), Err(expected));
    }
    assert_eq!(runtime.trace(), before);
    runtime.run(&mut graph).unwrap();
    assert_eq!(
        runtime.trace().lost,
        before.lost + TASKS as u64,
        "it goes on"
    );
}

#[test]
fn buffers_can_be_replaced_while_tasks_are_traced() {
    let runtime = Runtime::new(2).unwrap();
    std::thread::scope(|scope| {
        let ran = scope.spawn(|| {
            let mut graph = wavefront(by_row, |_| ());
            (0..50).for_each(|_| runtime.run(&mut graph).unwrap());
        });
        let mut spans = 1;
        while !ran.is_finished() {
            runtime.start_trace(spans).unwrap();
            spans = (spans * 2).min(1 << 12);
            for span in runtime.trace().spans {
                assert!((span.task as usize) < TASKS && span.start_ns <= span.end_ns);
            }
        }
    });
}

#[test]
fn a_task_that_panics_is_in_the_trace_and_its_followers_are_not() {
    let runtime = Runtime::new(2).unwrap();
    let mut graph = wavefront(by_row, |task| assert!(task != 7, "no"));
    for _ in 0..10 {
        runtime.start_trace(TASKS).unwrap();
        let error = runtime.run(&mut graph).unwrap_err().to_string();
        assert!(error.contains("task 7 panicked: no"), "{error}");
        let trace = runtime.trace();
        let ran: BTreeSet<u64> = trace.spans.iter().map(|span| span.task).collect();
        assert!(ran.contains(&7) && !ran.contains(&8) && !ran.contains(&(TASKS as u64 - 1)));
        runtime.stop_trace();
    }
    assert_eq!(
        runtime
            .counters()
            .0
            .iter()
            .map(|counted| counted.tasks)
            .sum::<u64>(),
        10 * TASKS as u64
    );
}

#[test]
fn a_trace_can_be_read_while_it_is_written() {
    let runtime = Runtime::new(2).unwrap();
    runtime.start_trace(50).unwrap();
    std::thread::scope(|scope| {
        let ran = scope.spawn(|| {
            let mut graph = wavefront(by_row, |_| ());
            (0..50).for_each(|_| runtime.run(&mut graph).unwrap());
        });
        while !ran.is_finished() {
            for span in runtime.trace().spans {
                assert!((span.task as usize) < TASKS && span.start_ns <= span.end_ns);
                assert!((1..=ROWS as u32).contains(&span.groups.t));
            }
        }
    });
}

#[test]
fn registered_tasks_are_in_the_trace_by_their_tokens() {
    let runtime = Runtime::new(2).unwrap();
    runtime.start_trace(1000).unwrap();
    for token in 0..500 {
        runtime
            .register(token * 7, 0, Groups::new(1, 0), || ())
            .unwrap();
    }
    runtime.wait().unwrap();
    let tokens: BTreeSet<u64> = runtime.trace().spans.iter().map(|span| span.task).collect();
    assert_eq!(tokens, (0..500).map(|token| token * 7).collect());
}

#[test]
fn chrome_traces_have_a_track_per_worker_and_a_span_per_task() {
    let runtime = Runtime::new(2).unwrap();
    runtime.start_trace(TASKS).unwrap();
    runtime.run(&mut wavefront(by_row, |_| ())).unwrap();
    let trace = runtime.trace();
    let mut file = Vec::new();
    trace.write_chrome(&mut file).unwrap();
    let read: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let events = read["traceEvents"].as_array().unwrap();
    let of = |kind: &str| events.iter().filter(|event| event["ph"] == kind).count();
    assert_eq!((of("M"), of("X")), (2, TASKS));
    let first = events.iter().find(|event| event["ph"] == "X").unwrap();
    let span = trace.spans[0];
    assert_eq!(first["args"]["task"], span.task);
    assert_eq!(first["ts"].as_f64().unwrap(), span.start_ns as f64 / 1e3);
}

#[test]
fn the_picture_has_every_worker() {
    let runtime = Runtime::new(3).unwrap();
    runtime.start_trace(TASKS).unwrap();
    runtime.run(&mut wavefront(by_row, |_| ())).unwrap();
    for color_by in [ColorBy::T, ColorBy::S] {
        let mut picture = Vec::new();
        runtime.trace().write_svg(color_by, &mut picture).unwrap();
        let picture = String::from_utf8(picture).unwrap();
        for what in ["worker 0", "worker 2", "960 tasks on 3 workers", "</svg>"] {
            assert!(picture.contains(what), "{what}");
        }
    }
}

#[test]
fn counters_add_up() {
    for policy in POLICIES {
        let runtime = Runtime::with_policy(3, policy).unwrap();
        let mut graph = wavefront(by_row, |_| ());
        for _ in 0..5 {
            runtime.run(&mut graph).unwrap();
        }
        let counters = runtime.counters();
        let tasks: u64 = counters.0.iter().map(|counted| counted.tasks).sum();
        // A worker counts a task before it runs the task, so all tasks are counted when the graph
        // has run.
        assert_eq!(tasks, 5 * TASKS as u64);
        let of_all = |of: fn(&Counters) -> u64| counters.0.iter().map(of).sum::<u64>();
        let is_usher = policy == Policy::Usher;
        let moved = of_all(|counted| counted.group_moves);
        assert!(moved <= 5 * TASKS as u64 && (is_usher || of_all(|counted| counted.sent) == 0));
        let knows_groups = is_usher || matches!(policy, Policy::Paper { .. });
        assert!(knows_groups || moved == 0, "{counters}");
        let outside: u64 = counters.0.iter().map(|counted| counted.outside).sum();
        assert_eq!(policy == Policy::Usher, outside > 0, "{counters}");
        assert_eq!(counters.to_string().lines().count(), 1 + 3);
    }
}

/// Tasks a and b must run at the same time, so one of them is stolen, and the thief becomes the
/// owner of its group. The successor of each of these tasks is in the group of the other task.
#[test]
fn moves_between_workers_are_counted() {
    for _ in 0..20 {
        let runtime = Runtime::new(2).unwrap();
        let barrier = std::sync::Barrier::new(2);
        let mut builder = GraphBuilder::new();
        let first = builder.task();
        let [a, b] = [1, 2].map(|s| builder.task_in(Groups::new(0, s)));
        let [after_a, after_b] = [2, 1].map(|s| builder.task_in(Groups::new(0, s)));
        builder.after(a, first).after(b, first);
        builder.after(after_a, a).after(after_b, b);
        let body = |task| {
            if task == a || task == b {
                barrier.wait();
            }
        };
        runtime.run(&mut builder.build(body).unwrap()).unwrap();
        let counters = runtime.counters();
        let sum = |of: fn(&Counters) -> u64| counters.0.iter().map(of).sum::<u64>();
        assert_eq!(sum(|counted| counted.tasks), 5);
        assert_eq!(sum(|counted| counted.outside), 1);
        assert_eq!(sum(|counted| counted.sent), 2, "{counters}");
        let [near, package, machine] = [0, 1, 2].map(|distance| {
            let steals = counters.0.iter().map(|counted| counted.steals[distance]);
            steals.sum::<u64>()
        });
        // One of the tasks a and b was stolen. The two tasks that were sent to the owners of their
        // groups may also have been stolen.
        assert!((1..=3).contains(&near), "{counters}");
        assert_eq!((package, machine), (0, 0));
        assert_eq!(sum(|counted| counted.group_moves), near, "{counters}");
    }
}

#[test]
fn steals_are_counted_by_distance() {
    let machine = load(Source::parse("package:2 l3:1 core:1 pu:1").unwrap()).unwrap();
    let places = WorkerPlaces::on(&machine, 2, None);
    let runtime = Runtime::with_places(places, Policy::Usher).unwrap();
    let barrier = std::sync::Barrier::new(2);
    runtime.join(|| barrier.wait(), || barrier.wait());
    let counters = runtime.counters().0;
    let steals = counters.iter().map(|counted| counted.steals);
    let sum = steals.fold([0; 3], |sum, of| [0, 1, 2].map(|at| sum[at] + of[at]));
    assert_eq!(sum, [0, 0, 1]);
}

#[test]
fn sleep_is_counted_while_it_lasts() {
    let runtime = Runtime::new(2).unwrap();
    let counters = || runtime.counters().0;
    while counters().iter().any(|counted| counted.sleeps == 0) {
        std::thread::yield_now();
    }
    let before = counters();
    let sleeps_on = |(now, before): (&Counters, &Counters)| {
        now.asleep_ns > before.asleep_ns && now.sleeps == before.sleeps
    };
    while !counters().iter().zip(&before).all(sleeps_on) {
        std::thread::yield_now();
    }
    runtime.run(&mut wavefront(by_row, |_| ())).unwrap();
    let after = counters();
    let grows = |(now, before): (&Counters, &Counters)| now.asleep_ns >= before.asleep_ns;
    assert!(after.iter().zip(&before).all(grows));
}

/// A worker with a task that waits sleeps if there is no other task to run.
#[test]
fn a_task_that_waits_sleeps_and_is_woken() {
    let runtime = Runtime::new(2).unwrap();
    let sleeps = || -> u64 {
        runtime
            .counters()
            .0
            .iter()
            .map(|counted| counted.sleeps)
            .sum()
    };
    let barrier = std::sync::Barrier::new(2);
    let ((), ()) = runtime.join(
        || {
            barrier.wait();
        },
        || {
            // Both workers are awake when the counters are read, and this worker does not sleep
            // afterwards.
            let before = sleeps();
            barrier.wait();
            while sleeps() == before {
                std::thread::yield_now();
            }
        },
    );
    let mut builder = GraphBuilder::new();
    let [first, second] = [(); 2].map(|()| builder.task());
    let mut inner = builder
        .build(|task| {
            if task == first || task == second {
                barrier.wait();
            }
        })
        .unwrap();
    let mut outer = GraphBuilder::new();
    outer.task();
    let inner = std::sync::Mutex::new(&mut inner);
    let run = |_| runtime.run(*inner.lock().unwrap()).unwrap();
    runtime.run(&mut outer.build(run).unwrap()).unwrap();
}

#[test]
fn an_order_is_found_for_a_graph_without_groups() {
    let ran = AtomicU32::new(0);
    let mut graph = wavefront(without, |_| {
        ran.fetch_add(1, Ordering::Relaxed);
    });
    let runtime = Runtime::new(2).unwrap();
    assert!(graph.explain().orders.is_empty());
    runtime.run(&mut graph).unwrap();
    assert_eq!(
        graph.explain().orders.len(),
        1,
        "a single run has no trials"
    );
    let mut runs = 1;
    while graph.explain().chosen.is_none() {
        runtime.run(&mut graph).unwrap();
        runs += 1;
        assert!(runs < 100, "{}", graph.explain());
    }
    assert_eq!(ran.load(Ordering::Relaxed), runs * TASKS as u32);
    let found = graph.explain();
    let step = ROWS * COLUMNS;
    let orders: Vec<TaskOrder> = found.orders.iter().map(|tried| tried.order).collect();
    assert!(orders.contains(&TaskOrder::Declared) && orders.contains(&TaskOrder::Chains { step }));
    assert!(found.orders.iter().all(|tried| tried.ns_per_task.is_some()));
    assert!(orders.contains(&found.chosen.unwrap()));
    assert!(found.to_string().contains("along steps of 240"));
    // The policy `paper` uses only declared groups, so the runtime does not choose groups.
    let paper = Runtime::with_policy(2, POLICIES[1]).unwrap();
    paper.start_trace(TASKS).unwrap();
    paper.run(&mut graph).unwrap();
    assert!(
        paper
            .trace()
            .spans
            .iter()
            .all(|span| span.groups == Groups::NONE)
    );
}

#[test]
fn declared_groups_determine_the_order() {
    let mut graph = wavefront(by_row, |_| ());
    let runtime = Runtime::new(1).unwrap();
    for _ in 0..10 {
        runtime.run(&mut graph).unwrap();
    }
    let found = graph.explain();
    assert!(found.hinted && found.orders.is_empty());
}

#[test]
fn small_graphs_keep_the_declared_order_and_hints_need_a_task() {
    let mut builder = GraphBuilder::new();
    let task = builder.task();
    builder.on(task, 0x1000).runs(task, 1);
    let mut graph = builder.build(|_| ()).unwrap();
    let runtime = Runtime::new(1).unwrap();
    (0..5).for_each(|_| runtime.run(&mut graph).unwrap());
    assert_eq!(graph.explain().chosen, Some(TaskOrder::Declared));
    let mut builder = GraphBuilder::new();
    builder.on(3, 0x1000);
    let error = builder.build(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "the graph has no task 3: it has 0 tasks");
    let mut builder = GraphBuilder::new();
    builder.runs(usize::MAX, 0);
    assert!(builder.build(|_| ()).is_err());
}

#[test]
fn aborted_runs_do_not_count_as_trials() {
    let mut graph = wavefront(without, |task| assert!(task != 0, "no"));
    let runtime = Runtime::new(1).unwrap();
    for _ in 0..50 {
        runtime.run(&mut graph).unwrap_err();
    }
    let tried = graph.explain().orders;
    assert!(tried.iter().all(|tried| tried.ns_per_task.is_none()));
}

#[test]
fn two_tasks_that_wait_for_one_another_run_at_once() {
    let barrier = std::sync::Barrier::new(2);
    let mut builder = GraphBuilder::new();
    let [first, a, b] = [(); 3].map(|()| builder.task());
    builder.after(a, first).after(b, first);
    let mut graph = builder
        .build(|task| {
            if task > 0 {
                barrier.wait();
            }
        })
        .unwrap();
    let runtime = Runtime::new(2).unwrap();
    (0..50).for_each(|_| runtime.run(&mut graph).unwrap());
}

#[test]
fn panics_with_any_payload_are_reported() {
    struct Thrower;
    impl Drop for Thrower {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let runtime = Runtime::new(2).unwrap();
    let throw = || std::panic::panic_any(Thrower);
    runtime.register(1, 0, Groups::NONE, throw).unwrap();
    let error = runtime.wait().unwrap_err().to_string();
    assert_eq!(error, "task 1 panicked: without a message");
    runtime.cancel();
    let owned = Thrower;
    let keep = move || drop(owned);
    runtime.register(2, 0, Groups::NONE, keep).unwrap();
    let error = runtime.wait().unwrap_err().to_string();
    assert_eq!(error, "task 2 panicked: dropped");
}
