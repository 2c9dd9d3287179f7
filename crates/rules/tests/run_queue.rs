// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the run queues of an LLC, by the functions of turns.h alone: the queues and seats of
//! waiting threads, the vtimes of new waiters, and heads that a CPU may not run.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use proptest::prelude::*;
use usher_rules::run_queue::{HeadSkip, Limits, LlcRunQueue, MM_QUEUES_PER_LLC, NewWaiter};

const MS: u64 = 1_000_000;

proptest! {
    #[test]
    fn average_is_that_of_waiting_threads_and_at_least_the_clock(
        queues in proptest::collection::vec((0..50_i64, 0..3_u32), MM_QUEUES_PER_LLC),
        since: u64,
    ) {
        let mut llc_rq = LlcRunQueue::default();
        // The clock advances in steps of less than half of the number range, because vtimes are
        // compared by their difference.
        llc_rq.advance(since / 2);
        llc_rq.advance(since);
        llc_rq.advance(since.wrapping_add(20));
        for (queue, (vtime, waiting)) in queues.iter().enumerate() {
            let vtime = since.wrapping_add_signed(*vtime);
            let waiter = NewWaiter { mm: (queue as u64 + 1) << 6, vtime, ..NewWaiter::default() };
            (0..*waiting).for_each(|_| { llc_rq.join(&waiter); });
        }
        let threads = |(vtime, waiting): &(i64, u32)| vec![vtime - 20; *waiting as usize];
        let ahead: Vec<i64> = queues.iter().flat_map(threads).collect();
        let due = ahead.iter().sum::<i64>() / ahead.len().max(1) as i64;
        prop_assert_eq!(llc_rq.average().wrapping_sub(llc_rq.clock()), due.max(0) as u64);
    }

    #[test]
    fn address_space_keeps_its_queue_while_threads_wait(
        mms in proptest::collection::vec(0..200_u64, 1..40),
    ) {
        let mut llc_rq = LlcRunQueue::default();
        for mm in mms.iter().map(|mm| (mm + 1) << 6) {
            let first = llc_rq.queue_of(mm);
            prop_assert!(first < MM_QUEUES_PER_LLC);
            let shares = llc_rq.mm_queues()[first].waiting > 0;
            prop_assert_eq!(llc_rq.join(&NewWaiter { mm, ..NewWaiter::default() }), first);
            prop_assert!(shares || llc_rq.queue_of(mm) == first);
        }
        prop_assert_eq!(llc_rq.waiting() as usize, mms.len());
    }
}

/// After a change of the seats, a thread that was enqueued before the change may prefer other CPUs.
/// Threads enqueued after the change get another queue.
#[test]
fn queue_has_a_seat_until_seats_change() {
    let mut llc_rq = LlcRunQueue::default();
    let waiter = |seat, version| NewWaiter {
        mm: 1 << 20,
        seat,
        version,
        ..NewWaiter::default()
    };
    let before = llc_rq.join(&waiter(5, 1));
    assert!(llc_rq.is_seated(before, 1) && !llc_rq.is_seated(before, 2));
    let after = llc_rq.join(&waiter(5, 2));
    assert_ne!(before, after);
    assert!(llc_rq.is_seated(after, 2) && !llc_rq.is_seated(before, 2));
    let other = llc_rq.join(&waiter(6, 2));
    assert!(llc_rq.is_seated(other, 2) && llc_rq.is_seated(after, 2));
    let none = llc_rq.join(&waiter(0, 2));
    assert!(!llc_rq.is_seated(none, 2), "without a seat");
    assert_eq!(llc_rq.join(&waiter(0, 3)), none, "versions are of seats");
    llc_rq.leave(after, 0);
    assert!(!llc_rq.is_seated(after, 2), "no thread waits");
}

/// Generates whether the seats change before the next thread. Rare changes are needed so that a
/// queue gets threads of one version with different seats.
fn change() -> impl Strategy<Value = bool> {
    prop_oneof![Just(0.0), Just(0.02), Just(0.5)].prop_flat_map(proptest::bool::weighted)
}

proptest! {
    /// A queue counts as seated only if all its threads have the same seat of the current version.
    #[test]
    fn queue_has_a_seat_only_if_all_threads_have_it(
        waiters in proptest::collection::vec((0..60_u64, 0..3_u64, change(), 0..400_usize), 1..200),
    ) {
        let mut llc_rq = LlcRunQueue::default();
        let mut waiting: Vec<(usize, NewWaiter)> = Vec::new();
        let mut version = 1;
        for (mm, seat, seats_change, leaves) in waiters {
            version += u32::from(seats_change);
            let waiter = NewWaiter { mm: (mm + 1) << 6, seat, version, ..NewWaiter::default() };
            waiting.push((llc_rq.join(&waiter), waiter));
            if leaves < waiting.len() {
                llc_rq.leave(waiting.remove(leaves).0, 0);
            }
            for at in 0..MM_QUEUES_PER_LLC {
                let here = waiting.iter().filter(|(queue, _)| *queue == at);
                let seats: BTreeSet<_> = here.map(|(_, w)| (w.seat, w.version)).collect();
                let is_of_one = match seats.first() {
                    Some(&(seat, of)) => seats.len() == 1 && seat > 0 && of == version,
                    None => false,
                };
                prop_assert!(is_of_one || !llc_rq.is_seated(at, version));
            }
        }
    }
}

/// A thread waits at most for one turn of the threads of its seat, even if it has used much CPU
/// time in another LLC.
#[test]
fn migrated_thread_waits_for_one_turn() {
    let mut llc_rq = LlcRunQueue::default();
    for (mm, seat, vtime) in [(3, 7, 50), (9, 7, 40), (20, 8, 10)] {
        llc_rq.join(&NewWaiter {
            mm: mm << 6,
            seat,
            vtime: vtime * MS,
            weight: 100,
            ..NewWaiter::default()
        });
    }
    let first = |seat| llc_rq.first_of_seat(seat);
    assert_eq!(
        [first(7), first(8), first(9)],
        [Some(40 * MS), Some(10 * MS), None]
    );
    let limits = Limits {
        slice_ns: 0,
        turn_ns: 24 * MS,
        max_lag_ns: 24 * MS,
        aggregate: true,
    };
    let join = |llc_rq: &mut LlcRunQueue, seat, vtime| {
        let waiter = NewWaiter {
            seat,
            vtime: vtime * MS,
            ..NewWaiter::default()
        };
        llc_rq.place(&waiter, llc_rq.clock(), &limits) / MS
    };
    let llc_rq = &mut llc_rq;
    assert_eq!(
        [
            join(llc_rq, 7, 900),
            join(llc_rq, 7, 60),
            join(llc_rq, 7, 0)
        ],
        [64, 60, 0]
    );
    // The threads of seat 8 wait for a crowded CPU, and are behind the clock of the LLC.
    llc_rq.advance(30 * MS);
    let all = [8, 7, 0].map(|seat| join(llc_rq, seat, 900));
    assert_eq!(all, [54, 64, 54]);
}

/// While a CPU may not run the head of a queue, it uses the vtime of the queue's first thread that
/// it may run.
#[test]
fn unrunnable_head_is_skipped() {
    // The last two values test vtimes that overflow.
    for begun in [0, 1 << 40, (1 << 63) - 60, u64::MAX - 60] {
        let at = |vtime: u64| begun.wrapping_add(vtime);
        let waiter = |mm: u64, vtime| NewWaiter {
            mm: mm << 12,
            vtime: at(vtime),
            ..NewWaiter::default()
        };
        let mut llc_rq = LlcRunQueue::default();
        let mixed = llc_rq.join(&waiter(1, 10));
        let other = llc_rq.join(&waiter(2, 50));
        let mut head_skip = HeadSkip::default();
        assert_eq!(llc_rq.min_vtime_queue(&head_skip), Some(mixed));
        // The CPU took a thread with vtime 40. The next thread that it may run has vtime 100.
        head_skip.note(mixed, at(40), Some(at(10)), || Some(at(100)));
        assert_eq!(llc_rq.min_vtime_queue(&head_skip), Some(other));
        assert_eq!(
            llc_rq.min_vtime_queue(&HeadSkip::default()),
            Some(mixed),
            "elsewhere"
        );
        head_skip.lower_min(mixed, at(60));
        assert_eq!(llc_rq.min_vtime_queue(&head_skip), Some(other));
        head_skip.lower_min(mixed, at(30));
        assert_eq!(llc_rq.min_vtime_queue(&head_skip), Some(mixed));
        // The CPU may run no other thread of the queue: the vtime of the thread that it took
        // applies.
        head_skip.note(mixed, at(70), Some(at(10)), || None);
        assert_eq!(llc_rq.min_vtime_queue(&head_skip), Some(other));
        // The CPU took the head (the new head has a vtime of 70 or more), or the queue is empty
        // now.
        for first in [Some(at(80)), Some(at(70)), None] {
            head_skip.note(mixed, at(70), Some(at(10)), || None);
            head_skip.note(mixed, at(70), first, || panic!("the head is runnable"));
            assert_eq!(llc_rq.min_vtime_queue(&head_skip), Some(mixed));
        }
        head_skip.lower_min(mixed, at(90));
        assert_eq!(llc_rq.min_vtime_queue(&head_skip), Some(mixed));
    }
}
