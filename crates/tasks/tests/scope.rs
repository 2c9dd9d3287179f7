// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of scopes, broadcasts and functions on any worker: tasks of a scope run exactly once and
//! end before the scope ends, panics reach the caller, and nested waits do not deadlock.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use usher_tasks::{
    CurrentWorker, GraphBuilder, Groups, NotATask, Policy, Runtime, RuntimeBuilder, TaskScope,
};

const POLICIES: [Policy; 4] = [
    Policy::Usher,
    Policy::Paper {
        t_groups: 2,
        s_groups: 2,
    },
    Policy::Fcfs,
    Policy::Lcfs,
];

/// Polls a condition until it is true, and fails after a minute.
fn wait_for(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no progress");
        thread::yield_now();
    }
}

fn add_one(count: &AtomicUsize) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn sort<'scope>(scope: &TaskScope<'scope>, numbers: &'scope mut [i32]) {
    let [rest @ .., pivot] = numbers else { return };
    let pivot = *pivot;
    let mut below = 0;
    for at in 0..rest.len() {
        if rest[at] < pivot {
            rest.swap(at, below);
            below += 1;
        }
    }
    let last = rest.len();
    numbers.swap(below, last);
    let (left, right) = numbers.split_at_mut(below);
    scope.spawn(move |scope| sort(scope, left));
    scope.spawn(move |scope| sort(scope, &mut right[1..]));
}

#[test]
fn tasks_borrow_data_and_spawn_tasks_under_all_policies() {
    for policy in POLICIES {
        for workers in [1, 2, 3, 8] {
            let runtime = Runtime::with_policy(workers, policy).unwrap();
            let mut numbers: Vec<i32> = (0..5_000).map(|n| n * 7919 % 5_003).collect();
            let mut expected = numbers.clone();
            expected.sort_unstable();
            runtime.scope(|scope| sort(scope, &mut numbers));
            assert_eq!(numbers, expected, "{policy:?}, {workers} workers");
        }
    }
}

/// Spawns `width` tasks that open scopes of their own, `depth` levels deep, and joins between them.
fn tree(runtime: &Runtime, depth: u32, width: usize, count: &AtomicUsize) {
    count.fetch_add(1, Ordering::Relaxed);
    if depth == 0 {
        return;
    }
    runtime.scope(|scope| {
        for branch in 0..width {
            scope.spawn(move |_| match branch % 2 {
                0 => tree(runtime, depth - 1, width, count),
                _ => {
                    let half = || tree(runtime, depth - 1, width, count);
                    runtime.join(half, half);
                }
            });
        }
    });
}

fn tree_size(depth: u32, width: usize) -> usize {
    match depth {
        0 => 1,
        _ => 1 + (width.div_ceil(2) + 2 * (width / 2)) * tree_size(depth - 1, width),
    }
}

#[test]
fn nested_scopes_and_joins_run_all_tasks() {
    for policy in POLICIES {
        for workers in [1, 2, 4] {
            let runtime = Runtime::with_policy(workers, policy).unwrap();
            for (depth, width) in [(1, 100), (3, 6), (6, 2)] {
                let count = AtomicUsize::new(0);
                tree(&runtime, depth, width, &count);
                assert_eq!(count.into_inner(), tree_size(depth, width));
            }
        }
    }
}

/// With stacks of 512 KiB, a worker nests at most 4 waits before a wait is deep.
#[test]
fn deep_waits_run_their_own_tasks() {
    for workers in [2, 3, 8] {
        let builder = RuntimeBuilder::new(workers).stack_bytes(512 << 10);
        let runtime = builder.build().unwrap();
        for (depth, width) in [(12, 1), (6, 3), (2, 40)] {
            let count = AtomicUsize::new(0);
            tree(&runtime, depth, width, &count);
            assert_eq!(count.into_inner(), tree_size(depth, width));
        }
        // The tasks of outer scopes are queued while tasks of inner scopes wait.
        let count = AtomicUsize::new(0);
        runtime.scope(|scope| {
            for _ in 0..2_000 {
                scope.spawn(|scope| {
                    tree(&runtime, 5, 1, &count);
                    scope.spawn(|_| tree(&runtime, 2, 2, &count));
                });
            }
        });
        assert_eq!(count.into_inner(), 2_000 * (6 + tree_size(2, 2)));
    }
}

/// In tasks of graphs, a scope waits inside a nested wait for the graph, and graphs inside scopes.
#[test]
fn scopes_nest_with_graphs() {
    for (workers, stack_bytes) in [(1, 0), (2, 0), (3, 256 << 10)] {
        let builder = RuntimeBuilder::new(workers).stack_bytes(stack_bytes);
        let runtime = builder.build().unwrap();
        let count = AtomicUsize::new(0);
        runtime.scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|_| {
                    let mut builder = GraphBuilder::new();
                    for _ in 0..5 {
                        builder.task();
                    }
                    let body = |_| tree(&runtime, 2, 3, &count);
                    let mut graph = builder.build(body).unwrap();
                    runtime.run(&mut graph).unwrap();
                });
            }
        });
        assert_eq!(count.into_inner(), 100 * tree_size(2, 3));
    }
}

#[test]
fn scope_returns_the_result_of_its_body() {
    for policy in POLICIES {
        let runtime = Runtime::with_policy(2, policy).unwrap();
        let text = String::from("text");
        assert_eq!(runtime.scope(|_| text.as_str()), "text");
        assert_eq!(runtime.scope_in_place(|_| text.as_str()), "text");
    }
}

fn message(result: Result<(), Box<dyn std::any::Any + Send>>) -> String {
    *result.unwrap_err().downcast::<String>().unwrap()
}

fn spawn_100<'scope>(scope: &TaskScope<'scope>, ended: &'scope AtomicUsize, in_body: bool) {
    for number in 0..100 {
        scope.spawn(move |_| {
            ended.fetch_add(1, Ordering::Relaxed);
            if number == 50 && !in_body {
                resume_unwind(Box::new("of a task".to_owned()));
            }
        });
    }
    if in_body {
        resume_unwind(Box::new("of the body".to_owned()));
    }
}

#[test]
fn panics_reach_the_caller_after_all_tasks_have_ended() {
    for policy in POLICIES {
        for workers in [1, 3] {
            let runtime = Runtime::with_policy(workers, policy).unwrap();
            for (in_body, text) in [(false, "of a task"), (true, "of the body")] {
                let ended = AtomicUsize::new(0);
                let in_place = || runtime.scope_in_place(|scope| spawn_100(scope, &ended, in_body));
                let result = catch_unwind(AssertUnwindSafe(in_place));
                assert_eq!(message(result), text);
                assert_eq!(ended.load(Ordering::Relaxed), 100);
                let inside = || runtime.scope(|scope| spawn_100(scope, &ended, in_body));
                assert_eq!(message(catch_unwind(AssertUnwindSafe(inside))), text);
                assert_eq!(ended.load(Ordering::Relaxed), 200);
            }
        }
    }
}

#[test]
fn the_first_of_several_panics_is_kept() {
    let runtime = Runtime::new(1).unwrap();
    let call = || {
        runtime.scope(|scope| {
            scope.spawn(|scope| {
                scope.spawn(|_| resume_unwind(Box::new("second".to_owned())));
                resume_unwind(Box::new("first".to_owned()));
            });
        });
    };
    assert_eq!(message(catch_unwind(AssertUnwindSafe(call))), "first");
    assert_eq!(runtime.scope(|_| 7), 7, "the runtime still works");
}

fn spawn_flags<'scope>(scope: &TaskScope<'scope>, flags: &'scope [AtomicBool]) {
    for flag in flags {
        scope.spawn(move |_| flag.store(true, Ordering::Release));
        wait_for(|| flag.load(Ordering::Acquire));
    }
    for flag in flags {
        scope.spawn(move |_| flag.store(false, Ordering::Release));
    }
    wait_for(|| flags.iter().all(|flag| !flag.load(Ordering::Acquire)));
}

/// Idle workers see each spawned task at once.
#[test]
fn tasks_run_while_the_body_runs() {
    let runtime = Runtime::new(2).unwrap();
    let flags = [const { AtomicBool::new(false) }; 50];
    runtime.scope(|scope| spawn_flags(scope, &flags));
    runtime.scope_in_place(|scope| spawn_flags(scope, &flags));
    runtime.scope(|scope| scope.spawn(|scope| spawn_flags(scope, &flags)));
}

#[test]
fn a_body_in_place_need_not_be_send() {
    for workers in [1, 2] {
        let runtime = Runtime::new(workers).unwrap();
        let (spawned, count) = (Cell::new(0), AtomicUsize::new(0));
        let caller = thread::current().id();
        runtime.scope_in_place(|scope| {
            assert_eq!(thread::current().id(), caller);
            for _ in 0..1_000 {
                spawned.set(spawned.get() + 1);
                scope.spawn(|_| add_one(&count));
            }
        });
        assert_eq!((spawned.get(), count.into_inner()), (1_000, 1_000));
    }
}

#[test]
fn broadcast_calls_the_function_once_on_each_worker() {
    for workers in [1, 2, 5] {
        let runtime = Runtime::new(workers).unwrap();
        let expected: Vec<_> = (0..workers).collect();
        let indexes = || runtime.broadcast(|_| runtime.worker_index().unwrap());
        assert_eq!(indexes(), expected);
        assert_eq!(runtime.run_on_worker(indexes), expected);
        let count = AtomicUsize::new(0);
        runtime.scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|scope| {
                    tree(&runtime, 2, 3, &count);
                    scope.spawn_broadcast(|scope, index| {
                        assert_eq!(runtime.worker_index(), Some(index));
                        scope.spawn(|_| tree(&runtime, 1, 1, &count));
                    });
                });
            }
        });
        assert_eq!(
            count.into_inner(),
            20 * (tree_size(2, 3) + workers * tree_size(1, 1))
        );
        let panics = || runtime.broadcast(|_| resume_unwind(Box::new("message".to_owned())));
        let result = catch_unwind(AssertUnwindSafe(|| drop::<Vec<()>>(panics())));
        assert_eq!(message(result), "message");
    }
}

#[test]
fn broadcast_uses_the_calling_thread_under_policies_with_a_global_queue() {
    for policy in [Policy::Fcfs, Policy::Lcfs] {
        let runtime = Runtime::with_policy(3, policy).unwrap();
        let caller = thread::current().id();
        let result = runtime.broadcast(|index| (index, thread::current().id() == caller));
        assert_eq!(result, [(0, true), (1, true), (2, true)]);
    }
}

/// Workers in deep waits run their tasks of a broadcast.
#[test]
fn broadcasts_reach_workers_in_deep_waits() {
    fn nest(runtime: &Runtime, depth: usize, calls: &AtomicUsize) {
        if depth == 0 {
            let of_worker = |_| calls.fetch_add(1, Ordering::Relaxed);
            assert_eq!(runtime.broadcast(of_worker).len(), runtime.workers());
            return;
        }
        let inner = || nest(runtime, depth - 1, calls);
        runtime.scope(|scope| {
            for _ in 0..2 {
                scope.spawn(move |_| inner());
            }
        });
    }
    let builder = RuntimeBuilder::new(3).stack_bytes(512 << 10);
    let runtime = builder.build().unwrap();
    let calls = AtomicUsize::new(0);
    nest(&runtime, 8, &calls);
    assert_eq!(calls.into_inner(), 3 << 8);
}

/// Runtimes with one worker each wait for each other in turn.
#[test]
fn a_worker_runs_its_tasks_while_it_waits_for_another_runtime() {
    fn alternate(one: &Runtime, other: &Runtime, depth: u32) -> u32 {
        match depth {
            0 => 0,
            _ => one.run_on_worker(|| {
                assert!(one.worker_index().is_some());
                1 + alternate(other, one, depth - 1)
            }),
        }
    }
    for workers in [1, 2] {
        let (one, other) = (Runtime::new(workers), Runtime::new(workers));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!(alternate(&one, &other, 40), 40);
        let count = AtomicUsize::new(0);
        one.scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|_| {
                    other.scope(|scope| scope.spawn(|_| tree(&one, 2, 2, &count)));
                    other.scope_in_place(|scope| scope.spawn(|_| tree(&other, 2, 2, &count)));
                });
            }
        });
        assert_eq!(count.into_inner(), 200 * tree_size(2, 2));
    }
}

#[test]
fn a_handle_opens_scopes_only_in_tasks_of_its_runtime() {
    let (runtime, other) = (Runtime::new(2).unwrap(), Runtime::new(1).unwrap());
    let handle = runtime.handle();
    assert_eq!(handle.scope(|_| 7), Err(NotATask));
    assert_eq!(other.run_on_worker(|| handle.scope(|_| 7)), Err(NotATask));
    let (sender, receiver) = mpsc::channel();
    let in_task = handle.clone();
    let entry = move || {
        let count = AtomicUsize::new(0);
        let opened = in_task.scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|_| add_one(&count));
            }
        });
        sender.send((opened, count.into_inner())).unwrap();
    };
    runtime.submit(Groups::NONE, entry).unwrap();
    assert_eq!(receiver.recv().unwrap(), (Ok(()), 10));
    drop(runtime);
    assert_eq!(handle.scope(|_| 7), Err(NotATask));
}

#[test]
fn the_current_worker_is_that_of_the_innermost_runtime() {
    let (one, other) = (Runtime::new(1).unwrap(), Runtime::new(2).unwrap());
    let is_in = |runtime: &Runtime| {
        CurrentWorker::with(|worker| worker.is_some_and(|worker| worker.is_in(runtime)))
    };
    assert!(!is_in(&one) && !is_in(&other));
    one.run_on_worker(|| {
        assert!(is_in(&one) && !is_in(&other));
        other.run_on_worker(|| assert!(!is_in(&one) && is_in(&other)));
        let ran = Arc::new(Mutex::new(0));
        CurrentWorker::with(|worker| {
            let worker = worker.unwrap();
            assert_eq!((worker.index(), worker.workers()), (0, 1));
            assert!(!worker.has_tasks() && !worker.run_one(true) && !worker.run_one(false));
            for _ in 0..3 {
                let ran = Arc::clone(&ran);
                let entry = move || *ran.lock().unwrap() += 1;
                worker.submit(Groups::NONE, entry).unwrap();
            }
            assert!(worker.has_tasks() && worker.run_one(true) && worker.run_one(false));
            assert_eq!(*ran.lock().unwrap(), 2);
        });
    });
}

#[test]
fn join_context_reports_stolen_functions() {
    let runtime = Runtime::new(2).unwrap();
    assert_eq!(
        runtime.join_context(|a| a, |b| b),
        (true, true),
        "from outside"
    );
    runtime.run_on_worker(|| {
        let (ran, own) = (AtomicBool::new(false), thread::current().id());
        let second = |has_migrated| {
            assert_eq!(has_migrated, thread::current().id() != own);
            ran.store(true, Ordering::Release);
            has_migrated
        };
        // The first function waits until the other worker has stolen the second.
        let first = |has_migrated| {
            wait_for(|| ran.load(Ordering::Acquire));
            has_migrated
        };
        assert_eq!(runtime.join_context(first, second), (false, true));
        assert_eq!(Runtime::new(1).unwrap().run_on_worker(|| 7), 7);
    });
    let alone = Runtime::new(1).unwrap();
    let on_worker = || alone.join_context(|a| a, |b| b);
    assert_eq!(alone.run_on_worker(on_worker), (false, false));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each task of a random tree of scopes runs once, on runtimes with few and many waits.
    #[test]
    fn random_trees_run_each_task_once(
        workers in 1_usize..6,
        stack_kib in 1024_usize..2048,
        children in prop::collection::vec(0_usize..6, 1..120),
    ) {
        /// Task `at` spawns the next `children[at]` tasks in its own scope or in the outer scope.
        fn run<'scope>(
            runtime: &'scope Runtime,
            outer: &TaskScope<'scope>,
            children: &'scope [usize],
            next: &'scope AtomicUsize,
        ) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(&count) = children.get(at) else { return };
            let mut in_own = 0;
            for child in 0..count {
                match child % 2 {
                    0 => outer.spawn(move |outer| run(runtime, outer, children, next)),
                    _ => in_own += 1,
                }
            }
            runtime.scope(|scope| {
                for _ in 0..in_own {
                    scope.spawn(move |scope| run(runtime, scope, children, next));
                }
            });
        }
        let builder = RuntimeBuilder::new(workers).stack_bytes(stack_kib << 10);
        let runtime = builder.build().unwrap();
        let next = AtomicUsize::new(0);
        runtime.scope(|scope| run(&runtime, scope, &children, &next));
        // The number of tasks is 1 plus the children of the tasks that have any.
        let ran = next.into_inner();
        let spawned: usize = children.iter().take(ran).sum();
        prop_assert_eq!(ran, 1 + spawned);
    }
}
