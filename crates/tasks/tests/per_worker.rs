// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the index of the calling worker, and of values per worker.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use proptest::prelude::*;
use usher_tasks::{GraphBuilder, Groups, PerWorker, Policy, Runtime};

fn wide(tasks: usize) -> GraphBuilder {
    let mut builder = GraphBuilder::new();
    for _ in 0..tasks {
        builder.task();
    }
    builder
}

/// Returns a number of the calling thread, from 1.
fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(1);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

#[test]
fn each_index_belongs_to_one_thread() {
    for policy in [Policy::Usher, Policy::Fcfs] {
        let runtime = Runtime::with_policy(3, policy).unwrap();
        assert_eq!(runtime.worker_index(), None);
        // The number of the thread of each worker. A lock of the standard library would be
        // invisible for ThreadSanitizer.
        let threads = [const { AtomicUsize::new(0) }; 3];
        let body = |_| {
            let thread = &threads[runtime.worker_index().unwrap()];
            let own = thread_number();
            let before = thread.swap(own, Ordering::Relaxed);
            assert!(before == 0 || before == own);
        };
        let mut graph = wide(1000).build(body).unwrap();
        (0..5).for_each(|_| runtime.run(&mut graph).unwrap());
        drop(graph);
        let threads = threads.map(AtomicUsize::into_inner);
        let ran: Vec<usize> = threads.into_iter().filter(|&thread| thread > 0).collect();
        assert_eq!(ran.iter().collect::<BTreeSet<_>>().len(), ran.len());
        assert!(!ran.is_empty());
    }
}

#[test]
fn the_index_is_stable_across_nested_runs_and_joins() {
    let runtime = Runtime::new(2).unwrap();
    let body = |_| {
        let (index, thread) = (runtime.worker_index(), thread::current().id());
        assert!(index.is_some());
        let nested = |_| assert!(runtime.worker_index().is_some());
        runtime.run(&mut wide(20).build(nested).unwrap()).unwrap();
        let (first, second) = runtime.join(|| runtime.worker_index(), || runtime.worker_index());
        assert!(first == index && second.is_some());
        assert_eq!(
            (runtime.worker_index(), thread::current().id()),
            (index, thread)
        );
    };
    runtime.run(&mut wide(50).build(body).unwrap()).unwrap();
    let (first, _) = runtime.join(|| runtime.worker_index(), || ());
    assert!(first.is_some(), "a join from outside runs on a worker");
}

#[test]
fn nested_tasks_of_one_worker_share_its_index_and_value() {
    let runtime = Runtime::new(1).unwrap();
    let count = PerWorker::new(&runtime, |_| Cell::new(0));
    let add = || count.get().unwrap().set(count.get().unwrap().get() + 1);
    let body = |_| {
        let before = count.get().unwrap().get();
        let nested = |_| add();
        runtime.run(&mut wide(3).build(nested).unwrap()).unwrap();
        assert_eq!(count.get().unwrap().get(), before + 3);
    };
    runtime.run(&mut wide(2).build(body).unwrap()).unwrap();
    assert_eq!(
        count
            .into_values()
            .map(Cell::into_inner)
            .collect::<Vec<_>>(),
        [6]
    );
}

#[test]
fn values_belong_to_the_workers_of_one_runtime() {
    let (own, other) = (Arc::new(Runtime::new(2).unwrap()), Runtime::new(2).unwrap());
    let mut values = PerWorker::new(&own, |index| RefCell::new(vec![index]));
    assert!(values.get().is_none());
    let not_own = |_| assert!(values.get().is_none() && own.worker_index().is_none());
    other.run(&mut wide(20).build(not_own).unwrap()).unwrap();
    let body = |_| {
        let index = own.worker_index().unwrap();
        assert_eq!(values.get().unwrap().borrow()[0], index);
        values.get().unwrap().borrow_mut().push(7);
    };
    own.run(&mut wide(20).build(body).unwrap()).unwrap();
    drop(own);
    assert!(values.get().is_none());
    let sums: usize = values
        .iter_mut()
        .map(|value| value.get_mut().len() - 1)
        .sum();
    assert_eq!(sums, 20);
    let firsts: Vec<usize> = values
        .into_values()
        .map(|value| value.borrow()[0])
        .collect();
    assert_eq!(firsts, [0, 1]);
}

#[test]
fn values_need_send_but_not_sync() {
    fn is_sync<T: Sync>(_: &T) {}
    let runtime = Runtime::new(1).unwrap();
    is_sync(&PerWorker::new(&runtime, |_| Cell::new(0)));
    // Values that are not `Send` are possible, but then only one thread can use them.
    let local = PerWorker::new(&runtime, Rc::new);
    assert!(local.get().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// Sums without locks lose no task, for submitted tasks from several threads.
    #[test]
    fn sums_per_worker_are_complete(workers in 1..5_usize, threads in 1..4_usize, tasks in 1..300_usize) {
        let runtime = Runtime::new(workers).unwrap();
        let sums = Arc::new(PerWorker::new(&runtime, |_| Cell::new(0)));
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for task in 0..tasks {
                        let sums = Arc::clone(&sums);
                        let add = move || {
                            let sum = sums.get().unwrap();
                            sum.set(sum.get() + task);
                        };
                        runtime.submit(Groups::NONE, add).unwrap();
                    }
                });
            }
        });
        runtime.wait().unwrap();
        drop(runtime);
        let sums = Arc::into_inner(sums).unwrap();
        let total: usize = sums.into_values().map(Cell::into_inner).sum();
        prop_assert_eq!(total, threads * (0..tasks).sum::<usize>());
    }
}
