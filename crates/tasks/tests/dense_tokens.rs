// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of dense tokens: all tests of tasks by token, random graphs with free and dense tokens, calls
//! of several threads at a time, and invalid ranges.

#![allow(clippy::unwrap_used)] // a test fails by panicking

#[path = "cases/tokens.rs"]
mod cases;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use proptest::prelude::*;
use usher_tasks::{
    Groups, Handle, Runtime, RuntimeBuilder, RuntimeError, TaskError, UnfinishedTasks, WaitError,
};

/// The range of dense tokens in the tests of the module `cases`.
const DENSE_TOKENS: Range<u64> = 0..3000;

fn with_dense(workers: usize, tokens: Range<u64>) -> Runtime {
    let builder = RuntimeBuilder::new(workers).dense_tokens(tokens);
    builder.build().unwrap()
}

/// A graph that a program runs by tokens.
#[derive(Debug, Clone)]
struct Dag {
    /// The token of the first task.
    first: u64,
    /// The successors of each task, which have higher numbers. A successor may occur repeatedly.
    after: Vec<Vec<usize>>,
    /// The tasks in the order of their registration, and for each whether the task is registered at
    /// all.
    registered: Vec<(usize, bool)>,
    /// Resolutions that the program makes before it registers a task, in addition to those by tasks.
    early: Vec<usize>,
}

fn dag() -> impl Strategy<Value = Dag> {
    let edges = prop::collection::vec(
        (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        0..80,
    );
    let early = prop::collection::vec(any::<prop::sample::Index>(), 0..10);
    let first = prop_oneof![Just(0_u64), Just(90), Just(u64::MAX - 200), any::<u64>()];
    (1..40_usize, first, edges, early).prop_flat_map(|(tasks, first, edges, early)| {
        let mut after = vec![Vec::new(); tasks];
        for (one, other) in edges {
            let (one, other) = (one.index(tasks), other.index(tasks));
            if one != other {
                after[one.min(other)].push(one.max(other));
            }
        }
        let early: Vec<usize> = early.iter().map(|early| early.index(tasks)).collect();
        let order = Just((0..tasks).collect::<Vec<_>>()).prop_shuffle();
        let is_registered = prop::collection::vec(prop::bool::weighted(0.95), tasks);
        (order, is_registered).prop_map(move |(order, is_registered)| Dag {
            first: first.min(u64::MAX - 200),
            after: after.clone(),
            registered: order
                .into_iter()
                .map(|task| (task, is_registered[task]))
                .collect(),
            early: early.clone(),
        })
    })
}

impl Dag {
    fn token(&self, task: usize) -> u64 {
        self.first + task as u64
    }

    /// The number of resolutions for which each task waits: one more than its dependencies and early
    /// resolutions for every seventh task.
    fn counts(&self) -> Vec<u32> {
        let mut counts: Vec<u32> = (0..self.after.len())
            .map(|task| u32::from(task % 7 == 6))
            .collect();
        let resolved = self.after.iter().flatten().chain(&self.early);
        resolved.for_each(|&task| counts[task] += 1);
        counts
    }

    /// Returns the tasks that run, and the unfinished tokens.
    fn model(&self) -> (Vec<usize>, UnfinishedTasks) {
        let mut left = self.counts();
        self.early.iter().for_each(|&task| left[task] -= 1);
        let is_registered: BTreeMap<usize, bool> = self.registered.iter().copied().collect();
        let (mut ran, mut unfinished) = (Vec::new(), UnfinishedTasks::default());
        let mut times = vec![0; left.len()];
        self.early.iter().for_each(|&task| times[task] += 1);
        for task in 0..left.len() {
            let token = self.token(task);
            match (is_registered[&task], left[task]) {
                (true, 0) => {
                    ran.push(task);
                    for &next in &self.after[task] {
                        left[next] -= 1;
                        times[next] += 1;
                    }
                }
                (true, more) => unfinished.unresolved.push((token, more)),
                (false, _) if times[task] > 0 => unfinished.unregistered.push(token),
                (false, _) => {}
            }
        }
        (ran, unfinished)
    }

    /// Runs the graph. Returns the position of each task in the order in which they began, and the
    /// unfinished tokens. The position of a task that did not run is `usize::MAX`.
    fn run_on(&self, runtime: &Runtime) -> (Vec<usize>, UnfinishedTasks) {
        // Atomic variables instead of a lock, which ThreadSanitizer would not see.
        let count = Arc::new(AtomicUsize::new(0));
        let unset = |_: &Vec<usize>| Arc::new(AtomicUsize::new(usize::MAX));
        let begun: Vec<_> = self.after.iter().map(unset).collect();
        self.early
            .iter()
            .for_each(|&task| runtime.resolve(self.token(task)).unwrap());
        let counts = self.counts();
        for &(task, _) in self
            .registered
            .iter()
            .filter(|(_, is_registered)| *is_registered)
        {
            let (count, begun) = (Arc::clone(&count), Arc::clone(&begun[task]));
            let handle = runtime.handle();
            let after: Vec<u64> = self.after[task]
                .iter()
                .map(|&next| self.token(next))
                .collect();
            let entry = move || {
                let before = begun.swap(count.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
                assert_eq!(before, usize::MAX, "task {task} ran twice");
                after.iter().for_each(|&next| handle.resolve(next).unwrap());
            };
            runtime
                .register(self.token(task), counts[task], Groups::NONE, entry)
                .unwrap();
        }
        let unfinished = match runtime.wait() {
            Ok(()) => UnfinishedTasks::default(),
            Err(WaitError::Unfinished(unfinished)) => unfinished,
            Err(other) => panic!("{other}"),
        };
        let position = |begun: &Arc<AtomicUsize>| begun.load(Ordering::Relaxed);
        (begun.iter().map(position).collect(), unfinished)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Property: a graph by free tokens, by dense tokens and by tokens of both kinds has the results
    /// of the model, twice in succession on one runtime.
    #[test]
    fn random_graphs_match_the_model(dag in dag(), workers in 1..4_usize, from in 0..40_u64, count in 0..40_u64) {
        let (expected, unfinished) = dag.model();
        let mixed = dag.first + from..dag.first + from + count;
        for range in [0..0, dag.first..dag.first + 40, mixed] {
            let runtime = with_dense(workers, range.clone());
            for _ in 0..2 {
                let (begun, left) = dag.run_on(&runtime);
                let ran = (0..begun.len()).filter(|&task| begun[task] < usize::MAX);
                let ran: Vec<usize> = ran.collect();
                for &task in &ran {
                    prop_assert!(dag.after[task].iter().all(|&next| begun[next] > begun[task]));
                }
                prop_assert_eq!(&ran, &expected);
                prop_assert_eq!(&left, &unfinished, "{:?}", range);
                let waiting = left.unresolved.len() + left.unregistered.len();
                if waiting > 0 {
                    // A cancelled runtime runs no more tasks.
                    prop_assert_eq!(runtime.cancel(), waiting);
                    prop_assert_eq!(runtime.wait(), Ok(()));
                    break;
                }
            }
        }
    }
}

/// Runs `call` on `threads` threads at the same time, with the number of each thread.
fn at_once(threads: usize, call: impl Fn(usize) + Sync) {
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        let begin = |number| {
            let (barrier, call) = (&barrier, &call);
            scope.spawn(move || {
                barrier.wait();
                call(number);
            })
        };
        let threads: Vec<_> = (0..threads).map(begin).collect();
        // ThreadSanitizer sees the ends of threads by `join` only.
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
}

/// Two threads register the same tokens, and two others resolve them. Exactly one registration of
/// each token succeeds, and its task runs once.
#[test]
fn one_of_two_registrations_succeeds() {
    const TOKENS: u64 = 500;
    let runtime = with_dense(2, 0..TOKENS);
    let (ran, registered) = (Arc::new(AtomicU32::new(0)), AtomicU32::new(0));
    for round in 1..=10 {
        at_once(4, |thread| {
            for token in 0..TOKENS {
                if thread >= 2 {
                    runtime.resolve(token).unwrap();
                    continue;
                }
                let ran = Arc::clone(&ran);
                let entry = move || {
                    ran.fetch_add(1, Ordering::Relaxed);
                };
                // The third resolution comes after both registrations.
                match runtime.register(token, 3, Groups::NONE, entry) {
                    Ok(()) => _ = registered.fetch_add(1, Ordering::Relaxed),
                    Err(error) => assert_eq!(error, TaskError::Registered { token }),
                }
            }
        });
        (0..TOKENS).for_each(|token| runtime.resolve(token).unwrap());
        runtime.wait().unwrap();
        let expected = round * TOKENS as u32;
        assert_eq!(registered.load(Ordering::Relaxed), expected);
        assert_eq!(ran.load(Ordering::Relaxed), expected);
    }
}

/// Threads register and resolve tokens while another thread cancels. Each closure is run or dropped
/// once.
#[test]
fn cancelled_closures_are_dropped_once() {
    const TOKENS: u64 = 300;
    let alive = Arc::new(());
    let cancelled = AtomicUsize::new(0);
    for _ in 0..10 {
        let runtime = with_dense(2, 0..TOKENS);
        at_once(3, |thread| match thread {
            0 => {
                for _ in 0..5 {
                    cancelled.fetch_add(runtime.cancel(), Ordering::Relaxed);
                    thread::yield_now();
                }
            }
            _ => {
                for token in 0..TOKENS {
                    let own = Arc::clone(&alive);
                    // Fails if the other thread has registered the token or resolved it twice.
                    let _ = runtime.register(token, 1, Groups::NONE, move || drop(own));
                    let _ = runtime.resolve(token);
                }
            }
        });
        cancelled.fetch_add(runtime.cancel(), Ordering::Relaxed);
        assert_eq!(runtime.wait(), Ok(()));
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}

/// A destructor of a cancelled task registers and resolves the tokens of other cancelled tasks, which
/// are free again.
#[test]
fn destructors_of_cancelled_tasks_may_use_all_tokens() {
    struct Registers(Handle, Range<u64>);
    impl Drop for Registers {
        fn drop(&mut self) {
            for token in self.1.clone() {
                self.0.register(token, 2, Groups::NONE, || ()).unwrap();
                self.0.resolve(token).unwrap();
            }
        }
    }
    for range in [0..0, 0..10, 3..5] {
        let runtime = with_dense(1, range);
        // Destructors of free tokens run before those of dense tokens.
        let registers = Registers(runtime.handle(), 0..10);
        runtime
            .register(4, 1, Groups::NONE, move || drop(registers))
            .unwrap();
        for token in (0..10).filter(|&token| token != 4) {
            runtime.register(token, 1, Groups::NONE, || ()).unwrap();
        }
        assert_eq!(runtime.cancel(), 10);
        let Err(WaitError::Unfinished(unfinished)) = runtime.wait() else {
            panic!("tokens are registered");
        };
        let expected: Vec<(u64, u32)> = (0..10).map(|token| (token, 1)).collect();
        assert_eq!(unfinished.unresolved, expected);
    }
}

/// Resolutions beyond the count are errors while the task runs, also at the limit of the count.
#[test]
fn counts_have_the_same_limits() {
    for range in [0..0, 0..10] {
        let runtime = with_dense(1, range);
        runtime.register(1, u32::MAX, Groups::NONE, || ()).unwrap();
        runtime.resolve(1).unwrap();
        let Err(WaitError::Unfinished(unfinished)) = runtime.wait() else {
            panic!("the task waits");
        };
        assert_eq!(unfinished.unresolved, [(1, u32::MAX - 1)]);
        let handle = runtime.handle();
        let refused = Arc::new(Mutex::new(None));
        let result = Arc::clone(&refused);
        let entry = move || *result.lock().unwrap() = Some(handle.resolve(2));
        runtime.register(2, 0, Groups::NONE, entry).unwrap();
        runtime.wait_until_idle().unwrap();
        let expected = TaskError::ResolvedTooOften {
            token: 2,
            times: 1,
            count: 0,
        };
        assert_eq!(refused.lock().unwrap().take(), Some(Err(expected)));
    }
}

#[test]
fn invalid_ranges_are_errors() {
    let build = |range| RuntimeBuilder::new(1).dense_tokens(range).build();
    #[expect(clippy::reversed_empty_ranges, reason = "an invalid range")]
    let reversed = build(7..5).unwrap_err();
    assert_eq!(
        reversed.to_string(),
        "invalid range of dense tokens 7..5: the end must be at least the start, and at most \
         4294967296 more"
    );
    let long = build(0..(1 << 32) + 1).unwrap_err();
    assert!(matches!(
        long,
        RuntimeError::DenseTokens {
            end: 0x1_0000_0001,
            ..
        }
    ));
    build(u64::MAX - 5..u64::MAX).unwrap();
    build(5..5).unwrap();
}
