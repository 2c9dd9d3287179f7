// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of tasks with futures: results and panics reach the threads that wait, waits in tasks end
//! for all acyclic dependencies, and waits that could not end are errors.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::{iter, thread};

use proptest::prelude::*;
use usher_tasks::{
    GraphBuilder, Groups, Handle, Policy, Runtime, RuntimeBuilder, TaskFuture, TaskRef, TaskStatus,
    TaskWaitError, WaitError,
};

use common::POLICIES;

/// A value that is set once, and for which other threads wait. The flag is in this crate, because
/// ThreadSanitizer does not see the atomics of the standard library.
struct SetOnce<T> {
    value: OnceLock<T>,
    is_set: AtomicBool,
}

impl<T> SetOnce<T> {
    fn new() -> Self {
        Self {
            value: OnceLock::new(),
            is_set: AtomicBool::new(false),
        }
    }

    fn set(&self, value: T) {
        assert!(self.value.set(value).is_ok(), "set twice");
        self.is_set.store(true, Ordering::Release);
    }

    fn wait(&self) -> &T {
        while !self.is_set.load(Ordering::Acquire) {
            thread::yield_now();
        }
        self.value.get().unwrap()
    }
}

/// The value of task `at`, which waits for the tasks `before`.
fn mix(at: usize, before: impl Iterator<Item = u64>) -> u64 {
    before.fold(at as u64 + 1, |sum, value| {
        sum.wrapping_mul(31).wrapping_add(value)
    })
}

/// A task of a random graph: its value after it has run, and its future.
type Cell = (OnceLock<u64>, SetOnce<TaskFuture<()>>);

/// Submits a task that waits for the tasks `before[at]` in different ways. Submits the tasks of
/// which `at` is the parent from inside.
fn submit_task(
    handle: &Handle,
    cells: &Arc<[Cell]>,
    plan: &Arc<Vec<(Vec<usize>, usize)>>,
    at: usize,
) {
    let (own, own_cells, own_plan) = (handle.clone(), Arc::clone(cells), Arc::clone(plan));
    let task = move || {
        for (child, (_, parent)) in own_plan.iter().enumerate().skip(at + 1) {
            if *parent == at {
                submit_task(&own, &own_cells, &own_plan, child);
            }
        }
        let before = &own_plan[at].0;
        let refs: Vec<TaskRef> = before
            .iter()
            .map(|&before| own_cells[before].1.wait().task().clone())
            .collect();
        match at % 2 {
            0 => TaskRef::wait_all(&refs).unwrap(),
            _ => refs.iter().for_each(|task| task.wait().unwrap()),
        }
        let values = before
            .iter()
            .map(|&before| *own_cells[before].0.get().unwrap());
        own_cells[at].0.set(mix(at, values)).unwrap();
    };
    let groups = Groups::new(at as u32 % 4, at as u32 / 4 % 4);
    let future = handle.submit_future(groups, task).unwrap();
    cells[at].1.set(future);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Tasks that wait for random earlier tasks, which other tasks may have submitted, have the
    /// values of a sequential computation, under every policy and with any number of workers.
    #[test]
    fn waits_for_earlier_tasks_end_and_see_their_results(
        policy in 0..POLICIES.len(),
        workers in 1..5_usize,
        waits in prop::collection::vec(prop::collection::vec(0..1000_usize, 0..5), 1..120),
    ) {
        let plan: Vec<(Vec<usize>, usize)> = waits
            .iter()
            .enumerate()
            .map(|(at, waits)| {
                let before = waits.iter().filter(|_| at > 0).map(|wait| wait % at.max(1));
                (before.collect(), usize::MAX)
            })
            .collect();
        let mut expected: Vec<u64> = Vec::new();
        for (at, (before, _)) in plan.iter().enumerate() {
            let value = mix(at, before.iter().map(|&before| expected[before]));
            expected.push(value);
        }
        let runtime = Runtime::with_policy(workers, POLICIES[policy]).unwrap();
        let cells: Arc<[Cell]> = plan.iter().map(|_| (OnceLock::new(), SetOnce::new())).collect();
        let (plan, handle) = (Arc::new(plan), runtime.handle());
        (0..plan.len()).for_each(|at| submit_task(&handle, &cells, &plan, at));
        for (cell, expected) in cells.iter().zip(expected) {
            cell.1.wait().wait().unwrap();
            prop_assert_eq!(*cell.0.get().unwrap(), expected);
        }
        prop_assert_eq!(runtime.wait(), Ok(()));
    }
}

/// Computes a Fibonacci number by futures, joins, scopes and graphs inside one another.
fn fib(runtime: &Arc<Runtime>, n: u32) -> u64 {
    if n < 2 {
        return n.into();
    }
    let own = Arc::clone(runtime);
    match n % 4 {
        0 => {
            let left = runtime.submit_future(Groups::NONE, move || fib(&own, n - 1));
            let right = fib(runtime, n - 2);
            left.unwrap().value().unwrap() + right
        }
        1 => {
            let (left, right) = runtime.join(|| fib(runtime, n - 1), || fib(runtime, n - 2));
            left + right
        }
        2 => {
            let sum = AtomicU64::new(0);
            runtime.scope(|scope| {
                for less in [1, 2] {
                    let (own, sum) = (&own, &sum);
                    scope.spawn(move |_| {
                        sum.fetch_add(fib(own, n - less), Ordering::Relaxed);
                    });
                }
            });
            sum.into_inner()
        }
        _ => {
            let other = Arc::clone(runtime);
            let parts = [
                runtime.submit_future(Groups::new(1, 1), move || fib(&own, n - 1)),
                runtime.submit_future(Groups::new(2, 2), move || fib(&other, n - 2)),
            ];
            parts
                .map(|part| part.unwrap().value().unwrap())
                .iter()
                .sum()
        }
    }
}

#[test]
fn recursive_waits_end_under_all_policies() {
    for policy in POLICIES {
        for workers in [1, 2, 4] {
            let runtime = Arc::new(Runtime::with_policy(workers, policy).unwrap());
            let own = Arc::clone(&runtime);
            let root = runtime.submit_future(Groups::NONE, move || fib(&own, 15));
            assert_eq!(root.unwrap().value(), Ok(610));
            assert_eq!(fib(&runtime, 13), 233, "from outside");
        }
    }
}

#[test]
fn panics_are_passed_to_the_waiting_threads() {
    let runtime = Runtime::new(2).unwrap();
    let future = runtime
        .submit_future(Groups::NONE, || -> u32 { panic!("no frame") })
        .unwrap();
    let task = future.task().clone();
    let expected = Err(TaskWaitError::Panicked {
        task: task.number(),
        message: "no frame".to_owned(),
    });
    assert_eq!(task.wait(), expected);
    let other = task.clone();
    let inside = runtime.submit_future(Groups::NONE, move || other.wait());
    assert_eq!(inside.unwrap().value(), Ok(expected.clone()));
    assert_eq!(task.status(), TaskStatus::Panicked);
    let payload = catch_unwind(AssertUnwindSafe(|| future.value())).unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>().unwrap(), &"no frame");
    assert_eq!(runtime.wait(), Ok(()), "the panic was passed on before");
}

#[test]
fn panics_that_no_thread_has_seen_are_reported_by_the_wait_for_all_tasks() {
    let runtime = Runtime::new(2).unwrap();
    for drops_early in [true, false] {
        let (sender, receiver) = mpsc::channel::<()>();
        let future = runtime
            .submit_future(Groups::NONE, move || {
                assert!(receiver.recv().is_err());
                panic!("lost");
            })
            .unwrap();
        let task = future.task().number();
        if drops_early {
            drop(future);
            drop(sender);
            runtime.wait_until_idle().unwrap();
        } else {
            drop(sender);
            runtime.wait_until_idle().unwrap();
            assert_eq!(runtime.wait(), Ok(()));
            drop(future);
        }
        let Err(WaitError::Unfinished(unfinished)) = runtime.wait() else {
            panic!("the panic is not reported")
        };
        let panicked = &unfinished.panicked[0];
        assert_eq!(
            (panicked.task, panicked.is_submitted, &*panicked.message),
            (task, true, "lost")
        );
        assert_eq!(runtime.wait(), Ok(()), "once");
    }
}

/// Keeps all workers of a runtime busy until the result is dropped.
fn block(runtime: &Runtime) -> Vec<mpsc::Sender<()>> {
    let mut senders = Vec::new();
    for _ in 0..runtime.workers() {
        let (sender, receiver) = mpsc::channel::<()>();
        let (begins, begun) = mpsc::channel();
        let wait = move || {
            begins.send(()).unwrap();
            let _ = receiver.recv();
        };
        runtime.submit(Groups::NONE, wait).unwrap();
        begun.recv().unwrap();
        senders.push(sender);
    }
    senders
}

#[test]
fn cancelled_tasks_do_not_run() {
    for policy in POLICIES {
        let runtime = Runtime::with_policy(2, policy).unwrap();
        let blocked = block(&runtime);
        let alive = Arc::new(());
        let own = Arc::clone(&alive);
        let future = runtime
            .submit_future(Groups::NONE, move || drop(own))
            .unwrap();
        let other = runtime.submit_future(Groups::NONE, || 7).unwrap();
        assert_eq!(future.task().status(), TaskStatus::Pending);
        assert!(future.task().cancel() && !future.task().cancel());
        assert_eq!(Arc::strong_count(&alive), 1, "the function was dropped");
        let task = future.task().number();
        assert_eq!(future.value(), Err(TaskWaitError::Cancelled { task }));
        drop(blocked);
        let done = other.task().clone();
        assert_eq!(other.value(), Ok(7));
        assert!(!done.cancel(), "it has ended");
        assert_eq!(runtime.wait(), Ok(()));
        let blocked = block(&runtime);
        let future = runtime.submit_future(Groups::NONE, || ()).unwrap();
        runtime.cancel();
        drop(blocked);
        let task = future.task().number();
        assert_eq!(future.value(), Err(TaskWaitError::Cancelled { task }));
    }
}

/// Runs a task that gets a reference to itself.
fn with_own_ref<R: Send + 'static>(
    runtime: &Runtime,
    task: impl FnOnce(TaskRef) -> R + Send + 'static,
) -> TaskFuture<R> {
    let (sender, receiver) = mpsc::channel::<TaskRef>();
    let future = runtime
        .submit_future(Groups::NONE, move || task(receiver.recv().unwrap()))
        .unwrap();
    sender.send(future.task().clone()).unwrap();
    future
}

#[test]
fn waits_for_itself_and_for_ancestors_are_errors() {
    for policy in POLICIES {
        for workers in [1, 3] {
            let runtime = Arc::new(Runtime::with_policy(workers, policy).unwrap());
            let own = Arc::clone(&runtime);
            let root = with_own_ref(&runtime, move |root| {
                let task = root.number();
                let cycle = Err(TaskWaitError::Cycle { task });
                assert_eq!(root.wait(), cycle);
                let (child, inner) = (root.clone(), Arc::clone(&own));
                let waits = own.submit_future(Groups::NONE, move || {
                    let grandchild = child.clone();
                    let inner = inner.submit_future(Groups::NONE, move || grandchild.wait());
                    (child.wait(), inner.unwrap().value().unwrap())
                });
                assert_eq!(
                    waits.unwrap().value().unwrap(),
                    (cycle.clone(), cycle.clone())
                );
                // Parts of the task.
                let (one, other) = own.join(|| root.wait(), || root.wait());
                assert_eq!((&one, &other), (&cycle, &cycle));
                own.scope(|scope| {
                    for _ in 0..4 {
                        let (root, cycle) = (root.clone(), cycle.clone());
                        scope.spawn(move |_| assert_eq!(root.wait(), cycle));
                    }
                });
                let mut builder = GraphBuilder::new();
                (0..8).for_each(|_| _ = builder.task());
                let body = |_| assert_eq!(root.wait(), cycle);
                own.run(&mut builder.build(body).unwrap()).unwrap();
                task
            });
            let number = root.task().number();
            assert_eq!(root.value(), Ok(number));
            assert_eq!(runtime.wait(), Ok(()));
        }
    }
}

/// Two and more tasks wait for one another in a circle. At least one wait is an error, and all
/// tasks end.
#[test]
fn cycles_of_waits_are_errors() {
    for (workers, length) in [(2, 2), (3, 3), (4, 3), (1, 4), (2, 5)] {
        let runtime = Runtime::new(workers).unwrap();
        let refs: Arc<[SetOnce<TaskRef>]> = iter::repeat_with(SetOnce::new).take(length).collect();
        let futures: Vec<_> = (0..length)
            .map(|at| {
                let own = Arc::clone(&refs);
                let wait = move || own[(at + 1) % length].wait().wait();
                let future = runtime.submit_future(Groups::NONE, wait).unwrap();
                refs[at].set(future.task().clone());
                future
            })
            .collect();
        let waits: Vec<_> = futures
            .into_iter()
            .map(|future| future.value().unwrap())
            .collect();
        assert!(
            waits
                .iter()
                .any(|wait| matches!(wait, Err(TaskWaitError::Cycle { .. }))),
            "{waits:?}"
        );
    }
}

/// A task of a scope that another worker runs waits for a task that waits for the scope.
#[test]
fn cycles_through_scopes_on_other_workers_are_errors() {
    let runtime = Arc::new(Runtime::new(3).unwrap());
    for _ in 0..20 {
        let own = Arc::clone(&runtime);
        let opens = with_own_ref(&runtime, move |root| {
            let waits = own.submit_future(Groups::NONE, {
                let root = root.clone();
                move || root.wait()
            });
            let waits = waits.unwrap();
            own.scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|_| waits.wait().unwrap());
                }
            });
            waits.value().unwrap()
        });
        assert!(matches!(
            opens.value(),
            Ok(Err(TaskWaitError::Cycle { .. }))
        ));
    }
}

#[test]
fn long_chains_of_waits_do_not_overflow_the_stack() {
    for policy in [Policy::Lcfs, Policy::Usher, Policy::Fcfs] {
        let builder = RuntimeBuilder::new(1).policy(policy).stack_bytes(1 << 20);
        let runtime = builder.build().unwrap();
        let blocked = block(&runtime);
        let mut tasks: Vec<TaskFuture<Result<u64, TaskWaitError>>> = Vec::new();
        for _ in 0..50_000 {
            let before = tasks.last().map(|last| last.task().clone());
            let wait = move || match before {
                None => Ok(0),
                Some(before) => before.wait().map(|()| 1),
            };
            tasks.push(runtime.submit_future(Groups::NONE, wait).unwrap());
        }
        drop(blocked);
        for task in tasks {
            let waited = task.value().unwrap();
            assert!(
                matches!(waited, Ok(_) | Err(TaskWaitError::StackFull { .. })),
                "{waited:?}"
            );
        }
    }
}

#[test]
fn futures_outlive_their_runtime() {
    let runtime = Runtime::new(2).unwrap();
    let futures: Vec<_> = (0..100)
        .map(|number| runtime.submit_future(Groups::NONE, move || number).unwrap())
        .collect();
    let handle = runtime.handle();
    drop(runtime);
    for (number, future) in futures.into_iter().enumerate() {
        assert_eq!(future.value(), Ok(number));
    }
    assert!(handle.submit_future(Groups::NONE, || ()).is_err());
}

#[test]
fn the_wait_for_all_tasks_waits_for_tasks_that_run_inside_other_tasks() {
    let runtime = Arc::new(Runtime::new(1).unwrap());
    for _ in 0..100 {
        let ended = Arc::new(AtomicBool::new(false));
        let (own, ends) = (Arc::clone(&runtime), Arc::clone(&ended));
        let mut builder = GraphBuilder::new();
        builder.task();
        let body = move |_| {
            let ends = Arc::clone(&ends);
            let inner = own.submit_future(Groups::NONE, move || {
                thread::yield_now();
                ends.store(true, Ordering::Relaxed);
            });
            inner.unwrap().wait().unwrap();
        };
        let mut graph = builder.build(body).unwrap();
        let has_run = SetOnce::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                runtime.run(&mut graph).unwrap();
                has_run.set(());
            });
            while !ended.load(Ordering::Relaxed) {
                runtime.wait().unwrap();
            }
            has_run.wait();
        });
    }
}

#[test]
fn waits_across_runtimes_end_or_are_errors() {
    let [one, other] = [(); 2].map(|()| Arc::new(Runtime::new(1).unwrap()));
    let far = Arc::clone(&other);
    let waits = one.submit_future(Groups::NONE, move || {
        far.submit_future(Groups::NONE, || 7).unwrap().value()
    });
    assert_eq!(waits.unwrap().value(), Ok(Ok(7)));
    let (near, far) = (Arc::clone(&one), Arc::clone(&other));
    let waits = one.submit_future(Groups::NONE, move || {
        let back = far.submit_future(Groups::NONE, move || {
            near.submit_future(Groups::NONE, || 7).unwrap().value()
        });
        back.unwrap().value()
    });
    // The task that waits last gets the error.
    let waited = waits.unwrap().value().unwrap();
    assert!(
        matches!(
            waited,
            Err(TaskWaitError::Deadlock { .. }) | Ok(Err(TaskWaitError::Deadlock { .. }))
        ),
        "{waited:?}"
    );
    other.wait().unwrap();
}

#[test]
fn waits_in_forked_children_are_errors() {
    let runtime = Runtime::new(2).unwrap();
    let done = runtime.submit_future(Groups::NONE, || 7).unwrap();
    done.wait().unwrap();
    let blocked = block(&runtime);
    let pending = runtime.submit_future(Groups::NONE, || 7).unwrap();
    // SAFETY: the child calls only functions that take no lock of another thread, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let creator_pid = std::os::unix::process::parent_id();
        let is_rejected = pending.wait() == Err(TaskWaitError::Forked { creator_pid })
            && TaskRef::wait_all([pending.task()]).is_err()
            && done.wait() == Ok(());
        // SAFETY: the function ends the process.
        unsafe { libc::_exit(i32::from(!is_rejected)) };
    }
    let mut status = -1;
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    drop(blocked);
    assert_eq!(pending.value(), Ok(7));
}

/// Runs graphs inside one another. The innermost tasks wait for tasks that other threads have
/// submitted.
fn nest(runtime: &Runtime, depth: u32, tasks: &[TaskRef], at: &AtomicU64) {
    if depth == 0 {
        let at = at.fetch_add(1, Ordering::Relaxed) as usize;
        return tasks[at % tasks.len()].wait().unwrap();
    }
    let mut builder = GraphBuilder::new();
    let [first, second, last] = [(); 3].map(|()| builder.task());
    builder.after(last, first);
    builder.after(last, second);
    let body = |_| match depth % 3 {
        0 => {
            let inner = || nest(runtime, depth - 1, tasks, at);
            runtime.join(inner, inner);
        }
        _ => nest(runtime, depth - 1, tasks, at),
    };
    runtime.run(&mut builder.build(body).unwrap()).unwrap();
}

/// The limit of nested waits is 4 with these stacks, so most waits are deep.
#[test]
fn waits_in_deeply_nested_graphs_end() {
    for policy in POLICIES {
        for workers in [1, 2, 3] {
            let builder = RuntimeBuilder::new(workers).policy(policy);
            let runtime = builder.stack_bytes(512 << 10).build().unwrap();
            for _ in 0..4 {
                let futures: Vec<_> = (0..200)
                    .map(|_| runtime.submit_future(Groups::NONE, thread::yield_now))
                    .collect();
                let tasks: Vec<TaskRef> = futures
                    .iter()
                    .map(|future| future.as_ref().unwrap().task().clone())
                    .collect();
                let at = AtomicU64::new(0);
                let done = [SetOnce::new(), SetOnce::new()];
                thread::scope(|scope| {
                    for done in &done {
                        scope.spawn(|| {
                            nest(&runtime, 6, &tasks, &at);
                            done.set(());
                        });
                    }
                    done.iter().for_each(|done| *done.wait());
                });
                assert_eq!(runtime.wait(), Ok(()));
            }
        }
    }
}
