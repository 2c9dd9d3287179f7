// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the quotas of cgroups (`cpu.max`), on the host build of the scheduler: CPU time per
//! second, nested quotas, changes while threads run, and threads that are throttled for a long time.

mod common;

use common::{MS, Machine, Program, SETTINGS, State};
use proptest::prelude::*;
use usher_rules::sched::{CgroupId, Quota};

/// Timeout of the kernel's watchdog (sched.bpf.c).
const WATCHDOG_NS: u64 = 5_000 * MS;
const SECOND_NS: u64 = 1_000 * MS;

/// Returns a quota per 100 ms, as `cpu.max` has by default.
fn quota(quota_us: u64) -> Option<Quota> {
    Some(Quota {
        period_us: 100_000,
        quota_us,
        burst_us: 0,
    })
}

fn machine(cpus: usize) -> Machine {
    Machine::new(cpus, SETTINGS)
}

/// Creates a cgroup with a quota.
fn limited(machine: &mut Machine, parent: Option<CgroupId>, quota_us: u64) -> CgroupId {
    let cgroup = machine.sched.new_cgroup(parent);
    machine.sched.set_quota(cgroup, quota(quota_us));
    cgroup
}

/// Returns a thread that always computes, in an address space of its own, on all CPUs.
fn looping(machine: &Machine, cgroup: CgroupId) -> Program {
    Program {
        cgroup: cgroup.number(),
        ..Program::new(
            1 + machine.threads.len() as u64,
            u64::MAX >> (64 - machine.cpus.len()),
        )
    }
}

/// Starts `count` threads that always compute.
fn start_loops(machine: &mut Machine, cgroup: CgroupId, count: usize) -> Vec<usize> {
    let starts = (0..count).map(|_| machine.start(looping(machine, cgroup)));
    starts.collect()
}

fn ran_ns(machine: &Machine, threads: &[usize]) -> u64 {
    threads.iter().map(|&at| machine.threads[at].ran_ns).sum()
}

/// Runs for a second, and returns the CPU time of the threads in that second.
fn use_of_a_second(machine: &mut Machine, threads: &[usize]) -> u64 {
    let before = ran_ns(machine, threads);
    machine.run(SECOND_NS);
    ran_ns(machine, threads) - before
}

#[track_caller]
fn assert_use(used_ns: u64, quota_ns: u64) {
    assert!(used_ns <= quota_ns * 101 / 100, "{used_ns} of {quota_ns}");
    assert!(used_ns >= quota_ns * 97 / 100, "{used_ns} of {quota_ns}");
}

#[test]
fn a_loop_gets_its_quota_in_each_second() {
    for (cpus, threads, quota_us) in [
        (1, 1, 20_000),
        (1, 3, 1_000),
        (2, 1, 100_000),
        (4, 100, 20_000),
        (8, 20, 350_000),
        (48, 60, 20_000),
    ] {
        let mut machine = machine(cpus);
        let cgroup = limited(&mut machine, None, quota_us);
        let threads = start_loops(&mut machine, cgroup, threads);
        for _ in 0..5 {
            let used_ns = use_of_a_second(&mut machine, &threads);
            assert_use(used_ns, quota_us * 10_000);
        }
    }
}

#[test]
fn threads_of_a_throttled_cgroup_get_equal_times() {
    let mut machine = machine(4);
    let cgroup = limited(&mut machine, None, 20_000);
    let threads = start_loops(&mut machine, cgroup, 40);
    machine.run(20 * SECOND_NS);
    for &thread in &threads {
        let ran_ns = machine.threads[thread].ran_ns;
        assert!((80 * MS..120 * MS).contains(&ran_ns), "{ran_ns}");
    }
}

#[test]
fn the_smallest_of_nested_quotas_applies() {
    for quotas in [[40_000, 20_000, 10_000], [10_000, 20_000, 40_000]] {
        let mut machine = machine(2);
        let top = limited(&mut machine, None, quotas[0]);
        let middle = limited(&mut machine, Some(top), quotas[1]);
        let leaf = limited(&mut machine, Some(middle), quotas[2]);
        let threads = start_loops(&mut machine, leaf, 3);
        for _ in 0..3 {
            let used_ns = use_of_a_second(&mut machine, &threads);
            assert_use(used_ns, 100 * MS);
        }
    }
}

/// Two children may use the whole quota of their parent together, and more than half of it alone.
#[test]
fn children_share_the_quota_of_their_parent() {
    let mut machine = machine(4);
    let top = limited(&mut machine, None, 60_000);
    let children = [50_000, 50_000].map(|us| limited(&mut machine, Some(top), us));
    let one = start_loops(&mut machine, children[0], 2);
    let used_ns = use_of_a_second(&mut machine, &one);
    assert_use(used_ns, 500 * MS);
    let both = [one, start_loops(&mut machine, children[1], 2)].concat();
    for _ in 0..3 {
        let used_ns = use_of_a_second(&mut machine, &both);
        assert_use(used_ns, 600 * MS);
    }
}

#[test]
fn a_quota_applies_to_a_thread_that_runs_alone() {
    let mut machine = machine(1);
    let cgroup = machine.sched.new_cgroup(None);
    let threads = start_loops(&mut machine, cgroup, 1);
    machine.run(SECOND_NS);
    assert_eq!(ran_ns(&machine, &threads), SECOND_NS);
    machine.sched.set_quota(cgroup, quota(20_000));
    // The quota takes effect when the slice ends.
    machine.run(100 * MS);
    let used_ns = use_of_a_second(&mut machine, &threads);
    assert_use(used_ns, 200 * MS);
}

#[test]
fn throttled_threads_run_soon_after_the_quota_is_raised_or_removed() {
    for new in [quota(100_000), None] {
        let mut machine = machine(1);
        let cgroup = limited(&mut machine, None, 1_000);
        let threads = start_loops(&mut machine, cgroup, 1);
        machine.run(50 * MS);
        assert_eq!(machine.threads[threads[0]].state, State::Waiting);
        machine.sched.set_quota(cgroup, new);
        machine.run(MS);
        assert_eq!(machine.threads[threads[0]].state, State::Running(0));
        machine.run(SECOND_NS);
        assert!(ran_ns(&machine, &threads) >= 995 * MS);
    }
}

#[test]
fn a_thread_that_moves_follows_the_quota_of_its_new_cgroup() {
    let mut machine = machine(1);
    let from = limited(&mut machine, None, 20_000);
    let to = machine.sched.new_cgroup(None);
    let threads = start_loops(&mut machine, from, 1);
    machine.run(50 * MS);
    let task = machine.threads[threads[0]].task;
    // The thread is throttled when it leaves, and runs when it returns.
    machine.sched.move_to(task, to);
    machine.follow();
    let used_ns = use_of_a_second(&mut machine, &threads);
    assert_eq!(used_ns, SECOND_NS);
    machine.sched.move_to(task, from);
    machine.follow();
    machine.run(200 * MS);
    let used_ns = use_of_a_second(&mut machine, &threads);
    assert_use(used_ns, 200 * MS);
}

#[test]
fn a_removed_cgroup_leaves_its_park_queue_to_others() {
    let mut machine = machine(1);
    for round in 0..200 {
        let cgroup = limited(&mut machine, None, 10_000);
        let thread = machine.start(Program {
            runs_ns: 15 * MS,
            bursts: 1,
            ..looping(&machine, cgroup)
        });
        machine.run(150 * MS);
        assert_eq!(machine.threads[thread].state, State::Ended, "{round}");
        machine.sched.end_cgroup(cgroup);
    }
}

/// Before Linux 6.17, the kernel reports no quota, and the threads read it from time to time.
#[test]
fn quotas_that_the_kernel_does_not_report_are_read() {
    let mut machine = machine(1);
    machine.sched.hide_quotas();
    let top = limited(&mut machine, None, 50_000);
    let cgroup = limited(&mut machine, Some(top), 20_000);
    let threads = start_loops(&mut machine, cgroup, 2);
    let used_ns = use_of_a_second(&mut machine, &threads);
    assert_use(used_ns, 200 * MS);
    for (quota_us, top_us) in [(30_000, 50_000), (30_000, 10_000), (5_000, 50_000)] {
        machine.sched.set_quota(top, quota(top_us));
        machine.sched.set_quota(cgroup, quota(quota_us));
        machine.run(2 * SECOND_NS);
        let used_ns = use_of_a_second(&mut machine, &threads);
        assert_use(used_ns, quota_us.min(top_us) * 10_000);
    }
    machine.sched.set_quota(cgroup, None);
    machine.sched.set_quota(top, None);
    machine.run(2 * SECOND_NS);
    assert_eq!(use_of_a_second(&mut machine, &threads), SECOND_NS);
}

/// Budget that was saved while the threads slept may be used at once, up to the burst.
#[test]
fn a_burst_uses_saved_budget_once() {
    let mut machine = machine(1);
    let cgroup = machine.sched.new_cgroup(None);
    machine.sched.set_quota(
        cgroup,
        Some(Quota {
            period_us: 100_000,
            quota_us: 20_000,
            burst_us: 20_000,
        }),
    );
    machine.run(SECOND_NS);
    let threads = start_loops(&mut machine, cgroup, 1);
    machine.run(100 * MS);
    let first_ns = ran_ns(&machine, &threads);
    assert!((39 * MS..41 * MS).contains(&first_ns), "{first_ns}");
    let used_ns = use_of_a_second(&mut machine, &threads);
    assert_use(used_ns, 200 * MS);
}

/// Threads that sleep return what they did not use of their grants.
#[test]
fn threads_that_sleep_use_the_whole_quota() {
    let mut machine = machine(4);
    let cgroup = limited(&mut machine, None, 50_000);
    let starts = (0..40).map(|_| {
        machine.start(Program {
            runs_ns: MS * 3 / 10,
            sleeps_ns: 2 * MS,
            ..looping(&machine, cgroup)
        })
    });
    let threads: Vec<usize> = starts.collect();
    for _ in 0..5 {
        let used_ns = use_of_a_second(&mut machine, &threads);
        assert_use(used_ns, 500 * MS);
    }
}

/// A quota is an upper limit; a cgroup below it is not throttled.
#[test]
fn a_cgroup_below_its_quota_is_not_delayed() {
    let mut machine = machine(1);
    let cgroup = limited(&mut machine, None, 30_000);
    let thread = machine.start(Program {
        runs_ns: 2 * MS,
        sleeps_ns: 8 * MS,
        ..looping(&machine, cgroup)
    });
    machine.run(10 * SECOND_NS);
    let ran_ns = machine.threads[thread].ran_ns;
    assert!(ran_ns >= 1_990 * MS, "{ran_ns}");
    assert!(machine.longest_wait_ns() <= MS / 10);
}

/// The largest quota that the kernel accepts is no limit, also after a rest of many periods.
#[test]
fn the_largest_quota_throttles_no_thread() {
    let mut machine = machine(1);
    let cgroup = limited(&mut machine, None, 1 << 44);
    machine.run(200 * SECOND_NS);
    let thread = machine.start(looping(&machine, cgroup));
    machine.run(2 * SECOND_NS);
    assert_eq!(machine.threads[thread].ran_ns, 2 * SECOND_NS);
}

/// The quota changes every 100 ms. In each second, the use stays within the quotas of its parts.
#[test]
fn changes_of_a_quota_give_no_additional_time() {
    let mut machine = machine(4);
    let cgroup = limited(&mut machine, None, 20_000);
    let threads = start_loops(&mut machine, cgroup, 10);
    let quotas = [5_000, 80_000, 20_000, 200_000, 1_000, 50_000, 10_000];
    let mut at = 0;
    for _ in 0..10 {
        let before_ns = ran_ns(&machine, &threads);
        let mut permitted_ns = 0;
        for _ in 0..10 {
            let quota_us = quotas[at % quotas.len()];
            machine.sched.set_quota(cgroup, quota(quota_us));
            machine.run(100 * MS);
            permitted_ns += quota_us * 1_000;
            at += 1;
        }
        let used_ns = ran_ns(&machine, &threads) - before_ns;
        assert!(
            used_ns <= permitted_ns * 101 / 100,
            "{used_ns} of {permitted_ns}"
        );
        assert!(
            used_ns >= permitted_ns * 90 / 100,
            "{used_ns} of {permitted_ns}"
        );
    }
}

/// 10,000 throttled threads beside a thread without a quota. The simulation has no cost of a switch;
/// at 3 microseconds each, 3,400 switches per second are 1 % of a CPU.
#[test]
fn a_throttled_crowd_costs_others_few_switches() {
    let mut machine = machine(1);
    let cgroup = limited(&mut machine, None, 1_000);
    let other = machine.start(Program::new(1, 1));
    let crowd = start_loops(&mut machine, cgroup, 10_000);
    machine.run(5 * SECOND_NS);
    machine.began.clear();
    let before_ns = machine.threads[other].ran_ns;
    machine.run(10 * SECOND_NS);
    let ran_ns = machine.threads[other].ran_ns - before_ns;
    assert!(ran_ns >= 9_890 * MS, "{ran_ns}");
    let switches = machine.began.len();
    assert!(switches <= 25_000, "{switches}");
    assert!(
        crowd
            .iter()
            .all(|&thread| machine.threads[thread].ran_ns < SECOND_NS)
    );
    let waited_ns = machine.longest_wait_ns();
    assert!(waited_ns < WATCHDOG_NS - 500 * MS, "{waited_ns}");
}

/// A thread waits in the park queue of the inner cgroup and then in that of the outer cgroup, behind
/// a crowd that was parked later. The waits count together for the watchdog.
#[test]
fn a_thread_that_waits_for_two_quotas_runs_before_the_timeout() {
    let mut machine = machine(1);
    let outer = limited(&mut machine, None, 1_000);
    let inner = machine.sched.new_cgroup(Some(outer));
    let quota = Quota {
        period_us: 1_000_000,
        ..quota(1_000).unwrap()
    };
    machine.sched.set_quota(inner, Some(quota));
    start_loops(&mut machine, inner, 20);
    start_loops(&mut machine, outer, 2_000);
    machine.run(20 * SECOND_NS);
    let waited_ns = machine.longest_wait_ns();
    assert!(waited_ns < WATCHDOG_NS - 500 * MS, "{waited_ns}");
}

/// A cgroup of the random tree.
#[derive(Debug, Clone)]
struct Node {
    /// Index of the parent among the earlier nodes; a larger number stands for the root.
    parent: usize,
    quota_us: Option<u64>,
    threads: usize,
    /// Burst and sleep of the threads; without a sleep they compute without end.
    runs_us: u64,
    sleeps_us: u64,
}

fn nodes() -> impl Strategy<Value = Vec<Node>> {
    let quota_us = proptest::option::weighted(0.7, 1_000..120_000_u64);
    let threads = prop_oneof![Just(0_usize), 1..4_usize, 1..100_usize];
    let node = (0..8_usize, quota_us, threads, 100..20_000_u64, 0..5_000_u64);
    let node = node.prop_map(|(parent, quota_us, threads, runs_us, sleeps_us)| Node {
        parent,
        quota_us,
        threads,
        runs_us,
        sleeps_us: if sleeps_us < 2_000 { 0 } else { sleeps_us },
    });
    proptest::collection::vec(node, 1..8)
}

/// Returns whether node `at` is `top` or below it.
fn is_within(nodes: &[Node], mut at: usize, top: usize) -> bool {
    while at != top {
        if nodes[at].parent >= at {
            return false;
        }
        at = nodes[at].parent;
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_cgroup_exceeds_its_quota(nodes in nodes(), cpus in 1..9_usize) {
        let mut machine = machine(cpus);
        let mut cgroups: Vec<CgroupId> = Vec::new();
        for (at, node) in nodes.iter().enumerate() {
            let parent = (node.parent < at).then(|| cgroups[node.parent]);
            let cgroup = machine.sched.new_cgroup(parent);
            machine.sched.set_quota(cgroup, node.quota_us.and_then(quota));
            cgroups.push(cgroup);
        }
        let mut within: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
        for (at, node) in nodes.iter().enumerate() {
            for _ in 0..node.threads {
                let mut program = looping(&machine, cgroups[at]);
                if node.sleeps_us > 0 {
                    program.runs_ns = node.runs_us * 1_000;
                    program.sleeps_ns = node.sleeps_us * 1_000;
                }
                let thread = machine.start(program);
                for (top, threads) in within.iter_mut().enumerate() {
                    if is_within(&nodes, at, top) {
                        threads.push(thread);
                    }
                }
            }
        }
        for _ in 0..3 {
            let before: Vec<u64> = within.iter().map(|all| ran_ns(&machine, all)).collect();
            machine.run(SECOND_NS);
            let mut busy_ns = 0;
            for (at, node) in nodes.iter().enumerate() {
                let used_ns = ran_ns(&machine, &within[at]) - before[at];
                if node.parent >= at {
                    busy_ns += used_ns;
                }
                if let Some(quota_us) = node.quota_us {
                    let quota_ns = quota_us * 10_000;
                    prop_assert!(used_ns <= quota_ns * 101 / 100, "{at}: {used_ns} of {quota_ns}");
                }
            }
            prop_assert!(busy_ns <= cpus as u64 * SECOND_NS);
        }
        prop_assert!(machine.longest_wait_ns() < WATCHDOG_NS);
    }
}
