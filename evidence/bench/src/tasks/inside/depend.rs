// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the Cholesky factorisation on usher-tasks, by tasks with accesses or as a task graph.
//!
//! In each frame of the first form, a task of the runtime submits all other tasks, and the thread of
//! the program waits. As with OpenMP, as many threads as requested submit or run tasks. The graph
//! has the same dependencies, which are computed once.

use std::collections::BTreeMap;

use anyhow::Result;
use usher_tasks::{Access, DataDependencies, GraphBuilder, Groups, Runtime};

use crate::tasks::workload::{TileTask, Workload};

/// Measures the factorisation with [`DataDependencies`].
///
/// # Errors
/// A call of the runtime fails, or the results are wrong.
pub fn cholesky(work: Workload, tasks: &'static [TileTask]) -> Result<()> {
    let runtime = Runtime::new(work.threads())?;
    let mut failed = None;
    let measured = work.measure(|| {
        failed = frame(&runtime, work, tasks).err();
        u64::from(failed.is_some())
    });
    failed.map_or(measured, Err)
}

fn frame(runtime: &Runtime, work: Workload, tasks: &'static [TileTask]) -> Result<()> {
    let order = DataDependencies::new(runtime.handle());
    runtime.submit(Groups::NONE, move || {
        let mut accesses = Vec::new();
        for (number, task) in (0..).zip(tasks) {
            accesses.clear();
            accesses.push(Access::Out(task.tile as usize));
            accesses.extend(task.reads().iter().map(|&tile| Access::In(tile as usize)));
            let submitted = order.submit(Groups::NONE, &accesses, move || work.run_tile(number));
            if let Err(error) = submitted {
                panic!("{error}");
            }
        }
    })?;
    Ok(runtime.wait()?)
}

/// Measures the factorisation as a graph.
///
/// # Errors
/// A call of the runtime fails, or the results are wrong.
pub fn graph(work: Workload, tasks: &[TileTask]) -> Result<()> {
    let mut builder = GraphBuilder::new();
    // The last task that writes a tile, and the tasks that have read it since.
    let mut uses: BTreeMap<u32, (Option<usize>, Vec<usize>)> = BTreeMap::new();
    for task in tasks {
        let number = builder.task();
        builder.on(number, task.tile as usize);
        for &tile in task.reads() {
            let (writer, readers) = uses.entry(tile).or_default();
            writer.map(|writer| builder.after(number, writer));
            readers.push(number);
        }
        let (writer, readers) = uses.entry(task.tile).or_default();
        for before in writer.iter().copied().chain(readers.drain(..)) {
            builder.after(number, before);
        }
        *writer = Some(number);
    }
    let runtime = Runtime::new(work.threads())?;
    let mut graph = builder.build(|task| work.run_tile(task as u32))?;
    let mut failed = None;
    let measured = work.measure(|| {
        failed = runtime.run(&mut graph).err();
        u64::from(failed.is_some())
    });
    failed.map_or(measured, |error| Err(error.into()))
}
