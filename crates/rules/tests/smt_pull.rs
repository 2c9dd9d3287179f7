// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the pull of a thread from a shared core to an idle core, on a machine of 512 CPUs: the
//! cost of a search is bounded, and successive searches cover all CPUs.

mod common;

use common::{MS, SETTINGS};
use usher_rules::sched::{HostSched, HostSettings, Task, TaskId};
use usher_rules::select_cpu::{CPU_WORDS, CpuWords, Place};

const LLCS: usize = 8;
const CPUS: usize = 512;
/// Upper limit of the loop iterations while a CPU becomes idle: two searches of at most 25 steps, 16
/// of which visit the word of a core, and the iterations of the selection before them. A step
/// examines a CPU or skips a word of 64 CPUs.
const ITERATIONS_MAX: u64 = 120;

fn range(cpus: std::ops::Range<usize>) -> CpuWords {
    let mut words = [0; CPU_WORDS];
    for cpu in cpus {
        words[cpu / 64] |= 1 << (cpu % 64);
    }
    words
}

/// Returns a machine of 512 CPUs, in eight LLCs of 32 cores with two hardware threads each.
fn large_machine() -> HostSched {
    let per_llc = CPUS / LLCS;
    let place = |cpu: usize| Place {
        known: 1,
        llc: (cpu / per_llc) as u32,
        core: range(cpu / 2 * 2..cpu / 2 * 2 + 2),
        near: range(cpu / per_llc * per_llc..(cpu / per_llc + 1) * per_llc),
        node: range(0..CPUS),
        node_llcs: u64::MAX >> (64 - LLCS),
        ..Place::default()
    };
    let places: Vec<Place> = (0..CPUS).map(place).collect();
    let settings = HostSettings {
        llcs: LLCS as u32,
        ..SETTINGS
    };
    let mut sched = HostSched::new(&places, &settings, 1);
    sched.set_now(MS);
    sched
}

fn follow(sched: &mut HostSched) {
    while let Some(cpu) = sched.next_resched() {
        sched.schedule(cpu);
    }
}

/// Starts a thread on one CPU, to which it is pinned.
fn start(sched: &mut HostSched, cpu: usize) -> TaskId {
    let task = sched.new_task(&Task {
        ran_ns: 1,
        cpu: cpu as u32,
        cpus: range(cpu..cpu + 1),
        ..Task::default()
    });
    sched.wake_new(task, cpu);
    follow(sched);
    task
}

/// Lets a CPU run a thread for a moment. Returns the iterations of the loops while it becomes idle.
fn become_idle(sched: &mut HostSched, task: TaskId) -> u64 {
    sched.wake(task, 0);
    follow(sched);
    sched.take_loop_iterations();
    sched.remove(task);
    follow(sched);
    sched.take_loop_iterations()
}

#[test]
fn idle_entry_examines_few_of_512_cpus() {
    let mut sched = large_machine();
    let tasks: Vec<TaskId> = (0..CPUS).map(|cpu| start(&mut sched, cpu)).collect();
    sched.remove(tasks[1]);
    follow(&mut sched);
    sched.remove(tasks[0]);
    follow(&mut sched);
    for _ in 0..50 {
        let iterations = become_idle(&mut sched, tasks[0]);
        assert!(iterations <= ITERATIONS_MAX, "{iterations}");
    }
    assert_eq!(sched.tally().pulls, 0, "no thread may move");
}

/// Successive searches find a thread that shares a core, in the own LLC or in another LLC, beyond
/// the CPUs that a single search examines.
#[test]
fn successive_idle_entries_find_a_thread_anywhere() {
    for shared in [62, 66, 300, 510] {
        let mut sched = large_machine();
        let tasks: Vec<TaskId> = (0..CPUS).map(|cpu| start(&mut sched, cpu)).collect();
        sched.set_cpus(tasks[shared], &range(0..CPUS));
        // The thread sleeps and wakes, so that the scheduler reads its new affinity mask.
        sched.remove(tasks[shared]);
        follow(&mut sched);
        sched.wake(tasks[shared], shared);
        follow(&mut sched);
        assert_eq!(sched.task(tasks[shared]).cpu, shared as u32);
        sched.remove(tasks[1]);
        follow(&mut sched);
        sched.remove(tasks[0]);
        follow(&mut sched);
        let entries = (0..).take_while(|_| {
            let found = sched.tally().pulls > 0;
            if !found {
                let iterations = become_idle(&mut sched, tasks[0]);
                assert!(iterations <= ITERATIONS_MAX, "{iterations}");
            }
            !found
        });
        let entries = entries.take(100).count();
        assert!(entries <= CPUS / 16, "{shared}: {entries}");
        assert!(sched.task(tasks[shared]).cpu < 2, "{shared}");
    }
}

/// A search examines 16 busy CPUs although it skips eight words without busy CPUs in between. It
/// begins after the idle CPU, and ends with the CPUs before the idle CPU in the same word.
#[test]
fn search_examines_sixteen_cpus_and_skips_all_words() {
    let place = |cpu: usize| Place {
        known: 1,
        core: range(cpu / 2 * 2..cpu / 2 * 2 + 2),
        near: range(0..CPUS),
        node: range(0..CPUS),
        node_llcs: 1,
        ..Place::default()
    };
    let places: Vec<Place> = (0..CPUS).map(place).collect();
    let mut sched = HostSched::new(&places, &SETTINGS, 1);
    sched.set_now(MS);
    let idle = start(&mut sched, 100);
    for cpu in (102..117).chain([65]) {
        start(&mut sched, cpu);
    }
    let mut cpus = range(64..65);
    cpus[1] |= 1 << (100 - 64);
    let movable = sched.new_task(&Task {
        ran_ns: 1,
        cpu: 64,
        cpus,
        ..Task::default()
    });
    sched.wake(movable, 64);
    follow(&mut sched);
    assert_eq!(sched.task(movable).cpu, 64);
    sched.remove(idle);
    follow(&mut sched);
    assert_eq!(sched.tally().pulls, 1);
    assert_eq!(sched.task(movable).cpu, 100);
}
