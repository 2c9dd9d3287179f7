// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of tasks that are submitted without a token: each task runs exactly once, counts for the
//! wait, and follows the rules for panics, cancellation, errors and the drop of the runtime.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use proptest::prelude::*;
use usher_tasks::{
    GraphBuilder, Groups, Handle, Policy, Runtime, SubmitError, TaskError, WaitError,
};

const GROUPS: u32 = 4;
const POLICIES: [Policy; 4] = [
    Policy::Usher,
    Policy::Paper {
        t_groups: GROUPS,
        s_groups: GROUPS,
    },
    Policy::Fcfs,
    Policy::Lcfs,
];

fn nothing() {}

/// A chain of tasks. Each task submits its successor from inside.
struct Chain {
    handle: Handle,
    /// How often each task has run.
    ran: Arc<[AtomicU32]>,
}

impl Chain {
    /// Submits the task `at`, which submits the tasks from `at` + 1 to `end` - 1 one after another.
    fn submit(self, groups: Groups, at: usize, end: usize) {
        let handle = self.handle.clone();
        let task = move || {
            self.ran[at].fetch_add(1, Ordering::Relaxed);
            if at + 1 < end {
                let next = Groups::new((groups.t + 1) % GROUPS, groups.s);
                self.submit(next, at + 1, end);
            }
        };
        match groups.t % 2 {
            0 => handle.submit(groups, task).unwrap(),
            _ => handle.submit_on(at * 64, task).unwrap(),
        }
    }
}

/// Submits `chains` chains of `tasks` tasks each from several threads, and a chain from each task of
/// a graph that a submitted task runs. Returns how often each task has run.
fn run_chains(
    runtime: &Arc<Runtime>,
    (threads, chains, tasks): (usize, usize, usize),
    is_nested: bool,
) -> Arc<[AtomicU32]> {
    let nested_chains = if is_nested { 4 } else { 0 };
    let count = (threads * chains + nested_chains) * tasks;
    let ran: Arc<[AtomicU32]> = (0..count).map(|_| AtomicU32::new(0)).collect();
    let submit = |chain: usize| {
        let own = Chain {
            handle: runtime.handle(),
            ran: Arc::clone(&ran),
        };
        let groups = Groups::new(chain as u32 % GROUPS, chain as u32 / GROUPS % GROUPS);
        own.submit(groups, chain * tasks, (chain + 1) * tasks);
    };
    thread::scope(|scope| {
        for number in 0..threads {
            scope.spawn(move || (0..chains).for_each(|chain| submit(number * chains + chain)));
        }
    });
    if is_nested {
        let (first, own, ran) = (threads * chains, Arc::clone(runtime), Arc::clone(&ran));
        let handle = runtime.handle();
        let task = move || {
            let mut builder = GraphBuilder::new();
            for _ in 0..nested_chains {
                builder.task();
            }
            let run = |chain: usize| {
                let own = Chain {
                    handle: handle.clone(),
                    ran: Arc::clone(&ran),
                };
                let at = (first + chain) * tasks;
                own.submit(Groups::NONE, at, at + tasks);
            };
            own.run(&mut builder.build(run).unwrap()).unwrap();
        };
        runtime.submit(Groups::NONE, task).unwrap();
    }
    runtime.wait().unwrap();
    ran
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each submitted task has run exactly once at the end of the wait, under every policy, from
    /// any number of threads, from inside tasks, and from inside nested waits.
    #[test]
    fn submitted_tasks_run_exactly_once(
        policy in 0..POLICIES.len(),
        workers in 1..5_usize,
        size in (1..4_usize, 1..40_usize, 1..40_usize),
        is_nested: bool,
    ) {
        let runtime = Arc::new(Runtime::with_policy(workers, POLICIES[policy]).unwrap());
        let ran = run_chains(&runtime, size, is_nested);
        prop_assert!(ran.iter().all(|ran| ran.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn the_drop_of_a_runtime_runs_submitted_tasks() {
    for policy in POLICIES {
        let runtime = Runtime::with_policy(2, policy).unwrap();
        let ran: Arc<[AtomicU32]> = (0..100).map(|_| AtomicU32::new(0)).collect();
        let chain = Chain {
            handle: runtime.handle(),
            ran: Arc::clone(&ran),
        };
        chain.submit(Groups::NONE, 0, 100);
        drop(runtime);
        assert!(ran.iter().all(|ran| ran.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn panics_of_submitted_tasks_are_reported_once_and_without_a_token() {
    let runtime = Runtime::new(2).unwrap();
    let submit = || runtime.submit(Groups::NONE, || panic!("no such frame"));
    submit().unwrap();
    let error = runtime.wait().unwrap_err();
    assert_eq!(
        error.to_string(),
        "a submitted task panicked: no such frame"
    );
    let WaitError::Unfinished(unfinished) = error else {
        panic!("not inside a task");
    };
    assert!(unfinished.panicked.len() == 1 && unfinished.panicked[0].is_submitted);
    runtime.wait().unwrap();
    submit().unwrap();
    runtime.register(7, 0, Groups::NONE, nothing).unwrap();
    let WaitError::Unfinished(unfinished) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    assert_eq!(unfinished.panicked.len(), 1);
}

#[test]
fn submitted_tasks_are_not_mixed_up_with_tokens() {
    let runtime = Runtime::new(1).unwrap();
    // The numbers of 64 submissions of one thread are below 64 * 32, and thus equal tokens.
    const TOKENS: u64 = 64 * 32;
    for token in 0..TOKENS {
        runtime.register(token, 1, Groups::NONE, nothing).unwrap();
    }
    for _ in 0..64 {
        runtime.submit(Groups::NONE, nothing).unwrap();
    }
    let WaitError::Unfinished(unfinished) = runtime.wait().unwrap_err() else {
        panic!("not inside a task");
    };
    assert_eq!(unfinished.unresolved.len() as u64, TOKENS);
    (0..TOKENS).for_each(|token| runtime.resolve(token).unwrap());
    runtime.wait().unwrap();
}

/// Submits a task when it is dropped.
struct SubmitOnDrop(Handle, mpsc::Sender<&'static str>);

impl Drop for SubmitOnDrop {
    fn drop(&mut self) {
        let sender = self.1.clone();
        self.1.send("dropped").unwrap();
        let submitted = self
            .0
            .submit(Groups::NONE, move || sender.send("ran").unwrap());
        submitted.unwrap();
    }
}

#[test]
fn cancelled_tasks_are_dropped_and_may_submit_tasks() {
    let runtime = Runtime::new(1).unwrap();
    let (begin, begun) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let entry = move || {
        begin.send(()).unwrap();
        let _ = ends.recv();
    };
    runtime.submit(Groups::NONE, entry).unwrap();
    begun.recv().unwrap();
    let (sender, receiver) = mpsc::channel();
    let (ran, owned) = (
        sender.clone(),
        SubmitOnDrop(runtime.handle(), sender.clone()),
    );
    let entry = move || {
        let _owned = &owned;
        ran.send("ran").unwrap();
    };
    runtime.submit(Groups::NONE, entry).unwrap();
    assert_eq!(runtime.cancel(), 0, "submitted tasks have no tokens");
    drop(end);
    runtime.wait().unwrap();
    runtime
        .submit(Groups::NONE, move || sender.send("ran").unwrap())
        .unwrap();
    runtime.wait().unwrap();
    assert_eq!(receiver.iter().collect::<Vec<_>>(), ["dropped"]);
}

#[test]
fn rejected_tasks_are_dropped_and_the_error_gives_the_reason() {
    let runtime = Runtime::with_policy(1, POLICIES[1]).unwrap();
    let alive = Arc::new(());
    let own = Arc::clone(&alive);
    let groups = Groups::new(1, GROUPS);
    let error = runtime.submit(groups, move || drop(own)).unwrap_err();
    let expected = SubmitError::Groups {
        groups,
        t_groups: GROUPS,
        s_groups: GROUPS,
    };
    assert_eq!(error, expected);
    assert_eq!(
        error.to_string(),
        "a submitted task has invalid groups: T is 1 and S is 4, but T must be less than 4 and S \
         less than 4"
    );
    assert_eq!(Arc::strong_count(&alive), 1);
    let handle = runtime.handle();
    drop(runtime);
    let own = Arc::clone(&alive);
    assert_eq!(
        handle.submit(Groups::NONE, move || drop(own)),
        Err(SubmitError::Ended)
    );
    assert_eq!(handle.submit_on(8, nothing), Err(SubmitError::Ended));
    assert_eq!(handle.resolve(1), Err(TaskError::Ended { token: 1 }));
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn traces_and_counters_contain_submitted_tasks() {
    let runtime = Runtime::new(2).unwrap();
    runtime.start_trace(1000).unwrap();
    for t in 0..100 {
        runtime.submit(Groups::new(1 + t, 0), nothing).unwrap();
    }
    runtime.wait().unwrap();
    let trace = runtime.trace();
    let mut numbers: Vec<u64> = trace.spans.iter().map(|span| span.task).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!((trace.spans.len(), numbers.len()), (100, 100));
    assert!(trace.spans.iter().all(|span| span.groups.t != 0));
    let counted: u64 = runtime.counters().0.iter().map(|one| one.tasks).sum();
    assert_eq!(counted, 100);
}
