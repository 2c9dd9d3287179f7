// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that the number of running workers follows the CPUs that the process may use. The tests
//! change the affinity of all threads of this process, so they run one after the other, in one
//! test.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod common;

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use usher_tasks::{GraphBuilder, Groups, Handle, Policy, Runtime, RuntimeBuilder, TaskScope};

use common::POLICIES;

/// The CPUs of this process at the start of the test.
struct Cpus(Vec<usize>);

impl Cpus {
    fn of_process() -> Self {
        let mask = sched_getaffinity(None).unwrap();
        let all = 0..CpuSet::MAX_CPU;
        Self(all.filter(|&cpu| mask.is_set(cpu)).collect())
    }

    /// Binds all threads of this process to the first `count` CPUs.
    fn bind_to(&self, count: usize) {
        let mut mask = CpuSet::new();
        self.0[..count].iter().for_each(|&cpu| mask.set(cpu));
        for thread in fs::read_dir("/proc/self/task").unwrap() {
            let tid = thread.unwrap().file_name().into_string().unwrap();
            // A thread may have ended since the directory was read.
            let _ = sched_setaffinity(Pid::from_raw(tid.parse().unwrap()), &mask);
        }
    }
}

fn wait_for(what: &str, is_true: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no {what}");
        std::thread::yield_now();
    }
}

/// Submits a task that submits its successor until `stop` is set.
fn submit_chain(handle: Handle, stop: Arc<AtomicBool>, groups: Groups, run: Arc<AtomicUsize>) {
    let next = handle.clone();
    let task = move || {
        run.fetch_add(1, Ordering::Relaxed);
        if !stop.load(Ordering::Relaxed) {
            submit_chain(handle, stop, groups, run);
        }
    };
    next.submit(groups, task).unwrap();
}

/// Beside endless chains of tasks, the number of running workers becomes the number of CPUs after
/// each change. All chains continue, including those whose worker sleeps.
fn running_workers_follow(cpus: &Cpus, policy: Policy) {
    let runtime = RuntimeBuilder::new(6).policy(policy).build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let runs: Vec<_> = (1..4).map(|_| Arc::new(AtomicUsize::new(0))).collect();
    for (group, run) in (1..).zip(&runs) {
        for _ in 0..4 {
            let groups = Groups::new(group, group);
            submit_chain(runtime.handle(), stop.clone(), groups, run.clone());
        }
    }
    for count in [1, cpus.0.len(), 1, cpus.0.len()] {
        cpus.bind_to(count);
        let expected = count.min(runtime.workers());
        let what = format!("{expected} running workers under {policy:?}");
        wait_for(&what, || runtime.running_workers() == expected);
        // The policies `paper` and `lcfs` may prefer one chain forever.
        let is_fair = matches!(policy, Policy::Usher | Policy::Fcfs);
        for run in runs.iter().filter(|_| is_fair) {
            let before = run.load(Ordering::Relaxed);
            wait_for("new task", || run.load(Ordering::Relaxed) > before);
        }
    }
    stop.store(true, Ordering::Relaxed);
    runtime.wait().unwrap();
    wait_for("sleep", || runtime.running_workers() == 0);
}

/// Each task of a graph runs once per run, while the CPUs change.
fn tasks_run_once_while_cpus_change(cpus: &Cpus, policy: Policy) {
    let runtime = RuntimeBuilder::new(8).policy(policy).build().unwrap();
    let mut builder = GraphBuilder::new();
    let (rows, columns) = (40, 40);
    let counts: Vec<_> = (0..rows * columns).map(|_| AtomicUsize::new(0)).collect();
    for task in 0..counts.len() {
        builder.task_in(Groups::new(
            1 + task as u32 % 3,
            1 + (task / columns) as u32 % 3,
        ));
        if task % columns > 0 {
            builder.after(task, task - 1);
        }
        if task >= columns {
            builder.after(task, task - columns);
        }
    }
    let mut graph = builder
        .build(|task| {
            counts[task].fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for count in (1..=cpus.0.len()).cycle() {
                cpus.bind_to(count);
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for run in 1..=200 {
            runtime.run(&mut graph).unwrap();
            assert!(
                counts
                    .iter()
                    .all(|count| count.load(Ordering::Relaxed) == run)
            );
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Tasks that wait for one another, asleep or in a loop, all run at the same time, although there
/// are fewer CPUs.
fn waiting_tasks_do_not_hang(cpus: &Cpus, policy: Policy) {
    cpus.bind_to(1);
    let workers = 5;
    let runtime = RuntimeBuilder::new(workers).policy(policy).build().unwrap();
    let barrier = Arc::new(Barrier::new(workers));
    let arrived = Arc::new(AtomicUsize::new(0));
    for _ in 0..workers {
        let barrier = barrier.clone();
        let sleeps = move || {
            barrier.wait();
        };
        runtime.submit(Groups::NONE, sleeps).unwrap();
    }
    runtime.wait().unwrap();
    for _ in 0..workers {
        let arrived = arrived.clone();
        let spins = move || {
            arrived.fetch_add(1, Ordering::Relaxed);
            while arrived.load(Ordering::Relaxed) < workers {
                std::thread::yield_now();
            }
        };
        runtime.submit(Groups::NONE, spins).unwrap();
    }
    runtime.wait().unwrap();
}

/// The tasks of scopes, also of nested scopes, all run while the CPUs change.
fn scopes_end_while_cpus_change(cpus: &Cpus) {
    fn spawn<'scope>(scope: &TaskScope<'scope>, run: &'scope AtomicUsize, depth: u32) {
        run.fetch_add(1, Ordering::Relaxed);
        for _ in 0..if depth > 0 { 4 } else { 0 } {
            scope.spawn(move |scope| spawn(scope, run, depth - 1));
        }
    }
    for stack_bytes in [0, 64 << 10] {
        let builder = RuntimeBuilder::new(8).stack_bytes(stack_bytes);
        let runtime = builder.build().unwrap();
        for round in 0..100 {
            cpus.bind_to(1 + round % cpus.0.len());
            let run = AtomicUsize::new(0);
            runtime.scope(|scope| {
                scope.spawn(|_| runtime.scope(|scope| spawn(scope, &run, 3)));
                scope.spawn(|_| runtime.scope(|scope| spawn(scope, &run, 3)));
            });
            assert_eq!(run.load(Ordering::Relaxed), 2 * (1 + 4 + 16 + 64));
        }
    }
}

/// Recursive forks give the right sum while the CPUs change.
fn forks_are_right_while_cpus_change(cpus: &Cpus) {
    fn sum(runtime: &Runtime, numbers: std::ops::Range<u64>) -> u64 {
        let middle = numbers.start.midpoint(numbers.end);
        match numbers.end - numbers.start {
            0..8 => numbers.sum(),
            _ => {
                let left = || sum(runtime, numbers.start..middle);
                let right = || sum(runtime, middle..numbers.end);
                let (left, right) = runtime.join(left, right);
                left + right
            }
        }
    }
    // With the smaller stacks, all nested waits are deep.
    for stack_bytes in [0, 64 << 10] {
        let builder = RuntimeBuilder::new(8).stack_bytes(stack_bytes);
        let runtime = builder.build().unwrap();
        for round in 0..100 {
            cpus.bind_to(1 + round % cpus.0.len());
            assert_eq!(sum(&runtime, 0..100_000), 4_999_950_000);
        }
    }
}

#[test]
fn workers_follow_the_cpus() {
    let cpus = Cpus::of_process();
    for policy in POLICIES {
        waiting_tasks_do_not_hang(&cpus, policy);
        running_workers_follow(&cpus, policy);
        tasks_run_once_while_cpus_change(&cpus, policy);
    }
    forks_are_right_while_cpus_change(&cpus);
    scopes_end_while_cpus_change(&cpus);
    cpus.bind_to(cpus.0.len());
    if cpus.0.len() == 1 {
        usher_skip::skip!("the parts in which the number of CPUs changes: there is one CPU");
    }
}
