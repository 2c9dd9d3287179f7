// SPDX-License-Identifier: GPL-2.0-only
//! Linux 2.6's order: keys and who_is_next on one CPU, against two arrays of lists;
//! paper 4's example; slices and levels by hand.

use std::mem;

use proptest::prelude::*;

use super::{
    Moment, NEXT_SAME, SPACES, Space, levels_after_run, levels_after_sleep,
    levels_has_better_level, levels_is_interactive, levels_is_starving, levels_key_at,
    levels_key_elsewhere, levels_key_expired, levels_key_preempted, levels_level_of,
    levels_of_child, levels_slice, rules_join_space, rules_leave_space, rules_space_of,
    rules_who_is_next,
};
use crate::Settings;

const LEVELS: usize = 140;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Thread {
    name: char,
    mm: u64,
    level: u32,
}

/// What one CPU is to do with its threads.
trait Scheduler {
    fn wake(&mut self, thread: Thread);
    /// The one that runs has used up its slice, and has this level now.
    fn expire(&mut self, level: u32, interactive: bool);
    fn sleep(&mut self);
    fn running(&self) -> Option<Thread>;
}

/// Two arrays of lists, as Linux 2.6 had them: who runs stays in its list.
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

    /// The level of each thread of the active array, one better for those that share
    /// the address space that runs; of a level, who came first.
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

    fn sleep(&mut self) {
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
    settings: Settings,
    spaces: [Space; SPACES],
    queues: Vec<Vec<(Thread, u64)>>,
    clock: u64,
    arrivals: u64,
    running: Option<(Thread, u64)>,
    mm: u64,
}

impl Keys {
    fn new(cure: bool, clock: u64) -> Self {
        Self {
            settings: Settings::of_linux_26(cure),
            spaces: [Space::default(); SPACES],
            queues: vec![Vec::new(); SPACES],
            clock,
            arrivals: 0,
            running: None,
            mm: 0,
        }
    }

    fn arrive(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    fn at(&self, mm: u64) -> usize {
        // SAFETY: the header reads the array that is given.
        unsafe { rules_space_of(self.spaces.as_ptr(), mm) as usize }
    }

    fn join(&mut self, (thread, key): (Thread, u64)) {
        let mm = match self.settings.aggregate {
            true => thread.mm,
            false => 0,
        };
        let at = self.at(mm);
        // SAFETY: the space is this array's, and nobody else's.
        unsafe { rules_join_space(&mut self.spaces[at], mm, 0, key) };
        let queue = &mut self.queues[at];
        let behind = queue.partition_point(|(_, other)| (other.wrapping_sub(key) as i64) <= 0);
        queue.insert(behind, (thread, key));
    }

    fn leave(&mut self, at: usize) -> (Thread, u64) {
        let (thread, key) = self.queues[at].remove(0);
        let first = self.queues[at].first().map_or(key, |(_, first)| *first);
        // SAFETY: the space is this array's, and nobody else's.
        unsafe { rules_leave_space(&mut self.spaces[at], first) };
        (thread, key)
    }

    fn advance(&mut self, key: u64) {
        if (self.clock.wrapping_sub(key) as i64) < 0 {
            self.clock = key;
        }
    }

    fn begin(&mut self, (thread, key): (Thread, u64)) {
        if self.queues.iter().all(Vec::is_empty) {
            self.advance(key);
        }
        self.mm = thread.mm;
        self.running = Some((thread, key));
    }

    /// What the CPU asks with that thread still on it.
    fn next(&mut self, prev: Option<(Thread, u64)>) {
        let own = match self.settings.aggregate {
            true => self.at(self.mm),
            false => SPACES,
        };
        let mut moment = Moment {
            began_ns: 0,
            turn_ns: self.settings.turn_ns,
            lead_ns: self.settings.lead_ns,
            now_ns: 1,
            has_prev: u32::from(prev.is_some()),
            aggregate: u32::from(self.settings.aggregate),
            prev_vtime: prev.map_or(0, |(_, key)| key),
            own: own as u32,
            not: 0,
            hindmost: 0,
            unused: 0,
        };
        let mut at = 0;
        // SAFETY: all are laid out as the header has them.
        let next = unsafe { rules_who_is_next(&mut moment, self.spaces.as_ptr(), &mut at) };
        self.running = None;
        if next == NEXT_SAME {
            prev.into_iter().for_each(|(_, key)| self.advance(key));
            return prev.into_iter().for_each(|prev| self.begin(prev));
        }
        if at as usize == SPACES {
            return;
        }
        self.advance(self.spaces[moment.hindmost as usize].least);
        let next = self.leave(at as usize);
        prev.into_iter().for_each(|prev| self.join(prev));
        self.begin(next);
    }
}

impl Scheduler for Keys {
    fn wake(&mut self, thread: Thread) {
        let arrival = self.arrive();
        // SAFETY: numbers alone.
        let key = unsafe { levels_key_at(self.clock, thread.level, arrival) };
        let Some((running, its)) = self.running else {
            return self.begin((thread, key));
        };
        self.join((thread, key));
        let same = thread.mm == running.mm;
        // SAFETY: numbers alone.
        let (preempts, its) = unsafe {
            (
                levels_has_better_level(key, its, same, self.settings.aggregate),
                levels_key_preempted(its, self.clock),
            )
        };
        if preempts {
            self.next(Some((running, its)));
        }
    }

    fn expire(&mut self, level: u32, interactive: bool) {
        let Some((thread, key)) = self.running else {
            return;
        };
        let arrival = self.arrive();
        // SAFETY: numbers alone.
        let key = unsafe {
            match interactive {
                true => levels_key_at(self.clock, level, arrival),
                false => levels_key_expired(key, self.clock, level, arrival),
            }
        };
        self.next(Some((Thread { level, ..thread }, key)));
    }

    fn sleep(&mut self) {
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
    /// Of the thread of that number, if it sleeps.
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

/// All levels, or few of them, so that many are of the same.
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

/// Who runs after each event.
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
                scheduler.sleep();
            }
        }
        ran.push(scheduler.running());
    }
    ran
}

proptest! {
    /// Also where the numbers of arrays overflow, and after many arrivals.
    #[test]
    fn keys_are_in_the_order_of_two_arrays_of_lists(
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
    for ((name, space), level) in threads.zip([120, 121, 121, 121, 122]) {
        let mm = space << 20;
        scheduler.wake(Thread { name, mm, level });
    }
    let mut ran: Vec<Thread> = Vec::new();
    while let Some(thread) = scheduler.running() {
        ran.push(thread);
        scheduler.sleep();
    }
    let switches = ran.windows(2).filter(|pair| pair[0].mm != pair[1].mm);
    (
        ran.iter().map(|thread| thread.name).collect(),
        switches.count(),
    )
}

#[test]
fn the_papers_example() {
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
    // SAFETY: numbers alone.
    let slice = |nice: i32| unsafe { levels_slice(120 + nice) } / MS;
    assert_eq!(
        [-20, -1, 0, 10, 19].map(slice),
        [800, 420, 100, 50, 5],
        "ms"
    );
    assert_eq!([slice(-50), slice(50)], [800, 5], "no nice values");
}

#[test]
fn sleep_moves_a_thread_by_five_levels() {
    // SAFETY: numbers alone.
    let level = |nice: i32, sleep_ms: u64| unsafe { levels_level_of(120 + nice, sleep_ms * MS) };
    assert_eq!(
        [0, 99, 100, 500, 1000, 9000].map(|sleep_ms| level(0, sleep_ms)),
        [125, 125, 124, 120, 115, 115]
    );
    assert_eq!([level(19, 0), level(-20, 1000)], [139, 100]);
}

#[test]
fn it_takes_more_to_be_interactive_with_a_worse_nice_value() {
    // SAFETY: numbers alone.
    let interactive = |nice, sleep_ns| unsafe { levels_is_interactive(120 + nice, sleep_ns) };
    let least = |nice: i32| (0..=10).find(|tenth| interactive(nice, tenth * 100 * MS));
    assert_eq!(
        [-20, -10, 0, 5, 19].map(least),
        [Some(2), Some(4), Some(7), Some(8), None]
    );
}

#[test]
fn sleep_is_remembered_for_a_second() {
    // SAFETY: numbers alone.
    let slept = |average, ms| unsafe { levels_after_sleep(average * MS, ms * MS, 120) } / MS;
    assert_eq!(
        [slept(100, 50), slept(990, 50), slept(900, 5000)],
        [150, 1000, 1000]
    );
    assert_eq!(slept(0, 5000), 799, "just interactive");
    // SAFETY: numbers alone.
    let ran = |average, ms| unsafe { levels_after_run(average * MS, ms * MS) } / MS;
    assert_eq!([ran(1000, 100), ran(500, 100)], [990, 480]);
    assert_eq!([ran(50, 10), ran(50, 100), ran(0, 5000)], [40, 0, 0]);
    // SAFETY: numbers alone.
    assert_eq!(unsafe { levels_of_child(SECOND) }, 950 * MS);
}

#[test]
fn the_expired_wait_for_a_second_each_and_ten_at_most() {
    // SAFETY: numbers alone.
    let starving = |waiting, now| unsafe { levels_is_starving(SECOND, now, waiting) };
    assert_eq!(
        [starving(3, 4 * SECOND), starving(3, 4 * SECOND + 1)],
        [false, true]
    );
    assert_eq!(
        [starving(400, 11 * SECOND), starving(400, 11 * SECOND + 1)],
        [false, true]
    );
}

/// To another LLC, whose arrays have other numbers.
#[test]
fn whoever_moves_stays_active_or_expired() {
    let (there, here) = (7_u64 << 48, 0xffff_u64 << 48);
    // SAFETY: numbers alone.
    let key = |array, arrival| unsafe { levels_key_at(array, 121, arrival) };
    // SAFETY: numbers alone.
    let moved = |key| unsafe { levels_key_elsewhere(key, there, here, 3) };
    assert_eq!(moved(key(there, 90)), key(here, 3));
    assert_eq!(moved(key(there + (1 << 48), 90)), key(0, 3));
    // SAFETY: numbers alone.
    let late = unsafe { levels_key_preempted(key(there, 90), there + (1 << 48)) };
    assert_eq!(late, key(there + (1 << 48), 90), "its array is swapped out");
}
