// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the single-threaded dispatcher of the default policy, which simulations use, with the
//! runtime: both must run a graph in the same order.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::sync::{Mutex, mpsc};

use proptest::prelude::*;
use usher_tasks::dispatch::{Dispatcher, Usher};
use usher_tasks::{GraphBuilder, Groups, Runtime};

/// A graph with a single source, its first task.
#[derive(Debug, Clone)]
struct Dag {
    groups: Vec<Groups>,
    /// The successors of each task in ascending order, by task number.
    after: Vec<Vec<usize>>,
}

impl Dag {
    /// Creates a graph from the groups and the dependencies of each task; a task depends on earlier
    /// tasks.
    fn new(tasks: &[(Groups, Vec<prop::sample::Index>)]) -> Self {
        let mut after = vec![Vec::new(); tasks.len()];
        for (task, (_, before)) in tasks.iter().enumerate().skip(1) {
            let mut before: Vec<usize> = before.iter().map(|before| before.index(task)).collect();
            before.sort_unstable();
            before.dedup();
            before.iter().for_each(|&before| after[before].push(task));
        }
        let groups = tasks.iter().map(|&(groups, _)| groups).collect();
        Self { groups, after }
    }

    /// Renumbers the tasks: task `i` gets the number `names[i]`. Afterwards some tasks depend on
    /// tasks with higher numbers.
    fn renamed(&self, names: &[usize]) -> Self {
        let mut renamed = self.clone();
        for (task, &name) in names.iter().enumerate() {
            renamed.groups[name] = self.groups[task];
            renamed.after[name] = self.after[task].iter().map(|&next| names[next]).collect();
            renamed.after[name].sort_unstable();
        }
        renamed
    }

    fn waits(&self) -> Vec<usize> {
        let mut waits = vec![0; self.groups.len()];
        (self.after.iter().flatten()).for_each(|&task| waits[task] += 1);
        waits
    }

    /// Returns the order in which the dispatcher gives the tasks to worker 0, if the other workers
    /// request no tasks.
    fn modelled(&self, workers: usize) -> Vec<usize> {
        let mut dispatcher = Usher::new(workers);
        let mut waits = self.waits();
        let source = waits.iter().position(|&waits| waits == 0).unwrap();
        dispatcher.ready(source, self.groups[source]);
        let mut order = Vec::new();
        while let Some(dispatch) = dispatcher.next(0) {
            let task = dispatch.item;
            order.push(task);
            // The dispatcher prefers the successor that becomes ready first. The runtime prefers
            // the successor with the next higher number.
            let after = &self.after[task];
            let (round, onward) = after.split_at(after.partition_point(|&next| next < task));
            for &next in onward.iter().chain(round) {
                waits[next] -= 1;
                if waits[next] == 0 {
                    dispatcher.ready(next, self.groups[next]);
                }
            }
        }
        order
    }

    /// Returns the order in which a runtime with at most one idle worker runs the tasks.
    fn run_by(&self, runtime: &Runtime) -> Vec<usize> {
        let mut builder = GraphBuilder::new();
        self.groups.iter().for_each(|&groups| {
            builder.task_in(groups);
        });
        for (task, after) in self.after.iter().enumerate() {
            after.iter().for_each(|&next| {
                builder.after(next, task);
            });
        }
        let order = Mutex::new(Vec::new());
        let mut graph = builder
            .build(|task| order.lock().unwrap().push(task))
            .unwrap();
        runtime.run(&mut graph).unwrap();
        drop(graph);
        order.into_inner().unwrap()
    }
}

/// Creates a runtime in which one of two workers is blocked until the sender is dropped.
fn half_busy() -> (Runtime, mpsc::Sender<()>) {
    let runtime = Runtime::new(2).unwrap();
    let (release, released) = mpsc::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    let wait = move || {
        sender.send(()).unwrap();
        // `recv` returns an error when the sender is dropped.
        let _ = released.recv();
    };
    runtime.register(0, 0, Groups::NONE, wait).unwrap();
    receiver.recv().unwrap();
    (runtime, release)
}

/// Generates temporal groups, some of which share a queue, priorities, and spatial groups. Each task
/// has a temporal or a spatial group or a priority, because the runtime would search for an order of a graph without
/// groups.
fn groups() -> impl Strategy<Value = Groups> {
    let (high, low) = (Groups::HIGH_PRIORITY.t, Groups::LOW_PRIORITY.t);
    let t = prop::sample::select(vec![0, 1, 2, 3, 200, 255, 256, 257, 300, high, low]);
    (t, 0..5_u32).prop_map(|(t, s)| match (t, s) {
        (0, 0) => Groups::new(1, 0),
        _ => Groups::new(t, s),
    })
}

fn dag(tasks: usize) -> impl Strategy<Value = Dag> {
    // Each task has few dependencies, so that many tasks are ready at a time.
    let before = prop::collection::vec(any::<prop::sample::Index>(), 1..3);
    prop::collection::vec((groups(), before), 1..tasks).prop_flat_map(|tasks| {
        let dag = Dag::new(&tasks);
        let names: Vec<usize> = (0..tasks.len()).collect();
        let names = Just(names).prop_shuffle();
        (Just(dag), names, any::<bool>()).prop_map(|(dag, names, renames)| match renames {
            true => dag.renamed(&names),
            false => dag,
        })
    })
}

/// Returns a graph of one task with `count` successors of one group.
fn fan(count: usize) -> Dag {
    Dag {
        groups: vec![Groups::new(1, 0); count + 1],
        after: std::iter::once((1..=count).collect())
            .chain(std::iter::repeat_n(Vec::new(), count))
            .collect(),
    }
}

#[test]
fn successors_run_as_they_were_declared() {
    let runtime = Runtime::new(1).unwrap();
    assert_eq!(fan(5).run_by(&runtime), [0, 1, 2, 3, 4, 5]);
    assert_eq!(fan(5).modelled(1), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn reclaimed_tasks_run_in_the_same_order() {
    // The numbers of tasks range from 1 to more than fit into the slots and chains. After every
    // 1,024 tasks, a worker of the runtime runs the task that has waited longest, and the
    // dispatcher does not. Each count therefore uses a new runtime.
    for count in [1, 2, 3, 5, 31, 32, 33, 64, 200, 300] {
        let (runtime, _release) = half_busy();
        let dag = fan(count);
        assert_eq!(dag.run_by(&runtime), dag.modelled(2), "{count} successors");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_worker_runs_a_graph_in_the_order_of_the_model(dag in dag(120)) {
        let runtime = Runtime::new(1).unwrap();
        prop_assert_eq!(dag.run_by(&runtime), dag.modelled(1));
    }

    #[test]
    fn a_worker_without_thieves_runs_a_graph_in_the_order_of_the_model(dag in dag(120)) {
        let (runtime, _release) = half_busy();
        prop_assert_eq!(dag.run_by(&runtime), dag.modelled(2));
    }
}
