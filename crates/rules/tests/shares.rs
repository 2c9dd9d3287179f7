// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the shares of cgroups (`cpu.weight`, `cpu.idle`), on the host build of the scheduler: the
//! CPU time is divided on each level, whatever the depth and the number of threads.

mod common;

use common::{MS, Machine, Program, SETTINGS};
use proptest::prelude::*;
use usher_rules::sched::{CgroupId, HostSettings};

const SECOND_NS: u64 = 1_000 * MS;

fn machine(cpus: usize) -> Machine {
    Machine::new(cpus, SETTINGS)
}

/// Creates a cgroup with a weight.
fn weighted(machine: &mut Machine, parent: Option<CgroupId>, weight: u32) -> CgroupId {
    let cgroup = machine.sched.new_cgroup(parent);
    machine.sched.set_weight(cgroup, weight, false);
    cgroup
}

/// Starts threads that always compute, each in an address space of its own.
fn start_loops(machine: &mut Machine, cgroup: Option<CgroupId>, count: usize) -> Vec<usize> {
    let start = |_| {
        let mm = 1 + machine.threads.len() as u64;
        machine.start(Program {
            cgroup: cgroup.map_or(0, CgroupId::number),
            ..Program::new(mm, u64::MAX >> (64 - machine.cpus.len()))
        })
    };
    (0..count).map(start).collect()
}

fn ran_ns(machine: &Machine, threads: &[usize]) -> u64 {
    threads.iter().map(|&at| machine.threads[at].ran_ns).sum()
}

/// Runs for some seconds, and returns the part of the CPU time of each group of threads.
fn shares(machine: &mut Machine, groups: &[Vec<usize>], seconds: u64) -> Vec<f64> {
    let before: Vec<u64> = groups.iter().map(|all| ran_ns(machine, all)).collect();
    machine.run(seconds * SECOND_NS);
    let after = groups.iter().map(|all| ran_ns(machine, all));
    let ran: Vec<f64> = after
        .zip(before)
        .map(|(after, before)| (after - before) as f64)
        .collect();
    let all: f64 = ran.iter().sum();
    ran.iter().map(|ran| ran / all).collect()
}

#[track_caller]
fn assert_shares(actual: &[f64], expected: &[f64]) {
    for (share, due) in actual.iter().zip(expected) {
        assert!(
            (share / due - 1.0).abs() < 0.05,
            "{actual:?}, not {expected:?}"
        );
    }
}

#[test]
fn the_share_of_a_cgroup_does_not_depend_on_its_number_of_threads() {
    for (cpus, threads) in [(1, [1, 20]), (1, [3, 100]), (4, [8, 100])] {
        let mut machine = machine(cpus);
        let groups = threads.map(|count| {
            let cgroup = weighted(&mut machine, None, 100);
            start_loops(&mut machine, Some(cgroup), count)
        });
        machine.run(SECOND_NS);
        let actual = shares(&mut machine, &groups, 20);
        assert_shares(&actual, &[0.5, 0.5]);
    }
}

#[test]
fn weights_divide_each_level() {
    let mut machine = machine(1);
    let outer = [100, 300].map(|weight| weighted(&mut machine, None, weight));
    // The first has two children of weights 50 and 150; the second has threads of its own.
    let inner = [50, 150].map(|weight| weighted(&mut machine, Some(outer[0]), weight));
    let deep = weighted(&mut machine, Some(inner[1]), 10_000);
    let groups = [
        start_loops(&mut machine, Some(inner[0]), 3),
        start_loops(&mut machine, Some(deep), 2),
        start_loops(&mut machine, Some(outer[1]), 5),
    ];
    machine.run(SECOND_NS);
    let actual = shares(&mut machine, &groups, 20);
    assert_shares(&actual, &[0.0625, 0.1875, 0.75]);
}

/// Threads of the root cgroup are siblings of its children, and have a weight each.
#[test]
fn threads_beside_a_cgroup_count_as_its_siblings() {
    let mut machine = machine(1);
    let cgroup = weighted(&mut machine, None, 100);
    let groups = [
        start_loops(&mut machine, None, 3),
        start_loops(&mut machine, Some(cgroup), 10),
    ];
    machine.run(SECOND_NS);
    let actual = shares(&mut machine, &groups, 20);
    assert_shares(&actual, &[0.75, 0.25]);
}

#[test]
fn a_cgroup_with_cpu_idle_gets_what_is_left() {
    let mut machine = machine(1);
    let idle = machine.sched.new_cgroup(None);
    machine.sched.set_weight(idle, 100, true);
    let other = weighted(&mut machine, None, 100);
    let groups = [
        start_loops(&mut machine, Some(idle), 10),
        start_loops(&mut machine, Some(other), 1),
    ];
    machine.run(SECOND_NS);
    let actual = shares(&mut machine, &groups, 10);
    assert!(actual[1] > 0.95, "{actual:?}");
}

/// The unused share of a cgroup that sleeps goes to its siblings on the same level.
#[test]
fn the_share_of_a_sleeping_cgroup_goes_to_its_siblings() {
    let mut machine = machine(1);
    let outer = [100, 100].map(|weight| weighted(&mut machine, None, weight));
    let inner = [100, 100].map(|weight| weighted(&mut machine, Some(outer[0]), weight));
    let sleeper = machine.start(Program {
        cgroup: inner[0].number(),
        runs_ns: MS / 10,
        sleeps_ns: 20 * MS,
        ..Program::new(999, 1)
    });
    let groups = [
        vec![sleeper],
        start_loops(&mut machine, Some(inner[1]), 2),
        start_loops(&mut machine, Some(outer[1]), 2),
    ];
    machine.run(SECOND_NS);
    let actual = shares(&mut machine, &groups, 20);
    assert_shares(&actual[2..], &[0.5]);
}

#[test]
fn a_change_of_a_weight_takes_effect_within_20_ms() {
    let mut machine = machine(1);
    let cgroups = [100, 100].map(|weight| weighted(&mut machine, None, weight));
    for cgroup in cgroups {
        start_loops(&mut machine, Some(cgroup), 2);
    }
    machine.run(SECOND_NS);
    machine.sched.set_weight(cgroups[0], 300, false);
    machine.run(20 * MS);
    let factors = [0, 2].map(|thread| machine.sched.task(machine.threads[thread].task).factor);
    assert!(factors[0].abs_diff(3 * factors[1]) <= 3 << 6, "{factors:?}");
}

#[test]
fn a_thread_that_moves_gets_the_share_of_its_new_cgroup() {
    let mut machine = machine(1);
    let cgroups = [100, 400].map(|weight| weighted(&mut machine, None, weight));
    let groups = [
        start_loops(&mut machine, Some(cgroups[0]), 1),
        start_loops(&mut machine, Some(cgroups[0]), 1),
    ];
    machine.run(SECOND_NS);
    let task = machine.threads[groups[1][0]].task;
    machine.sched.move_to(task, cgroups[1]);
    machine.follow();
    machine.run(SECOND_NS);
    let actual = shares(&mut machine, &groups, 10);
    assert_shares(&actual, &[0.2, 0.8]);
}

/// A cgroup of the random tree.
#[derive(Debug, Clone)]
struct Node {
    /// Index of the parent among the earlier nodes; a larger number stands for the root.
    parent: usize,
    weight: u32,
    /// Threads, if the node has no children.
    threads: usize,
}

/// Cgroups on three levels at most, with up to 20 threads each.
fn nodes() -> impl Strategy<Value = Vec<Node>> {
    let weight = prop_oneof![Just(100_u32), 20..500_u32];
    let node = (0..8_usize, weight, 1..=20_usize);
    let node = node.prop_map(|(parent, weight, threads)| Node {
        parent,
        weight,
        threads,
    });
    proptest::collection::vec(node, 2..9).prop_map(with_three_levels)
}

/// Moves the cgroups below the third level to the first level.
fn with_three_levels(mut nodes: Vec<Node>) -> Vec<Node> {
    let mut depths: Vec<usize> = Vec::new();
    for (at, node) in nodes.iter_mut().enumerate() {
        let above = if node.parent < at {
            depths[node.parent]
        } else {
            0
        };
        if above == 3 {
            node.parent = usize::MAX;
        }
        depths.push(above % 3 + 1);
    }
    nodes
}

/// Share of a CPU that each thread must have: with less, threads become overdue, and get more.
const LEAST_SHARE: f64 = 0.003;

/// Returns the share of each node without children, by dividing each level by weight.
fn expected(nodes: &[Node]) -> Vec<(usize, f64)> {
    let is_root = |at: usize| nodes[at].parent >= at;
    let siblings = |at: usize, other: usize| match is_root(at) {
        true => is_root(other),
        false => !is_root(other) && nodes[at].parent == nodes[other].parent,
    };
    let mut share = vec![0.0; nodes.len()];
    for at in 0..nodes.len() {
        let level = (0..nodes.len()).filter(|&other| siblings(at, other));
        let all: f64 = level.map(|other| f64::from(nodes[other].weight)).sum();
        let above = if is_root(at) {
            1.0
        } else {
            share[nodes[at].parent]
        };
        share[at] = above * f64::from(nodes[at].weight) / all;
    }
    let is_leaf = |at: usize| !(at + 1..nodes.len()).any(|below| nodes[below].parent == at);
    let leaves = (0..nodes.len()).filter(|&at| is_leaf(at));
    leaves.map(|at| (at, share[at])).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn shares_of_random_trees_are_those_of_the_levels(nodes in nodes(), aggregate: bool) {
        let settings = HostSettings { aggregate: aggregate.into(), ..SETTINGS };
        let mut machine = Machine::new(1, settings);
        let mut cgroups: Vec<CgroupId> = Vec::new();
        for (at, node) in nodes.iter().enumerate() {
            let parent = (node.parent < at).then(|| cgroups[node.parent]);
            let cgroup = weighted(&mut machine, parent, node.weight);
            cgroups.push(cgroup);
        }
        let leaves = expected(&nodes);
        prop_assume!(leaves.iter().all(|&(at, due)| due / nodes[at].threads as f64 > LEAST_SHARE));
        let groups: Vec<Vec<usize>> = leaves
            .iter()
            .map(|&(at, _)| start_loops(&mut machine, Some(cgroups[at]), nodes[at].threads))
            .collect();
        machine.run(2 * SECOND_NS);
        let actual = shares(&mut machine, &groups, 60);
        for (share, (at, due)) in actual.iter().zip(&leaves) {
            let off = (share / due - 1.0).abs();
            prop_assert!(off < 0.05, "{at}: {share}, not {due}; {actual:?}, {leaves:?}");
        }
    }
}

/// On a machine without cgroups, the weights of threads do not change, whatever the load.
#[test]
fn threads_of_the_root_cgroup_keep_their_weights() {
    for sleeps_ns in [0, 2 * MS, 50 * MS] {
        let mut machine = machine(2);
        for mm in 1..6 {
            machine.start(Program {
                runs_ns: if sleeps_ns > 0 { MS / 2 } else { u64::MAX },
                sleeps_ns,
                ..Program::new(mm, 3)
            });
        }
        for _ in 0..50 {
            machine.run(21 * MS);
            let task = machine.sched.task(machine.threads[0].task);
            assert_eq!(task.factor, 1 << 16, "{sleeps_ns}");
        }
    }
}

/// While no cgroup has threads, no thread is counted, and the timer that computes the shares does not
/// run. Threads that run when the first cgroup gets threads are counted from then on.
#[test]
fn threads_are_counted_from_the_first_cgroup_on() {
    let mut machine = machine(1);
    let root = start_loops(&mut machine, None, 2);
    machine.run(SECOND_NS);
    assert_eq!(machine.sched.next_timer_ns(), u64::MAX);
    let cgroup = weighted(&mut machine, None, 100);
    let of_cgroup = start_loops(&mut machine, Some(cgroup), 5);
    assert_ne!(machine.sched.next_timer_ns(), u64::MAX);
    machine.run(SECOND_NS);
    let actual = shares(&mut machine, &[root, of_cgroup], 20);
    assert_shares(&actual, &[2.0 / 3.0, 1.0 / 3.0]);
}
