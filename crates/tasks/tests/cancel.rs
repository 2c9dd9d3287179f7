// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the cancellation of graphs: tasks that have not begun do not run, and a cancellation
//! succeeds if and only if the run reports it.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::{hint, thread};

use proptest::prelude::*;
use usher_tasks::{Graph, GraphBuilder, Groups, RunError, Runtime};

use common::POLICIES;

/// Builds a graph of `count` tasks. Each task depends on up to `width` of the tasks before it.
fn graph<B: Fn(usize) + Sync>(count: usize, width: usize, body: B) -> Graph<B> {
    let mut builder = GraphBuilder::new();
    for at in 0..count {
        let task = builder.task_in(Groups::new(at as u32 % 4, at as u32 / 4 % 4));
        for before in at.saturating_sub(width)..at {
            builder.after(task, before);
        }
    }
    builder.build(body).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// A task cancels its graph. All tasks before it have run, no task that depends on it runs, and
    /// the numbers of run and skipped tasks add up. The next run of the graph is complete.
    #[test]
    fn a_cancelled_run_skips_the_tasks_that_have_not_begun(
        policy in 0..POLICIES.len(),
        workers in 1..5_usize,
        count in 1..300_usize,
        width in 0..4_usize,
        at in 0..300_usize,
    ) {
        let at = at % count;
        let runtime = Runtime::with_policy(workers, POLICIES[policy]).unwrap();
        let ran: Arc<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let cancels = Arc::new(AtomicBool::new(true));
        let handle = Arc::new(std::sync::OnceLock::<usher_tasks::CancelHandle>::new());
        let (own_ran, own_cancels, own_handle) =
            (Arc::clone(&ran), Arc::clone(&cancels), Arc::clone(&handle));
        let mut graph = graph(count, width, move |task| {
            own_ran[task].fetch_add(1, Ordering::Relaxed);
            if task == at && own_cancels.load(Ordering::Relaxed) {
                own_handle.get().unwrap().cancel().unwrap();
            }
        });
        handle.set(graph.cancel_handle()).unwrap();
        let Err(RunError::Cancelled { skipped }) = runtime.run(&mut graph) else {
            panic!("the run was not cancelled")
        };
        let times: Vec<u64> = ran.iter().map(|ran| ran.load(Ordering::Relaxed)).collect();
        prop_assert!(times.iter().all(|&times| times <= 1) && times[at] == 1);
        prop_assert_eq!(times.iter().sum::<u64>() + skipped, count as u64);
        if width > 0 {
            // The graph is a chain, so exactly the tasks after the cancelling one are skipped.
            prop_assert_eq!(skipped, (count - at - 1) as u64);
        }
        prop_assert!(handle.get().unwrap().cancel().is_err(), "the graph has finished");
        cancels.store(false, Ordering::Relaxed);
        prop_assert_eq!(runtime.run(&mut graph), Ok(()));
        let again = ran.iter().zip(times).all(|(ran, before)| {
            ran.load(Ordering::Relaxed) == before + 1
        });
        prop_assert!(again, "each task has run once more");
    }
}

/// Another thread cancels at a random time. The cancellation succeeds if and only if the run is
/// cancelled.
#[test]
fn cancellations_by_other_threads_agree_with_the_runs() {
    let runtime = Runtime::new(3).unwrap();
    let mut counts = [0; 2];
    for case in 0..400_usize {
        let ran = AtomicUsize::new(0);
        let mut graph = graph(64, 1, |_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        // The first run has finished, so that a cancellation may come too late or too early.
        runtime.run(&mut graph).unwrap();
        let handle = graph.cancel_handle();
        let is_ready = AtomicBool::new(false);
        let succeeded = AtomicUsize::new(0);
        let outcome = thread::scope(|scope| {
            let canceller = scope.spawn(|| {
                is_ready.store(true, Ordering::Relaxed);
                (0..case * 20).for_each(|_| hint::spin_loop());
                if handle.cancel().is_ok() {
                    succeeded.store(1, Ordering::Relaxed);
                }
            });
            while !is_ready.load(Ordering::Relaxed) {
                hint::spin_loop();
            }
            let outcome = runtime.run(&mut graph);
            canceller.join().unwrap();
            outcome
        });
        let is_cancelled = matches!(outcome, Err(RunError::Cancelled { .. }));
        assert_eq!(succeeded.into_inner() == 1, is_cancelled);
        if let Err(RunError::Cancelled { skipped }) = outcome {
            assert_eq!(ran.load(Ordering::Relaxed), 128 - skipped as usize);
        }
        counts[usize::from(is_cancelled)] += 1;
    }
    assert_eq!(counts[0] + counts[1], 400);
}

#[test]
fn a_graph_that_has_never_run_is_cancelled_once() {
    for policy in POLICIES {
        let runtime = Runtime::with_policy(2, policy).unwrap();
        for count in [0, 1, 50] {
            let ran = AtomicUsize::new(0);
            let mut graph = graph(count, 1, |_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            let handle = graph.cancel_handle();
            assert_eq!((handle.cancel(), handle.clone().cancel()), (Ok(()), Ok(())));
            let skipped = count as u64;
            let expected = Err(RunError::Cancelled { skipped });
            assert_eq!(runtime.run(&mut graph), expected);
            assert_eq!(runtime.run(&mut graph), Ok(()));
            assert!(handle.cancel().is_err());
            drop(graph);
            assert!(handle.cancel().is_err());
            assert_eq!(ran.into_inner(), count);
        }
    }
}

/// A graph that a task of the cancelled graph runs is not cancelled, and a panic has priority.
#[test]
fn inner_graphs_continue_and_panics_are_reported() {
    let runtime = Runtime::new(2).unwrap();
    let handle = std::sync::OnceLock::<usher_tasks::CancelHandle>::new();
    let inner = AtomicUsize::new(0);
    let mut outer = graph(8, 1, |task| match task {
        2 => {
            handle.get().unwrap().cancel().unwrap();
            let count = |_| _ = inner.fetch_add(1, Ordering::Relaxed);
            runtime.run(&mut graph(20, 2, count)).unwrap();
            panic!("after the cancellation");
        }
        _ => assert!(task < 2),
    });
    handle.set(outer.cancel_handle()).unwrap();
    let Err(RunError::Panicked { panicked, skipped }) = runtime.run(&mut outer) else {
        panic!("the panic is not reported")
    };
    assert_eq!((panicked[0].task, skipped), (2, 5));
    drop(outer);
    assert_eq!(inner.into_inner(), 20);
}
