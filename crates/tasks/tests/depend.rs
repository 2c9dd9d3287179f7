// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of tasks that are ordered by the data that they read and write: the results are those of a
//! sequential program, and tasks that depend on a failed task are dropped.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod common;

use std::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use proptest::prelude::*;
use usher_tasks::{Access, DataDependencies, Groups, Runtime, SubmitError, WaitError};

use common::POLICIES;

/// A datum. The number of its users is positive while tasks read it, and -1 while a task writes it.
#[derive(Default)]
struct Datum {
    value: AtomicU64,
    users: AtomicIsize,
}

/// The tasks of a program, each with its accesses by index of the datum.
type Program = Vec<Vec<Access>>;

fn index(access: Access) -> (usize, bool) {
    match access {
        Access::In(at) => (at, false),
        Access::Out(at) => (at, true),
    }
}

/// Returns the data of the task, each once, and whether the task writes it.
fn uses(task: &[Access]) -> Vec<(usize, bool)> {
    let mut uses: Vec<_> = task.iter().map(|&access| index(access)).collect();
    // A datum that is read and written counts as written.
    uses.sort_by_key(|&(at, writes)| (at, !writes));
    uses.dedup_by_key(|&mut (at, _)| at);
    uses
}

/// Runs a task: a hash of all its data and its number becomes the value of the data that it writes.
fn compute(number: usize, task: &[Access], data: &[Datum]) {
    let uses = uses(task);
    for &(at, writes) in &uses {
        let before = data[at]
            .users
            .fetch_add(if writes { -1 } else { 1 }, Ordering::AcqRel);
        assert!(if writes { before == 0 } else { before >= 0 }, "conflict");
    }
    let hash = uses.iter().fold(number as u64, |hash, &(at, _)| {
        (hash ^ data[at].value.load(Ordering::Relaxed)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    for &(at, writes) in &uses {
        if writes {
            data[at].value.store(hash, Ordering::Relaxed);
        }
        data[at]
            .users
            .fetch_add(if writes { 1 } else { -1 }, Ordering::AcqRel);
    }
}

fn values(data: &[Datum]) -> Vec<u64> {
    data.iter()
        .map(|datum| datum.value.load(Ordering::Relaxed))
        .collect()
}

fn data(count: usize) -> Arc<[Datum]> {
    (0..count).map(|_| Datum::default()).collect()
}

fn programs(data: usize) -> impl Strategy<Value = Program> {
    let access = (0..data, any::<bool>()).prop_map(|(at, writes)| match writes {
        true => Access::Out(at),
        false => Access::In(at),
    });
    prop::collection::vec(prop::collection::vec(access, 0..5), 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// The values after a random program are those of the sequential program, and no task runs
    /// beside a task with which it conflicts. The tasks are submitted from outside, or by a task.
    #[test]
    fn results_are_those_of_the_sequential_program(
        policy in 0..POLICIES.len(),
        workers in 1..6_usize,
        is_inside in any::<bool>(),
        program in programs(6),
    ) {
        let expected = data(6);
        for (number, task) in program.iter().enumerate() {
            compute(number, task, &expected);
        }
        let runtime = Runtime::with_policy(workers, POLICIES[policy]).unwrap();
        let shared = data(6);
        let tasks = DataDependencies::new(runtime.handle());
        let submit = {
            let shared = Arc::clone(&shared);
            move || {
                for (number, task) in program.into_iter().enumerate() {
                    let shared = Arc::clone(&shared);
                    let groups = Groups::new(number as u32 % 4, number as u32 / 4 % 4);
                    let accesses = task.clone();
                    let task = move || compute(number, &task, &shared);
                    tasks.submit(groups, &accesses, task).unwrap();
                }
            }
        };
        match is_inside {
            true => runtime.submit(Groups::NONE, submit).unwrap(),
            false => submit(),
        }
        runtime.wait().unwrap();
        prop_assert_eq!(values(&shared), values(&expected));
    }
}

#[test]
fn several_threads_submit_tasks_for_the_same_data() {
    const THREADS: u64 = 4;
    const TASKS: u64 = 500;
    let runtime = Runtime::new(3).unwrap();
    let tasks = Arc::new(DataDependencies::new(runtime.handle()));
    let datum = Arc::new(Datum::default());
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (tasks, datum) = (Arc::clone(&tasks), Arc::clone(&datum));
            thread::spawn(move || {
                for _ in 0..TASKS {
                    let datum = Arc::clone(&datum);
                    let add = move || {
                        let value = datum.value.load(Ordering::Relaxed);
                        datum.value.store(value + 1, Ordering::Relaxed);
                    };
                    tasks.submit(Groups::NONE, &[Access::Out(1)], add).unwrap();
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    runtime.wait().unwrap();
    assert_eq!(datum.value.load(Ordering::Relaxed), THREADS * TASKS);
}

/// Adds 1 to one counter when it is dropped, and to the other when it runs.
struct Counted(Arc<[AtomicUsize; 2]>);

impl Counted {
    fn run(self) {
        self.0[1].fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0[0].fetch_add(1, Ordering::AcqRel);
    }
}

fn counts(counts: &[AtomicUsize; 2]) -> [usize; 2] {
    counts.each_ref().map(|count| count.load(Ordering::Acquire))
}

/// Of a chain of tasks, the third panics. The tasks after it are dropped, also those that are
/// submitted after the wait, while tasks on other data run.
#[test]
fn tasks_that_depend_on_a_failed_one_are_dropped() {
    for workers in [1, 3] {
        let runtime = Runtime::new(workers).unwrap();
        let tasks = DataDependencies::new(runtime.handle());
        let (chain, others) = <(Arc<[AtomicUsize; 2]>, Arc<[AtomicUsize; 2]>)>::default();
        let submit = |accesses: &[Access], of: &Arc<[AtomicUsize; 2]>, fails: bool| {
            let counted = Counted(Arc::clone(of));
            let task = move || {
                assert!(!fails, "as intended");
                counted.run();
            };
            tasks.submit(Groups::NONE, accesses, task).unwrap();
        };
        // Task N reads the result of task N - 1.
        for at in 1..=10_000 {
            submit(&[Access::In(at - 1), Access::Out(at)], &chain, at == 3);
            submit(&[Access::Out(100_000 + at % 10)], &others, false);
        }
        match runtime.wait() {
            Err(WaitError::Unfinished(unfinished)) => {
                assert_eq!(unfinished.panicked.len(), 1, "{unfinished:?}");
            }
            outcome => panic!("{outcome:?}"),
        }
        assert_eq!(counts(&chain), [10_000, 2], "{workers} workers");
        assert_eq!(counts(&others), [10_000, 10_000]);
        submit(&[Access::In(3)], &chain, false);
        submit(&[Access::In(1)], &chain, false);
        runtime.wait().unwrap();
        assert_eq!(counts(&chain), [10_002, 3]);
    }
}

#[test]
fn a_cancellation_drops_each_task_once() {
    for workers in [1, 3] {
        let runtime = Runtime::new(workers).unwrap();
        let tasks = DataDependencies::new(runtime.handle());
        let counters: Arc<[AtomicUsize; 2]> = Arc::default();
        for at in 0..5_000 {
            let counted = Counted(Arc::clone(&counters));
            let accesses = [Access::Out(at % 7), Access::In(at % 5)];
            tasks
                .submit(Groups::NONE, &accesses, || counted.run())
                .unwrap();
        }
        runtime.cancel();
        runtime.wait().unwrap();
        let [dropped, run] = counts(&counters);
        assert_eq!(dropped, 5_000);
        assert!(run <= 5_000);
    }
}

#[test]
fn rejected_tasks_are_ignored() {
    let runtime = Runtime::with_policy(1, POLICIES[1]).unwrap();
    let tasks = DataDependencies::new(runtime.handle());
    let counters: Arc<[AtomicUsize; 2]> = Arc::default();
    let submit = |groups| {
        let counted = Counted(Arc::clone(&counters));
        tasks.submit(groups, &[Access::Out(0)], || counted.run())
    };
    let rejected = submit(Groups::new(4, 0)).unwrap_err();
    assert!(
        matches!(rejected, SubmitError::Groups { .. }),
        "{rejected:?}"
    );
    assert_eq!(counts(&counters), [1, 0]);
    submit(Groups::new(1, 1)).unwrap();
    runtime.wait().unwrap();
    assert_eq!(counts(&counters), [2, 1]);
    drop(runtime);
    assert_eq!(submit(Groups::NONE), Err(SubmitError::Ended));
    assert_eq!(counts(&counters), [3, 1]);
}

/// The drop of a runtime runs tasks whose predecessors have not ended yet.
#[test]
fn tasks_run_when_the_runtime_is_dropped() {
    let counters: Arc<[AtomicUsize; 2]> = Arc::default();
    let runtime = Runtime::new(2).unwrap();
    let tasks = DataDependencies::new(runtime.handle());
    for _ in 0..1_000 {
        let counted = Counted(Arc::clone(&counters));
        tasks
            .submit(Groups::NONE, &[Access::Out(0)], || counted.run())
            .unwrap();
    }
    drop(runtime);
    assert_eq!(counts(&counters), [1_000, 1_000]);
}

/// Entries of tasks that have ended do not accumulate.
#[test]
fn the_table_does_not_grow_with_the_number_of_tasks() {
    let runtime = Runtime::new(2).unwrap();
    let tasks = DataDependencies::new(runtime.handle());
    for round in 0..100 {
        for at in 0..100 {
            let accesses = [Access::Out(round * 100 + at), Access::In(usize::MAX)];
            tasks.submit(Groups::NONE, &accesses, || ()).unwrap();
        }
        runtime.wait().unwrap();
    }
    let text = format!("{tasks:?}");
    let addresses = text
        .chars()
        .filter(char::is_ascii_digit)
        .collect::<String>();
    assert!(addresses.parse::<usize>().unwrap() <= 300, "{text}");
}

/// Panics when it is dropped.
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic!("as intended");
        }
    }
}

/// A dropped task whose data panic in their drop does not stop the others from being dropped.
#[test]
fn panics_of_dropped_data_leave_no_task_behind() {
    for workers in [1, 3] {
        let runtime = Runtime::new(workers).unwrap();
        let tasks = DataDependencies::new(runtime.handle());
        let counters: Arc<[AtomicUsize; 2]> = Arc::default();
        let begins = Arc::new(Barrier::new(2));
        let begun = Arc::clone(&begins);
        let fails = move || {
            begun.wait();
            panic!("as intended");
        };
        tasks
            .submit(Groups::NONE, &[Access::Out(0)], fails)
            .unwrap();
        for _ in 0..100 {
            let (counted, panics) = (Counted(Arc::clone(&counters)), PanicsOnDrop);
            let task = move || {
                counted.run();
                drop(panics);
            };
            tasks.submit(Groups::NONE, &[Access::Out(0)], task).unwrap();
        }
        begins.wait();
        assert!(matches!(runtime.wait(), Err(WaitError::Unfinished(_))));
        assert_eq!(counts(&counters), [100, 0], "{workers} workers");
        runtime.submit(Groups::NONE, || ()).unwrap();
        runtime.wait().unwrap();
    }
}
