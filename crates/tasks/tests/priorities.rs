// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of priorities: their order among tasks of all kinds, and that tasks with low priority do not
//! starve. The file `model.rs` tests priorities in graphs.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use usher_tasks::{GraphBuilder, Groups, Handle, Policy, Runtime, RuntimeBuilder, SubmitError};

const HIGH: Groups = Groups::HIGH_PRIORITY;
const LOW: Groups = Groups::LOW_PRIORITY;

/// The groups of the tasks of the tests, in the order of submission.
const SUBMITTED: [Groups; 8] = [
    LOW,
    Groups::new(2, 0),
    HIGH,
    Groups::new(1, 0),
    Groups { s: 3, ..HIGH },
    Groups::new(1, 0),
    LOW,
    HIGH,
];
/// The numbers of these tasks in the expected order: high priority, the temporal groups in ascending
/// order and within a group the newest task first, low priority.
const EXPECTED: [usize; 8] = [2, 4, 7, 5, 3, 1, 0, 6];

/// Calls `submit` while the only worker is busy, in a task or outside. Returns the order of its tasks.
fn order_of(
    is_inside: bool,
    submit: impl Fn(&Handle, usize, Box<dyn FnOnce() + Send>) + Send + 'static,
) -> Vec<usize> {
    let runtime = Runtime::new(1).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let (handle, own) = (runtime.handle(), Arc::clone(&order));
    let submit_all = move || {
        for task in 0..SUBMITTED.len() {
            let order = Arc::clone(&own);
            let body = move || order.lock().unwrap().push(task);
            submit(&handle, task, Box::new(body));
        }
    };
    if is_inside {
        runtime.submit(Groups::NONE, submit_all).unwrap();
    } else {
        let (begun, has_begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let blocker = move || {
            begun.send(()).unwrap();
            // Returns when the sender is dropped.
            let _ = released.recv();
        };
        runtime.submit(Groups::NONE, blocker).unwrap();
        has_begun.recv().unwrap();
        submit_all();
        drop(release);
    }
    runtime.wait().unwrap();
    let order = order.lock().unwrap();
    order.clone()
}

#[test]
fn submitted_tasks_run_by_priority() {
    for is_inside in [false, true] {
        let submit = |handle: &Handle, task, body: Box<dyn FnOnce() + Send>| {
            handle.submit(SUBMITTED[task], body).unwrap();
        };
        assert_eq!(order_of(is_inside, submit), EXPECTED, "inside: {is_inside}");
    }
}

#[test]
fn tasks_by_token_run_by_priority() {
    for is_inside in [false, true] {
        let submit = |handle: &Handle, task, body: Box<dyn FnOnce() + Send>| {
            let token = task as u64;
            handle.register(token, 1, SUBMITTED[task], body).unwrap();
            handle.resolve(token).unwrap();
        };
        assert_eq!(order_of(is_inside, submit), EXPECTED, "inside: {is_inside}");
    }
}

/// The documented number of tasks within which a worker runs its oldest task with low priority, and
/// the tasks of this test that are not counted.
const LOW_WITHIN: usize = 4 * 1024 + 64;

/// Tasks of which each submits the next, until a task with low priority has run.
#[derive(Clone)]
struct Successors {
    handle: Handle,
    groups: Groups,
    begun: Arc<AtomicUsize>,
    has_ended: Arc<AtomicBool>,
}

impl Successors {
    fn submit(self) {
        let (handle, groups) = (self.handle.clone(), self.groups);
        let task = move || {
            let begun = self.begun.fetch_add(1, Ordering::Relaxed);
            if !self.has_ended.load(Ordering::Relaxed) && begun < 2 * LOW_WITHIN {
                self.submit();
            }
        };
        handle.submit(groups, task).unwrap();
    }
}

#[test]
fn low_priority_does_not_starve() {
    for groups in [Groups::new(1, 0), Groups::NONE, HIGH] {
        let runtime = Runtime::new(1).unwrap();
        let successors = Successors {
            handle: runtime.handle(),
            groups,
            begun: Arc::default(),
            has_ended: Arc::default(),
        };
        let begun = Arc::clone(&successors.begun);
        let first = move || {
            let has_ended = Arc::clone(&successors.has_ended);
            let low = move || has_ended.store(true, Ordering::Relaxed);
            successors.handle.submit(LOW, low).unwrap();
            successors.submit();
        };
        runtime.submit(Groups::NONE, first).unwrap();
        runtime.wait().unwrap();
        let begun = begun.load(Ordering::Relaxed);
        assert!(begun < LOW_WITHIN, "beside {groups:?}");
    }
}

/// A task of a chain submits a task with high priority. No further task of the chain runs before it,
/// with one worker, and with two workers of which one is blocked.
#[test]
fn high_priority_interrupts_the_chain_of_a_graph() {
    for workers in [1, 2] {
        let runtime = RuntimeBuilder::new(workers)
            .follow_cpus(false)
            .build()
            .unwrap();
        let (blocked, is_blocked) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        if workers == 2 {
            let wait = move || {
                blocked.send(()).unwrap();
                // Returns when the sender is dropped.
                let _ = released.recv();
            };
            runtime.submit(Groups::NONE, wait).unwrap();
            is_blocked.recv().unwrap();
        }
        let mut builder = GraphBuilder::new();
        let tasks: Vec<usize> = (0..100).map(|_| builder.task()).collect();
        for pair in tasks.windows(2) {
            builder.after(pair[1], pair[0]);
        }
        let ended = Arc::new(AtomicUsize::new(0));
        let ran_after = Arc::new(AtomicUsize::new(0));
        let handle = runtime.handle();
        let mut graph = builder
            .build(|task| {
                if task == 10 {
                    let (ended, ran_after) = (Arc::clone(&ended), Arc::clone(&ran_after));
                    let high =
                        move || ran_after.store(ended.load(Ordering::Relaxed), Ordering::Relaxed);
                    handle.submit(HIGH, high).unwrap();
                }
                ended.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
        runtime.run(&mut graph).unwrap();
        assert_eq!(ran_after.load(Ordering::Relaxed), 11, "{workers} workers");
        drop(release);
    }
}

#[test]
fn only_the_policy_of_paper_5_refuses_priorities() {
    let paper = Policy::Paper {
        t_groups: 4,
        s_groups: 4,
    };
    for policy in [Policy::Usher, Policy::Fcfs, Policy::Lcfs, paper] {
        let runtime = Runtime::with_policy(1, policy).unwrap();
        let submitted = runtime.submit(HIGH, || ());
        let is_refused =
            matches!(submitted, Err(SubmitError::Groups { groups, .. }) if groups == HIGH);
        assert_eq!(is_refused, policy == paper, "{policy:?}");
        assert!(is_refused || submitted.is_ok());
        runtime.wait().unwrap();
    }
}
