// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the order in which threads run, on the host build of the scheduler: urgent threads,
//! kernel threads, turns of address spaces, charges, and threads of other LLCs.

mod common;

use common::rig::{
    Rig, Shape, State, WHY_ALONE, WHY_ONLY_HERE, WHY_STOLEN, WHY_TURN, WHY_URGENT, set,
};
use common::{MS, SETTINGS};
use usher_rules::sched::{HostSettings, HostVariant, Task};

const SLICE: u64 = SETTINGS.slice_ns;

fn one_cpu() -> Rig {
    Rig::new(Shape(1, 1, 1, 1))
}

/// Runs a thread in short bursts, so that it is urgent when it wakes.
fn make_interactive(rig: &mut Rig, thread: usize) {
    for _ in 0..4 {
        rig.wake(thread);
        rig.pass(MS / 20);
        rig.stop(thread);
        rig.pass(5 * MS);
    }
}

/// Runs a thread in long bursts.
fn make_computing(rig: &mut Rig, thread: usize) {
    for _ in 0..4 {
        rig.wake(thread);
        rig.pass(50 * MS);
        rig.stop(thread);
        rig.pass(5 * MS);
    }
}

/// Adds two threads that compute, of different address spaces.
fn two_computing(rig: &mut Rig) -> [usize; 2] {
    [1, 2].map(|mm| {
        let thread = rig.add(mm, [0]);
        make_computing(rig, thread);
        thread
    })
}

#[test]
fn thread_with_short_bursts_preempts_one_that_computes() {
    let mut rig = one_cpu();
    let short = rig.add(1, [0]);
    make_interactive(&mut rig, short);
    let long = rig.add(2, [0]);
    make_computing(&mut rig, long);
    rig.wake(long);
    rig.pass(MS);
    assert_eq!(rig.state(long), State::On(0));
    rig.wake(short);
    assert_eq!(rig.state(short), State::On(0));
    assert_eq!(rig.state(long), State::Waiting);
    assert_eq!(rig.task(short).is_urgent, 1);
    assert_eq!(rig.task(short).why, WHY_URGENT);
    assert_eq!(rig.task(long).why, WHY_TURN);
    assert_eq!(rig.tally().preempted, 1);
    // An urgent thread does not preempt another urgent thread.
    let other = rig.add(3, [0]);
    rig.stop(short);
    rig.stop(long);
    make_interactive(&mut rig, other);
    rig.wake(long);
    rig.pass(MS);
    rig.wake(short);
    rig.wake(other);
    assert_eq!(
        rig.state(short),
        State::On(0),
        "another urgent thread does not preempt it"
    );
    assert_eq!(rig.state(other), State::Waiting);
    assert_eq!(rig.tally().preempted, 2);
}

#[test]
fn thread_that_computes_preempts_no_other() {
    let mut rig = one_cpu();
    let threads = two_computing(&mut rig);
    rig.wake(threads[0]);
    rig.pass(MS);
    rig.wake(threads[1]);
    assert_eq!(rig.state(threads[0]), State::On(0));
    assert_eq!(rig.task(threads[1]).is_urgent, 0);
    assert_eq!(rig.tally().preempted, 0);
}

/// A burst ends with a sleep. A thread that is preempted within the first millisecond of a burst
/// stays urgent. A thread that has computed for more than a millisecond does not.
#[test]
fn urgent_thread_loses_its_urgency_after_a_long_burst() {
    for (ran_ns, is_urgent) in [(MS / 2, 1), (3 * MS / 2, 0)] {
        let mut rig = one_cpu();
        let short = rig.add(1, [0]);
        make_interactive(&mut rig, short);
        let long = rig.add(2, [0]);
        make_computing(&mut rig, long);
        rig.wake(long);
        rig.pass(2 * SLICE);
        rig.wake(short);
        assert_eq!(rig.state(short), State::On(0));
        rig.pass(ran_ns);
        // A kernel thread that is bound to this CPU preempts the urgent thread.
        let kernel = rig.create(Task {
            mm: 0,
            is_kernel: 1,
            ran_ns: 1,
            cpus: set([0]),
            ..Task::default()
        });
        rig.wake(kernel);
        assert_eq!(rig.state(kernel), State::On(0));
        assert_eq!(rig.task(kernel).why, WHY_ONLY_HERE);
        assert_eq!(rig.task(short).is_urgent, is_urgent, "{ran_ns}");
        rig.stop(kernel);
        if is_urgent == 1 {
            assert_eq!(rig.state(short), State::On(0), "{ran_ns}");
        }
    }
}

/// Kernel threads that may run on several CPUs wait like other threads.
#[test]
fn only_pinned_kernel_threads_preempt_at_once() {
    for (cpus, is_kernel, preempts) in [(2, 1, false), (1, 0, false), (1, 1, true)] {
        let mut rig = Rig::new(Shape(1, 1, 2, 1));
        for cpu in [0, 0, 1] {
            rig.start(1, [cpu]);
        }
        let kernel = rig.create(Task {
            mm: 0,
            is_kernel,
            ran_ns: 1,
            cpus: set(0..cpus),
            ..Task::default()
        });
        make_computing(&mut rig, kernel);
        rig.wake(kernel);
        let due = if preempts {
            State::On(0)
        } else {
            State::Waiting
        };
        assert_eq!(rig.state(kernel), due, "{cpus} {is_kernel}");
    }
}

/// While another thread waits, a CPU runs only urgent threads for at most `max_lag_ns`.
#[test]
fn other_thread_runs_after_urgent_ones_for_max_lag() {
    let mut rig = one_cpu();
    let threads: Vec<usize> = (1..40).map(|mm| rig.add(mm, [0])).collect();
    for &thread in &threads {
        make_interactive(&mut rig, thread);
    }
    let long = rig.add(50, [0]);
    make_computing(&mut rig, long);
    rig.wake(long);
    rig.pass(SLICE);
    let begun_ns = rig.now_ns;
    let ran_ns = rig.ran_ns(long);
    for &thread in &threads {
        rig.wake(thread);
    }
    assert_eq!(rig.state(long), State::Waiting);
    // Each urgent thread runs for 0.9 ms.
    let mut urgent = 0;
    while rig.ran_ns(long) == ran_ns {
        let running = rig.running[0];
        if running == Some(long) {
            break;
        }
        assert!(
            rig.now_ns < begun_ns + SETTINGS.max_lag_ns + 2 * SLICE,
            "it waits"
        );
        rig.pass(MS * 9 / 10);
        urgent += 1;
        if let Some(thread) = running
            && rig.state(thread) == State::On(0)
        {
            rig.stop(thread);
        }
    }
    assert!(urgent > 5, "{urgent} urgent threads ran");
    assert!(rig.now_ns >= begun_ns + SETTINGS.max_lag_ns);
    assert!(rig.sched.llc(0).urgent > 5, "urgent threads still wait");
    rig.pass(SLICE);
    let next = rig.running[0];
    assert!(next != Some(long), "urgent threads are next again");
}

/// Threads of two address spaces alternate in turns; without `aggregate`, they alternate in slices.
#[test]
fn turns_last_as_long_as_set() {
    for (aggregate, turn_slices) in [(0, 1), (1, 2), (1, 4)] {
        let settings = HostSettings {
            aggregate,
            turn_ns: turn_slices * SLICE - 1,
            max_lag_ns: 100 * SLICE,
            ..SETTINGS
        };
        let mut rig = Rig::with(Shape(1, 1, 1, 1), settings, HostVariant::default());
        let threads = [1, 1, 2, 2].map(|mm| {
            let thread = rig.add(mm, [0]);
            make_computing(&mut rig, thread);
            thread
        });
        threads.iter().for_each(|&thread| rig.wake(thread));
        rig.pass(40 * SLICE);
        rig.began.clear();
        let before = rig.tally();
        rig.pass(160 * SLICE);
        let after = rig.tally();
        let turns = 160 / turn_slices;
        let switches = after.space_switches - before.space_switches;
        if aggregate == 1 {
            assert!(switches.abs_diff(turns) <= 2, "{switches} of {turns}");
        } else {
            assert!(switches > 60, "{switches}");
        }
        // Each thread gets CPU time.
        for thread in threads {
            let ran = rig.threads[thread].ran_ns;
            assert!(ran > 0);
        }
    }
}

/// With more address spaces than queues, some address spaces share a queue, and therefore a turn.
#[test]
fn turn_of_a_shared_queue_ends() {
    let settings = HostSettings {
        turn_ns: 8 * SLICE,
        max_lag_ns: 2_000 * SLICE,
        ..SETTINGS
    };
    let mut rig = Rig::with(Shape(1, 1, 1, 1), settings, HostVariant::default());
    let threads: Vec<usize> = (1..=80).map(|mm| rig.start(mm, [0])).collect();
    rig.pass(300 * SLICE);
    let mut since = vec![0; threads.len()];
    for slice in 1..=3_000 {
        rig.pass(SLICE);
        if let Some(thread) = rig.running[0] {
            since[thread] = slice;
        }
        // Each of the 32 queues has a turn of eight slices and the rest of a slice. The factor 4
        // covers queues that several threads share.
        let longest = since.iter().map(|since| slice - since).max().unwrap_or(0);
        assert!(longest < 4 * 32 * 9, "{longest} slices");
    }
}

/// A thread that continues because its turn lasts is charged after each slice, because another
/// thread waits.
#[test]
fn thread_is_charged_when_its_turn_continues() {
    let mut rig = one_cpu();
    let threads = two_computing(&mut rig);
    threads.iter().for_each(|&thread| rig.wake(thread));
    rig.pass(100 * SLICE);
    let mut continued = 0;
    for _ in 0..40 {
        let running = rig.running[0];
        let kept = rig.tally().turns_kept;
        let before = running.map(|thread| rig.task(thread).vtime);
        rig.pass(SLICE);
        if rig.tally().turns_kept > kept && running == rig.running[0] {
            let thread = running.unwrap_or_default();
            let state = rig.task(thread);
            assert_eq!(state.uncharged_ns, 0);
            assert!(before.is_some_and(|before| state.vtime.wrapping_sub(before) >= SLICE));
            continued += 1;
        }
    }
    assert!(continued > 5, "{continued}");
}

/// CPU time for which no other thread waited is not charged when another thread begins.
#[test]
fn thread_that_ran_alone_keeps_its_share() {
    let mut rig = one_cpu();
    let alone = rig.add(1, [0]);
    make_computing(&mut rig, alone);
    rig.wake(alone);
    rig.pass(10_000 * MS);
    assert_eq!(rig.task(alone).why, WHY_ALONE);
    assert!(rig.tally().prolonged > 1000);
    let other = rig.start(2, [0]);
    let before = [alone, other].map(|thread| rig.ran_ns(thread));
    rig.pass(400 * MS);
    let ran = [rig.ran_ns(alone) - before[0], rig.ran_ns(other) - before[1]];
    for ran in ran {
        assert!((150 * MS..250 * MS).contains(&ran), "{ran}");
    }
    assert!(rig.tally().turns_kept > 0);
}

/// A thread that slept gets the credit of one slice, however long it slept.
#[test]
fn thread_that_slept_catches_up_no_further_than_a_slice() {
    let mut rig = one_cpu();
    let threads = two_computing(&mut rig);
    let third = rig.start(3, [0]);
    rig.wake(threads[0]);
    rig.pass(4_000 * MS);
    rig.wake(threads[1]);
    let before = [threads[0], threads[1], third].map(|thread| rig.ran_ns(thread));
    rig.pass(600 * MS);
    for (thread, before) in [threads[0], threads[1], third].into_iter().zip(before) {
        let ran = rig.ran_ns(thread) - before;
        assert!((150 * MS..260 * MS).contains(&ran), "{thread}: {ran}");
    }
}

/// A child inherits the vtime of its parent, so that a thread cannot shed its lag by forking.
#[test]
fn child_starts_at_the_vtime_of_its_parent() {
    let mut rig = one_cpu();
    let [parent, other] = [1, 2].map(|mm| rig.start(mm, [0]));
    rig.pass(SLICE * 3);
    while rig.running[0] != Some(parent) {
        rig.pass(SLICE);
    }
    rig.pass(SLICE / 2);
    let child = rig.create(Task {
        mm: 1 << 12,
        cpu: 0,
        parent: rig.threads[parent].id.index() as u32,
        is_forked: 1,
        cpus: set([0]),
        ..Task::default()
    });
    let clock = rig.sched.llc(0).clock;
    let ahead = |vtime: u64| vtime.wrapping_sub(clock) as i64;
    let (of_parent, of_child) = (rig.task(parent).vtime, rig.task(child).vtime);
    assert_eq!(ahead(of_child), ahead(of_parent).max(0));
    assert_eq!(
        rig.task(child).burst_average_ns,
        rig.task(parent).burst_average_ns
    );
    assert!(matches!(rig.state(other), State::On(_) | State::Waiting));
    assert_eq!(rig.task(child).uncharged_ns, 0);
    let old = rig.create(Task {
        ran_ns: 900 * MS,
        cpus: set([0]),
        ..Task::default()
    });
    assert_eq!(
        rig.task(old).uncharged_ns,
        0,
        "earlier CPU time does not count"
    );
    assert!(ahead(rig.task(old).vtime) >= 0);
}

/// A thread that ends while it waits is subtracted from the count of waiting threads.
#[test]
fn ended_waiter_is_counted_out() {
    let mut rig = one_cpu();
    rig.start(1, [0]);
    for is_short in [false, true] {
        let waiter = rig.add(2, [0]);
        if is_short {
            rig.stop(0);
            make_interactive(&mut rig, waiter);
            rig.wake(0);
            let first = rig.add(3, [0]);
            rig.stop(0);
            make_interactive(&mut rig, first);
            rig.wake(0);
            rig.wake(first);
        }
        rig.wake(waiter);
        assert_eq!(rig.state(waiter), State::Waiting);
        let llc = rig.sched.llc(0);
        assert!(llc.waiting + llc.urgent > 0);
        rig.stop(waiter);
        rig.sched.end_task(rig.threads[waiter].id);
        rig.threads[waiter].state = State::Ended;
        rig.check(false);
    }
}

/// All threads start in one LLC, and may run on all CPUs. Each thread gets an equal share.
#[test]
fn idle_llc_steals_and_busy_llcs_balance() {
    for llcs in [2, 3, 5] {
        let mut rig = Rig::new(Shape(1, llcs, 2, 1));
        let cpus = rig.shape.cpus();
        let crowd: Vec<usize> = (0..5 * cpus).map(|_| rig.start(1, [0])).collect();
        let all = set(0..cpus);
        for &thread in &crowd {
            rig.threads[thread].cpus = all;
            rig.sched.set_cpus(rig.threads[thread].id, &all);
        }
        rig.settle();
        rig.check(false);
        rig.pass(4_000 * MS);
        let before: Vec<u64> = crowd.iter().map(|&thread| rig.ran_ns(thread)).collect();
        rig.pass(8_000 * MS);
        let due = 8_000 * MS / 5;
        for (&thread, before) in crowd.iter().zip(before) {
            let ran = rig.ran_ns(thread) - before;
            assert!(
                (due * 7 / 10..due * 13 / 10).contains(&ran),
                "{llcs}: {ran} of {due}"
            );
        }
        let waiting = (0..llcs).map(|llc| rig.sched.llc(llc).waiting);
        let (most, least) = (waiting.clone().max(), waiting.min());
        assert!(
            most.unwrap_or(0) - least.unwrap_or(0) <= 2,
            "{most:?} {least:?}"
        );
        assert!(rig.tally().stolen > 0);
    }
}

/// A CPU without a thread steals a thread from another LLC, and records the steal as the reason.
#[test]
fn cpu_that_becomes_idle_steals_from_another_llc() {
    for (llcs, from) in [(2, 1), (4, 1), (4, 3), (4, 2)] {
        let mut rig = Rig::new(Shape(1, llcs, 1, 1));
        let busy: Vec<usize> = (0..llcs).map(|cpu| rig.start(1, [cpu])).collect();
        let waiter = rig.add(2, [0, from]);
        make_computing_at(&mut rig, waiter, from, &busy);
        assert_eq!(rig.state(waiter), State::Waiting);
        assert_eq!(rig.sched.llc(from).waiting, 1);
        rig.stop(busy[0]);
        assert_eq!(rig.state(waiter), State::On(0), "{llcs} {from}");
        assert_eq!(rig.task(waiter).why, WHY_STOLEN);
        assert_eq!(rig.tally().stolen, 1);
        assert_eq!(rig.sched.llc(from).waiting, 0);
    }
}

/// Lets a thread compute on a CPU, and then wait for this CPU while the CPU's busy thread runs.
fn make_computing_at(rig: &mut Rig, thread: usize, cpu: usize, busy: &[usize]) {
    rig.stop(busy[cpu]);
    rig.wake_by(thread, cpu);
    let State::On(at) = rig.state(thread) else {
        panic!("an idle CPU");
    };
    assert_eq!(at, cpu);
    rig.pass(100 * MS);
    rig.stop(thread);
    rig.wake(busy[cpu]);
    rig.pass(MS);
    rig.wake_by(thread, cpu);
}

/// The variant `fifo` has one queue, and no urgent threads or turns.
#[test]
fn fifo_variant_serves_in_order_of_arrival() {
    let variant = HostVariant {
        fifo: 1,
        ..HostVariant::default()
    };
    let mut rig = Rig::with(Shape(1, 1, 2, 1), SETTINGS, variant);
    let threads: Vec<usize> = (0..6).map(|mm| rig.start(mm + 1, [0, 1])).collect();
    rig.began.clear();
    rig.pass(4 * SLICE);
    let order: Vec<usize> = rig.began.iter().map(|&(thread, _)| thread).collect();
    assert_eq!(order, [2, 3, 4, 5, 0, 1, 2, 3]);
    for &thread in &threads[1..] {
        rig.stop(thread);
    }
    let before = rig.tally().prolonged;
    rig.pass(10 * SLICE);
    assert!(
        matches!(rig.state(threads[0]), State::On(_)),
        "it continues alone"
    );
    assert!(rig.tally().prolonged >= before + 9);
}
