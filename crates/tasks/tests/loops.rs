// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of parallel loops and reductions: each item runs once, results equal those of sequential
//! loops, and panics reach the caller after all pieces have ended.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::any::Any;
use std::hint;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};

use proptest::prelude::*;
use usher_tasks::{GraphBuilder, Groups, Policy, Runtime, RuntimeBuilder};

const POLICIES: [Policy; 4] = [
    Policy::Usher,
    Policy::Paper {
        t_groups: 2,
        s_groups: 2,
    },
    Policy::Fcfs,
    Policy::Lcfs,
];
const WORKERS: [usize; 3] = [1, 2, 8];

fn runtimes() -> Vec<Runtime> {
    let all = POLICIES
        .into_iter()
        .flat_map(|policy| WORKERS.map(|workers| (policy, workers)));
    all.map(|(policy, workers)| Runtime::with_policy(workers, policy).unwrap())
        .collect()
}

/// Runs a function in a task of the runtime, and returns its result.
fn in_task<T: Send + 'static>(
    runtime: &Arc<Runtime>,
    function: impl FnOnce(&Runtime) -> T + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    let inner = Arc::clone(runtime);
    runtime
        .submit(Groups::NONE, move || {
            let result = function(&inner);
            drop(inner);
            sender.send(result).unwrap();
        })
        .unwrap();
    receiver.recv().unwrap()
}

/// Takes more time for some items than for others. One item in 64 takes about 1,000 times as long.
fn spend(item: u64) {
    let hash = item.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
    let steps = if hash == 0 { 4_000 } else { 4 };
    for _ in 0..steps {
        hint::spin_loop();
    }
}

/// A map x -> a * x + b modulo 2^64. Composition is associative, but not commutative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Affine(u64, u64);

impl Affine {
    const IDENTITY: Self = Self(1, 0);

    fn of(item: u64) -> Self {
        Self(item.wrapping_mul(6) | 1, item)
    }

    /// Returns the map that applies this map and then `next`.
    fn then(self, next: Self) -> Self {
        Self(
            self.0.wrapping_mul(next.0),
            self.1.wrapping_mul(next.0).wrapping_add(next.1),
        )
    }
}

fn affine_of(runtime: &Runtime, range: Range<u64>) -> Affine {
    let map = |item| {
        spend(item);
        Affine::of(item)
    };
    runtime.reduce(range, || Affine::IDENTITY, map, Affine::then)
}

fn sequential_affine(range: Range<u64>) -> Affine {
    range.map(Affine::of).fold(Affine::IDENTITY, Affine::then)
}

fn zeros(count: usize) -> Vec<AtomicU32> {
    (0..count).map(|_| AtomicU32::new(0)).collect()
}

fn all_are(counts: &[AtomicU32], expected: u32) -> bool {
    counts
        .iter()
        .all(|count| count.load(Ordering::Relaxed) == expected)
}

fn add_one(count: &AtomicU32) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// Returns the message of a panic.
fn message_of(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().unwrap_or("no text")
}

#[test]
fn each_item_runs_once_from_inside_and_outside() {
    for runtime in runtimes().into_iter().map(Arc::new) {
        let counts = Arc::new(zeros(20_000));
        let run = |counts: &[AtomicU32], runtime: &Runtime| {
            runtime.for_each(0..counts.len(), |i| {
                spend(i as u64);
                add_one(&counts[i]);
            });
        };
        run(&counts, &runtime);
        assert!(all_are(&counts, 1), "{runtime:?}");
        let own = Arc::clone(&counts);
        in_task(&runtime, move |runtime| run(&own, runtime));
        assert!(all_are(&counts, 2), "{runtime:?}");
    }
}

#[test]
fn several_threads_run_loops_at_the_same_time() {
    for runtime in runtimes() {
        let counts = zeros(5_000);
        std::thread::scope(|scope| {
            let one = || runtime.for_each(0..counts.len(), |i| add_one(&counts[i]));
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            // ThreadSanitizer does not see the order of a scope's end.
            for thread in threads {
                thread.join().unwrap();
            }
        });
        assert!(all_are(&counts, 4), "{runtime:?}");
    }
}

#[test]
fn two_items_run_at_the_same_time_with_two_workers() {
    let runtime = Runtime::new(2).unwrap();
    let barrier = Barrier::new(2);
    // Each item waits at the barrier for the other item, so this call returns only if they run at
    // the same time.
    let leaders = AtomicU32::new(0);
    runtime.for_each(0..2, |_| {
        if barrier.wait().is_leader() {
            add_one(&leaders);
        }
    });
    assert_eq!(leaders.load(Ordering::Relaxed), 1);
}

#[test]
fn empty_ranges_call_no_body() {
    for runtime in runtimes() {
        for range in [0..0, 7..7, Range { start: 9, end: 3 }] {
            runtime.for_each(range.clone(), |i: i32| panic!("item {i}"));
            runtime.for_each_block(range.clone(), |block| panic!("block {block:?}"));
            let sum = runtime.reduce(range, || 5, |i| i, |a, b| a + b);
            assert_eq!(sum, 5, "the identity");
        }
    }
}

/// Returns the number of items of a range, counted by blocks.
fn items(runtime: &Runtime, range: Range<u64>) -> u64 {
    let fold = |count: u64, block: Range<u64>| {
        assert!(block.start < block.end);
        count + (block.end - block.start)
    };
    runtime.reduce_blocks(range, || 0, fold, |a, b| a + b)
}

#[test]
fn huge_ranges_are_split_without_overflow() {
    for runtime in runtimes() {
        assert_eq!(items(&runtime, 0..u64::MAX), u64::MAX, "{runtime:?}");
        assert_eq!(items(&runtime, 1..u64::MAX), u64::MAX - 1);
        assert_eq!(items(&runtime, u64::MAX - 3..u64::MAX), 3);
        let signed = AtomicU64::new(0);
        runtime.for_each_block(i64::MIN..i64::MAX, |block| {
            signed.fetch_add(block.end.abs_diff(block.start), Ordering::Relaxed);
        });
        assert_eq!(signed.load(Ordering::Relaxed), u64::MAX);
    }
}

#[test]
fn reductions_combine_neighbours_in_order() {
    for runtime in runtimes().into_iter().map(Arc::new) {
        let text = runtime.reduce(0..3_000, String::new, |i| format!("{i},"), |a, b| a + &b);
        let expected: String = (0..3_000).map(|i| format!("{i},")).collect();
        assert_eq!(text, expected, "{runtime:?}");
        assert_eq!(affine_of(&runtime, 0..50_000), sequential_affine(0..50_000));
        let inside = in_task(&runtime, |runtime| affine_of(runtime, 7..50_007));
        assert_eq!(inside, sequential_affine(7..50_007));
    }
}

#[test]
fn loops_nest() {
    for runtime in runtimes() {
        let counts = zeros(64 * 64);
        runtime.for_each(0..64, |row: usize| {
            let sum = runtime.reduce(0..64_usize, || 0, |column| column, |a, b| a + b);
            assert_eq!(sum, 63 * 32);
            runtime.for_each(0..64, |column: usize| {
                spend(column as u64);
                let (one, two) = runtime.join(|| 1, || 2);
                counts[row * 64 + column].fetch_add(one + two, Ordering::Relaxed);
            });
        });
        assert!(all_are(&counts, 3), "{runtime:?}");
    }
}

fn leaves(runtime: &Runtime, depth: u32) -> u64 {
    match depth {
        0 => 1,
        _ => runtime.reduce(0..3, || 0, |_| leaves(runtime, depth - 1), |a, b| a + b),
    }
}

#[test]
fn loops_nest_deeply() {
    for runtime in runtimes() {
        assert_eq!(leaves(&runtime, 8), 6_561, "{runtime:?}");
    }
}

#[test]
fn loops_need_little_stack() {
    for workers in WORKERS {
        let smallest = RuntimeBuilder::new(workers).stack_bytes(64 << 10);
        let runtime = smallest.build().unwrap();
        assert_eq!(items(&runtime, 0..u64::MAX), u64::MAX);
        assert_eq!(
            affine_of(&runtime, 0..200_000),
            sequential_affine(0..200_000)
        );
        assert_eq!(leaves(&runtime, 3), 27);
    }
}

#[test]
fn tasks_of_graphs_run_loops() {
    for runtime in runtimes() {
        let counts = zeros(100);
        let mut builder = GraphBuilder::new();
        for task in 0..20 {
            builder.task_in(Groups::new(task % 2, task / 2 % 2));
        }
        let mut graph = builder
            .build(|_| runtime.for_each(0..counts.len(), |i| add_one(&counts[i])))
            .unwrap();
        runtime.run(&mut graph).unwrap();
        drop(graph);
        assert!(all_are(&counts, 20), "{runtime:?}");
    }
}

#[test]
fn a_loop_runs_a_graph_for_each_item() {
    for runtime in runtimes() {
        let counts = zeros(40);
        runtime.for_each(0..counts.len(), |i| {
            let mut builder = GraphBuilder::new();
            for _ in 0..8 {
                builder.task();
            }
            let mut graph = builder.build(|_| add_one(&counts[i])).unwrap();
            runtime.run(&mut graph).unwrap();
        });
        assert!(all_are(&counts, 8), "{runtime:?}");
    }
}

#[test]
fn a_panic_stops_a_loop_without_end() {
    for runtime in runtimes() {
        let running = AtomicU32::new(0);
        let ran = AtomicU64::new(0);
        // The loop would take centuries. It ends only if the panic stops all pieces.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            runtime.for_each(0..u64::MAX, |_| {
                add_one(&running);
                if ran.fetch_add(1, Ordering::Relaxed) == 10_000 {
                    running.fetch_sub(1, Ordering::Relaxed);
                    panic!("enough");
                }
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }));
        assert_eq!(message_of(&*outcome.unwrap_err()), "enough");
        assert_eq!(running.load(Ordering::Relaxed), 0, "all pieces have ended");
        let after = ran.load(Ordering::Relaxed);
        assert_eq!(affine_of(&runtime, 0..500), sequential_affine(0..500));
        assert_eq!(ran.load(Ordering::Relaxed), after, "no piece begins later");
    }
}

#[test]
fn a_panic_of_the_identity_of_a_forked_piece_stops_the_loop() {
    let runtime = Runtime::new(2).unwrap();
    let calls = AtomicU32::new(0);
    let identity = || {
        if calls.fetch_add(1, Ordering::Relaxed) == 1 {
            panic!("the second piece");
        }
    };
    // The loop ends only if the panic of the thief stops the first piece.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.reduce(0..u64::MAX, identity, |_| (), |(), ()| hint::spin_loop());
    }));
    assert_eq!(message_of(&*outcome.unwrap_err()), "the second piece");
}

#[test]
fn a_panic_of_one_piece_waits_for_the_end_of_the_other() {
    let runtime = Runtime::new(2).unwrap();
    let (barrier, ended) = (Barrier::new(2), AtomicBool::new(false));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.for_each(0..2, |i| {
            barrier.wait();
            assert!(i == 0, "the second item");
            // The other item panics at about this time.
            (0..1_000).for_each(|_| std::thread::yield_now());
            ended.store(true, Ordering::Relaxed);
        });
    }));
    assert_eq!(message_of(&*outcome.unwrap_err()), "the second item");
    assert!(ended.load(Ordering::Relaxed));
}

/// An accumulator that counts how many accumulators exist.
struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    fn new(alive: &'a AtomicU32) -> Self {
        add_one(alive);
        Self(alive)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn a_panic_of_any_function_of_a_reduction_reaches_the_caller() {
    for runtime in runtimes() {
        let alive = AtomicU32::new(0);
        for failing in ["identity", "map", "combine"] {
            let calls = AtomicU32::new(0);
            let fails = |function| {
                let at = if function == "identity" { 0 } else { 300 };
                if function == failing && calls.fetch_add(1, Ordering::Relaxed) == at {
                    std::panic::panic_any(function);
                }
                Counted::new(&alive)
            };
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let combine = |a, b| {
                    drop((a, b));
                    fails("combine")
                };
                runtime.reduce(0..1_000, || fails("identity"), |_| fails("map"), combine)
            }));
            let panic = outcome.map(drop).unwrap_err();
            assert_eq!(message_of(&*panic), failing, "{runtime:?}");
            assert_eq!(alive.load(Ordering::Relaxed), 0, "all are dropped");
        }
    }
}

#[test]
fn a_panic_while_two_pieces_are_combined_reaches_the_caller() {
    let runtime = Runtime::new(2).unwrap();
    let (barrier, alive) = (Barrier::new(2), AtomicU32::new(0));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let fold = |accumulator, _: Range<i32>| {
            // Two workers run the two items, so the results of two pieces are combined.
            barrier.wait();
            accumulator
        };
        let combine = |_: Counted<'_>, _: Counted<'_>| panic!("combine");
        runtime.reduce_blocks(0..2, || Counted::new(&alive), fold, combine)
    }));
    let panic = outcome.map(drop).unwrap_err();
    assert_eq!(message_of(&*panic), "combine");
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn a_worker_of_another_runtime_runs_loops() {
    for runtime in runtimes() {
        let other = Arc::new(Runtime::new(2).unwrap());
        let result = in_task(&other, move |other| {
            // The loop of `runtime` calls a loop of `other`, whose task waits for `runtime`. That
            // loop runs in the calling thread, because a wait could never end.
            runtime.reduce(
                0..20_u64,
                || Affine::IDENTITY,
                |i| affine_of(other, i * 100..i * 100 + 100),
                Affine::then,
            )
        });
        assert_eq!(result, sequential_affine(0..2_000));
    }
}

#[test]
fn handles_run_loops_inside_and_outside_of_tasks() {
    for runtime in runtimes() {
        let handle = runtime.handle();
        let count = |handle: &usher_tasks::Handle| {
            let counts = zeros(500);
            handle.for_each(0..counts.len(), |i| add_one(&counts[i]));
            handle.for_each_block(0..counts.len(), |block| {
                counts[block].iter().for_each(add_one);
            });
            assert!(all_are(&counts, 2));
            let text = handle.reduce(0..50, String::new, |i| i.to_string(), |a, b| a + &b);
            let length = |length, block: Range<u64>| {
                block.fold(length, |length, i| length + i.to_string().len())
            };
            let sum = handle.reduce_blocks(0..50_u64, || 0, length, |a, b| a + b);
            assert_eq!((text.len(), sum), (90, 90));
        };
        count(&handle);
        let (inner, (sender, receiver)) = (handle.clone(), mpsc::channel());
        runtime
            .submit(Groups::NONE, move || {
                count(&inner);
                sender.send(()).unwrap();
            })
            .unwrap();
        receiver.recv().unwrap();
        drop(runtime);
        count(&handle);
    }
}

#[test]
fn a_handle_inside_a_task_uses_other_workers() {
    let runtime = Runtime::new(2).unwrap();
    let handle = runtime.handle();
    let (sender, receiver) = mpsc::channel();
    runtime
        .submit(Groups::NONE, move || {
            let barrier = Barrier::new(2);
            handle.for_each(0..2, |_| {
                barrier.wait();
            });
            sender.send(()).unwrap();
        })
        .unwrap();
    receiver.recv().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn blocks_are_disjoint_and_cover_the_range(
        start in 0_usize..1_000,
        count in 0_usize..5_000,
        workers in 1_usize..9,
        policy in 0_usize..4,
    ) {
        let runtime = Runtime::with_policy(workers, POLICIES[policy]).unwrap();
        let counts = zeros(count);
        runtime.for_each_block(start..start + count, |block| {
            assert!(block.start < block.end);
            for i in block {
                spend(i as u64);
                add_one(&counts[i - start]);
            }
        });
        prop_assert!(all_are(&counts, 1));
    }

    #[test]
    fn reductions_equal_sequential_ones(
        start in 0_u64..1_000_000,
        count in 0_u64..5_000,
        workers in 1_usize..9,
        policy in 0_usize..4,
    ) {
        let runtime = Runtime::with_policy(workers, POLICIES[policy]).unwrap();
        let range = start..start + count;
        prop_assert_eq!(affine_of(&runtime, range.clone()), sequential_affine(range.clone()));
        let append = |mut text: String, block: Range<u64>| {
            block.for_each(|i| text.push_str(&i.to_string()));
            text
        };
        let text = runtime.reduce_blocks(range.clone(), String::new, append, |a, b| a + &b);
        prop_assert_eq!(text, range.map(|i| i.to_string()).collect::<String>());
    }
}
