// SPDX-License-Identifier: MIT OR Apache-2.0
//! The run queues of an LLC: the arithmetic of turns.h.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use proptest::prelude::*;
use usher_rules::share::Pace;
use usher_rules::when::{Comer, Hall, Limits, Passed, SPACES};

const MS: u64 = 1_000_000;

proptest! {
    #[test]
    fn the_average_is_of_those_that_wait_and_not_behind_the_clock(
        queues in proptest::collection::vec((0..50_i64, 0..3_u32), SPACES),
        since: u64,
    ) {
        let mut hall = Hall::default();
        // No further than half of all numbers at once.
        hall.advance(since / 2);
        hall.advance(since);
        hall.advance(since.wrapping_add(20));
        for (space, (vtime, waiting)) in queues.iter().enumerate() {
            let vtime = since.wrapping_add_signed(*vtime);
            let comer = Comer { mm: (space as u64 + 1) << 6, vtime, ..Comer::default() };
            (0..*waiting).for_each(|_| { hall.join(&comer); });
        }
        let threads = |(vtime, waiting): &(i64, u32)| vec![vtime - 20; *waiting as usize];
        let ahead: Vec<i64> = queues.iter().flat_map(threads).collect();
        let due = ahead.iter().sum::<i64>() / ahead.len().max(1) as i64;
        prop_assert_eq!(hall.average().wrapping_sub(hall.clock()), due.max(0) as u64);
    }

    #[test]
    fn an_address_space_has_one_queue_while_it_waits(
        mms in proptest::collection::vec(0..200_u64, 1..40),
    ) {
        let mut hall = Hall::default();
        for mm in mms.iter().map(|mm| (mm + 1) << 6) {
            let first = hall.queue_of(mm);
            prop_assert!(first < SPACES);
            let shares = hall.spaces()[first].waiting > 0;
            prop_assert_eq!(hall.join(&Comer { mm, ..Comer::default() }), first);
            prop_assert!(shares || hall.queue_of(mm) == first);
        }
        prop_assert_eq!(hall.waiting() as usize, mms.len());
    }
}

/// Who came to wait before a program had another seat may be at home elsewhere by now; those
/// who come after that do not wait with them.
#[test]
fn a_queue_is_of_a_seat_until_seats_change() {
    let mut hall = Hall::default();
    let comer = |seat, version| Comer {
        mm: 1 << 20,
        seat,
        version,
        ..Comer::default()
    };
    let before = hall.join(&comer(5, 1));
    assert!(hall.is_seated(before, 1) && !hall.is_seated(before, 2));
    let after = hall.join(&comer(5, 2));
    assert_ne!(before, after);
    assert!(hall.is_seated(after, 2) && !hall.is_seated(before, 2));
    let other = hall.join(&comer(6, 2));
    assert!(hall.is_seated(other, 2) && hall.is_seated(after, 2));
    let none = hall.join(&comer(0, 2));
    assert!(!hall.is_seated(none, 2), "without a seat");
    assert_eq!(hall.join(&comer(0, 3)), none, "versions are of seats");
    hall.leave(after, 0);
    assert!(!hall.is_seated(after, 2), "nobody waits");
}

proptest! {
    /// Nobody is passed by for the seat of somebody else in the queue.
    #[test]
    fn only_those_of_one_seat_are_passed_by(
        comers in proptest::collection::vec((0..60_u64, 0..3_u64, any::<bool>(), 0..9_usize), 1..200),
    ) {
        let mut hall = Hall::default();
        let mut waiting: Vec<(usize, Comer)> = Vec::new();
        let mut version = 1;
        for (mm, seat, seats_change, leaves) in comers {
            version += u32::from(seats_change);
            let comer = Comer { mm: (mm + 1) << 6, seat, version, ..Comer::default() };
            waiting.push((hall.join(&comer), comer));
            if leaves < waiting.len() {
                hall.leave(waiting.remove(leaves).0, 0);
            }
            for at in 0..SPACES {
                let here = waiting.iter().filter(|(queue, _)| *queue == at);
                let seats: BTreeSet<_> = here.map(|(_, w)| (w.seat, w.version)).collect();
                let is_of_one = match seats.first() {
                    Some(&(seat, of)) => seats.len() == 1 && seat > 0 && of == version,
                    None => false,
                };
                prop_assert!(is_of_one || !hall.is_seated(at, version));
            }
        }
    }
}

/// Other CPUs put threads on this one, and the clock of every second of them is behind. After
/// 3 s the pace allows for 94 ms, which is less than anybody owes.
#[test]
fn time_does_not_run_because_clocks_are_apart() {
    let mut pace = Pace::default();
    let begun = 1_000 * MS;
    assert_eq!(pace.paced(0, 0, begun), 0);
    for step in 1..6000 {
        let behind = if step % 2 == 0 { 0 } else { MS };
        assert_eq!(pace.paced(0, 0, begun + step * MS / 2 - behind), 0);
    }
}

/// Though it has had much more elsewhere, a thread waits for a turn of the others
/// of its seat, and no longer.
#[test]
fn whoever_comes_from_elsewhere_waits_for_a_turn() {
    let mut hall = Hall::default();
    for (mm, seat, vtime) in [(3, 7, 50), (9, 7, 40), (20, 8, 10)] {
        hall.join(&Comer {
            mm: mm << 6,
            seat,
            vtime: vtime * MS,
            weight: 100,
            ..Comer::default()
        });
    }
    let first = |seat| hall.first_of_seat(seat);
    assert_eq!(
        [first(7), first(8), first(9)],
        [Some(40 * MS), Some(10 * MS), None]
    );
    let limits = Limits {
        slice_ns: 0,
        turn_ns: 24 * MS,
        lead_ns: 24 * MS,
        aggregate: true,
    };
    let join = |hall: &mut Hall, seat, vtime| {
        let comer = Comer {
            seat,
            vtime: vtime * MS,
            ..Comer::default()
        };
        hall.place(&comer, hall.clock(), &limits) / MS
    };
    let hall = &mut hall;
    assert_eq!(
        [join(hall, 7, 900), join(hall, 7, 60), join(hall, 7, 0)],
        [64, 60, 0]
    );
    // Those of seat 8 wait for a crowded CPU, which the clock has left behind.
    hall.advance(30 * MS);
    let all = [8, 7, 0].map(|seat| join(hall, seat, 900));
    assert_eq!(all, [54, 64, 54]);
}

/// A CPU goes by the first of a queue that it can run, as long as that is not the very first.
#[test]
fn whoever_cannot_run_there_is_passed_by() {
    // Also where virtual times overflow.
    for begun in [0, 1 << 40, (1 << 63) - 60, u64::MAX - 60] {
        let at = |vtime: u64| begun.wrapping_add(vtime);
        let comer = |mm: u64, vtime| Comer {
            mm: mm << 12,
            vtime: at(vtime),
            ..Comer::default()
        };
        let mut hall = Hall::default();
        let mixed = hall.join(&comer(1, 10));
        let other = hall.join(&comer(2, 50));
        let mut passed = Passed::default();
        assert_eq!(hall.hindmost(&passed), Some(mixed));
        // It took one at 40, and the next that it can run is at 100.
        passed.note(mixed, at(40), Some(at(10)), || Some(at(100)));
        assert_eq!(hall.hindmost(&passed), Some(other));
        assert_eq!(hall.hindmost(&Passed::default()), Some(mixed), "elsewhere");
        passed.meet(mixed, at(60));
        assert_eq!(hall.hindmost(&passed), Some(other));
        passed.meet(mixed, at(30));
        assert_eq!(hall.hindmost(&passed), Some(mixed));
        // Nobody else there can run: it goes by whom it took.
        passed.note(mixed, at(70), Some(at(10)), || None);
        assert_eq!(hall.hindmost(&passed), Some(other));
        // The first is one that can; and nobody is left.
        for first in [Some(at(80)), Some(at(70)), None] {
            passed.note(mixed, at(70), Some(at(10)), || None);
            passed.note(mixed, at(70), first, || panic!("nobody was passed by"));
            assert_eq!(hall.hindmost(&passed), Some(mixed));
        }
        passed.meet(mixed, at(90));
        assert_eq!(hall.hindmost(&passed), Some(mixed));
    }
}
