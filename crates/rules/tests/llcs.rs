// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests on machines with several LLCs, on the host build of the scheduler: load balancing between
//! busy LLCs, and steals by CPUs without a thread.

mod common;

use common::rig::{Rig, Shape, State, WHY_STOLEN, set};
use common::{MS, SETTINGS};
use usher_rules::sched::{HostSettings, HostVariant, Task};

/// Starts `count` threads that compute on the CPU `first`, and then widens their masks to `cpus`.
fn crowd(rig: &mut Rig, count: usize, first: usize, cpus: &[usize]) -> Vec<usize> {
    let cpus = set(cpus.iter().copied());
    let threads: Vec<usize> = (0..count).map(|_| rig.start(1, [first])).collect();
    for &thread in &threads {
        rig.threads[thread].cpus = cpus;
        rig.sched.set_cpus(rig.threads[thread].id, &cpus);
    }
    rig.settle();
    threads
}

/// Runs the machine for `ms` milliseconds. Returns the CPU time of each thread, in per cent of that
/// period.
fn shares(rig: &mut Rig, threads: &[usize], ms: u64) -> Vec<u64> {
    let before: Vec<u64> = threads.iter().map(|&thread| rig.ran_ns(thread)).collect();
    rig.pass(ms * MS);
    let ran = threads
        .iter()
        .zip(before)
        .map(|(&thread, before)| rig.ran_ns(thread) - before);
    ran.map(|ran| 100 * ran / (ms * MS)).collect()
}

/// Three threads run on two CPUs in different LLCs. If the LLCs are in one node, the threads rotate
/// between the LLCs. If the LLCs are in different nodes, no thread migrates.
#[test]
fn odd_thread_rotates_within_a_node() {
    for shape in [
        Shape(2, 2, 1, 1),
        Shape(3, 2, 1, 1),
        Shape(1, 4, 1, 1),
        Shape(8, 8, 1, 1),
    ] {
        let cpus = shape.cpus();
        for (a, b) in [
            (0, 1),
            (1, 0),
            (2, 3),
            (1, 2),
            (3, 0),
            (cpus - 2, cpus - 1),
            (cpus - 1, 1),
        ] {
            let mut rig = Rig::new(shape);
            for cpu in rig.all().filter(|&cpu| cpu != a && cpu != b) {
                rig.start(2, [cpu]);
            }
            let threads = crowd(&mut rig, 3, a, &[a, b]);
            rig.pass(2_000 * MS);
            let stolen = rig.tally().stolen;
            let shares = shares(&mut rig, &threads, 12_000);
            let (least, most) = (shares.iter().min(), shares.iter().max());
            let is_near = shape.node_of(a) == shape.node_of(b);
            assert_eq!(
                least >= Some(&50) && most <= Some(&85),
                is_near,
                "{shape:?} {a} {b}: {shares:?}"
            );
            assert_eq!(
                rig.tally().stolen > stolen + 2,
                is_near,
                "{shape:?} {a} {b}"
            );
        }
    }
}

/// A thread migrates between nodes only if, afterwards, its old LLC still has at least as many
/// waiting threads per CPU as its new LLC.
#[test]
fn crowded_node_sends_threads_to_another() {
    let mut rig = Rig::new(Shape(2, 1, 2, 1));
    let threads = crowd(&mut rig, 12, 0, &[0, 1, 2, 3]);
    rig.pass(4_000 * MS);
    let waiting = [0, 1].map(|llc| rig.sched.llc(llc).waiting);
    assert!(waiting[0].abs_diff(waiting[1]) <= 2, "{waiting:?}");
    rig.check(false);
    let shares = shares(&mut rig, &threads, 6_000);
    assert!(
        shares.iter().all(|&share| (22..=50).contains(&share)),
        "{shares:?}"
    );
}

/// The LLCs also balance threads that sleep, in which case no CPU has a runnable previous thread.
#[test]
fn llcs_balance_threads_that_sleep() {
    let mut rig = Rig::new(Shape(1, 2, 1, 1));
    let crowd = crowd(&mut rig, 13, 0, &[0, 1]);
    // The 13 threads all wait for CPU 0, while CPU 1 has two other threads.
    let pinned = [rig.start(2, [1]), rig.start(2, [1])];
    let mut ran = vec![0_u64; rig.threads.len()];
    for _ in 0..3_000 {
        rig.pass(2 * MS);
        // The running thread of each CPU ends its burst. Its next burst begins after another thread
        // has run.
        for cpu in 0..2 {
            if let Some(thread) = rig.running[cpu] {
                ran[thread] += 1;
                rig.stop(thread);
                rig.wake(thread);
            }
        }
    }
    rig.check(false);
    let waiting = [0, 1].map(|llc| rig.sched.llc(llc).waiting + rig.sched.llc(llc).urgent);
    assert!(waiting[0].abs_diff(waiting[1]) <= 2, "{waiting:?}");
    assert!(rig.tally().stolen > 0);
    assert!(
        crowd.iter().chain(&pinned).all(|&thread| ran[thread] > 100),
        "{ran:?}"
    );
}

/// Urgent threads count in the load of another LLC, and are taken before other threads.
#[test]
fn busy_llc_takes_urgent_threads_of_a_crowded_one() {
    let mut rig = Rig::new(Shape(1, 2, 1, 1));
    let urgent: Vec<usize> = (0..8).map(|mm| rig.add(mm + 10, [0, 1])).collect();
    for &thread in &urgent {
        for _ in 0..4 {
            rig.wake_by(thread, 1);
            rig.pass(MS / 20);
            rig.stop(thread);
            rig.pass(5 * MS);
        }
    }
    let long = rig.start(1, [0]);
    rig.pass(200 * MS);
    let busy = rig.start(2, [1]);
    rig.pass(20 * MS);
    for &thread in &urgent {
        // The threads are woken on CPU 1, so that they wait in LLC 1.
        let cpus = set([1]);
        rig.sched.set_cpus(rig.threads[thread].id, &cpus);
        rig.wake(thread);
        rig.threads[thread].cpus = set([0, 1]);
        if rig.state(thread) == State::Waiting {
            rig.sched.set_cpus(rig.threads[thread].id, &set([0, 1]));
        }
    }
    assert!(rig.sched.llc(1).urgent > 3, "{:?}", rig.sched.llc(1));
    rig.began.clear();
    rig.pass(60 * MS);
    let taken = rig
        .began
        .iter()
        .filter(|(thread, cpu)| *cpu == 0 && urgent.contains(thread));
    assert!(taken.count() > 0, "{:?}", rig.began);
    assert!(matches!(rig.state(long), State::On(0) | State::Waiting));
    assert!(rig.ran_ns(busy) > 0);
}

/// The idle CPU searches each other LLC once, in the order of their numbers, beginning after its
/// own LLC.
#[test]
fn idle_cpu_steals_from_the_next_llc() {
    for llcs in [2, 3, 6] {
        for (idle, from) in (0..llcs).flat_map(|a| (0..llcs).map(move |b| (a, b))) {
            if idle == from {
                continue;
            }
            let mut rig = Rig::new(Shape(1, llcs, 1, 1));
            let busy: Vec<usize> = rig.all().map(|cpu| rig.start(1, [cpu])).collect();
            let waiter = rig.start(2, [from]);
            let cpus = set([idle, from]);
            rig.threads[waiter].cpus = cpus;
            rig.sched.set_cpus(rig.threads[waiter].id, &cpus);
            rig.pass(20 * SETTINGS.slice_ns);
            if rig.state(waiter) != State::Waiting {
                continue;
            }
            let was_in_llc = rig.task(waiter).llc as usize == from;
            rig.stop(busy[idle]);
            assert_eq!(
                rig.state(waiter),
                State::On(idle),
                "{llcs} LLCs, {from} to {idle}"
            );
            assert!(!was_in_llc || rig.task(waiter).why == WHY_STOLEN);
            assert_eq!(rig.task(waiter).llc as usize, idle);
        }
    }
}

/// A CPU without a thread examines only the LLCs in which threads wait, so that the cost does not
/// depend on the number of LLCs.
#[test]
fn idle_cpu_examines_only_llcs_with_waiting_threads() {
    let settings = HostSettings { smt: 0, ..SETTINGS };
    let mut rig = Rig::with(Shape(8, 8, 1, 1), settings, HostVariant::default());
    let busy: Vec<usize> = rig.all().map(|cpu| rig.start(1, [cpu])).collect();
    let iterations = |rig: &mut Rig, idle: usize| {
        rig.sched.take_loop_iterations();
        rig.stop(busy[idle]);
        assert!(rig.is_idle(idle));
        let iterations = rig.sched.take_loop_iterations();
        rig.wake(busy[idle]);
        iterations
    };
    // The first search finds that no thread waits any more in the LLCs.
    iterations(&mut rig, 5);
    assert_eq!(iterations(&mut rig, 5), 0);
    // The thread of LLC 40 may not run on the idle CPU.
    rig.start(2, [40]);
    rig.pass(10 * SETTINGS.slice_ns);
    let with_waiter = iterations(&mut rig, 5);
    assert!((1..16).contains(&with_waiter), "{with_waiter}");
    // A thread that waited in another LLC is found there, and the LLC is not examined again.
    let stolen = rig.start(3, [20]);
    let cpus = set([20, 21]);
    rig.threads[stolen].cpus = cpus;
    rig.sched.set_cpus(rig.threads[stolen].id, &cpus);
    rig.pass(10 * SETTINGS.slice_ns);
    while rig.state(stolen) != State::Waiting {
        rig.pass(SETTINGS.slice_ns);
    }
    rig.stop(busy[21]);
    assert_eq!(rig.state(stolen), State::On(21));
    iterations(&mut rig, 5);
    assert_eq!(iterations(&mut rig, 5), with_waiter);
}

/// A thread keeps its lag when it migrates, although the clocks of the LLCs are independent.
#[test]
fn stolen_thread_keeps_its_distance_from_the_clock() {
    let mut rig = Rig::new(Shape(1, 2, 1, 1));
    // The clock of LLC 1 advances by seconds, because a thread waits there. The clock of LLC 0 does
    // not advance.
    let busy = [rig.start(1, [0]), rig.start(2, [1])];
    let other = rig.start(3, [1]);
    rig.pass(4_000 * MS);
    let waiter = rig.start(4, [1]);
    rig.pass(100 * MS);
    let cpus = set([0, 1]);
    rig.threads[waiter].cpus = cpus;
    rig.sched.set_cpus(rig.threads[waiter].id, &cpus);
    while rig.state(waiter) != State::Waiting {
        rig.pass(SETTINGS.slice_ns);
    }
    let clocks = [0, 1].map(|llc| rig.sched.llc(llc).clock);
    assert!(
        clocks[1].wrapping_sub(clocks[0]) as i64 > 1_000 * MS as i64,
        "{clocks:?}"
    );
    rig.stop(busy[0]);
    rig.settle();
    assert_eq!(rig.state(waiter), State::On(0));
    let ahead = rig.task(waiter).vtime.wrapping_sub(rig.sched.llc(0).clock) as i64;
    assert!(ahead.unsigned_abs() < 2 * SETTINGS.max_lag_ns, "{ahead}");
    // The stolen thread gets its share beside a thread of LLC 0.
    rig.wake(busy[0]);
    let shares = shares(&mut rig, &[waiter, busy[0], other, busy[1]], 3_000);
    assert!(shares.iter().all(|&share| share > 30), "{shares:?}");
}

/// Balancing compares the waiting threads per CPU, not per LLC.
#[test]
fn larger_llc_gets_more_threads() {
    let mut places = common::places(4, 1);
    for (cpu, place) in places.iter_mut().enumerate() {
        place.llc = u32::from(cpu > 0);
        place.near = set(if cpu > 0 { 1..4 } else { 0..1 });
        place.node_llcs = 3;
    }
    let settings = usher_rules::sched::HostSettings {
        llcs: 2,
        ..SETTINGS
    };
    let mut machine = common::Machine::on(&places, settings);
    for mm in 1..=16 {
        machine.start(common::Program::new(mm, 0b1111));
    }
    machine.run(3_000 * MS);
    let before: Vec<u64> = machine.threads.iter().map(|thread| thread.ran_ns).collect();
    machine.run(12_000 * MS);
    for (thread, before) in machine.threads.iter().zip(before) {
        let share = (thread.ran_ns - before) / (30 * MS);
        assert!((75..=130).contains(&share), "{share} % of its share");
    }
}

/// Threads that wait for the CPUs of their seat do not count in the load of their LLC for a CPU
/// outside the seat. Otherwise, the CPU would take the only other waiting thread of that LLC.
#[test]
fn threads_that_prefer_other_cpus_do_not_count_as_load() {
    let mut rig = Rig::new(Shape(2, 1, 1, 1));
    rig.sched.set_seat(7, &set([1]));
    for mm in 1..3 {
        rig.start(mm, [0]);
    }
    for mm in 10..14 {
        let seated = rig.create(Task {
            mm: mm << 12,
            cgroup: 7,
            cpu: 1,
            ran_ns: 1,
            cpus: set([0, 1]),
            ..Task::default()
        });
        rig.wake(seated);
    }
    let other = rig.create(Task {
        mm: 20 << 12,
        cpu: 1,
        ran_ns: 1,
        cpus: set([0, 1]),
        ..Task::default()
    });
    rig.wake(other);
    rig.pass(2_000 * MS);
    assert_eq!(rig.tally().stolen, 0);
    assert_eq!(rig.task(other).cpu, 1);
    assert!(rig.ran_ns(other) > 300 * MS);
}
