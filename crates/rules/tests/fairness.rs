// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the selection on one CPU, on the host build of the scheduler: the example of paper 4,
//! shares by weight, and bounds on waits.

mod common;

use common::{MS, Machine, Program, SETTINGS, State};
use proptest::prelude::*;
use usher_rules::sched::HostSettings;
use usher_rules::share;

fn settings(aggregate: bool) -> HostSettings {
    HostSettings {
        aggregate: aggregate.into(),
        ..SETTINGS
    }
}

/// Runs five threads, each for one slice. Returns the order in which they ran, and the number of
/// switches between address spaces.
fn order(aggregate: bool) -> (String, usize) {
    let mut machine = Machine::new(1, settings(aggregate));
    // The five threads start while another thread runs, so that all of them wait.
    let mut program = Program::new(9 << 8, 1);
    (program.runs_ns, program.bursts) = (MS, 1);
    machine.start(program);
    for mm in [1, 2, 1, 1, 2] {
        let mut program = Program::new(mm << 8, 1);
        (program.runs_ns, program.bursts) = (SETTINGS.slice_ns, 1);
        machine.start(program);
    }
    machine.run(100 * MS);
    let ran = &machine.began[1..];
    let mm = |&thread: &usize| machine.threads[thread].program.mm;
    let switches = ran.windows(2).filter(|pair| mm(&pair[0]) != mm(&pair[1]));
    (
        ran.iter()
            .map(|&thread| ".ABCDE".as_bytes()[thread] as char)
            .collect(),
        switches.count(),
    )
}

#[test]
fn order_matches_the_papers_example() {
    assert_eq!(order(false), ("ABCDE".to_owned(), 3));
    assert_eq!(order(true), ("ACDBE".to_owned(), 1));
}

fn threads() -> impl Strategy<Value = Vec<(u64, u64)>> {
    // Address space and start of each thread.
    proptest::collection::vec((1..6_u64, 0..6 * MS), 2..9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The bound of turns.h: no thread gets further ahead of a waiting thread than `max_lag_ns` and
    /// two slices. With n threads, a wait is at most (n - 1) times this bound in virtual time, and
    /// 2 (n - 1) times this bound in real time.
    #[test]
    fn lag_and_wait_stay_within_the_bound(
        mut threads in threads(),
        aggregate: bool,
        turn_slices in 1..12_u64,
        lag_slices in 0..12_u64,
    ) {
        let slice_ns = SETTINGS.slice_ns;
        let settings = HostSettings {
            turn_ns: turn_slices * slice_ns,
            max_lag_ns: lag_slices * slice_ns,
            ..settings(aggregate)
        };
        let bound = share::max_lag(settings.max_lag_ns, slice_ns, 100);
        let mut machine = Machine::new(1, settings);
        let begun_ns = machine.now_ns;
        threads.sort_by_key(|&(_, at_ns)| at_ns);
        let count = threads.len() as u64;
        for (mm, at_ns) in threads {
            while machine.step(begun_ns + at_ns) {}
            machine.start(Program::new(mm << 8, 1));
        }
        for _ in 0..600 {
            machine.step(u64::MAX);
            let Some(running) = machine.cpus[0] else {
                continue;
            };
            let vtime = machine.vtime(running);
            let all = machine.threads.iter().enumerate();
            for (number, _) in all.filter(|(_, thread)| thread.state == State::Waiting) {
                let ahead = vtime.wrapping_sub(machine.vtime(number)) as i64;
                prop_assert!(ahead <= bound as i64, "{ahead} ns ahead");
            }
        }
        // The factor 2: the other threads may at first have been behind by the bound.
        prop_assert!(machine.longest_wait_ns() <= 2 * (count - 1) * bound);
    }
}

/// CPU share and longest wait of a thread that always computes.
#[derive(Debug, Clone, Copy)]
struct CpuUse {
    share: f64,
    waited_ns: u64,
}

/// Runs threads with these weights, each a program of its own, for three minutes.
fn shares(weights: &[u32], aggregate: bool) -> Vec<CpuUse> {
    let mut machine = Machine::new(1, settings(aggregate));
    for (number, &weight) in (1..).zip(weights) {
        machine.start(Program {
            weight,
            ..Program::new(number << 8, 1)
        });
    }
    let run_ns = 60_000 * SETTINGS.slice_ns;
    machine.run(run_ns);
    let had = machine.threads.iter().map(|thread| CpuUse {
        share: thread.ran_ns as f64 / run_ns as f64,
        waited_ns: machine.waited_ns(thread),
    });
    had.collect()
}

#[test]
fn shares_are_proportional_to_weight() {
    for aggregate in [false, true] {
        // scx.weight of nice 5, 15 and -20, beside nice 0.
        for other in [33, 3, 8668] {
            let has = shares(&[100, other], aggregate)[1].share;
            let due = f64::from(other) / f64::from(100 + other);
            let off = if other == 3 { 0.35 } else { 0.05 };
            assert!((has / due - 1.0).abs() < off, "{other}: {has} of {due}");
        }
        // The share of a thread of nice 19 beside a thread of nice 0 should be a hundredth.
        let has = shares(&[100, 1], aggregate)[1].share;
        assert!((0.01..0.03).contains(&has), "{has}");
    }
}

/// Returns the bound on the wait of a thread, where `threads` threads wait for a CPU. The thread is
/// overdue after two periods, and each other thread then runs for one slice at most.
fn longest_wait_ns(threads: usize) -> u64 {
    2 * share::OVERDUE_NS + (threads as u64 + 1) * SETTINGS.slice_ns
}

#[test]
fn lightest_thread_waits_for_two_periods_beside_the_heaviest() {
    // A thread of nice 19 beside threads of nice -20, some of them in a cgroup of the greatest
    // weight.
    for heavy in [&[8668][..], &[8668; 7], &[866_800], &[8668, 866_800, 100]] {
        let weights: Vec<u32> = [1].iter().chain(heavy).copied().collect();
        for aggregate in [false, true] {
            let had = shares(&weights, aggregate);
            let bound = longest_wait_ns(weights.len());
            assert!(had[0].waited_ns <= bound, "{heavy:?}: {had:?}");
            // The starvation rule costs the heavy threads at most a slice in each period.
            assert!(had[0].share < 0.01, "{heavy:?}: {had:?}");
        }
    }
}

/// When the heavy threads begin, the vtime of the light thread is already far ahead of that of the
/// thread of normal weight.
#[test]
fn light_thread_waits_for_two_periods_when_heavier_ones_begin() {
    for later in [&[8668; 3][..], &[866_800], &[866_800, 8668, 866_800]] {
        for aggregate in [false, true] {
            let mut machine = Machine::new(1, settings(aggregate));
            let program = |number: u64, weight| Program {
                weight,
                ..Program::new(number << 8, 1)
            };
            machine.start(program(1, 1));
            machine.start(program(2, 100));
            machine.run(9 * SETTINGS.slice_ns);
            for (number, &weight) in (3..).zip(later) {
                machine.start(program(number, weight));
            }
            machine.run(40_000 * SETTINGS.slice_ns);
            let waited_ns = machine.longest_wait_ns();
            assert!(
                waited_ns <= longest_wait_ns(later.len() + 2),
                "{later:?}: {waited_ns}"
            );
        }
    }
}

/// Each thread has an address space of its own. Without the starvation rule, each would have a turn
/// of 27 ms, and waits would exceed the bound.
#[test]
fn turns_end_while_threads_are_overdue() {
    for threads in [50, 200, 500] {
        let weights = vec![100; threads];
        let had = shares(&weights, true);
        let waited_ns = had.iter().map(|cpu_use| cpu_use.waited_ns).max();
        let bound = longest_wait_ns(2 * threads);
        assert!(waited_ns <= Some(bound), "{threads}: {waited_ns:?}");
        let shares = had.iter().map(|cpu_use| cpu_use.share * threads as f64);
        assert!(shares.clone().fold(f64::MAX, f64::min) > 0.9, "{threads}");
        assert!(shares.fold(0.0, f64::max) < 1.1, "{threads}");
    }
}

/// The starvation rule does not change the shares of other threads: they keep their shares beside a
/// thread that becomes overdue repeatedly.
#[test]
fn shares_hold_beside_an_overdue_thread() {
    let had = shares(&[1, 8668, 100, 100], true);
    let due = 100.0 / 8869.0;
    for cpu_use in &had[2..] {
        assert!((cpu_use.share / due - 1.0).abs() < 0.35, "{had:?}");
    }
}

/// Urgent threads, which sleep after 0.3 ms each, need more than the whole CPU together, beside
/// threads that compute.
#[test]
fn urgent_threads_starve_no_other_thread() {
    for (sleepers, loops) in [(40, 10), (100, 100), (400, 100)] {
        for weights in [[100, 100], [1, 8668], [8668, 1]] {
            let mut machine = Machine::new(1, settings(true));
            for number in 0..sleepers + loops {
                let mut program = Program::new((number + 1) << 8, 1);
                program.weight = weights[(number % 2) as usize];
                if number < sleepers {
                    (program.runs_ns, program.sleeps_ns) = (MS * 3 / 10, 5 * MS);
                }
                machine.start(program);
            }
            machine.run(30_000 * MS);
            let bound = longest_wait_ns((sleepers + loops) as usize) + 3_000 * MS;
            let waited_ns = machine.longest_wait_ns();
            assert!(waited_ns <= bound.min(5_000 * MS));
        }
    }
}
