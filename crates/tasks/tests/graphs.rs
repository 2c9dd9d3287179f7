// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that run random graphs, as graphs and as tasks by token. They check that each task runs
//! once per run, and after all its dependencies.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::mem;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use usher_tasks::{Graph, GraphBuilder, GraphError, Groups, Panicked, Policy};
use usher_tasks::{RunError, Runtime, RuntimeError};

const T_GROUPS: u32 = 6;
const S_GROUPS: u32 = 9;

const POLICIES: [Policy; 4] = [
    Policy::Usher,
    Policy::Paper {
        t_groups: T_GROUPS,
        s_groups: S_GROUPS,
    },
    Policy::Fcfs,
    Policy::Lcfs,
];

/// The groups of each task, and dependencies of tasks on tasks with lower numbers.
#[derive(Debug, Clone)]
struct Dag {
    groups: Vec<Groups>,
    /// The dependencies of each task, by task number.
    before: Vec<Vec<usize>>,
}

impl Dag {
    /// Runs the graph `runs` times and checks the order.
    fn check(&self, runtime: &Runtime, runs: u32) {
        let ran: Vec<AtomicU32> = self.groups.iter().map(|_| AtomicU32::new(0)).collect();
        let early = AtomicUsize::new(0);
        let body = |task: usize| {
            // The number of earlier runs of this task is also the number of the current run,
            // counted from 0. Each dependency must have run once more than that.
            let run = ran[task].load(Ordering::Relaxed);
            let is_done = |&before: &usize| ran[before].load(Ordering::Relaxed) == run + 1;
            if !self.before[task].iter().all(is_done) {
                early.fetch_add(1, Ordering::Relaxed);
            }
            // The counter is incremented instead of set, so that a second call within one run is
            // detected.
            ran[task].fetch_add(1, Ordering::Relaxed);
        };
        let mut graph = self.graph(body);
        for run in 1..=runs {
            runtime.run(&mut graph).unwrap();
            assert!(ran.iter().all(|ran| ran.load(Ordering::Relaxed) == run));
        }
        assert_eq!(early.into_inner(), 0, "tasks ran too early");
    }

    /// Runs the graph as tasks by token and checks the order. The token of a task is its number,
    /// and each of its dependencies resolves it. Tasks are registered in ascending and in
    /// descending order.
    fn check_by_token(&self, runtime: &Runtime, runs: u32) {
        let mut after = vec![Vec::new(); self.before.len()];
        for (task, before) in self.before.iter().enumerate() {
            before.iter().for_each(|&before| after[before].push(task));
        }
        let shared = Arc::new((
            self.clone(),
            after,
            (self.groups.iter().map(|_| AtomicU32::new(0))).collect::<Vec<_>>(),
            AtomicUsize::new(0),
        ));
        for run in 0..runs {
            let register = |task: usize| {
                let (handle, shared) = (runtime.handle(), Arc::clone(&shared));
                let entry = move || {
                    let (dag, after, ran, early) = &*shared;
                    let is_done = |&before: &usize| ran[before].load(Ordering::Relaxed) == run + 1;
                    if !dag.before[task].iter().all(is_done) {
                        early.fetch_add(1, Ordering::Relaxed);
                    }
                    ran[task].fetch_add(1, Ordering::Relaxed);
                    for &next in &after[task] {
                        handle.resolve(next as u64).unwrap();
                    }
                };
                let waits = self.before[task].len() as u32;
                let groups = self.groups[task];
                runtime.register(task as u64, waits, groups, entry).unwrap();
            };
            match run % 2 {
                0 => (0..self.before.len()).for_each(register),
                _ => (0..self.before.len()).rev().for_each(register),
            }
            runtime.wait().unwrap();
            let (_, _, ran, early) = &*shared;
            assert!(ran.iter().all(|ran| ran.load(Ordering::Relaxed) == run + 1));
            assert_eq!(early.load(Ordering::Relaxed), 0, "tasks ran too early");
        }
    }

    fn graph<B: Fn(usize) + Sync>(&self, body: B) -> Graph<B> {
        let mut builder = GraphBuilder::new();
        for &groups in &self.groups {
            builder.task_in(groups);
        }
        for (task, before) in self.before.iter().enumerate() {
            for &before in before {
                builder.after(task, before);
            }
        }
        builder.build(body).unwrap()
    }

    /// Generates a graph from a seed. Each task depends on at most `most` tasks, which are among
    /// the `reach` tasks with the next lower numbers.
    fn random(seed: u64, tasks: usize, most: u64, reach: u64) -> Self {
        let mut state = seed;
        let mut random = move |below: u64| {
            // splitmix64
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut x = state;
            x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            (x ^ (x >> 31)) % below.max(1)
        };
        let mut dag = Self {
            groups: Vec::new(),
            before: Vec::new(),
        };
        for task in 0..tasks as u64 {
            let t = random(u64::from(T_GROUPS)) as u32;
            let s = random(u64::from(S_GROUPS)) as u32;
            dag.groups.push(Groups::new(t, s));
            let count = random(most + 1).min(task);
            let each = (0..count).map(|_| (task - 1 - random(reach.min(task))) as usize);
            dag.before.push(each.collect());
        }
        dag
    }
}

#[test]
fn random_graphs_run_in_order_at_every_number_of_workers() {
    let seed = 1;
    eprintln!("seed {seed}");
    for workers in (1..=64).step_by(LESS) {
        let dag = Dag::random(seed + workers as u64, 600, 4, 80);
        for policy in POLICIES {
            let runtime = Runtime::with_policy(workers, policy).unwrap();
            dag.check(&runtime, 3);
            dag.check_by_token(&runtime, 2);
        }
    }
}

#[test]
fn a_million_tasks_run_in_order() {
    let dag = Dag::random(2, 1_000_000 / LESS.pow(2), 4, 5_000);
    for policy in POLICIES {
        let runtime = Runtime::with_policy(3, policy).unwrap();
        dag.check(&runtime, 2);
    }
}

/// Divisor of the number of tasks in tests. Under ThreadSanitizer a task takes a hundred times as
/// long, and fewer tasks reveal the same errors.
const LESS: usize = if cfg!(feature = "tsan") { 9 } else { 1 };

fn dags() -> impl Strategy<Value = Dag> {
    (any::<u64>(), 0..60_usize, 0..5_u64, 1..60_u64)
        .prop_map(|(seed, tasks, most, reach)| Dag::random(seed, tasks, most, reach))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64 / LESS as u32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_graph_runs_in_order(dag in dags(), workers in 1..6_usize) {
        for policy in POLICIES {
            let runtime = Runtime::with_policy(workers, policy).unwrap();
            dag.check(&runtime, 3);
            dag.check_by_token(&runtime, 3);
        }
    }

    /// If the dependencies form a cycle, building reports tasks that form a cycle.
    #[test]
    fn cycles_are_reported(dag in dags(), from in 0..60_usize, to in 0..60_usize) {
        let count = dag.groups.len();
        let mut builder = GraphBuilder::new();
        (0..count).for_each(|_| { builder.task(); });
        let mut edges: Vec<(usize, usize)> = Vec::new();
        for (task, before) in dag.before.iter().enumerate() {
            edges.extend(before.iter().map(|&before| (before, task)));
        }
        if count > 0 {
            edges.push((from % count, to % count));
        }
        for &(before, after) in &edges {
            builder.after(after, before);
        }
        match builder.build(|_| ()) {
            Ok(_) => prop_assert!(from % count.max(1) < to % count.max(1) || count == 0
                || !reaches(&edges, to % count, from % count)),
            Err(GraphError::Cycle { tasks }) => {
                prop_assert!(!tasks.is_empty());
                let next = tasks.iter().cycle().skip(1);
                for (&one, &other) in tasks.iter().zip(next) {
                    prop_assert!(edges.contains(&(one, other)), "{tasks:?}");
                }
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

/// Returns whether a path leads from the first task to the second.
fn reaches(edges: &[(usize, usize)], from: usize, to: usize) -> bool {
    let mut seen = vec![from];
    let mut at = 0;
    while let Some(&task) = seen.get(at) {
        at += 1;
        for &(before, after) in edges {
            if before == task && !seen.contains(&after) {
                seen.push(after);
            }
        }
    }
    seen.contains(&to)
}

#[test]
fn a_panic_is_reported_and_later_tasks_are_skipped() {
    let dag = Dag {
        groups: vec![Groups::NONE; 4],
        before: vec![vec![], vec![0], vec![1], vec![2]],
    };
    for policy in POLICIES {
        let runtime = Runtime::with_policy(2, policy).unwrap();
        let ran = AtomicU32::new(0);
        let fails = AtomicU32::new(1);
        let mut graph = dag.graph(|task| {
            let fails = fails.load(Ordering::Relaxed) == 1;
            assert!(task != 1 || !fails, "no such frame: {task}");
            ran.fetch_add(1, Ordering::Relaxed);
        });
        let error = runtime.run(&mut graph).unwrap_err();
        let panicked = Panicked {
            task: 1,
            is_submitted: false,
            message: "no such frame: 1".to_owned(),
        };
        let expected = RunError::Panicked {
            panicked: vec![panicked],
            skipped: 2,
        };
        assert_eq!(error, expected);
        fails.store(0, Ordering::Relaxed);
        runtime.run(&mut graph).unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), 1 + 4);
    }
}

#[test]
fn tasks_may_run_graphs_on_their_own_runtime_and_on_others() {
    let (outer, other) = (Runtime::new(2).unwrap(), Runtime::new(2).unwrap());
    let count = AtomicU32::new(0);
    let wide = || {
        let mut builder = GraphBuilder::new();
        (0..20).for_each(|_| {
            builder.task();
        });
        builder
    };
    let mut graph = wide()
        .build(|task| {
            let runtime = if task % 2 == 0 { &outer } else { &other };
            let mut inner = wide()
                .build(|_| {
                    count.fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
            runtime.run(&mut inner).unwrap();
        })
        .unwrap();
    outer.run(&mut graph).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 400);
}

#[test]
fn several_threads_may_run_graphs_at_once() {
    let runtime = Runtime::new(2).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let runtime = &runtime;
            scope.spawn(move || Dag::random(seed, 500, 4, 50).check(runtime, 5));
        }
    });
}

#[test]
fn invalid_numbers_of_workers_are_rejected() {
    for count in [0, 10_000] {
        match Runtime::new(count) {
            Err(RuntimeError::Workers {
                count: reported, ..
            }) => assert_eq!(reported, count),
            other => panic!("{other:?}"),
        }
    }
    let mut builder = GraphBuilder::new();
    let only = builder.task();
    builder.after(only, 7);
    let refused = builder.build(|_| ()).unwrap_err();
    assert_eq!(refused, GraphError::NoSuchTask { task: 7, count: 1 });
}

#[test]
fn groups_outside_the_policy_are_rejected() {
    let (t_groups, s_groups) = (2, 3);
    let policy = Policy::Paper { t_groups, s_groups };
    let runtime = Runtime::with_policy(1, policy).unwrap();
    for groups in [Groups::new(2, 0), Groups::new(0, 3)] {
        let mut builder = GraphBuilder::new();
        builder.task_in(Groups::new(1, 2));
        builder.task_in(groups);
        let refused = runtime.run(&mut builder.build(|_| panic!("not run")).unwrap());
        let expected = RunError::Groups {
            task: 1,
            groups,
            t_groups,
            s_groups,
        };
        assert_eq!(refused, Err(expected));
    }
}

/// Each run of a graph begins with the lowest temporal group, whatever group ran last before.
#[test]
fn each_run_begins_with_the_lowest_temporal_group() {
    let runtime = Runtime::new(1).unwrap();
    let mut builder = GraphBuilder::new();
    let declared = [5, 2, 7, 2, 5, 300];
    (declared.iter()).for_each(|&t| _ = builder.task_in(Groups::new(t, 0)));
    let ran = Mutex::new(Vec::new());
    let mut graph = builder
        .build(|task| ran.lock().unwrap().push(declared[task]))
        .unwrap();
    for _ in 0..3 {
        runtime.run(&mut graph).unwrap();
        // Groups of which the numbers differ by a multiple of 256 share a queue: 300 is 44.
        assert_eq!(mem::take(&mut *ran.lock().unwrap()), [2, 2, 5, 5, 7, 300]);
    }
}
