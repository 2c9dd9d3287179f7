// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the placement of new and woken threads on machines with several LLCs, on the host build
//! of the scheduler. The LLC of a new thread is compared with the result of a search over all LLCs.

#![allow(clippy::unwrap_used)]

mod common;

use common::MS;
use common::rig::{Rig, Shape, State, set};
use proptest::prelude::*;
use usher_rules::sched::Task;

/// Values of `enum placement` in shared.h.
const PLACED_NEW_NEAR: u32 = 1;
const PLACED_NEW_IDLEST: u32 = 2;
const PLACED_SAME_LLC: u32 = 3;
const PLACED_SAME_NODE: u32 = 4;
const PLACED_OTHER_NODE: u32 = 5;
const PLACED_WAKER: u32 = 6;
const PLACED_WAITS: u32 = 7;

const MM: u64 = 7;

/// Creates a child of the running thread `parent`, in the address space `mm`.
fn forked(rig: &mut Rig, parent: usize, mm: u64, cpus: Vec<usize>) -> usize {
    let State::On(cpu) = rig.state(parent) else {
        panic!("the parent does not run");
    };
    rig.create(Task {
        mm: mm << 12,
        cpu: cpu as u32,
        is_forked: 1,
        parent: rig.threads[parent].id.index() as u32,
        cpus: set(cpus),
        ..Task::default()
    })
}

/// Lets `parent` create a thread of its process, which runs at once.
fn new_thread(rig: &mut Rig, parent: usize) -> usize {
    let cpus = rig.all().collect();
    let child = forked(rig, parent, MM, cpus);
    rig.wake_new(child);
    child
}

/// Lets `parent` create a process with one thread.
fn new_process(rig: &mut Rig, parent: usize) -> usize {
    let mm = 1_000 + rig.threads.len() as u64;
    let cpus = rig.all().collect();
    let child = forked(rig, parent, mm, cpus);
    rig.wake_new(child);
    child
}

fn main_thread(rig: &mut Rig) -> usize {
    rig.start(MM, rig.all())
}

/// Returns the number of the given threads that run in each node.
fn by_node(rig: &Rig, threads: &[usize]) -> Vec<usize> {
    let mut nodes = vec![0; rig.shape.0];
    for &thread in threads {
        if let State::On(cpu) = rig.state(thread) {
            nodes[rig.shape.node_of(cpu)] += 1;
        }
    }
    nodes
}

/// Returns the number of running and waiting threads in each LLC.
fn runnable(rig: &Rig) -> Vec<u32> {
    let mut llcs = vec![0; rig.shape.0 * rig.shape.1];
    for number in 0..rig.threads.len() {
        match rig.state(number) {
            State::On(cpu) => llcs[rig.shape.llc_of(cpu)] += 1,
            State::Waiting => llcs[rig.task(number).llc as usize] += 1,
            State::Asleep | State::Ended => {}
        }
    }
    llcs
}

fn counted(rig: &mut Rig) -> Vec<u32> {
    let llcs = rig.shape.0 * rig.shape.1;
    (0..llcs).map(|llc| rig.sched.llc(llc).threads).collect()
}

#[test]
fn threads_of_a_program_are_divided_equally_among_packages() {
    for (shape, threads) in [
        (Shape(2, 1, 8, 1), 8),
        (Shape(2, 1, 12, 2), 8),
        (Shape(2, 1, 24, 2), 24),
        (Shape(1, 2, 8, 1), 8),
        (Shape(2, 4, 4, 2), 16),
        (Shape(8, 8, 8, 1), 64),
    ] {
        let mut rig = Rig::new(shape);
        let parent = main_thread(&mut rig);
        let children: Vec<usize> = (0..threads).map(|_| new_thread(&mut rig, parent)).collect();
        rig.stop(parent);
        let nodes = by_node(&rig, &children);
        assert_eq!(nodes, vec![threads / shape.0; shape.0], "{shape:?}");
        let llcs = runnable(&rig);
        let (least, most) = (llcs.iter().min(), llcs.iter().max());
        assert!(
            most.zip(least)
                .is_some_and(|(most, least)| most - least <= 1),
            "{shape:?}: {llcs:?}"
        );
        assert_eq!(counted(&mut rig), llcs);
    }
}

/// The CPUs of new threads are claimed, but have not scheduled when the next thread is created.
#[test]
fn threads_that_do_not_run_yet_count() {
    let mut rig = Rig::new(Shape(2, 1, 8, 1));
    let parent = main_thread(&mut rig);
    let children: Vec<usize> = (0..8)
        .map(|_| {
            let cpus = rig.all().collect();
            let child = forked(&mut rig, parent, MM, cpus);
            rig.threads[child].state = State::Waiting;
            rig.sched.wake_new(rig.threads[child].id, 0);
            child
        })
        .collect();
    rig.settle();
    assert_eq!(by_node(&rig, &children), [4, 4]);
}

/// While few threads run on a large node, new threads stay on it, as under EEVDF.
#[test]
fn two_threads_stay_on_a_large_node() {
    let mut rig = Rig::new(Shape(2, 1, 24, 2));
    let parent = main_thread(&mut rig);
    let children = [new_thread(&mut rig, parent), new_thread(&mut rig, parent)];
    assert_eq!(by_node(&rig, &children), [2, 0]);
    let third = new_thread(&mut rig, parent);
    assert_eq!(by_node(&rig, &[third]), [0, 1]);
}

/// A shell that executes one command after another, or a pipe of two on a large node, stays in its
/// LLC.
#[test]
fn a_process_starts_beside_its_parent() {
    for shape in [Shape(2, 1, 8, 1), Shape(1, 8, 4, 2), Shape(2, 4, 8, 1)] {
        let mut rig = Rig::new(shape);
        let parent = main_thread(&mut rig);
        for _ in 0..4 {
            let child = new_process(&mut rig, parent);
            let State::On(cpu) = rig.state(child) else {
                panic!("the child does not run");
            };
            assert_eq!(shape.llc_of(cpu), 0, "{shape:?}");
            assert_eq!(rig.task(child).placed, PLACED_NEW_NEAR);
            rig.stop(child);
        }
        // Several processes at the same time are divided among the LLCs.
        let children: Vec<usize> = (0..8).map(|_| new_process(&mut rig, parent)).collect();
        rig.stop(parent);
        let nodes = by_node(&rig, &children);
        assert_eq!(nodes, vec![8 / shape.0; shape.0], "{shape:?}");
    }
}

/// While no CPU is idle, a fork storm stays in its LLC.
#[test]
fn a_fork_storm_stays_in_its_llc_under_full_load() {
    let mut rig = Rig::new(Shape(2, 1, 4, 1));
    for cpu in rig.all() {
        rig.start(1, [cpu]);
    }
    let parent = rig.running[0].unwrap();
    for child in 0..20 {
        let child_of_storm = new_process(&mut rig, parent);
        assert_eq!(rig.task(child_of_storm).placed_llc, 0, "child {child}");
    }
    // A thread goes to the LLC with the least load.
    let thread = rig.create(Task {
        mm: 1 << 12,
        is_forked: 1,
        parent: rig.threads[parent].id.index() as u32,
        ..Task::default()
    });
    rig.wake_new(thread);
    assert_eq!(rig.task(thread).placed_llc, 1);
    assert_eq!(rig.task(thread).placed, PLACED_NEW_IDLEST);
    assert_eq!(rig.task(thread).llc, 1, "the thread waits in the LLC");
}

#[test]
fn seats_and_masks_restrict_new_threads() {
    let mut rig = Rig::new(Shape(2, 2, 4, 1));
    let parent = main_thread(&mut rig);
    // The mask excludes the LLCs 1 and 3.
    let cpus: Vec<usize> = (0..4).chain(8..12).collect();
    let llcs: Vec<u32> = (0..4)
        .map(|_| {
            let child = forked(&mut rig, parent, MM, cpus.clone());
            rig.wake_new(child);
            rig.task(child).placed_llc
        })
        .collect();
    assert_eq!(llcs, [2, 0, 2, 0]);
    rig.sched.set_seat(9, &set([0, 4, 5]));
    for _ in 0..2 {
        let seated = rig.create(Task {
            mm: 77 << 12,
            cgroup: 9,
            is_forked: 1,
            parent: rig.threads[parent].id.index() as u32,
            ..Task::default()
        });
        rig.wake_new(seated);
        assert!(matches!(rig.state(seated), State::On(4 | 5)));
    }
}

/// A thread that wakes stays in its LLC while a core of the LLC is idle, whatever the loads are.
#[test]
fn a_woken_thread_stays_in_its_llc() {
    let mut rig = Rig::new(Shape(2, 2, 4, 1));
    let thread = rig.start(MM, rig.all());
    let busy = [rig.start(1, [0]), rig.start(2, [1]), rig.start(3, [2])];
    for _ in 0..8 {
        rig.pass(MS);
        rig.stop(thread);
        // The waker runs in another node.
        rig.wake_by(thread, 15);
        let State::On(cpu) = rig.state(thread) else {
            panic!("the thread does not run");
        };
        assert_eq!(rig.shape.llc_of(cpu), 0);
        assert_eq!(rig.task(thread).placed, PLACED_SAME_LLC);
    }
    rig.stop(thread);
    let fourth = rig.start(4, [3]);
    rig.wake(thread);
    assert_eq!(rig.task(thread).placed, PLACED_SAME_NODE);
    assert_eq!(rig.task(thread).placed_llc, 1);
    // The thread does not return before its next cause.
    for number in busy.into_iter().chain([fourth]) {
        rig.stop(number);
    }
    rig.stop(thread);
    rig.wake(thread);
    assert_eq!(rig.task(thread).placed_llc, 1);
    rig.stop(thread);
    for cpu in 0..8 {
        rig.start(10, [cpu]);
    }
    rig.wake(thread);
    assert_eq!(rig.task(thread).placed, PLACED_OTHER_NODE);
    rig.stop(thread);
    rig.sched.set_cpus(rig.threads[thread].id, &set(0..4));
    rig.threads[thread].cpus = set(0..4);
    rig.wake(thread);
    assert_eq!(rig.task(thread).placed, PLACED_WAITS);
}

/// Lets `waker` wake `sleeper` by a synchronous wake-up, and sleep.
fn hand_over(rig: &mut Rig, waker: usize, sleeper: usize) {
    let State::On(cpu) = rig.state(waker) else {
        panic!("the waker does not run");
    };
    rig.threads[sleeper].state = State::Waiting;
    rig.sched.wake_sync(rig.threads[sleeper].id, cpu);
    rig.settle();
    rig.stop(waker);
}

/// The two ends of a pipe come together in an LLC. A thread that wakes others without an answer
/// does not attract them.
#[test]
fn the_ends_of_a_pipe_meet_in_one_llc() {
    let mut rig = Rig::new(Shape(2, 1, 8, 1));
    let all: Vec<usize> = rig.all().collect();
    let (a, b) = (rig.start(1, all.clone()), rig.start(2, [9]));
    rig.threads[b].cpus = set(all.clone());
    rig.sched.set_cpus(rig.threads[b].id, &set(all.clone()));
    rig.stop(b);
    let llc = |rig: &Rig, thread: usize| rig.shape.llc_of(rig.task(thread).cpu as usize);
    assert_eq!((llc(&rig, a), llc(&rig, b)), (0, 1));
    hand_over(&mut rig, a, b);
    hand_over(&mut rig, b, a);
    assert_eq!((llc(&rig, a), llc(&rig, b)), (0, 1), "once is no exchange");
    hand_over(&mut rig, a, b);
    assert_eq!((llc(&rig, a), llc(&rig, b)), (0, 0));
    assert_eq!(rig.task(b).placed, PLACED_WAKER);
    for _ in 0..4 {
        hand_over(&mut rig, b, a);
        hand_over(&mut rig, a, b);
        assert_eq!((llc(&rig, a), llc(&rig, b)), (0, 0));
    }
    // Threads that `b` wakes one after another stay where they are.
    let others: Vec<usize> = (0..3).map(|_| rig.add(3, [12])).collect();
    for &other in others.iter().chain(&others).chain(&others) {
        rig.threads[other].cpus = set(all.clone());
        rig.sched.set_cpus(rig.threads[other].id, &set(all.clone()));
        rig.threads[other].state = State::Waiting;
        let cpu = rig.task(b).cpu as usize;
        rig.sched.wake_sync(rig.threads[other].id, cpu);
        rig.settle();
        assert_eq!(llc(&rig, other), 1);
        rig.stop(other);
    }
}

/// A pipe does not attract a thread to an LLC in which more than half of the CPUs are busy.
#[test]
fn a_pipe_leaves_a_crowded_llc_alone() {
    let mut rig = Rig::new(Shape(2, 1, 4, 1));
    let all: Vec<usize> = rig.all().collect();
    for cpu in [1, 2] {
        rig.start(5, [cpu]);
    }
    let (a, b) = (rig.start(1, all.clone()), rig.start(2, [5]));
    rig.threads[b].cpus = set(all.clone());
    rig.sched.set_cpus(rig.threads[b].id, &set(all));
    rig.stop(b);
    for _ in 0..4 {
        hand_over(&mut rig, a, b);
        hand_over(&mut rig, b, a);
        assert_eq!(rig.task(b).cpu, 5);
    }
}

/// A fraction `threads / cpus`, compared exactly.
fn is_lower(a: (u32, u32), b: (u32, u32)) -> bool {
    u64::from(a.0) * u64::from(b.1) < u64::from(b.0) * u64::from(a.1)
}

/// Returns the LLC of a new thread, by a search over all LLCs in which the thread may run: the node
/// and then the LLC with the fewest threads per CPU, if it is below that of the parent's.
fn idlest(shape: Shape, loads: &[u32], here: usize, allowed: &[bool], process: bool) -> usize {
    let llcs = loads.len();
    let cpus = (shape.2 * shape.3) as u32;
    let nearness = |llc: usize| (llc + llcs - here) % llcs;
    let margin = u32::from(process);
    let least = |node: usize| {
        let llcs = (node * shape.1..(node + 1) * shape.1).filter(|&llc| allowed[llc]);
        llcs.min_by_key(|&llc| (loads[llc], nearness(llc)))
    };
    let sum = |node: usize| {
        let llcs = (node * shape.1..(node + 1) * shape.1).filter(|&llc| allowed[llc]);
        llcs.fold((0, 0), |sum, llc| (sum.0 + loads[llc], sum.1 + cpus))
    };
    let own = here / shape.1;
    let mut others: Vec<usize> = (0..shape.0).filter(|&node| node != own).collect();
    others.sort_by_key(|&node| nearness(node * shape.1));
    let mut best: Option<usize> = None;
    for node in others.into_iter().filter(|&node| sum(node).1 > 0) {
        let with_one = |node: usize| (sum(node).0 + 1, sum(node).1);
        if best.is_none_or(|best| is_lower(with_one(node), with_one(best))) {
            best = Some(node);
        }
    }
    let first_in = |node: usize| {
        // In another node, the LLC after the first one that the search reaches comes first.
        let llcs = (node * shape.1..(node + 1) * shape.1).filter(|&llc| allowed[llc]);
        llcs.min_by_key(|&llc| (loads[llc], llc))
    };
    let leaves = |from: (u32, u32), to: (u32, u32), margin: u32| {
        let from = (from.0.saturating_sub(margin), from.1);
        is_lower(to, from) && is_lower((to.0 + 1, to.1), (from.0 + 1, from.1))
    };
    let near = sum(own);
    if near.1 == 0 {
        return best.and_then(first_in).unwrap_or(here);
    }
    let tolerated = if near.0 < near.1 / 8 { 2 } else { 0 };
    if let Some(best) = best
        && leaves(near, sum(best), margin + tolerated)
    {
        return first_in(best).unwrap();
    }
    let llc = least(own).unwrap();
    if !allowed[here] || leaves((loads[here], cpus), (loads[llc], cpus), margin) {
        return llc;
    }
    here
}

const SHAPES: [Shape; 6] = [
    Shape(2, 1, 4, 1),
    Shape(1, 4, 2, 2),
    Shape(2, 2, 3, 1),
    Shape(4, 1, 8, 2),
    Shape(3, 4, 2, 1),
    Shape(8, 8, 2, 1),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Without idle CPUs, the new thread waits in the LLC of the search. With an idle core in that
    /// LLC, it runs there.
    #[test]
    fn new_thread_goes_to_the_idlest_llc(
        at in 0..SHAPES.len(),
        full: bool,
        process: bool,
        threads in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        sleeps in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        parent_on in any::<prop::sample::Index>(),
        excluded in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let shape = SHAPES[at];
        let mut rig = Rig::new(shape);
        if full {
            for cpu in rig.all() {
                rig.start(MM, [cpu]);
            }
        }
        let crowd: Vec<usize> = threads
            .iter()
            .map(|cpu| rig.start(MM, [cpu.index(shape.cpus())]))
            .collect();
        for thread in sleeps.iter().filter(|_| !crowd.is_empty()) {
            let thread = crowd[thread.index(crowd.len())];
            if rig.state(thread) != State::Asleep && !full {
                rig.stop(thread);
            }
        }
        let cpu = parent_on.index(shape.cpus());
        rig.start(MM, [cpu]);
        // The thread that runs on the CPU forks.
        let parent = rig.running[cpu].unwrap();
        let loads = runnable(&rig);
        prop_assert_eq!(counted(&mut rig), loads.clone());
        let llcs = loads.len();
        let mut allowed = vec![true; llcs];
        for llc in excluded {
            allowed[llc.index(llcs)] = false;
        }
        let cpus: Vec<usize> = rig.all().filter(|&cpu| allowed[shape.llc_of(cpu)]).collect();
        prop_assume!(!cpus.is_empty());
        let here = shape.llc_of(cpu);
        // Under full load, a process stays in its LLC.
        prop_assume!(!full || !process);
        let mm = if process { 99 } else { MM };
        let expected = idlest(shape, &loads, here, &allowed, process);
        let child = forked(&mut rig, parent, mm, cpus.clone());
        let has_idle_core =
            cpus.iter().any(|&cpu| shape.llc_of(cpu) == expected && rig.is_core_idle(cpu));
        rig.threads[child].state = State::Waiting;
        rig.sched.wake_new(rig.threads[child].id, cpu);
        let placed = rig.task(child).placed_llc as usize;
        if full || has_idle_core {
            prop_assert_eq!(placed, expected, "{:?} {:?} from {}", shape, &loads, here);
        }
        if placed != here && allowed[here] && has_idle_core {
            prop_assert!(loads[placed] <= loads[here] || shape.node_of(cpu) != placed / shape.1);
        }
        rig.settle();
    }

    /// Threads that one thread creates never leave an LLC for one with more threads per CPU, and
    /// end in equal parts.
    #[test]
    fn no_thread_leaves_for_an_llc_with_more_threads(
        at in 0..SHAPES.len(),
        count in 1_usize..40,
    ) {
        let shape = SHAPES[at];
        let mut rig = Rig::new(shape);
        let parent = main_thread(&mut rig);
        for _ in 0..count.min(shape.cpus() / shape.3 - 1) {
            let before = runnable(&rig);
            let child = new_thread(&mut rig, parent);
            let llc = rig.task(child).placed_llc as usize;
            prop_assert!(before[llc] <= before[0], "{:?}: {:?}, {}", shape, before, llc);
        }
        let after = runnable(&rig);
        let (least, most) = (after.iter().min().unwrap(), after.iter().max().unwrap());
        prop_assert!(most - least <= 2, "{:?}: {:?}", shape, after);
    }
}
