// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of priorities: their order among tasks of all kinds, and that tasks with low priority do not
//! starve. The file `model.rs` tests priorities in graphs.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use usher_tasks::{Groups, Handle, Policy, Runtime, SubmitError};

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

/// A task submits its successor for ever, until the task with low priority has run.
#[test]
fn low_priority_does_not_starve() {
    let runtime = Runtime::new(1).unwrap();
    let has_run = Arc::new(AtomicBool::new(false));
    let until = Instant::now() + Duration::from_secs(60);
    for groups in [Groups::new(1, 0), Groups::NONE, HIGH] {
        has_run.store(false, Ordering::Relaxed);
        submit_again(&runtime.handle(), groups, until, &has_run);
        let own = Arc::clone(&has_run);
        let low = move || own.store(true, Ordering::Relaxed);
        runtime.submit(LOW, low).unwrap();
        runtime.wait().unwrap();
        assert!(Instant::now() < until, "beside {groups:?}");
    }
}

fn submit_again(handle: &Handle, groups: Groups, until: Instant, has_run: &Arc<AtomicBool>) {
    let (own, has_run) = (handle.clone(), Arc::clone(has_run));
    let task = move || {
        if !has_run.load(Ordering::Relaxed) && Instant::now() < until {
            submit_again(&own, groups, until, &has_run);
        }
    };
    handle.submit(groups, task).unwrap();
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
