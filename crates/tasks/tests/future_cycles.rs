// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of cycles of waits through parts of tasks: a part of a task runs on another worker and
//! waits there, and a task that runs during this wait waits for the whole task.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{mem, thread};

use usher_tasks::{GraphBuilder, Groups, Runtime, TaskFuture, TaskWaitError};

/// Time after which a wait counts as endless.
const DEADLINE: Duration = Duration::from_secs(60);

fn spin_until(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        thread::yield_now();
    }
}

/// How a part waits for its own parts on another worker.
#[derive(Debug, Clone, Copy)]
enum PartWait {
    Join,
    Scope,
    Graph,
}

/// Runs a function on another worker than the calling one, and waits for it on the stack.
fn wait_for_part(runtime: &Runtime, way: PartWait, part: impl Fn() + Sync) {
    match way {
        // The first function ends at once, and another worker steals the second.
        PartWait::Join => {
            let begun = AtomicBool::new(false);
            let second = || {
                begun.store(true, Ordering::Release);
                part();
            };
            runtime.join(|| spin_until(&begun), second);
        }
        PartWait::Scope => {
            let begun = AtomicBool::new(false);
            runtime.scope(|scope| {
                scope.spawn(|_| {
                    begun.store(true, Ordering::Release);
                    part();
                });
                spin_until(&begun);
            });
        }
        PartWait::Graph => {
            let begun = AtomicBool::new(false);
            let mut builder = GraphBuilder::new();
            (0..2).for_each(|_| _ = builder.task());
            // One of the two tasks waits until the other has begun, on another worker.
            let first = AtomicBool::new(true);
            let body = |_| match first.swap(false, Ordering::AcqRel) {
                true => spin_until(&begun),
                false => {
                    begun.store(true, Ordering::Release);
                    part();
                }
            };
            runtime.run(&mut builder.build(body).unwrap()).unwrap();
        }
    }
}

/// A task that runs above a waiting part of another task waits for that task.
#[test]
fn waits_above_parts_of_the_awaited_task_are_errors() {
    for way in [PartWait::Join, PartWait::Scope, PartWait::Graph] {
        for _ in 0..20 {
            wait_above_part(way);
        }
    }
}

fn wait_above_part(way: PartWait) {
    let runtime = Arc::new(Runtime::new(3).unwrap());
    let (part_runs, has_waited) = (AtomicBool::new(false), AtomicBool::new(false));
    let flags = Arc::new((part_runs, has_waited));
    let (own, runs) = (Arc::clone(&flags), Arc::clone(&runtime));
    // Worker 1 waits for a part on worker 2, which waits for its own part on worker 3. Workers 1
    // and 3 are busy until the other task has waited, which therefore runs on worker 2.
    let whole: TaskFuture<()> = runtime
        .submit_future(Groups::NONE, move || {
            let (part_runs, has_waited) = (&own.0, &own.1);
            let begun = AtomicBool::new(false);
            let part = || {
                begun.store(true, Ordering::Release);
                wait_for_part(&runs, way, || {
                    part_runs.store(true, Ordering::Release);
                    spin_until(has_waited);
                });
            };
            runs.join(
                || {
                    spin_until(&begun);
                    spin_until(has_waited);
                },
                part,
            );
        })
        .unwrap();
    spin_until(&flags.0);
    let (sender, results) = mpsc::channel();
    let awaited = whole.task().clone();
    let own = Arc::clone(&flags);
    let waits = move || {
        let result = awaited.wait();
        own.1.store(true, Ordering::Release);
        sender.send(result).unwrap();
    };
    runtime.submit(Groups::NONE, waits).unwrap();
    let Ok(result) = results.recv_timeout(DEADLINE) else {
        // The drop of the runtime would not end, either.
        mem::forget(runtime);
        panic!("{way:?}: the wait does not end");
    };
    assert!(
        matches!(result, Err(TaskWaitError::Cycle { .. })),
        "{way:?}: {result:?}"
    );
    whole.wait().unwrap();
    runtime.wait().unwrap();
}
