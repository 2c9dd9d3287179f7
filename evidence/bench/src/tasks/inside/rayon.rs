// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workload on rayon: the wavefront by scopes and spawns, and fib by `join`.

use ::rayon::{Scope, ThreadPool, ThreadPoolBuilder, join, scope};
use anyhow::Result;

use super::counters::Counters;
use crate::tasks::workload::Workload;

/// The only task that waits for nothing.
const SOURCE: u32 = 0;

fn pool(work: Workload) -> Result<ThreadPool> {
    Ok(ThreadPoolBuilder::new()
        .num_threads(work.threads())
        .build()?)
}

/// A scope a frame, a spawn for each ready task, or but for the first, which is run
/// at once.
pub fn wavefront<const RUNS_FIRST: bool>(work: Workload) -> Result<()> {
    let counters = Counters::new(work);
    pool(work)?.install(|| {
        work.measure(|| {
            scope(|scope| go::<RUNS_FIRST>(&counters, SOURCE, scope));
            0
        })
    })
}

fn go<'scope, const RUNS_FIRST: bool>(
    counters: &'scope Counters,
    task: u32,
    scope: &Scope<'scope>,
) {
    counters.run_from(task, RUNS_FIRST, |ready| {
        scope.spawn(move |scope| go::<RUNS_FIRST>(counters, ready, scope));
    });
}

/// `join`, without a threshold below which it would go on alone.
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
