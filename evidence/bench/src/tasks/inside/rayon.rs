// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the workload on rayon: the wavefront with a scope per frame, a spawn per ready task and
//! counters of dependencies, fib by `join`, and loops by parallel iterators.

use ::rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};
use ::rayon::{Scope, ThreadPool, ThreadPoolBuilder, join, scope};
use anyhow::Result;

use super::counters::Counters;
use crate::tasks::workload::Workload;

/// The only task without predecessors.
const SOURCE: u32 = 0;

fn pool(work: Workload) -> Result<ThreadPool> {
    Ok(ThreadPoolBuilder::new()
        .num_threads(work.threads())
        .build()?)
}

/// Measures the wavefront. Each frame is a scope, and each ready task is spawned. With
/// `RUNS_FIRST`, the thread that finishes a task runs the first task that becomes ready itself
/// instead.
pub fn wavefront<const RUNS_FIRST: bool>(work: Workload) -> Result<()> {
    let counters = Counters::new(work);
    pool(work)?.install(|| {
        work.measure(|| {
            scope(|scope| spawn_ready::<RUNS_FIRST>(&counters, SOURCE, scope));
            0
        })
    })
}

fn spawn_ready<'scope, const RUNS_FIRST: bool>(
    counters: &'scope Counters,
    task: u32,
    scope: &Scope<'scope>,
) {
    counters.run_from(task, RUNS_FIRST, |ready| {
        scope.spawn(move |scope| spawn_ready::<RUNS_FIRST>(counters, ready, scope));
    });
}

/// Measures fib(n) by `join`. Each call forks; no threshold makes small calls sequential.
pub fn fib(work: Workload, n: u32) -> Result<()> {
    pool(work)?.install(|| work.measure(|| fib_of(n)))
}

fn fib_of(n: u32) -> u64 {
    if n < 2 {
        return u64::from(n);
    }
    let (a, b) = join(|| fib_of(n - 1), || fib_of(n - 2));
    a + b
}

/// Number of items of a chunk that the program chooses. A chunk takes about 15 microseconds.
const CHUNK: u32 = 4_096;

/// Measures loops over items, by parallel iterators over chunks.
pub fn loops_of_chunks(work: Workload, items: u32) -> Result<()> {
    let chunk = move |number: u32| number * CHUNK..items.min((number + 1) * CHUNK);
    pool(work)?.install(|| {
        work.measure(|| {
            let all = (0..items.div_ceil(CHUNK)).into_par_iter();
            if work.reduces() {
                return all
                    .map(|number| work.values(chunk(number)))
                    .reduce(|| 0, u64::wrapping_add);
            }
            all.for_each(|number| work.run_items(chunk(number)));
            0
        })
    })
}

/// Measures loops over items, by `for_each` and `reduce` of parallel iterators.
pub fn loops(work: Workload, items: u32) -> Result<()> {
    pool(work)?.install(|| {
        work.measure(|| {
            let all = (0..items).into_par_iter();
            if work.reduces() {
                return all
                    .map(|item| work.value(item))
                    .reduce(|| 0, u64::wrapping_add);
            }
            all.for_each(|item| work.run_item(item));
            0
        })
    })
}
