// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of isolate regions: nested waits run only tasks that were created in the region, and waits
//! for other tasks are errors.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod common;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use usher_tasks::{GraphBuilder, Groups, Runtime, TaskRef, TaskStatus, TaskWaitError};

use common::POLICIES;

thread_local! {
    /// Whether the thread holds the mutex of the test.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// Runs nested tasks in different ways, which add 1 to the sum 20 times.
fn run_nested(runtime: &Arc<Runtime>, way: usize, sum: &Arc<AtomicU64>) {
    let add = || _ = sum.fetch_add(1, Ordering::Relaxed);
    match way % 5 {
        0 => {
            let mut builder = GraphBuilder::new();
            for at in 0..20_u32 {
                let task = builder.task_in(Groups::new(at % 4, at / 4 % 4));
                if task > 2 {
                    builder.after(task, task - 2);
                }
            }
            runtime.run(&mut builder.build(|_| add()).unwrap()).unwrap();
        }
        1 => {
            for _ in 0..10 {
                runtime.join(add, add);
            }
        }
        2 => runtime.scope(|scope| (0..20).for_each(|_| scope.spawn(|_| add()))),
        3 => runtime.for_each(0..20_u64, |_| add()),
        _ => {
            let futures: Vec<_> = (0..20)
                .map(|at| {
                    let (own, inner) = (Arc::clone(sum), Arc::clone(runtime));
                    let task = move || {
                        inner.join(|| (), || ());
                        own.fetch_add(1, Ordering::Relaxed);
                    };
                    runtime
                        .submit_future(Groups::new(at % 4, at % 3), task)
                        .unwrap()
                })
                .collect();
            match way % 2 {
                0 => TaskRef::wait_all(futures.iter().map(|future| future.task())).unwrap(),
                _ => futures
                    .into_iter()
                    .for_each(|future| future.value().unwrap()),
            }
        }
    }
}

/// Tasks hold a mutex over nested runs. Without the region, a worker would begin another of these
/// tasks inside the wait, and wait for its own mutex.
#[test]
fn a_task_may_hold_a_mutex_over_nested_runs_in_a_region() {
    for policy in POLICIES {
        for workers in [1, 2, 4] {
            let runtime = Arc::new(Runtime::with_policy(workers, policy).unwrap());
            // ThreadSanitizer does not see the mutex of the standard library, so it protects no data.
            let (mutex, count) = (Mutex::new(()), AtomicU64::new(0));
            let sum = Arc::new(AtomicU64::new(0));
            let body = |task: usize| {
                assert!(!HOLDS.get(), "a task from outside runs in the region");
                let _held = mutex.lock().unwrap();
                HOLDS.set(true);
                runtime.isolate(|| {
                    run_nested(&runtime, task, &sum);
                    runtime.isolate(|| run_nested(&runtime, task / 5, &sum));
                });
                HOLDS.set(false);
                count.fetch_add(1, Ordering::Relaxed);
            };
            let mut builder = GraphBuilder::new();
            (0..100).for_each(|_| _ = builder.task());
            let mut graph = builder.build(body).unwrap();
            for _ in 0..3 {
                runtime.run(&mut graph).unwrap();
            }
            drop(graph);
            runtime.for_each(0..50_usize, body);
            runtime.scope(|scope| {
                for task in 0..50 {
                    let body = &body;
                    scope.spawn(move |_| body(task));
                }
            });
            assert_eq!(count.load(Ordering::Relaxed), 400);
            assert_eq!(sum.load(Ordering::Relaxed), 400 * 40);
            assert_eq!(runtime.wait(), Ok(()));
        }
    }
}

#[test]
fn waits_for_tasks_outside_the_region_are_errors() {
    for policy in POLICIES {
        for workers in [1, 3] {
            let runtime = Arc::new(Runtime::with_policy(workers, policy).unwrap());
            let ended = runtime.submit_future(Groups::NONE, || 7).unwrap();
            ended.wait().unwrap();
            let (sender, receiver) = mpsc::channel::<()>();
            let own = Arc::clone(&runtime);
            let task = move || {
                let other = Arc::clone(&own);
                let outside = own.submit_future(Groups::NONE, move || {
                    // It runs only after the region, or on another worker.
                    receiver.recv().unwrap();
                    other.workers()
                });
                let outside = outside.unwrap();
                let task = outside.task().number();
                let isolated = Err(TaskWaitError::Isolated { task });
                own.isolate(|| {
                    assert_eq!(outside.wait(), isolated);
                    assert_eq!(TaskRef::wait_all([outside.task()]), isolated);
                    let inner = own.submit_future(Groups::NONE, || 8).unwrap();
                    let number = inner.task().number();
                    let number = Err(TaskWaitError::Isolated { task: number });
                    own.isolate(|| match inner.wait() {
                        // Another worker may have run it already.
                        Ok(()) => {}
                        wait => assert_eq!(wait, number),
                    });
                    assert_eq!(inner.value(), Ok(8));
                    assert_eq!(ended.value(), Ok(7), "it has ended");
                });
                sender.send(()).unwrap();
                outside.value().unwrap()
            };
            let future = runtime.submit_future(Groups::NONE, task).unwrap();
            assert_eq!(future.value(), Ok(workers));
        }
    }
}

#[test]
fn a_region_ends_with_a_panic_and_is_only_a_call_outside_tasks() {
    let runtime = Arc::new(Runtime::new(2).unwrap());
    assert_eq!(runtime.isolate(|| 7), 7);
    let own = Arc::clone(&runtime);
    let task = move || {
        let region = || own.isolate(|| panic!("in the region"));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(region));
        assert!(caught.is_err());
        // The worker is outside the region again: it may wait for tasks from outside.
        let outside = own.submit_future(Groups::NONE, || 9).unwrap();
        outside.value().unwrap()
    };
    assert_eq!(
        runtime.submit_future(Groups::NONE, task).unwrap().value(),
        Ok(9)
    );
    let other = Arc::new(Runtime::new(1).unwrap());
    let own = Arc::clone(&runtime);
    let task = move || own.isolate(|| other.run_on_worker(|| ()));
    let future = runtime.submit_future(Groups::NONE, task).unwrap();
    let Err(TaskWaitError::Panicked { message, .. }) = future.wait() else {
        panic!("the region has waited for another runtime")
    };
    assert_eq!(message, "an isolate region cannot wait for another runtime");
}

/// A graph of a region stays on its worker while one of its tasks waits for a future of the region.
#[test]
fn graphs_stay_on_their_worker_during_waits_for_futures() {
    for _ in 0..20 {
        let runtime = Arc::new(Runtime::new(3).unwrap());
        let own = Arc::clone(&runtime);
        let workers =
            runtime.submit_future(Groups::NONE, move || own.isolate(|| workers_of_graph(&own)));
        let (own_worker, workers) = workers.unwrap().value().unwrap();
        assert!(
            workers.iter().all(|&worker| worker == own_worker),
            "{own_worker:?}: {workers:?}"
        );
    }
}

/// Runs a graph whose first task waits for a future, which another worker runs until the calling
/// worker sleeps. Returns the calling worker, and the worker of each task.
fn workers_of_graph(runtime: &Arc<Runtime>) -> (Option<usize>, Vec<Option<usize>>) {
    let own_worker = runtime.worker_index();
    let sleeps = {
        let runtime = Arc::clone(runtime);
        move || runtime.counters().0[own_worker.unwrap()].sleeps
    };
    let before = sleeps();
    let future = runtime.submit_future(Groups::NONE, move || {
        while sleeps() == before {
            std::thread::yield_now();
        }
    });
    let future = future.unwrap();
    // Another worker runs the task.
    while future.task().status() == TaskStatus::Pending {
        std::thread::yield_now();
    }
    let mut builder = GraphBuilder::new();
    (0..100).for_each(|_| _ = builder.task());
    let workers = Mutex::new(Vec::new());
    let is_first = AtomicBool::new(true);
    let body = |_| {
        let worker = runtime.worker_index();
        if is_first.swap(false, Ordering::Relaxed) {
            future.wait().unwrap();
        }
        workers.lock().unwrap().push(worker);
    };
    runtime.run(&mut builder.build(body).unwrap()).unwrap();
    (own_worker, workers.into_inner().unwrap())
}
