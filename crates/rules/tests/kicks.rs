// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of preemptions by urgent threads, of wake-ups on the CPUs of another node, and of wake-ups
//! of bound kernel threads, on the host build of the scheduler.

mod common;

use common::rig::{Rig, Shape, State, WHY_IDLE_CORE, set};
use common::{MS, SETTINGS};
use usher_rules::sched::{HostVariant, Task};

/// An urgent thread that wakes preempts a thread that computes. A new thread, which is urgent, too,
/// waits for the end of the slice.
#[test]
fn urgent_thread_preempts_only_when_it_wakes() {
    for is_new in [true, false] {
        let mut rig = Rig::new(Shape(1, 1, 1, 1));
        // With two threads, the running thread has started to run after its first, urgent burst.
        rig.start(1, [0]);
        rig.start(3, [0]);
        rig.pass(100 * SETTINGS.slice_ns + MS);
        let urgent = rig.create(Task {
            mm: 2 << 12,
            cpus: set([0]),
            ..Task::default()
        });
        if is_new {
            rig.wake_new(urgent);
        } else {
            rig.wake(urgent);
        }
        assert_eq!(rig.task(urgent).is_urgent, 1);
        assert_eq!(rig.tally().preempted, u64::from(!is_new));
        let is_waiting = rig.state(urgent) == State::Waiting;
        assert_eq!(is_waiting, is_new);
    }
}

/// A thread of known short bursts is preempted by another such thread only if its present burst
/// exceeds its average burst by more than half a millisecond.
#[test]
fn urgent_thread_preempts_one_whose_burst_has_become_long() {
    for (ran_ns, is_preempted) in [(MS / 10, false), (MS / 2, false), (MS * 7 / 10, true)] {
        let mut rig = Rig::new(Shape(1, 1, 1, 1));
        let [running, urgent] = [1, 2].map(|mm| {
            let thread = rig.start(mm, [0]);
            for _ in 0..2 {
                rig.pass(MS / 10);
                rig.stop(thread);
                rig.wake(thread);
            }
            rig.stop(thread);
            thread
        });
        rig.wake(running);
        rig.pass(ran_ns);
        rig.wake(urgent);
        assert_eq!(
            rig.state(urgent) == State::On(0),
            is_preempted,
            "after {ran_ns} ns"
        );
        assert_eq!(rig.tally().preempted, u64::from(is_preempted));
    }
}

/// The kernel keeps the idle CPUs of each node in a mask of its own. The idle CPUs of the second
/// node are in the second word of that mask.
#[test]
fn thread_wakes_on_an_idle_cpu_in_a_later_word_of_another_node() {
    let variant = HostVariant {
        nodes: 0b11,
        ..HostVariant::default()
    };
    let mut rig = Rig::with(Shape(2, 1, 64, 1), SETTINGS, variant);
    for cpu in 0..64 {
        rig.start(1, [cpu]);
    }
    let thread = rig.create(Task {
        mm: 2 << 12,
        ran_ns: 1,
        cpus: set(rig.all()),
        ..Task::default()
    });
    rig.wake(thread);
    assert!(matches!(rig.state(thread), State::On(cpu) if cpu >= 64));
    assert_eq!(rig.task(thread).why, WHY_IDLE_CORE);
    assert_eq!(rig.tally().idle_cores, 1);
}

/// A kernel thread that is bound to an idle CPU wakes. Before the CPU schedules, another thread
/// wakes that last ran there: it runs on another CPU instead of waiting for the kernel thread.
#[test]
fn idle_cpu_of_a_bound_kernel_thread_is_not_claimed() {
    let mut rig = Rig::new(Shape(1, 1, 4, 1));
    let kernel_thread = rig.create(Task {
        mm: 0,
        is_kernel: 1,
        ran_ns: 1,
        cpu: 2,
        cpus: set([2]),
        ..Task::default()
    });
    let thread = rig.create(Task {
        ran_ns: 1,
        cpu: 2,
        cpus: set(rig.all()),
        ..Task::default()
    });
    rig.threads[kernel_thread].state = State::Waiting;
    rig.sched.wake(rig.threads[kernel_thread].id, 2);
    rig.wake(thread);
    assert_eq!(rig.state(kernel_thread), State::On(2));
    assert!(matches!(rig.state(thread), State::On(cpu) if cpu != 2));
}

/// At a tick, a thread that has run for a millisecond yields to a new thread, which does not preempt
/// it. A thread that has run for less, and a kernel thread that is bound to the CPU, do not yield.
#[test]
fn tick_lets_a_long_run_yield_to_an_urgent_thread() {
    for (ran_ns, is_kernel, yields) in
        [(MS - 1, false, false), (MS, false, true), (MS, true, false)]
    {
        let mut rig = Rig::new(Shape(1, 1, 1, 1));
        let running = rig.create(Task {
            mm: 1 << 12,
            is_kernel: is_kernel.into(),
            cpus: set([0]),
            ..Task::default()
        });
        rig.wake(running);
        let urgent = rig.create(Task {
            mm: 2 << 12,
            cpus: set([0]),
            ..Task::default()
        });
        rig.wake_new(urgent);
        assert_eq!(rig.task(urgent).is_urgent, 1);
        rig.pass(ran_ns);
        rig.tick(0);
        assert_eq!(
            rig.state(urgent) == State::On(0),
            yields,
            "{ran_ns} {is_kernel}"
        );
    }
}
