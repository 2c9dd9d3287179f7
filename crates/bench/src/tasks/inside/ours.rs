// SPDX-License-Identifier: MIT OR Apache-2.0
//! Our runtime. The frames are run by a task of it, as those of the peers are run
//! by a worker of theirs: no frame waits for a thread to be woken.

use std::sync::{Arc, mpsc};

use anyhow::{Context, Result};
use usher_tasks::{GraphBuilder, Groups, Policy, Runtime};

use crate::tasks::workload::Workload;

/// The graph, declared once, run each frame.
pub fn wavefront(work: Workload, policy: Policy, groups: impl Fn(u32) -> Groups) -> Result<()> {
    let mut builder = GraphBuilder::new();
    for task in 0..work.tasks() {
        builder.task_in(groups(task));
    }
    for task in 0..work.tasks() {
        for &next in work.successors(task) {
            builder.after(next as usize, task as usize);
        }
    }
    let mut graph = builder.build(move |task| work.run(task as u32))?;
    on_worker(work, policy, move |runtime| {
        let mut failed = None;
        let measured = work.measure(|| {
            failed = runtime.run(&mut graph).err().or(failed.take());
            0
        });
        failed.map_or(measured, |error| Err(error.into()))
    })
}

/// `join`, without a threshold below which it would go on alone.
pub fn fib(work: Workload, n: u32) -> Result<()> {
    on_worker(work, Policy::Usher, move |runtime| {
        work.measure(|| fib_of(runtime, n))
    })
}

fn fib_of(runtime: &Runtime, n: u32) -> u64 {
    if n < 2 {
        return u64::from(n);
    }
    let (a, b) = runtime.join(|| fib_of(runtime, n - 1), || fib_of(runtime, n - 2));
    a + b
}

/// Does something on a worker of a new runtime, and waits for that.
fn on_worker(
    work: Workload,
    policy: Policy,
    something: impl FnOnce(&Runtime) -> Result<()> + Send + 'static,
) -> Result<()> {
    let runtime = Arc::new(Runtime::with_policy(work.threads(), policy)?);
    let (tell, told) = mpsc::channel();
    let inner = Arc::clone(&runtime);
    runtime.register(0, 0, Groups::NONE, move || {
        let outcome = something(&inner);
        drop(inner);
        // Whoever would not hear it is gone.
        let _ = tell.send(outcome);
    })?;
    told.recv().context("the runtime dropped its task")?
}
