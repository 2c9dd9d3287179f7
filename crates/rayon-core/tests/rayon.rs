// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the unmodified crate rayon on this crate, and compares its results with sequential results.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

fn pool(threads: usize) -> ThreadPool {
    let builder = ThreadPoolBuilder::new().num_threads(threads);
    builder.build().unwrap()
}

/// Numbers without an order.
fn numbers(count: u64) -> Vec<u64> {
    (0..count)
        .map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20)
        .collect()
}

/// Calls a test in pools of several sizes, and in the global pool.
fn in_pools(test: impl Fn() + Sync + Send) {
    for threads in [1, 2, 3, 8] {
        pool(threads).install(&test);
    }
    test();
}

#[test]
fn the_crate_rayon_runs_on_workers_of_usher_tasks() {
    let index = || usher_tasks::CurrentWorker::with(|worker| worker.map(|worker| worker.index()));
    assert_eq!(index(), None);
    let indexes = pool(3).broadcast(|context| (index(), context.index()));
    assert_eq!(indexes, [(Some(0), 0), (Some(1), 1), (Some(2), 2)]);
}

#[test]
fn sums_maps_and_filters_equal_the_sequential_results() {
    in_pools(|| {
        let data = numbers(100_000);
        let sum: u64 = data.par_iter().sum();
        assert_eq!(sum, data.iter().sum::<u64>());
        let mapped: Vec<u64> = data
            .par_iter()
            .map(|n| n ^ 7)
            .filter(|n| n % 3 == 0)
            .collect();
        let expected: Vec<u64> = data.iter().map(|n| n ^ 7).filter(|n| n % 3 == 0).collect();
        assert_eq!(mapped, expected);
        assert_eq!(data.par_iter().max(), data.iter().max());
        assert_eq!(
            data.par_chunks(77)
                .map(|chunk| chunk.len())
                .collect::<Vec<_>>(),
            data.chunks(77).map(<[u64]>::len).collect::<Vec<_>>()
        );
        assert!(
            data.par_iter().find_first(|&&n| n % 97 == 5) == data.iter().find(|&&n| n % 97 == 5)
        );
    });
}

#[test]
fn collections_and_folds_equal_the_sequential_results() {
    in_pools(|| {
        let data = numbers(20_000);
        let set: BTreeSet<u64> = data.par_iter().map(|n| n % 1_000).collect();
        assert_eq!(set, data.iter().map(|n| n % 1_000).collect());
        let text: String = (0..5_000)
            .into_par_iter()
            .map(|n| format!("{n},"))
            .collect();
        assert_eq!(
            text,
            (0..5_000).map(|n| format!("{n},")).collect::<String>()
        );
        let folded = data
            .par_iter()
            .fold(BTreeMap::new, |mut counts: BTreeMap<u64, u64>, n| {
                *counts.entry(n % 10).or_default() += 1;
                counts
            })
            .reduce(BTreeMap::new, |mut left, right| {
                right
                    .into_iter()
                    .for_each(|(key, count)| *left.entry(key).or_default() += count);
                left
            });
        let mut expected = BTreeMap::new();
        data.iter()
            .for_each(|n| *expected.entry(n % 10).or_default() += 1);
        assert_eq!(folded, expected);
        let mut bridged: Vec<u64> = data.iter().copied().par_bridge().map(|n| n + 1).collect();
        bridged.sort_unstable();
        let mut expected: Vec<u64> = data.iter().map(|n| n + 1).collect();
        expected.sort_unstable();
        assert_eq!(bridged, expected);
    });
}

#[test]
fn sorts_equal_the_sequential_results() {
    in_pools(|| {
        for count in [0, 1, 10, 1_000, 100_000] {
            let mut data = numbers(count);
            let mut expected = data.clone();
            expected.sort_unstable();
            data.par_sort_unstable();
            assert_eq!(data, expected);
            let mut pairs: Vec<(u64, usize)> = numbers(count)
                .into_iter()
                .map(|n| n % 100)
                .zip(0..)
                .collect();
            let mut expected = pairs.clone();
            expected.sort_by_key(|pair| pair.0);
            pairs.par_sort_by_key(|pair| pair.0);
            assert_eq!(pairs, expected, "stable");
        }
    });
}

#[test]
fn panics_reach_the_caller() {
    in_pools(|| {
        let call = || {
            (0..10_000)
                .into_par_iter()
                .for_each(|n| assert_ne!(n, 7_777))
        };
        let payload = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        assert!(payload.downcast_ref::<String>().unwrap().contains("7777"));
        assert_eq!((0..100).into_par_iter().sum::<u64>(), 4_950);
    });
    let call = || pool(2).install(|| panic!("message"));
    let payload = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"message"));
}

#[test]
fn nested_loops_scopes_and_pools_run_everything() {
    let inner = pool(2);
    in_pools(|| {
        let count = AtomicUsize::new(0);
        (0..20).into_par_iter().for_each(|_| {
            (0..20).into_par_iter().for_each(|_| {
                rayon::scope(|scope| {
                    for _ in 0..3 {
                        scope.spawn(|_| {
                            let ran = (0..5).into_par_iter().map(|_| 1).sum::<usize>();
                            count.fetch_add(ran, Ordering::Relaxed);
                        });
                    }
                });
            });
            inner.install(|| {
                assert_eq!(rayon::current_num_threads(), 2);
                let ran = (0..10).into_par_iter().map(|_| 1).sum::<usize>();
                count.fetch_add(ran, Ordering::Relaxed);
            });
        });
        assert_eq!(count.into_inner(), 20 * (20 * 3 * 5 + 10));
    });
}

/// Two pools of one thread each wait for each other.
#[test]
fn pools_that_wait_for_each_other_do_not_deadlock() {
    fn alternate(one: &ThreadPool, other: &ThreadPool, depth: usize) -> usize {
        match depth {
            0 => (0..100).into_par_iter().map(|_| 1).sum(),
            _ => one.install(|| alternate(other, one, depth - 1)),
        }
    }
    assert_eq!(alternate(&pool(1), &pool(1), 60), 100);
}
