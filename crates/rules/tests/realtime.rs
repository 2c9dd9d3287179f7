// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of CPUs that a real-time thread takes, on the host build of the scheduler: threads that may
//! run elsewhere must not wait for the real-time thread. Each test runs on a kernel with ENQ_IMMED
//! and on an older kernel.

mod common;

use common::rig::{Rig, Shape, State, set};
use common::{MS, SETTINGS};
use usher_rules::sched::Task;

/// Runs a test on both kernels.
fn on_both_kernels(shape: Shape, test: impl Fn(Rig)) {
    for is_immediate in [true, false] {
        let mut rig = Rig::new(shape);
        rig.sched.set_immediate(is_immediate);
        test(rig);
    }
}

#[test]
fn a_preempted_thread_continues_on_an_idle_cpu() {
    on_both_kernels(Shape(1, 1, 2, 1), |mut rig| {
        let thread = rig.start(1, 0..2);
        let State::On(cpu) = rig.state(thread) else {
            panic!("the thread does not run");
        };
        rig.pass(MS);
        rig.take(cpu);
        assert_eq!(rig.state(thread), State::On(1 - cpu));
        rig.release(cpu);
        rig.check(false);
    });
}

/// The thread is in the local queue of the CPU, but has not run yet.
#[test]
fn a_dispatched_thread_does_not_wait_for_the_realtime_thread() {
    on_both_kernels(Shape(1, 1, 2, 1), |mut rig| {
        rig.start(1, [1]);
        let woken = rig.add(2, 0..2);
        rig.threads[woken].state = State::Waiting;
        rig.sched.wake(rig.threads[woken].id, 0);
        assert_eq!(rig.task(woken).cpu, 0, "the idle CPU is chosen");
        rig.take(0);
        rig.pass(2 * SETTINGS.slice_ns);
        assert!(rig.ran_ns(woken) > 0);
        rig.check(false);
        rig.release(0);
        rig.check(false);
    });
}

/// A thread that may run on no other CPU waits, and runs when the CPU is released.
#[test]
fn a_pinned_thread_runs_when_the_cpu_is_released() {
    on_both_kernels(Shape(1, 1, 2, 1), |mut rig| {
        let pinned = rig.start(1, [0]);
        rig.pass(MS);
        rig.take(0);
        rig.pass(100 * MS);
        assert_eq!(rig.state(pinned), State::Waiting);
        rig.check(false);
        rig.release(0);
        assert_eq!(rig.state(pinned), State::On(0));
        rig.check(false);
    });
}

/// A borrower runs on a CPU that a real-time thread takes, and leaves the CPU. When a thread of the
/// program that owns the CPU wakes, it must wait in a queue from which any CPU may take it.
#[test]
fn a_thread_that_owns_a_taken_cpu_waits_in_a_queue() {
    on_both_kernels(Shape(1, 1, 2, 1), |mut rig| {
        let task_of = |mm: u64, cgroup: u64| Task {
            mm: mm << 12,
            cgroup,
            ran_ns: 1,
            cpus: set(0..2),
            ..Task::default()
        };
        rig.sched.set_seat(7, &set([0]));
        rig.sched.set_seat(8, &set([1]));
        let threads = [task_of(1, 8), task_of(1, 8), task_of(2, 7)].map(|task| rig.create(task));
        let [first, borrower, owner] = threads;
        rig.wake(first);
        rig.wake(borrower);
        assert_eq!(rig.state(first), State::On(1));
        assert_eq!(rig.state(borrower), State::On(0));
        rig.pass(MS);
        rig.take(0);
        rig.wake(owner);
        let queued = rig.sched.llc(0);
        assert_eq!(queued.waiting + queued.urgent, 2, "{queued:?}");
        rig.release(0);
        assert_eq!(rig.state(owner), State::On(0));
    });
}

/// A thread with short bursts is enqueued again before it has run: it is urgent, as if no CPU had
/// been idle when it woke.
#[test]
fn a_reenqueued_thread_that_has_not_run_becomes_urgent() {
    on_both_kernels(Shape(1, 1, 2, 1), |mut rig| {
        rig.start(1, [1]);
        let woken = rig.start(2, 0..2);
        rig.pass(MS / 2);
        rig.stop(woken);
        rig.pass(5 * MS);
        rig.threads[woken].state = State::Waiting;
        rig.sched.wake(rig.threads[woken].id, 0);
        assert_eq!((rig.task(woken).cpu, rig.task(woken).is_urgent), (0, 0));
        rig.take(0);
        assert_eq!(rig.task(woken).is_urgent, 1);
        assert_eq!(rig.sched.llc(0).urgent, 1);
    });
}

/// Kernel threads that are pinned to a CPU stay in its local queue.
#[test]
fn a_pinned_kernel_thread_waits_in_the_local_queue() {
    on_both_kernels(Shape(1, 1, 1, 1), |mut rig| {
        let kthread = rig.create(Task {
            mm: 0,
            is_kernel: 1,
            ran_ns: 1,
            cpus: set([0]),
            ..Task::default()
        });
        rig.take(0);
        rig.wake(kthread);
        assert_eq!(rig.state(kthread), State::Waiting);
        rig.pass(10 * MS);
        rig.release(0);
        assert_eq!(rig.state(kthread), State::On(0));
    });
}

/// Real-time threads take and release random CPUs while threads run, wake and sleep. No thread may
/// wait beside an idle CPU, and the counts of the queues must stay right.
#[test]
fn random_realtime_threads_leave_no_thread_behind() {
    for seed in 0..60_u64 {
        for is_immediate in [true, false] {
            random_run(seed, is_immediate);
        }
    }
}

fn random_run(seed: u64, is_immediate: bool) {
    let shapes = [Shape(1, 1, 4, 1), Shape(1, 2, 2, 2), Shape(2, 1, 2, 2)];
    let shape = shapes[seed as usize % shapes.len()];
    let mut rig = Rig::new(shape);
    rig.sched.set_immediate(is_immediate);
    let cpus = shape.cpus();
    let threads: Vec<usize> = (0..2 * cpus)
        .map(|number| match number % 4 {
            3 => rig.add(number as u64 % 5 + 1, [number % cpus]),
            _ => rig.add(number as u64 % 5 + 1, 0..cpus),
        })
        .collect();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    for _ in 0..400 {
        let thread = threads[random(threads.len())];
        let cpu = random(cpus);
        match (random(4), rig.state(thread)) {
            (0, _) if rig.is_taken(cpu) => rig.release(cpu),
            (0, _) => rig.take(cpu),
            (_, State::Asleep) => rig.wake(thread),
            (1, State::On(_)) => rig.stop(thread),
            _ => rig.pass(MS * random(5) as u64),
        }
        rig.check(false);
    }
    (0..cpus).for_each(|cpu| rig.release(cpu));
    rig.check(false);
}
