// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is next: paper 4's example, and the bound on how long anybody waits, on a
//! CPU that is played here by the rules alone.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use proptest::prelude::*;
use usher_rules::share::{self, Pace};
use usher_rules::when::{Comer, Hall, Limits, Moment, Next, Passed, SPACES, Turn};

#[derive(Debug, Clone)]
struct Thread {
    name: char,
    mm: u64,
    vtime: u64,
    weight: u64,
    slices_left: u32,
}

/// One CPU with its queues.
struct Cpu {
    limits: Limits,
    hall: Hall,
    queues: Vec<Vec<Thread>>,
    now_ns: u64,
    turn: Turn,
    pace: Pace,
}

impl Cpu {
    fn new(limits: Limits, threads: Vec<Thread>) -> Self {
        let mut cpu = Self {
            limits,
            hall: Hall::default(),
            queues: vec![Vec::new(); SPACES],
            now_ns: 1,
            turn: Turn::default(),
            pace: Pace::default(),
        };
        threads.into_iter().for_each(|thread| cpu.join(thread));
        cpu
    }

    fn comer(&self, thread: &Thread) -> Comer {
        Comer {
            mm: if self.limits.aggregate { thread.mm } else { 0 },
            vtime: thread.vtime,
            weight: thread.weight,
            ..Comer::default()
        }
    }

    /// Into its queue, which is by virtual time, as the kernel's is.
    fn join(&mut self, mut thread: Thread) {
        let mut comer = self.comer(&thread);
        let clock = self.hall.clock();
        comer.vtime = self.pace.paced(comer.vtime, clock, self.now_ns);
        comer.vtime = self.hall.place(&comer, clock, &self.limits);
        thread.vtime = comer.vtime;
        let queue = &mut self.queues[self.hall.join(&comer)];
        let behind = queue.partition_point(|other| other.vtime <= thread.vtime);
        queue.insert(behind, thread);
    }

    /// The first of a queue runs, and only now counts as one that waits no more; `prev`
    /// has come to wait before.
    fn take(&mut self, at: usize, prev: Option<Thread>) -> Thread {
        let thread = self.queues[at].remove(0);
        prev.into_iter().for_each(|prev| self.join(prev));
        let first = self.queues[at].first().unwrap_or(&thread).vtime;
        self.hall.leave(at, first);
        thread
    }

    /// Who runs after `prev`, which has had its slice.
    fn next(&mut self, prev: Option<Thread>) -> Option<Thread> {
        let own = match self.limits.aggregate {
            true => self.hall.queue_of(self.turn.of),
            false => SPACES,
        };
        let (clock, now_ns) = (self.hall.clock(), self.now_ns);
        let prev_vtime = prev
            .as_ref()
            .map_or(0, |prev| self.pace.paced(prev.vtime, clock, now_ns));
        let mut moment = Moment {
            began_ns: self.turn.began_ns,
            turn_ns: self.limits.turn_ns,
            lead_ns: self.limits.lead_ns,
            now_ns: self.now_ns,
            has_prev: u32::from(prev.is_some()),
            aggregate: u32::from(self.limits.aggregate),
            prev_vtime,
            own: own as u32,
            ..Moment::default()
        };
        let next = match self.hall.ask(&mut moment, &Passed::default()) {
            Next::Same => return prev,
            Next::Nobody => return None,
            Next::Queue(at) => {
                let next = self.take(at, prev);
                self.turn.pass_to(&self.comer(&next), Some(at), self.now_ns);
                next
            }
        };
        Some(next)
    }

    fn run(&mut self, thread: &mut Thread) {
        self.now_ns += self.limits.slice_ns;
        thread.vtime += share::virtual_ns(self.limits.slice_ns, thread.weight);
        thread.slices_left -= 1;
    }

    fn waiting(&self) -> impl Iterator<Item = &Thread> {
        self.queues.iter().flatten()
    }
}

const MS: u64 = 1_000_000;

/// The order in which threads of one slice each run, and how often the address
/// space changes on the way.
fn order(aggregate: bool) -> (String, usize) {
    let limits = Limits {
        slice_ns: 3 * MS,
        turn_ns: 24 * MS,
        lead_ns: 24 * MS,
        aggregate,
    };
    let threads = "ABCDE".chars().zip([1, 2, 1, 1, 2]).enumerate();
    let threads = threads.map(|(at, (name, space))| Thread {
        name,
        mm: space << 20,
        vtime: at as u64,
        weight: 100,
        slices_left: 1,
    });
    let mut cpu = Cpu::new(limits, threads.collect());
    let mut ran: Vec<Thread> = Vec::new();
    while let Some(mut thread) = cpu.next(None) {
        cpu.run(&mut thread);
        ran.push(thread);
    }
    let switches = ran.windows(2).filter(|pair| pair[0].mm != pair[1].mm);
    (
        ran.iter().map(|thread| thread.name).collect(),
        switches.count(),
    )
}

#[test]
fn the_papers_example() {
    assert_eq!(order(false), ("ABCDE".to_owned(), 3));
    assert_eq!(order(true), ("ACDBE".to_owned(), 1));
}

fn threads() -> impl Strategy<Value = Vec<Thread>> {
    let thread = (1..6_u64, 0..6 * MS).prop_map(|(space, vtime)| Thread {
        name: '-',
        mm: space << 20,
        vtime,
        weight: 100,
        slices_left: u32::MAX,
    });
    proptest::collection::vec(thread, 2..9)
}

proptest! {
    /// The header's promise: nobody gets further ahead of whoever waits than
    /// `lead` and two slices, so the wait is at most (n - 1) times that.
    #[test]
    fn nobody_waits_longer_than_the_bound(
        threads in threads(),
        aggregate: bool,
        turn_slices in 1..12_u64,
        lead_slices in 0..12_u64,
    ) {
        let slice_ns = 3 * MS;
        let limits = Limits {
            slice_ns,
            turn_ns: turn_slices * slice_ns,
            lead_ns: lead_slices * slice_ns,
            aggregate,
        };
        let started = threads.iter().map(|thread| thread.vtime).max().unwrap_or(0);
        let bound = share::ahead_at_most(limits.lead_ns, slice_ns, 100);
        let mut cpu = Cpu::new(limits, threads);
        let mut running = cpu.next(None);
        for _ in 0..600 {
            let mut thread = running.unwrap();
            cpu.run(&mut thread);
            // At the beginning they may lie apart already.
            if thread.vtime > started {
                for other in cpu.waiting().filter(|other| other.vtime >= started) {
                    prop_assert!(thread.vtime <= other.vtime + bound);
                }
            }
            running = cpu.next(Some(thread));
        }
    }

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

/// What a thread that always computes had of a CPU.
#[derive(Debug, Clone, Copy, Default)]
struct Had {
    share: f64,
    ran_last_ns: u64,
    waited_ns: u64,
}

/// Of threads with these weights, each a program of its own, over some minutes.
fn shares(weights: &[u64], aggregate: bool) -> Vec<Had> {
    const SLICES: u32 = 60_000;
    let limits = Limits {
        slice_ns: 3 * MS,
        turn_ns: 24 * MS,
        lead_ns: 24 * MS,
        aggregate,
    };
    let threads = ('a'..).zip(weights).map(|(name, &weight)| Thread {
        name,
        mm: u64::from(name) << 20,
        vtime: 0,
        weight,
        slices_left: u32::MAX,
    });
    let mut cpu = Cpu::new(limits, threads.collect());
    let mut had = vec![Had::default(); weights.len()];
    let mut running = cpu.next(None);
    for _ in 0..SLICES {
        let mut thread = running.unwrap();
        let of_it = &mut had[thread.name as usize - 'a' as usize];
        of_it.waited_ns = of_it.waited_ns.max(cpu.now_ns - of_it.ran_last_ns);
        cpu.run(&mut thread);
        of_it.share += 1.0 / f64::from(SLICES);
        of_it.ran_last_ns = cpu.now_ns;
        running = cpu.next(Some(thread));
    }
    had
}

#[test]
fn a_thread_has_what_its_weight_is_due() {
    for aggregate in [false, true] {
        // Nice 5, 15 and -20 beside nice 0, as scx.weight has them.
        for other in [33, 3, 8668] {
            let has = shares(&[100, other], aggregate)[1].share;
            let due = other as f64 / (100 + other) as f64;
            let off = if other == 3 { 0.35 } else { 0.05 };
            assert!((has / due - 1.0).abs() < off, "{other}: {has} of {due}");
        }
        // Nice 19 is due a hundredth.
        let has = shares(&[100, 1], aggregate)[1].share;
        assert!((0.01..0.03).contains(&has), "{has}");
    }
}

/// The kernel takes all threads back when one has waited for 30 s.
#[test]
fn the_lightest_waits_for_seconds_beside_the_heaviest() {
    // Nice 19 and -20, and the latter in a cgroup of the greatest weight.
    for heavy in [&[8668][..], &[8668; 7], &[866_800], &[8668, 866_800, 100]] {
        let weights: Vec<u64> = [1].iter().chain(heavy).copied().collect();
        for aggregate in [false, true] {
            let had = shares(&weights, aggregate);
            assert!((had[0].waited_ns as f64) < 12e9, "{heavy:?}: {had:?}");
        }
    }
}

/// Nor does it beside those that come when it is far ahead of the others already.
#[test]
fn nobody_waits_for_long_whoever_comes_later() {
    for later in [&[8668; 3][..], &[866_800], &[866_800, 8668, 866_800]] {
        for aggregate in [false, true] {
            let limits = Limits {
                slice_ns: 3 * MS,
                turn_ns: 24 * MS,
                lead_ns: 24 * MS,
                aggregate,
            };
            let thread = |name: char, weight| Thread {
                name,
                mm: u64::from(name) << 20,
                vtime: 0,
                weight,
                slices_left: u32::MAX,
            };
            let mut cpu = Cpu::new(limits, vec![thread('a', 1), thread('b', 100)]);
            let mut ran_last_ns = [cpu.now_ns; 5];
            let mut running = cpu.next(None);
            for slice in 0..40_000 {
                if slice == 9 {
                    for (name, &weight) in ('c'..).zip(later) {
                        let vtime = cpu.hall.clock();
                        cpu.join(Thread {
                            vtime,
                            ..thread(name, weight)
                        });
                    }
                }
                let mut thread = running.unwrap();
                let ran_last_ns = &mut ran_last_ns[thread.name as usize - 'a' as usize];
                let waited_ns = cpu.now_ns - *ran_last_ns;
                assert!(
                    waited_ns < 15_000 * MS,
                    "{later:?}: {thread:?}, {waited_ns}"
                );
                cpu.run(&mut thread);
                *ran_last_ns = cpu.now_ns;
                running = cpu.next(Some(thread));
            }
            let waited_ns = ran_last_ns.map(|ran_ns| cpu.now_ns - ran_ns);
            let last = &waited_ns[..2 + later.len()];
            assert!(
                last.iter().all(|&ns| ns < 15_000 * MS),
                "{later:?}: {last:?}"
            );
        }
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
