// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the queues of address spaces and of the selection of the next thread (turns.h). The
//! result of the selection is compared with that of a search over all queues.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use proptest::prelude::*;
use usher_rules::run_queue::{HeadSkip, LlcRunQueue, MM_QUEUES_PER_LLC, NewWaiter, Next, PickCtx};

/// A queue of the test. Vtimes are relative to the base vtime of the test.
#[derive(Debug, Clone, Copy)]
struct Queue {
    waiting: u32,
    vtime: i64,
    /// Vtime of the first thread that may run on the CPU; `None` if the head may.
    runnable: Option<i64>,
}

fn queue() -> impl Strategy<Value = Queue> {
    let waiting = prop_oneof![2 => Just(0_u32), 3 => 1..4_u32];
    (
        waiting,
        0..60_i64,
        proptest::option::weighted(0.4, 0..60_i64),
    )
        .prop_map(|(waiting, vtime, runnable)| Queue {
            waiting,
            vtime,
            runnable,
        })
}

impl Queue {
    /// Returns the vtime of the first thread that may run on the CPU. It is at least that of the
    /// head.
    fn first(self) -> i64 {
        self.runnable
            .map_or(self.vtime, |vtime| vtime.max(self.vtime))
    }
}

/// Fills a run queue with these queues, in the order of their numbers, with vtimes relative to
/// `base`. Also returns the CPU's record of heads that it may not run.
fn fill(queues: &[Queue], base: u64) -> (LlcRunQueue, HeadSkip) {
    let at = |vtime: i64| base.wrapping_add_signed(vtime);
    let mut llc_rq = LlcRunQueue::default();
    llc_rq.advance(base / 2);
    llc_rq.advance(base);
    let mut head_skip = HeadSkip::default();
    for (number, queue) in queues.iter().enumerate() {
        // The search for the queue of this key begins at the queue with this number.
        let waiter = NewWaiter {
            mm: (number as u64) << 6 | 1 << 40,
            vtime: at(queue.vtime),
            ..NewWaiter::default()
        };
        for _ in 0..queue.waiting {
            assert_eq!(llc_rq.join(&waiter), llc_rq.queue_of(waiter.queue_key()));
        }
    }
    for (number, queue) in queues.iter().enumerate() {
        let at_queue = llc_rq.queue_of((number as u64) << 6 | 1 << 40);
        if let Some(runnable) = queue.runnable {
            // The CPU took a thread behind the head, so that the head counts as not runnable.
            let head = at(queue.vtime);
            head_skip.note(at_queue, at(queue.vtime + 1), Some(head), || {
                Some(at(runnable))
            });
        }
    }
    (llc_rq, head_skip)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn selection_follows_the_rules_of_turns(
        queues in proptest::collection::vec(queue(), MM_QUEUES_PER_LLC),
        base: u64,
        excluded in prop_oneof![Just(0_u32), any::<u32>()],
        own in 0..=MM_QUEUES_PER_LLC,
        prev in proptest::option::of(0..60_i64),
        aggregate: bool,
        passed in 0..40_u64,
        turn_ns in 0..40_u64,
        max_lag_ns in 0..40_u64,
    ) {
        let (mut llc_rq, head_skip) = fill(&queues, base);
        let number_of: Vec<usize> = (0..MM_QUEUES_PER_LLC)
            .map(|number| llc_rq.queue_of((number as u64) << 6 | 1 << 40))
            .collect();
        let at = |vtime: i64| base.wrapping_add_signed(vtime);
        let mut ctx = PickCtx {
            began_ns: 1_000,
            turn_ns,
            max_lag_ns,
            now_ns: 1_000 + passed,
            has_prev: prev.is_some().into(),
            aggregate: aggregate.into(),
            prev_vtime: at(prev.unwrap_or(0)),
            own: own as u32,
            excluded,
            ..PickCtx::default()
        };
        let clock = llc_rq.clock();
        let next = llc_rq.pick_next(&mut ctx, &head_skip);

        // Queues from which the CPU may take a thread, by their numbers in the run queue.
        let mut candidates: Vec<(i64, usize)> = Vec::new();
        for (number, queue) in queues.iter().enumerate() {
            let at_queue = number_of[number];
            if queue.waiting > 0 && excluded >> at_queue & 1 == 0 {
                candidates.push((queue.first(), at_queue));
            }
        }
        let Some(&(least, queue)) = candidates.iter().min() else {
            let due = if prev.is_some() { Next::Same } else { Next::NoneWaiting };
            prop_assert_eq!(next, due);
            prop_assert_eq!(ctx.min_vtime_queue as usize, MM_QUEUES_PER_LLC);
            prop_assert_eq!(llc_rq.clock(), clock);
            return Ok(());
        };
        prop_assert_eq!(ctx.min_vtime_queue as usize, queue);
        prop_assert_eq!(ctx.min_vtime, at(least));
        let with_prev = prev.map_or(least, |prev| prev.min(least));
        prop_assert_eq!(ctx.min_vtime_with_prev, at(with_prev));
        let has_taken = next != Next::Same;
        prop_assert_eq!(llc_rq.clock(), at(if has_taken { least } else { 0 }));
        // Vtime of the next thread of the address space that has the turn.
        let in_own = candidates.iter().find(|(_, queue)| *queue == own).map(|(vtime, _)| *vtime);
        let turn = match (prev, in_own) {
            (Some(prev), Some(waits)) if waits < prev => Some((waits, Next::Queue(own))),
            (Some(prev), _) => Some((prev, Next::Same)),
            (None, Some(waits)) => Some((waits, Next::Queue(own))),
            (None, None) => None,
        };
        let lasts = |vtime: i64| {
            aggregate && passed < turn_ns && vtime <= least + max_lag_ns as i64
        };
        let due = match turn {
            Some((vtime, next)) if lasts(vtime) => next,
            _ if prev.is_some_and(|prev| prev < least) => Next::Same,
            _ => Next::Queue(queue),
        };
        prop_assert_eq!(next, due);
    }

    /// An address space finds its queue again, and shares a queue only if all eight queues of its
    /// search are in use.
    #[test]
    fn eight_address_spaces_have_queues_of_their_own(
        keys in proptest::collection::btree_set(1..u64::MAX, 1..=8),
        same_slot: bool,
    ) {
        let mut llc_rq = LlcRunQueue::default();
        let keys: Vec<u64> = match same_slot {
            // The searches for these keys all begin at the same queue.
            true => (0..8).map(|number| number << 40).collect(),
            false => keys.into_iter().collect(),
        };
        let join = |llc_rq: &mut LlcRunQueue, mm| {
            llc_rq.join(&NewWaiter { mm, ..NewWaiter::default() })
        };
        let queues: Vec<usize> = keys.iter().map(|&mm| join(&mut llc_rq, mm)).collect();
        let distinct: BTreeSet<usize> = queues.iter().copied().collect();
        prop_assert_eq!(distinct.len(), keys.len());
        let again: Vec<usize> = keys.iter().map(|&mm| join(&mut llc_rq, mm)).collect();
        prop_assert_eq!(&again, &queues);
        prop_assert_eq!(llc_rq.waiting() as usize, 2 * keys.len());
        // A queue that has become empty is available for another key.
        llc_rq.leave(queues[0], 0);
        llc_rq.leave(queues[0], 0);
        prop_assert_eq!(llc_rq.mm_queues()[queues[0]].waiting, 0);
    }
}

#[test]
fn address_spaces_are_spread_over_all_queues() {
    // Addresses of structures in the kernel: multiples of 64, of a page, and of larger blocks.
    for shift in [6, 7, 8, 9, 10, 11, 12, 13, 14] {
        let llc_rq = LlcRunQueue::default();
        let mut counts = [0; MM_QUEUES_PER_LLC];
        for mm in 1..=3_200_u64 {
            counts[llc_rq.queue_of(0xffff_8881_0000_0000 + (mm << shift))] += 1;
        }
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(*least >= 50 && *most <= 200, "{shift}: {counts:?}");
    }
    let llc_rq = LlcRunQueue::default();
    let is_used = |mm: &u64| llc_rq.queue_of(mm << 6);
    assert_eq!(
        (0..4096)
            .map(|mm| is_used(&mm))
            .collect::<BTreeSet<_>>()
            .len(),
        32
    );
}

/// Threads that differ in address space, seat, version of the seats or pinned CPU have different
/// keys.
#[test]
fn different_threads_have_different_keys() {
    let mut keys = BTreeSet::new();
    let mut count = 0;
    for mm in (0..40).map(|mm| 0xffff_8881_0400_0000 + (mm << 6)) {
        for (seat, version) in [(0, 0), (1, 1), (1, 2), (2, 1), (3, 7), (4, 7), (900, 7)] {
            for pinned_cpu in [0, 1, 2, 3, 64, 65, 200] {
                let waiter = NewWaiter {
                    mm,
                    seat,
                    version,
                    pinned_cpu,
                    ..NewWaiter::default()
                };
                keys.insert(waiter.queue_key());
                count += 1;
            }
        }
    }
    assert_eq!(keys.len(), count);
    // For threads without a seat, the version of the seats does not matter.
    let key = |version| {
        NewWaiter {
            mm: 64,
            version,
            ..NewWaiter::default()
        }
        .queue_key()
    };
    assert_eq!(key(1), key(2));
}

/// If a CPU records that it may not run the head of a queue, its records of other queues stay
/// unchanged.
#[test]
fn unrunnable_heads_are_recorded_per_queue() {
    for first in 0..MM_QUEUES_PER_LLC {
        let waiter = |number: u64, vtime| NewWaiter {
            mm: number << 40,
            vtime,
            ..NewWaiter::default()
        };
        let mut llc_rq = LlcRunQueue::default();
        let mut at = Vec::new();
        for number in 0..8 {
            at.push(llc_rq.join(&NewWaiter {
                mm: (first as u64) << 6 | number << 40,
                ..waiter(0, 100 + number)
            }));
        }
        let mut head_skip = HeadSkip::default();
        head_skip.note(at[0], 200, Some(100), || Some(300));
        head_skip.note(at[1], 200, Some(101), || Some(301));
        assert_eq!(llc_rq.min_vtime_queue(&head_skip), Some(at[2]));
        head_skip.note(at[0], 250, None, || None);
        assert_eq!(llc_rq.min_vtime_queue(&head_skip), Some(at[0]));
        head_skip.note(at[0], 200, Some(100), || Some(300));
        for queue in &at[2..] {
            head_skip.note(*queue, 200, Some(100), || Some(400));
        }
        assert_eq!(llc_rq.min_vtime_queue(&head_skip), Some(at[0]));
        head_skip.lower_min(at[5], 150);
        assert_eq!(llc_rq.min_vtime_queue(&head_skip), Some(at[5]));
        head_skip.lower_min(at[5], 500);
        assert_eq!(llc_rq.min_vtime_queue(&head_skip), Some(at[5]));
    }
}
