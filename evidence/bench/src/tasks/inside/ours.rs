// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the workload on usher-tasks: the wavefront as a task graph, with and without a trace, fib by
//! `join`, and loops by `for_each` and `reduce`.
//!
//! All frames are timed inside a task of the runtime, on one of its workers, as in the programs of
//! the other runtimes. The time of a frame therefore contains no wake-up of a thread.
//!
//! Without hints, the runtime tries several orders of the tasks in the first frames and then
//! chooses the fastest order. These first frames are not timed. The program prints the chosen order
//! on standard error (after [`CHOSEN`]), because two runs may choose different orders of equal
//! quality.

use std::sync::{Arc, mpsc};

use anyhow::{Context, Result, ensure};
use usher_tasks::{Graph, GraphBuilder, GraphError, Groups, Policy, Runtime};

use crate::tasks::workload::{Frames, Workload};

/// Prefix of the line on standard error that contains the chosen order.
pub const CHOSEN: &str = "order: ";

/// Measures the wavefront. The graph is built once per case and run once per frame. `groups`
/// returns the hints of a task. Without hints, frames are timed only after the runtime has chosen
/// an order.
pub fn wavefront(work: Workload, policy: Policy, groups: impl Fn(u32) -> Groups) -> Result<()> {
    let builder = declare(work, groups);
    on_worker(work, policy, move |runtime| {
        measure(work, runtime, builder).map(drop)
    })
}

/// Measures the wavefront without hints while each worker records its tasks in a trace.
///
/// # Errors
/// The trace does not contain each task of each frame.
pub fn traced(work: Workload) -> Result<()> {
    let builder = declare(work, |_| Groups::NONE);
    on_worker(work, Policy::Usher, move |runtime| {
        runtime.start_trace(work.tasks() as usize)?;
        let frames = measure(work, runtime, builder)?;
        let trace = runtime.trace();
        let written = trace.spans.len() as u64 + trace.lost;
        let ran = frames * u64::from(work.tasks());
        ensure!(
            written == ran,
            "{written} of {ran} tasks were recorded in the trace"
        );
        Ok(())
    })
}

fn declare(work: Workload, groups: impl Fn(u32) -> Groups) -> GraphBuilder {
    let mut builder = GraphBuilder::new();
    for task in 0..work.tasks() {
        builder.task_in(groups(task));
    }
    for task in 0..work.tasks() {
        for &next in work.successors(task) {
            builder.after(next as usize, task as usize);
        }
    }
    builder
}

/// Measures all cases. Returns the number of frames that ran, including frames that were not timed.
fn measure(work: Workload, runtime: &Runtime, builder: GraphBuilder) -> Result<u64> {
    let make = move || builder.clone().build(move |task| work.run(task as u32));
    let graph = make()?;
    let mut ours = UsherFrames {
        runtime,
        make,
        graph,
        frames: 0,
        failed: None,
    };
    let measured = work.measure_settled(&mut ours);
    ours.failed.map_or(measured, Err)?;
    Ok(ours.frames)
}

/// Runs frames on usher-tasks.
struct UsherFrames<'a, B, M> {
    runtime: &'a Runtime,
    make: M,
    graph: Graph<B>,
    /// Number of frames run.
    frames: u64,
    failed: Option<anyhow::Error>,
}

impl<B, M> Frames for UsherFrames<'_, B, M>
where
    B: Fn(usize) + Sync,
    M: Fn() -> Result<Graph<B>, GraphError>,
{
    fn run(&mut self) -> u64 {
        self.frames += 1;
        let outcome = self.runtime.run(&mut self.graph);
        if let Err(error) = outcome {
            self.failed = Some(error.into());
        }
        0
    }

    /// Returns whether the runtime has chosen an order, and prints the order on standard error.
    fn is_settled(&mut self, frames: u32) -> bool {
        let finds = self.runtime.current_grouping().is_some() && !self.graph.explain().hinted;
        if !finds || self.failed.is_some() {
            return true;
        }
        if frames == 1 {
            // The graph is built anew, because the order that was chosen for the previous case does
            // not apply to this case.
            match (self.make)() {
                Ok(graph) => self.graph = graph,
                Err(error) => self.failed = Some(error.into()),
            }
            return false;
        }
        let chosen = self.graph.explain().chosen;
        if let Some(order) = chosen {
            eprintln!("{CHOSEN}{order}");
        }
        chosen.is_some()
    }
}

/// Measures fib(n) by `join`. Each call forks; no threshold makes small calls sequential.
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

/// Measures loops over items, by `for_each` and `reduce`.
pub fn loops(work: Workload, items: u32) -> Result<()> {
    on_worker(work, Policy::Usher, move |runtime| {
        work.measure(|| match work.reduces() {
            true => runtime.reduce(0..items, || 0, |item| work.value(item), u64::wrapping_add),
            false => {
                runtime.for_each(0..items, |item| work.run_item(item));
                0
            }
        })
    })
}

/// Measures loops over items, by `for_each_block` and `reduce_blocks`.
pub fn loops_of_blocks(work: Workload, items: u32) -> Result<()> {
    on_worker(work, Policy::Usher, move |runtime| {
        work.measure(|| match work.reduces() {
            true => {
                let fold = |sum: u64, block| sum.wrapping_add(work.values(block));
                runtime.reduce_blocks(0..items, || 0, fold, u64::wrapping_add)
            }
            false => {
                runtime.for_each_block(0..items, |block| work.run_items(block));
                0
            }
        })
    })
}

/// Runs `measurement` in a task of a new runtime, and waits for its result.
fn on_worker(
    work: Workload,
    policy: Policy,
    measurement: impl FnOnce(&Runtime) -> Result<()> + Send + 'static,
) -> Result<()> {
    let runtime = Arc::new(Runtime::with_policy(work.threads(), policy)?);
    let (sender, receiver) = mpsc::channel();
    let inner = Arc::clone(&runtime);
    runtime.register(0, 0, Groups::NONE, move || {
        let outcome = measurement(&inner);
        drop(inner);
        // `send` fails only if the receiving thread has ended; the outcome is then not needed.
        let _ = sender.send(outcome);
    })?;
    receiver
        .recv()
        .context("the runtime dropped a task that had not run")?
}
