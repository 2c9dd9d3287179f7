// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests on the host build of the scheduler in which threads pinned to some CPUs share run queues
//! with threads that these CPUs may not run.

mod common;

use common::{MS, Machine, Program, SETTINGS};
use proptest::prelude::*;

/// Starts a machine with these threads.
fn machine(cpus: usize, programs: impl IntoIterator<Item = Program>) -> Machine {
    let mut machine = Machine::new(cpus, SETTINGS);
    for program in programs {
        machine.start(program);
    }
    machine
}

/// Checks that the CPU share of each thread selected by `is_meant` differs from `due` by less than
/// 5 %.
fn check_shares(
    machine: &Machine,
    ran_ns: u64,
    is_meant: impl Fn(&Program) -> bool,
    due: impl Fn(&Program) -> f64,
) {
    for thread in machine.threads.iter().filter(|t| is_meant(&t.program)) {
        let (share, due) = (thread.ran_ns as f64 / ran_ns as f64, due(&thread.program));
        let off = (share / due - 1.0).abs();
        assert!(off < 0.05, "{share} instead of {due}: {thread:?}");
    }
}

/// Some address spaces share a queue. If each of them began a turn of its own, new turns of that
/// queue would follow one another without end, and other threads would wait too long.
#[test]
fn address_spaces_that_share_a_queue_share_a_turn() {
    for (cpus, loops) in [(2, 60), (2, 120), (4, 120), (4, 400), (3, 33)] {
        let threads = (0..loops).map(|number| Program::new(number + 1, 1 << (number % cpus)));
        let mut machine = machine(cpus as usize, threads);
        machine.run(60_000 * MS);
        let waited_ns = machine.longest_wait_ns();
        let each = loops / cpus * (SETTINGS.turn_ns + SETTINGS.slice_ns);
        assert!(waited_ns < 2 * each, "{loops} on {cpus}: {waited_ns}");
    }
}

/// The shares of threads pinned to CPU 0 depend neither on the crowd on CPU 1 nor on a thread of
/// the same program that waits for CPU 1.
#[test]
fn pinned_threads_share_their_cpu_equally() {
    // Numbers of threads on CPU 0 and on CPU 1.
    for (few, many) in [(3, 4), (4, 10), (6, 21), (1, 30)] {
        for has_pinned_thread in [false, true] {
            let cpu_of = |number| if number < few { 1 } else { 2 };
            let loops = (0..few + many).map(|number| Program::new(number + 1, cpu_of(number)));
            // A thread of the first program waits for the crowded CPU 1.
            let other = has_pinned_thread.then(|| Program::new(1, 2));
            let mut machine = machine(2, loops.chain(other));
            machine.run(20_000 * MS);
            let due = 1.0 / few as f64;
            check_shares(&machine, 20_000 * MS, |p| p.cpus == 1, |_| due);
        }
    }
}

/// Threads that sleep between bursts, and are not urgent because their bursts are too long, are
/// pinned to crowded CPUs. The LLC's other CPUs have fewer threads, and their clocks are far ahead.
#[test]
fn sleeper_beside_a_crowd_waits_no_longer_than_the_crowd() {
    // Number of CPUs; numbers of threads on the first half of the CPUs and on the second half.
    for (cpus, few, many) in [(2, 3, 30), (2, 2, 10), (4, 6, 60), (4, 5, 20)] {
        let uncrowded = (1 << (cpus / 2)) - 1;
        let crowded = ((1 << cpus) - 1) & !uncrowded;
        let cpus_of = |number| if number < few { uncrowded } else { crowded };
        let loops = (0..few + many).map(|number| Program::new(number + 1, cpus_of(number)));
        let sleepers = (0..3).map(|number| Program {
            runs_ns: SETTINGS.slice_ns,
            sleeps_ns: 5 * MS,
            ..Program::new(few + many + 1 + number, crowded)
        });
        let mut machine = machine(cpus, loops.chain(sleepers));
        machine.run(60_000 * MS);
        let is_sleeper = |number: &usize| *number >= (few + many) as usize;
        let wait = |number: usize| machine.waited_ns(&machine.threads[number]);
        let all = 0..machine.threads.len();
        let (sleepers, loops): (Vec<_>, Vec<_>) = all.partition(is_sleeper);
        let sleepers_ns = sleepers.into_iter().map(wait).max();
        let loops_ns = loops.into_iter().map(wait).max();
        let each = many.div_ceil(cpus as u64 / 2) * (SETTINGS.max_lag_ns + 2 * SETTINGS.slice_ns);
        let waits = format!("{few}, {many} on {cpus}: {sleepers_ns:?}, {loops_ns:?} to {each}");
        assert!(
            sleepers_ns <= loops_ns && sleepers_ns <= Some(each),
            "{waits}"
        );
        // The factor 2: each other thread may at first be behind by the vtime by which it is ahead
        // at the end.
        assert!(loops_ns <= Some(2 * each), "{waits}");
    }
}

/// Two threads with weights of 4 : 1 wait in the queue of a crowd that is pinned to other CPUs.
#[test]
fn weights_count_behind_a_crowd_that_waits_for_other_cpus() {
    let crowd = (0..30).map(|_| Program::new(1, 0b1100));
    let pair = [100, 400].map(|weight| Program {
        weight,
        ..Program::new(1, 0b11)
    });
    let others = (2..6).map(|mm| Program::new(mm, 0b11));
    let mut machine = machine(4, crowd.chain(pair).chain(others));
    machine.run(20_000 * MS);
    let due = |p: &Program| 2.0 * f64::from(p.weight) / 900.0;
    check_shares(&machine, 20_000 * MS, |p| p.cpus == 0b11, due);
}

/// Each program has threads pinned to each half of an LLC, most of them to the crowded half. The
/// threads of a program share a queue. The head of that queue is far behind the threads that wait
/// for the other half, and may not run on that half.
#[test]
fn threads_keep_their_share_beside_a_crowd_that_waits_for_other_cpus() {
    for programs in [1, 2, 5] {
        let pinned = |mm, count, cpus| (0..count).map(move |_| Program::new(mm, cpus));
        let loops = (1..=programs).flat_map(|mm| pinned(mm, 30, 0b1100).chain(pinned(mm, 3, 0b11)));
        let others = pinned(programs + 1, 1, 0b11);
        let mut machine = machine(4, loops.chain(others));
        machine.run(20_000 * MS);
        let due = 2.0 / (3 * programs + 1) as f64;
        check_shares(&machine, 20_000 * MS, |p| p.cpus == 0b11, |_| due);
    }
}

/// Generates a machine of up to four CPUs, and threads of these weights that are pinned to random
/// CPUs.
fn crowd(weights: &'static [u32]) -> impl Strategy<Value = (u32, Vec<Program>)> {
    let any_loop = move |cpus: u32| {
        let runs_ns = prop_oneof![Just(u64::MAX), Just(MS / 20)];
        let weight = proptest::sample::select(weights);
        (1..60_u64, 1..1_u64 << cpus, runs_ns, weight).prop_map(|(mm, cpus, runs_ns, weight)| {
            Program {
                runs_ns,
                weight,
                ..Program::new(mm, cpus)
            }
        })
    };
    (1..5_u32).prop_flat_map(move |cpus| {
        let loops = proptest::collection::vec(any_loop(cpus), 1..100);
        (Just(cpus), loops)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// No thread waits for 5 s, the time after which the kernel would end the scheduler.
    #[test]
    fn no_thread_starves_with_any_affinity((cpus, loops) in crowd(&[100])) {
        let mut machine = machine(cpus as usize, loops);
        machine.run(15_000 * MS);
        prop_assert!(machine.longest_wait_ns() < 5_000 * MS, "{}", machine.longest_wait_ns());
    }

    #[test]
    fn no_thread_starves_with_any_weight((cpus, loops) in crowd(&[1, 3, 33, 100, 400, 8668])) {
        let mut machine = machine(cpus as usize, loops);
        machine.run(35_000 * MS);
        prop_assert!(machine.longest_wait_ns() < 5_000 * MS, "{}", machine.longest_wait_ns());
    }
}
