// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of fork and join: `join` returns the results of its functions, whichever workers run them,
//! and no worker accesses the caller's stack frame after `join` has returned.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, mpsc};

use proptest::prelude::*;
use usher_tasks::{GraphBuilder, Groups, Policy, Runtime};

const POLICIES: [Policy; 4] = [
    Policy::Usher,
    Policy::Paper {
        t_groups: 2,
        s_groups: 2,
    },
    Policy::Fcfs,
    Policy::Lcfs,
];

fn fib(runtime: &Runtime, n: u32) -> u64 {
    if n < 2 {
        return u64::from(n);
    }
    let (a, b) = runtime.join(|| fib(runtime, n - 1), || fib(runtime, n - 2));
    a + b
}

fn sort(runtime: &Runtime, numbers: &mut [i32]) {
    if numbers.len() < 2 {
        return;
    }
    let pivot = numbers[numbers.len() - 1];
    let mut below = 0;
    for at in 0..numbers.len() - 1 {
        if numbers[at] < pivot {
            numbers.swap(at, below);
            below += 1;
        }
    }
    let last = numbers.len() - 1;
    numbers.swap(below, last);
    let (left, right) = numbers.split_at_mut(below);
    runtime.join(|| sort(runtime, left), || sort(runtime, &mut right[1..]));
}

#[test]
fn join_gives_the_same_results_under_all_policies() {
    for policy in POLICIES {
        for workers in [1, 2, 3, 8] {
            let runtime = Runtime::with_policy(workers, policy).unwrap();
            assert_eq!(fib(&runtime, 16), 987, "{policy:?}, {workers} workers");
        }
    }
}

#[test]
fn both_run_at_the_same_time_where_there_are_two_workers() {
    let runtime = Runtime::new(2).unwrap();
    let barrier = Barrier::new(2);
    // Each function waits at the barrier for the other function, so this call returns only if they
    // run at the same time.
    let (a, b) = runtime.join(|| barrier.wait().is_leader(), || barrier.wait().is_leader());
    assert!(a != b);
}

#[test]
fn a_panic_is_resumed_when_both_have_ended() {
    for workers in [1, 2] {
        let runtime = Runtime::new(workers).unwrap();
        let ended = AtomicU32::new(0);
        let end = || ended.fetch_add(1, Ordering::Relaxed);
        let first = catch_unwind(AssertUnwindSafe(|| {
            runtime.join(|| panic!("first"), end);
        }));
        assert_eq!(first.unwrap_err().downcast_ref(), Some(&"first"));
        ended.store(0, Ordering::Relaxed);
        let second = catch_unwind(AssertUnwindSafe(|| {
            runtime.join(end, || panic!("second"));
        }));
        assert_eq!(second.unwrap_err().downcast_ref(), Some(&"second"));
        assert_eq!(ended.load(Ordering::Relaxed), 1);
        assert_eq!(fib(&runtime, 10), 55, "it goes on");
    }
}

#[test]
fn tasks_of_graphs_and_of_tokens_may_fork() {
    let runtime = Arc::new(Runtime::new(2).unwrap());
    let mut builder = GraphBuilder::new();
    for task in 0..100 {
        builder.task_in(Groups::new(task % 7, task % 5));
    }
    let sums: Vec<AtomicU32> = (0..100).map(|_| AtomicU32::new(0)).collect();
    let mut graph = builder
        .build(|task| {
            let sum = fib(&runtime, task as u32 % 10) as u32;
            sums[task].fetch_add(sum, Ordering::Relaxed);
        })
        .unwrap();
    runtime.run(&mut graph).unwrap();
    for (task, sum) in sums.iter().enumerate() {
        let expected = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34][task % 10];
        assert_eq!(sum.load(Ordering::Relaxed), expected);
    }
    let (sender, receiver) = mpsc::channel();
    let inner = Arc::clone(&runtime);
    runtime
        .register(1, 0, Groups::NONE, move || {
            let value = fib(&inner, 15);
            drop(inner);
            sender.send(value).unwrap();
        })
        .unwrap();
    assert_eq!(receiver.recv().unwrap(), 610);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn halves_of_a_slice_are_sorted_in_place(
        mut numbers in prop::collection::vec(-100..100, 0..500),
        workers in 1_usize..5,
    ) {
        let mut expected = numbers.clone();
        expected.sort_unstable();
        let runtime = Runtime::new(workers).unwrap();
        sort(&runtime, &mut numbers);
        prop_assert_eq!(numbers, expected);
    }
}
