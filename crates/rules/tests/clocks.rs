// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the clock by which a waking thread is placed, on the host build of the scheduler. In
//! each test, the virtual-time clocks of the CPUs of one LLC are far apart, because many threads
//! are pinned to some of these CPUs.

mod common;

use common::rig::{Rig, Shape, State, set};
use common::{MS, SETTINGS};
use usher_rules::sched::Task;

/// Lets a thread compute and sleep, so that its bursts are long.
fn make_computing(rig: &mut Rig, thread: usize) {
    for _ in 0..3 {
        rig.wake(thread);
        while rig.state(thread) == State::Waiting {
            rig.pass(SETTINGS.slice_ns);
        }
        rig.pass(2 * MS);
        rig.stop(thread);
    }
}

/// Wakes a thread. Returns the time until it runs.
fn wait_ns(rig: &mut Rig, thread: usize) -> u64 {
    let begun_ns = rig.now_ns;
    rig.wake(thread);
    while rig.state(thread) == State::Waiting {
        assert!(rig.now_ns < begun_ns + 20_000 * MS, "it starves");
        rig.pass(MS);
    }
    rig.now_ns - begun_ns
}

/// CPUs 0 and 1 run two threads each. Two other CPUs, in the first or a later word of a CPU set,
/// run a crowd of 20 threads. The sleeper wakes on these CPUs.
#[test]
fn sleeper_is_placed_by_the_clock_of_its_cpus() {
    for (cpus, first) in [(4, 2), (80, 78), (140, 130)] {
        let mut rig = Rig::new(Shape(1, 1, cpus, 1));
        let own = [first, first + 1];
        for cpu in [0, 0, 1, 1] {
            rig.start(1, [cpu]);
        }
        for mm in 0..20 {
            rig.start(10 + mm, own);
        }
        let sleeper = rig.add(50, own);
        make_computing(&mut rig, sleeper);
        for _ in 0..3 {
            rig.pass(3_000 * MS);
            let waited_ns = wait_ns(&mut rig, sleeper);
            let bound_ns = 11 * (SETTINGS.max_lag_ns + 2 * SETTINGS.slice_ns);
            assert!(waited_ns <= bound_ns, "CPU {first} of {cpus}: {waited_ns}");
            rig.pass(2 * MS);
            rig.stop(sleeper);
        }
    }
}

/// A thread may run on two CPUs, and the clock of the crowded CPU is far behind. Placed by that
/// clock, the thread would be far behind the threads of the other CPU, and would keep the other CPU
/// for itself.
#[test]
fn sleeper_is_placed_by_the_most_advanced_of_its_cpus() {
    for (cpus, crowded, other) in [
        (3, 1, 2),
        (3, 2, 1),
        (80, 78, 79),
        (80, 79, 78),
        (140, 3, 131),
    ] {
        let mut rig = Rig::new(Shape(1, 1, cpus, 1));
        for mm in 0..16 {
            rig.start(10 + mm, [crowded]);
        }
        let pair = [rig.start(1, [other]), rig.start(2, [other])];
        let sleeper = rig.add(50, [crowded, other]);
        make_computing(&mut rig, sleeper);
        rig.pass(6_000 * MS);
        rig.wake(sleeper);
        let before = pair.map(|thread| rig.ran_ns(thread));
        rig.pass(600 * MS);
        for (thread, before) in pair.into_iter().zip(before) {
            let ran = rig.ran_ns(thread) - before;
            assert!(ran > 120 * MS, "CPU {other} of {cpus}: {ran}");
        }
    }
}

/// The clock of a crowded CPU decides whether a thread that is pinned to it is urgent.
#[test]
fn short_thread_is_urgent_on_a_crowded_cpu() {
    let mut rig = Rig::new(Shape(1, 1, 2, 1));
    rig.start(1, [0]);
    rig.start(2, [0]);
    for mm in 0..20 {
        rig.start(10 + mm, [1]);
    }
    let short = rig.add(50, [1]);
    let mut waited_ns = Vec::new();
    for _ in 0..40 {
        rig.pass(40 * MS);
        waited_ns.push(wait_ns(&mut rig, short));
        rig.pass(MS / 5);
        rig.stop(short);
    }
    let late = waited_ns
        .iter()
        .skip(10)
        .filter(|&&waited_ns| waited_ns > 5 * MS);
    assert_eq!(late.count(), 0, "{waited_ns:?}");
}

/// A thread with short bursts that uses more than its share is not urgent.
#[test]
fn short_bursts_get_no_more_than_a_share() {
    for others in [1, 3] {
        let mut rig = Rig::new(Shape(1, 1, 1, 1));
        let long: Vec<usize> = (0..others).map(|mm| rig.start(mm + 1, [0])).collect();
        rig.pass(100 * MS);
        let short = rig.add(50, [0]);
        let before: u64 = long.iter().map(|&thread| rig.ran_ns(thread)).sum();
        let begun_ns = rig.now_ns;
        rig.wake(short);
        while rig.now_ns < begun_ns + 3_000 * MS {
            rig.pass(MS / 2);
            if rig.state(short) == State::On(0) {
                rig.stop(short);
                rig.pass(MS / 20);
                rig.wake(short);
            }
        }
        let passed_ns = rig.now_ns - begun_ns;
        let ran: u64 = long.iter().map(|&thread| rig.ran_ns(thread)).sum::<u64>() - before;
        let due = passed_ns * others / (others + 1);
        assert!(ran > due * 7 / 10, "{others}: {ran} of {due}");
        assert!(
            ran < passed_ns * 97 / 100,
            "{others}: the thread gets its share"
        );
    }
}

/// Changes the mask of a thread that does not run.
fn set_cpus(rig: &mut Rig, thread: usize, cpus: &[usize]) {
    rig.threads[thread].cpus = set(cpus.iter().copied());
    let cpus = rig.threads[thread].cpus;
    rig.sched.set_cpus(rig.threads[thread].id, &cpus);
    rig.settle();
}

/// Checks that two threads of a CPU, which a third thread may use as well, run for more than 120 ms
/// each in 600 ms.
fn check_share(rig: &mut Rig, pair: [usize; 2], what: &str) {
    let before = pair.map(|thread| rig.ran_ns(thread));
    rig.pass(600 * MS);
    for (thread, before) in pair.into_iter().zip(before) {
        let ran = rig.ran_ns(thread) - before;
        assert!(ran > 120 * MS, "{what}: {ran}");
    }
}

/// A thread that may run on all CPUs is placed by the clock of the most advanced CPU, even if it
/// last ran on the crowded CPU.
#[test]
fn movable_sleeper_is_placed_by_the_clock_of_the_llc() {
    for crowded in [0, 1] {
        let other = 1 - crowded;
        let mut rig = Rig::new(Shape(1, 1, 2, 1));
        for mm in 0..16 {
            rig.start(10 + mm, [crowded]);
        }
        let pair = [rig.start(1, [other]), rig.start(2, [other])];
        let sleeper = rig.add(50, [crowded]);
        make_computing(&mut rig, sleeper);
        rig.pass(6_000 * MS);
        rig.wake(sleeper);
        while rig.state(sleeper) == State::Waiting {
            rig.pass(MS);
        }
        rig.stop(sleeper);
        set_cpus(&mut rig, sleeper, &[0, 1]);
        rig.wake(sleeper);
        check_share(&mut rig, pair, "movable");
    }
}

/// If the mask of a waiting thread changes to a CPU with a clock that is far ahead, the thread gets
/// the credit of one slice.
#[test]
fn waiter_takes_no_credit_to_another_cpu() {
    for is_short in [false, true] {
        let mut rig = Rig::new(Shape(1, 1, 3, 1));
        for mm in 0..16 {
            rig.start(10 + mm, [1]);
        }
        let pair = [rig.start(1, [2]), rig.start(2, [2])];
        let waiter = rig.add(50, [1]);
        if !is_short {
            make_computing(&mut rig, waiter);
        }
        rig.pass(6_000 * MS);
        rig.wake(waiter);
        if rig.state(waiter) == State::Waiting {
            set_cpus(&mut rig, waiter, &[2]);
            check_share(&mut rig, pair, "pinned elsewhere");
        }
    }
}

/// Lets a thread compute for a long burst and sleep, so that it is not urgent when it next wakes.
fn run_long_burst(rig: &mut Rig, thread: usize) {
    let until_ns = rig.ran_ns(thread) + 20 * MS;
    rig.wake(thread);
    while rig.ran_ns(thread) < until_ns {
        rig.pass(MS);
    }
    rig.stop(thread);
}

/// A thread that slept while the clock advanced has the lag of minus one slice.
#[test]
fn sleeper_has_the_lag_of_its_limited_credit() {
    let mut rig = Rig::new(Shape(1, 1, 1, 1));
    let sleeper = rig.add(50, [0]);
    rig.start(1, [0]);
    rig.start(2, [0]);
    rig.pass(6_000 * MS);
    assert!(rig.sched.llc(0).clock > 1_000 * MS);
    rig.wake(sleeper);
    assert_eq!(rig.task(sleeper).lag_ns, -(SETTINGS.slice_ns as i64));
}

/// Many threads crowd on the CPUs of a seat. The LLC's clock is far ahead of the clocks of these
/// CPUs, because the other CPUs have few threads.
#[test]
fn sleeper_is_placed_by_the_clock_of_its_seat() {
    for is_short in [true, false] {
        check_sleeper_in_crowded_seat(is_short);
    }
}

fn check_sleeper_in_crowded_seat(is_short: bool) {
    let mut rig = Rig::new(Shape(1, 1, 4, 1));
    let all = set(rig.all());
    rig.sched.set_seat(7, &set([2, 3]));
    rig.sched.set_seat(8, &set([0, 1]));
    let add = |rig: &mut Rig, cgroup: u64, mm: u64| {
        rig.create(Task {
            mm: mm << 12,
            cgroup,
            cpu: if cgroup == 7 { 2 } else { 0 },
            ran_ns: 1,
            cpus: all,
            ..Task::default()
        })
    };
    for mm in 1..5 {
        let thread = add(&mut rig, 8, mm);
        rig.wake(thread);
    }
    for mm in 10..30 {
        let thread = add(&mut rig, 7, mm);
        rig.wake(thread);
    }
    let sleeper = add(&mut rig, 7, 50);
    if is_short {
        make_computing(&mut rig, sleeper);
    } else {
        run_long_burst(&mut rig, sleeper);
    }
    for _ in 0..3 {
        rig.pass(3_000 * MS);
        let waited_ns = wait_ns(&mut rig, sleeper);
        let bound_ns = 11 * (SETTINGS.max_lag_ns + 2 * SETTINGS.slice_ns);
        assert!(waited_ns <= bound_ns, "{is_short}: {waited_ns}");
        if is_short {
            rig.pass(2 * MS);
            rig.stop(sleeper);
        } else {
            rig.stop(sleeper);
            run_long_burst(&mut rig, sleeper);
        }
    }
}

/// A thread that slept and wakes on an idle CPU has at most the credit of one slice when other
/// threads arrive.
#[test]
fn sleeper_on_an_idle_cpu_keeps_no_credit() {
    let mut rig = Rig::new(Shape(1, 1, 2, 1));
    let sleeper = rig.add(50, [0, 1]);
    make_computing(&mut rig, sleeper);
    // With two threads on each CPU, a thread always waits, so that the clock advances.
    let busy = [rig.start(1, [1]), rig.start(2, [1])];
    let pair = [rig.start(3, [0]), rig.start(4, [0])];
    rig.pass(6_000 * MS);
    pair.into_iter().for_each(|thread| rig.stop(thread));
    rig.wake(sleeper);
    assert_eq!(rig.state(sleeper), State::On(0));
    rig.pass(MS);
    pair.into_iter().for_each(|thread| rig.wake(thread));
    check_share(&mut rig, pair, "after a sleep");
    assert!(busy.iter().all(|&thread| rig.ran_ns(thread) > 0));
}

/// A kernel thread that is bound to one CPU runs as soon as it wakes, and has at most the credit of
/// one slice then.
#[test]
fn kernel_thread_of_a_cpu_keeps_no_credit() {
    let mut rig = Rig::new(Shape(1, 1, 1, 1));
    let kernel = rig.create(Task {
        mm: 0,
        is_kernel: 1,
        ran_ns: 1,
        cpus: set([0]),
        ..Task::default()
    });
    make_computing(&mut rig, kernel);
    let pair = [rig.start(3, [0]), rig.start(4, [0])];
    rig.pass(6_000 * MS);
    rig.wake(kernel);
    assert_eq!(rig.state(kernel), State::On(0));
    check_share(&mut rig, pair, "kernel thread");
}
