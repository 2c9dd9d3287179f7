// SPDX-License-Identifier: GPL-2.0-only
//! Who is next: paper 4's example, and the bound on how long anybody waits, on a
//! CPU that is played here by the rules alone.

use proptest::prelude::*;

use super::{
    Moment, NEXT_SAME, SPACES, Space, rules_ahead_at_most, rules_alone_at, rules_average_of,
    rules_first_of_seat, rules_is_late, rules_is_urgent, rules_join_at, rules_join_space,
    rules_leave_space, rules_space_of, rules_virtual_ns, rules_wake_at, rules_weight_in,
    rules_who_is_next, rules_within_group,
};

#[derive(Debug, Clone)]
struct Thread {
    name: char,
    mm: u64,
    vtime: u64,
    weight: u64,
    slices_left: u32,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    slice_ns: u64,
    turn_ns: u64,
    lead_ns: u64,
    aggregate: bool,
}

/// One CPU with its queues.
struct Cpu {
    limits: Limits,
    spaces: [Space; SPACES],
    queues: Vec<Vec<Thread>>,
    now_ns: u64,
    turn_mm: u64,
    turn_began_ns: u64,
}

impl Cpu {
    fn new(limits: Limits, threads: Vec<Thread>) -> Self {
        let mut cpu = Self {
            limits,
            spaces: [Space::default(); SPACES],
            queues: vec![Vec::new(); SPACES],
            now_ns: 1,
            turn_mm: 0,
            turn_began_ns: 0,
        };
        threads.into_iter().for_each(|thread| cpu.join(thread));
        cpu
    }

    fn at(&self, mm: u64) -> usize {
        // SAFETY: the header reads the array that is given.
        unsafe { rules_space_of(self.spaces.as_ptr(), mm) as usize }
    }

    /// Into its queue, which is by virtual time, as the kernel's is.
    fn join(&mut self, mut thread: Thread) {
        let Limits {
            slice_ns, lead_ns, ..
        } = self.limits;
        let mut least = 0;
        // SAFETY: the array is read, the number is written.
        unsafe {
            if rules_first_of_seat(self.spaces.as_ptr(), 0, &mut least) {
                let ahead_ns = rules_ahead_at_most(lead_ns, slice_ns, thread.weight);
                thread.vtime = rules_join_at(thread.vtime, least, ahead_ns);
            }
        }
        let mm = if self.limits.aggregate { thread.mm } else { 0 };
        let at = self.at(mm);
        // SAFETY: the space is this array's, and nobody else's.
        unsafe { rules_join_space(&mut self.spaces[at], mm, 0, thread.vtime) };
        let queue = &mut self.queues[at];
        let behind = queue.partition_point(|other| other.vtime <= thread.vtime);
        queue.insert(behind, thread);
    }

    /// The first of a queue runs, and only now counts as one that waits no more; `prev`
    /// has come to wait before.
    fn take(&mut self, at: usize, prev: Option<Thread>) -> Thread {
        let thread = self.queues[at].remove(0);
        prev.into_iter().for_each(|prev| self.join(prev));
        let first = self.queues[at].first().unwrap_or(&thread).vtime;
        // SAFETY: the space is this array's, and nobody else's.
        unsafe { rules_leave_space(&mut self.spaces[at], first) };
        thread
    }

    /// Who runs after `prev`, which has had its slice.
    fn next(&mut self, prev: Option<Thread>) -> Option<Thread> {
        let own = match self.limits.aggregate {
            true => self.at(self.turn_mm) as u32,
            false => SPACES as u32,
        };
        let mut moment = Moment {
            began_ns: self.turn_began_ns,
            turn_ns: self.limits.turn_ns,
            lead_ns: self.limits.lead_ns,
            now_ns: self.now_ns,
            has_prev: u32::from(prev.is_some()),
            aggregate: u32::from(self.limits.aggregate),
            prev_vtime: prev.as_ref().map_or(0, |prev| prev.vtime),
            own,
            not: 0,
            hindmost: 0,
            unused: 0,
        };
        let mut queue = 0;
        // SAFETY: all are laid out as the header has them.
        let next = unsafe { rules_who_is_next(&mut moment, self.spaces.as_ptr(), &mut queue) };
        if next == NEXT_SAME {
            return prev;
        }
        if queue as usize == SPACES {
            return None;
        }
        let next = self.take(queue as usize, prev);
        if next.mm != self.turn_mm {
            (self.turn_mm, self.turn_began_ns) = (next.mm, self.now_ns);
        }
        Some(next)
    }

    fn run(&mut self, thread: &mut Thread) {
        self.now_ns += self.limits.slice_ns;
        // SAFETY: numbers alone.
        thread.vtime += unsafe { rules_virtual_ns(self.limits.slice_ns, thread.weight) };
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
        // SAFETY: numbers alone.
        let bound = unsafe { rules_ahead_at_most(limits.lead_ns, slice_ns, 100) };
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
        let clock = since.wrapping_add(20);
        let mut spaces = [Space::default(); SPACES];
        for (space, (vtime, waiting)) in spaces.iter_mut().zip(&queues) {
            space.least = since.wrapping_add_signed(*vtime);
            space.waiting = *waiting;
        }
        let threads = |(vtime, waiting): &(i64, u32)| vec![vtime - 20; *waiting as usize];
        let ahead: Vec<i64> = queues.iter().flat_map(threads).collect();
        let due = ahead.iter().sum::<i64>() / ahead.len().max(1) as i64;
        // SAFETY: the array is read.
        let average = unsafe { rules_average_of(spaces.as_ptr(), clock) };
        prop_assert_eq!(average.wrapping_sub(clock), due.max(0) as u64);
    }

    #[test]
    fn an_address_space_has_one_queue_while_it_waits(
        mms in proptest::collection::vec(0..200_u64, 1..40),
    ) {
        let mut spaces = [Space::default(); SPACES];
        for mm in mms.iter().map(|mm| (mm + 1) << 6) {
            // SAFETY: the array and its entries are nobody else's.
            let (first, again) = unsafe {
                let first = rules_space_of(spaces.as_ptr(), mm) as usize;
                let shares = spaces[first].waiting > 0;
                rules_join_space(&mut spaces[first], mm, 0, 0);
                (first, if shares { first } else { rules_space_of(spaces.as_ptr(), mm) as usize })
            };
            prop_assert!(first < SPACES);
            prop_assert_eq!(first, again);
        }
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
    for aggregate in [false, true] {
        let had = shares(&[1, 8668], aggregate);
        assert!((had[0].waited_ns as f64) < 12e9, "{had:?}");
    }
}

#[test]
fn time_alone_is_not_owed() {
    // SAFETY: numbers alone.
    let alone = |vtime| unsafe { rules_alone_at(vtime, 100 * MS) };
    assert_eq!(
        [alone(97 * MS), alone(100 * MS), alone(9000 * MS)],
        [97 * MS, 100 * MS, 100 * MS]
    );
}

#[test]
fn weight_slows_virtual_time() {
    // SAFETY: numbers alone.
    let virtual_ns = |weight| unsafe { rules_virtual_ns(6 * MS, weight) };
    assert_eq!(
        [virtual_ns(100), virtual_ns(200), virtual_ns(50)],
        [6 * MS, 3 * MS, 12 * MS]
    );
    assert_eq!(virtual_ns(0), 600 * MS);
}

#[test]
fn whoever_slept_is_owed_a_slice_and_no_more() {
    // SAFETY: numbers alone.
    let wake = |vtime| unsafe { rules_wake_at(vtime, 100 * MS, 3 * MS) };
    assert_eq!(
        [wake(0), wake(98 * MS), wake(105 * MS)],
        [97 * MS, 98 * MS, 105 * MS]
    );
}

#[test]
fn urgent_are_short_bursts_within_their_share() {
    // SAFETY: numbers alone.
    let urgent = |burst, vtime| unsafe { rules_is_urgent(burst, vtime, 100 * MS) };
    assert!(urgent(MS / 10, 99 * MS));
    assert!(urgent(MS - 1, 99 * MS));
    assert!(!urgent(MS, 99 * MS));
    assert!(!urgent(MS / 10, 100 * MS));
}

#[test]
fn weights_of_cgroups_multiply_that_of_a_thread() {
    // SAFETY: numbers alone.
    let within = |percent, weight| unsafe { rules_within_group(percent, weight) };
    assert_eq!(
        [within(100, 0), within(100, 100), within(100, 250)],
        [100, 100, 250]
    );
    assert_eq!(within(within(100, 50), 50), 25);
    assert_eq!([within(1, 1), within(1_000_000, 10_000)], [1, 1_000_000]);
    // SAFETY: numbers alone.
    let weight = |weight, percent| unsafe { rules_weight_in(weight, percent) };
    assert_eq!(
        [weight(100, 0), weight(100, 300), weight(36, 50)],
        [100, 300, 18]
    );
    assert_eq!(weight(1, 1), 1, "nobody's time stands still");
}

#[test]
fn urgent_threads_do_not_come_first_for_ever() {
    // SAFETY: numbers alone.
    let late = |now| unsafe { rules_is_late(10 * MS, now, 24 * MS) };
    assert_eq!([late(34 * MS), late(35 * MS)], [false, true]);
}

/// Though it has had much more elsewhere, a thread waits for a turn of the others
/// of its seat, and no longer.
#[test]
fn whoever_comes_from_elsewhere_waits_for_a_turn() {
    let mut spaces = [Space::default(); SPACES];
    for (at, seat, vtime) in [(3, 7, 50), (9, 7, 40), (20, 8, 10)] {
        // SAFETY: the array and its entries are nobody else's.
        unsafe { rules_join_space(&mut spaces[at], at as u64 + 1, seat, vtime * MS) };
    }
    let first = |seat| {
        let mut least = 0;
        // SAFETY: the array is read, the number is written.
        let found = unsafe { rules_first_of_seat(spaces.as_ptr(), seat, &mut least) };
        found.then_some(least)
    };
    assert_eq!(
        [first(7), first(8), first(9)],
        [Some(40 * MS), Some(10 * MS), None]
    );
    // SAFETY: numbers alone.
    let join = |vtime| unsafe { rules_join_at(vtime, 40 * MS, 24 * MS) };
    assert_eq!(
        [join(900 * MS), join(60 * MS), join(0)],
        [64 * MS, 60 * MS, 0]
    );
}
