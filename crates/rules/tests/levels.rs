// SPDX-License-Identifier: MIT OR Apache-2.0
//! Order of Linux 2.6: keys and pick_next on one CPU, compared with two arrays of lists; paper 4's
//! example; slices and levels computed by hand.

#![allow(clippy::unwrap_used)]

use std::mem;

use proptest::prelude::*;
use usher_rules::levels::{self, LEVEL};
use usher_rules::run_queue::{HeadSkip, LlcRunQueue, MM_QUEUES_PER_LLC, NewWaiter, Next, PickCtx};

const LEVELS: usize = 140;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Thread {
    name: char,
    mm: u64,
    level: u32,
}

/// A scheduler of one CPU.
trait Scheduler {
    fn wake(&mut self, thread: Thread);
    /// The running thread has used up its slice. `level`: its new level.
    fn expire(&mut self, level: u32, interactive: bool);
    fn block(&mut self);
    fn running(&self) -> Option<Thread>;
}

/// Two arrays of lists, as in Linux 2.6: the running thread stays in its list.
struct Lists {
    cure: bool,
    active: Vec<Vec<(Thread, usize)>>,
    expired: Vec<Vec<(Thread, usize)>>,
    arrivals: usize,
    running: Option<Thread>,
    mm: u64,
}

impl Lists {
    fn new(cure: bool) -> Self {
        Self {
            cure,
            active: vec![Vec::new(); LEVELS],
            expired: vec![Vec::new(); LEVELS],
            arrivals: 0,
            running: None,
            mm: 0,
        }
    }

    fn has_bonus(&self, thread: &Thread) -> bool {
        self.cure && thread.mm == self.mm
    }

    /// Selects from the active array by level, then by arrival. Levels of threads that share the
    /// running address space are better by one.
    fn pick(&mut self) {
        if self.active.iter().all(Vec::is_empty) {
            mem::swap(&mut self.active, &mut self.expired);
        }
        let mut best: Option<(i32, usize, Thread)> = None;
        for (level, list) in self.active.iter().enumerate() {
            for &(thread, arrival) in list {
                let level = level as i32 - i32::from(self.has_bonus(&thread));
                if best.is_none_or(|(first, came, _)| (level, arrival) < (first, came)) {
                    best = Some((level, arrival, thread));
                }
            }
        }
        self.running = best.map(|(_, _, thread)| thread);
        self.mm = self.running.map_or(self.mm, |thread| thread.mm);
    }

    fn take_out(&mut self) -> Option<Thread> {
        let running = self.running.take()?;
        for list in &mut self.active {
            list.retain(|(thread, _)| thread.name != running.name);
        }
        Some(running)
    }
}

impl Scheduler for Lists {
    fn wake(&mut self, thread: Thread) {
        self.arrivals += 1;
        self.active[thread.level as usize].push((thread, self.arrivals));
        let preempts = |running: Thread| {
            thread.level as i32 - i32::from(self.has_bonus(&thread))
                < running.level as i32 - i32::from(self.has_bonus(&running))
        };
        if self.running.is_none_or(preempts) {
            self.pick();
        }
    }

    fn expire(&mut self, level: u32, interactive: bool) {
        let Some(thread) = self.take_out() else {
            return;
        };
        self.arrivals += 1;
        let array = match interactive {
            true => &mut self.active,
            false => &mut self.expired,
        };
        array[level as usize].push((Thread { level, ..thread }, self.arrivals));
        self.pick();
    }

    fn block(&mut self) {
        if self.take_out().is_some() {
            self.pick();
        }
    }

    fn running(&self) -> Option<Thread> {
        self.running
    }
}

/// The keys, in the queues of an LLC.
struct Keys {
    cure: bool,
    llc_rq: LlcRunQueue,
    queues: Vec<Vec<(Thread, u64)>>,
    arrivals: u64,
    running: Option<(Thread, u64)>,
    mm: u64,
}

impl Keys {
    fn new(cure: bool, clock: u64) -> Self {
        let mut llc_rq = LlcRunQueue::default();
        // Each step is less than half of the number range.
        llc_rq.advance(clock / 2);
        llc_rq.advance(clock);
        Self {
            cure,
            llc_rq,
            queues: vec![Vec::new(); MM_QUEUES_PER_LLC],
            arrivals: 0,
            running: None,
            mm: 0,
        }
    }

    fn arrive(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    fn join(&mut self, (thread, key): (Thread, u64)) {
        let mm = match self.cure {
            true => thread.mm,
            false => 0,
        };
        let waiter = NewWaiter {
            mm,
            vtime: key,
            ..NewWaiter::default()
        };
        let queue = &mut self.queues[self.llc_rq.join(&waiter)];
        let behind = queue.partition_point(|(_, other)| (other.wrapping_sub(key) as i64) <= 0);
        queue.insert(behind, (thread, key));
    }

    fn leave(&mut self, at: usize) -> (Thread, u64) {
        let (thread, key) = self.queues[at].remove(0);
        let first = self.queues[at].first().map_or(key, |(_, first)| *first);
        self.llc_rq.leave(at, first);
        (thread, key)
    }

    fn begin(&mut self, (thread, key): (Thread, u64)) {
        if self.queues.iter().all(Vec::is_empty) {
            self.llc_rq.advance(key);
        }
        self.mm = thread.mm;
        self.running = Some((thread, key));
    }

    /// Selects with `prev` still on the CPU.
    fn next(&mut self, prev: Option<(Thread, u64)>) {
        let own = match self.cure {
            true => self.llc_rq.queue_of(self.mm),
            false => MM_QUEUES_PER_LLC,
        };
        let mut ctx = PickCtx {
            turn_ns: u64::MAX,
            max_lag_ns: LEVEL,
            now_ns: 1,
            has_prev: u32::from(prev.is_some()),
            aggregate: u32::from(self.cure),
            prev_vtime: prev.map_or(0, |(_, key)| key),
            own: own as u32,
            ..PickCtx::default()
        };
        let next = self.llc_rq.pick_next(&mut ctx, &HeadSkip::default());
        self.running = None;
        match next {
            Next::Same => prev.into_iter().for_each(|(thread, key)| {
                self.llc_rq.advance(key);
                self.begin((thread, key));
            }),
            Next::NoneWaiting => {}
            Next::Queue(at) => {
                let next = self.leave(at);
                prev.into_iter().for_each(|prev| self.join(prev));
                self.begin(next);
            }
        }
    }
}

impl Scheduler for Keys {
    fn wake(&mut self, thread: Thread) {
        let arrival = self.arrive();
        let key = levels::key_at(self.llc_rq.clock(), thread.level, arrival);
        let Some((running, its)) = self.running else {
            return self.begin((thread, key));
        };
        self.join((thread, key));
        let same = thread.mm == running.mm;
        let preempts = levels::has_better_level(key, its, same, self.cure);
        let its = levels::key_preempted(its, self.llc_rq.clock());
        if preempts {
            self.next(Some((running, its)));
        }
    }

    fn expire(&mut self, level: u32, interactive: bool) {
        let Some((thread, key)) = self.running else {
            return;
        };
        let arrival = self.arrive();
        let key = match interactive {
            true => levels::key_at(self.llc_rq.clock(), level, arrival),
            false => levels::key_expired(key, self.llc_rq.clock(), level, arrival),
        };
        self.next(Some((Thread { level, ..thread }, key)));
    }

    fn block(&mut self) {
        if self.running.is_some() {
            self.next(None);
        }
    }

    fn running(&self) -> Option<Thread> {
        self.running.map(|(thread, _)| thread)
    }
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// Wakes the thread of this number, if it sleeps.
    Wake(usize, u32),
    Expire(u32, bool),
    Sleep,
}

const THREADS: usize = 9;

fn thread(at: usize, level: u32) -> Thread {
    Thread {
        name: (b'A' + at as u8) as char,
        mm: (at as u64 % 3 + 1) << 20,
        level,
    }
}

/// All levels, or a few of them, so that levels often coincide.
fn level() -> impl Strategy<Value = u32> {
    prop_oneof![0..LEVELS as u32, 118..122_u32]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..THREADS, level()).prop_map(|(at, level)| Event::Wake(at, level)),
        3 => (level(), proptest::bool::weighted(0.2)).prop_map(|(level, stays)| Event::Expire(level, stays)),
        1 => Just(Event::Sleep),
    ]
}

/// Returns the running thread after each event.
fn order(scheduler: &mut dyn Scheduler, events: &[Event]) -> Vec<Option<Thread>> {
    let mut awake = [false; THREADS];
    let mut ran = Vec::new();
    for event in events {
        match *event {
            Event::Wake(at, _) if awake[at] => {}
            Event::Wake(at, level) => {
                awake[at] = true;
                scheduler.wake(thread(at, level));
            }
            Event::Expire(level, stays) => scheduler.expire(level, stays),
            Event::Sleep => {
                if let Some(thread) = scheduler.running() {
                    awake[usize::from(thread.name as u8 - b'A')] = false;
                }
                scheduler.block();
            }
        }
        ran.push(scheduler.running());
    }
    ran
}

proptest! {
    /// Also where the numbers of arrays overflow, and after many arrivals.
    #[test]
    fn keys_order_like_two_arrays_of_lists(
        cure: bool,
        events in proptest::collection::vec(event(), 1..120),
        arrays in prop_oneof![Just(0_u64), Just(0xffff), 0x7ff0..0x8010_u64],
        arrivals in prop_oneof![Just(0_u64), 0..1_u64 << 39],
    ) {
        let mut keys = Keys::new(cure, arrays << 48);
        keys.arrivals = arrivals;
        let by_keys = order(&mut keys, &events);
        prop_assert_eq!(by_keys, order(&mut Lists::new(cure), &events));
    }
}

/// A, C and D share an address space; each runs once.
fn example(scheduler: &mut dyn Scheduler) -> (String, usize) {
    let threads = "ABCDE".chars().zip([1, 2, 1, 1, 2]);
    for ((name, program), level) in threads.zip([120, 121, 121, 121, 122]) {
        let mm = program << 20;
        scheduler.wake(Thread { name, mm, level });
    }
    let mut ran: Vec<Thread> = Vec::new();
    while let Some(thread) = scheduler.running() {
        ran.push(thread);
        scheduler.block();
    }
    let switches = ran.windows(2).filter(|pair| pair[0].mm != pair[1].mm);
    (
        ran.iter().map(|thread| thread.name).collect(),
        switches.count(),
    )
}

#[test]
fn order_matches_the_papers_example() {
    for (cure, expected) in [(false, ("ABCDE", 3)), (true, ("ACDBE", 1))] {
        let expected = (expected.0.to_owned(), expected.1);
        assert_eq!(example(&mut Lists::new(cure)), expected);
        assert_eq!(example(&mut Keys::new(cure, 0)), expected);
    }
}

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

#[test]
fn slices_are_by_nice_value() {
    let slice = |nice: i32| levels::slice_of(120 + nice) / MS;
    assert_eq!(
        [-20, -1, 0, 10, 19].map(slice),
        [800, 420, 100, 50, 5],
        "ms"
    );
    assert_eq!([slice(-50), slice(50)], [800, 5], "no nice values");
}

#[test]
fn sleep_shifts_level_by_at_most_five() {
    let level = |nice: i32, sleep_ms: u64| levels::level_of(120 + nice, sleep_ms * MS);
    assert_eq!(
        [0, 99, 100, 500, 1000, 9000].map(|sleep_ms| level(0, sleep_ms)),
        [125, 125, 124, 120, 115, 115]
    );
    assert_eq!([level(19, 0), level(-20, 1000)], [139, 100]);
}

#[test]
fn higher_nice_value_needs_more_sleep_to_be_interactive() {
    let interactive = |nice, sleep_ns| levels::is_interactive(120 + nice, sleep_ns);
    let least = |nice: i32| (0..=10).find(|tenth| interactive(nice, tenth * 100 * MS));
    assert_eq!(
        [-20, -10, 0, 5, 19].map(least),
        [Some(2), Some(4), Some(7), Some(8), None]
    );
}

#[test]
fn sleep_average_is_capped_at_a_second() {
    let slept = |average, ms| levels::average_after_sleep(average * MS, ms * MS, 120) / MS;
    assert_eq!(
        [slept(100, 50), slept(990, 50), slept(900, 5000)],
        [150, 1000, 1000]
    );
    assert_eq!(slept(0, 5000), 799, "just interactive");
    let ran = |average, ms| levels::average_after_run(average * MS, ms * MS) / MS;
    assert_eq!([ran(1000, 100), ran(500, 100)], [990, 480]);
    assert_eq!([ran(50, 10), ran(50, 100), ran(0, 5000)], [40, 0, 0]);
    assert_eq!(levels::average_of_child(SECOND), 950 * MS);
}

#[test]
fn expired_threads_starve_after_a_second_per_waiter_up_to_ten() {
    let starving = |waiting, now| levels::is_starving(SECOND, now, waiting);
    assert_eq!(
        [starving(3, 4 * SECOND), starving(3, 4 * SECOND + 1)],
        [false, true]
    );
    assert_eq!(
        [starving(400, 11 * SECOND), starving(400, 11 * SECOND + 1)],
        [false, true]
    );
}

/// Migration to an LLC with other numbers of arrays.
#[test]
fn migrated_key_keeps_its_kind_of_array() {
    let (there, here) = (7_u64 << 48, 0xffff_u64 << 48);
    let key = |array, arrival| levels::key_at(array, 121, arrival);
    let moved = |key| levels::key_elsewhere(key, there, here, 3);
    assert_eq!(moved(key(there, 90)), key(here, 3));
    assert_eq!(moved(key(there + (1 << 48), 90)), key(0, 3));
    let late = levels::key_preempted(key(there, 90), there + (1 << 48));
    assert_eq!(late, key(there + (1 << 48), 90), "its array is swapped out");
}
