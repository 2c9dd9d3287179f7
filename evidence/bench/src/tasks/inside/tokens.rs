// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the wavefront on usher-tasks by single tasks with tokens, of a declared range or not.
//!
//! In each frame, the thread of the program registers all tasks, starts the first one, and waits for
//! the end of all tasks. A task resolves a dependency of each of its successors. The time of a frame
//! therefore contains the registration, by one thread, and two wake-ups of threads.

use anyhow::Result;
use usher_tasks::{Groups, Runtime, RuntimeBuilder};

use crate::tasks::workload::Workload;

/// Token of the only task without predecessors. It waits for a resolution by the program.
const SOURCE: u32 = 0;

/// Measures the wavefront.
///
/// # Errors
/// A call of the runtime fails, or the results are wrong.
pub fn wavefront(work: Workload, is_dense: bool) -> Result<()> {
    let dense = if is_dense { work.tasks() } else { 0 };
    let builder = RuntimeBuilder::new(work.threads()).dense_tokens(0..u64::from(dense));
    // Tasks have a reference to the runtime without counting it. The process has one measurement,
    // after which it ends.
    let runtime: &'static Runtime = Box::leak(Box::new(builder.build()?));
    let mut failed = None;
    let measured = work.measure(|| {
        failed = frame(runtime, work).err();
        u64::from(failed.is_some())
    });
    failed.map_or(measured, Err)
}

fn frame(runtime: &'static Runtime, work: Workload) -> Result<()> {
    for (task, &waits) in (0..).zip(work.waits()) {
        let count = waits + u32::from(task == SOURCE);
        runtime.register(u64::from(task), count, Groups::NONE, move || {
            work.run(task);
            for &next in work.successors(task) {
                // A failed call leaves tasks unfinished, which the wait reports.
                let _ = runtime.resolve(u64::from(next));
            }
        })?;
    }
    runtime.resolve(u64::from(SOURCE))?;
    Ok(runtime.wait()?)
}
