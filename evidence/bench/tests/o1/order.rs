// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the scheduling decisions of one CPU: random events are given to `arrays.h` and to a
//! simple reference (two arrays of lists), which must select the same threads. A further test runs
//! the example of paper 4.

use std::mem;

use proptest::prelude::*;

use crate::c::{
    self, Candidates, CpuState, LEVEL_FIRST, LEVELS, NEXT_BELOW, NEXT_FIRST, NEXT_NONE, NEXT_PREV,
    NEXT_SHARING, NO_ARRIVAL, ThreadState,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Thread {
    name: char,
    mm: u64,
    level: u32,
}

/// A scheduler of one CPU.
trait Scheduler {
    fn wake(&mut self, thread: Thread);
    /// The running thread has used up its slice. `level` is its new level.
    fn expire(&mut self, level: u32, interactive: bool);
    fn block(&mut self);
    fn running(&self) -> Option<Thread>;
}

/// The reference: two arrays of lists, as in Linux 2.6. The running thread stays in its list.
struct Lists {
    aggregate: bool,
    active: Vec<Vec<(Thread, usize)>>,
    expired: Vec<Vec<(Thread, usize)>>,
    arrivals: usize,
    running: Option<Thread>,
    mm: u64,
}

impl Lists {
    fn new(aggregate: bool) -> Self {
        Self {
            aggregate,
            active: vec![Vec::new(); LEVELS as usize],
            expired: vec![Vec::new(); LEVELS as usize],
            arrivals: 0,
            running: None,
            mm: 0,
        }
    }

    fn has_bonus(&self, thread: &Thread) -> bool {
        self.aggregate && thread.mm == self.mm
    }

    /// Selects the thread with the best level from the active array; of equal levels, the thread
    /// that arrived first. With the improvement of paper 4, the levels of threads of the running
    /// address space are better by one.
    fn pick(&mut self) {
        if self.active.iter().all(Vec::is_empty) {
            mem::swap(&mut self.active, &mut self.expired);
        }
        let mut best: Option<(i32, usize, Thread)> = None;
        for (level, list) in self.active.iter().enumerate() {
            for &(thread, arrival) in list {
                let level = level as i32 - i32::from(self.has_bonus(&thread));
                if best.is_none_or(|(first, first_arrival, _)| {
                    (level, arrival) < (first, first_arrival)
                }) {
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

/// The tested decisions of `arrays.h`, with queues that are ordered by arrival as in the kernel.
struct Arrays {
    aggregate: bool,
    cpu: CpuState,
    queues: [Vec<Vec<(Thread, ThreadState)>>; 2],
    running: Option<(Thread, ThreadState)>,
}

impl Arrays {
    fn new(aggregate: bool, arrivals: u64) -> Self {
        let queues = || vec![Vec::new(); LEVELS as usize];
        Self {
            aggregate,
            cpu: CpuState {
                arrivals,
                ..CpuState::default()
            },
            queues: [queues(), queues()],
            running: None,
        }
    }

    fn placed(&mut self, thread: Thread, array: u32) -> ThreadState {
        self.cpu.arrivals += 1;
        ThreadState {
            arrival: self.cpu.arrivals,
            mm: thread.mm,
            level: thread.level,
            array,
            ..ThreadState::default()
        }
    }

    fn queue(&mut self, array: u32, level: u32) -> &mut Vec<(Thread, ThreadState)> {
        &mut self.queues[array as usize][level as usize]
    }

    fn join(&mut self, (thread, state): (Thread, ThreadState)) {
        self.cpu.levels[state.array as usize] |= c::o1_bit_of(state.level);
        let queue = self.queue(state.array, state.level);
        let behind = queue.partition_point(|(_, other)| other.arrival < state.arrival);
        queue.insert(behind, (thread, state));
    }

    /// Position of the first thread of the running address space in the queue of a level.
    fn sharing(&self, level: u32) -> Option<usize> {
        let queue = self.queues[self.cpu.active as usize].get(level as usize)?;
        queue
            .iter()
            .position(|(thread, _)| thread.mm == self.cpu.mm)
    }

    fn candidates(&self, prev: Option<&ThreadState>) -> Candidates {
        // SAFETY: the argument is a reference, which is a valid pointer.
        let level = unsafe { c::o1_best_level(&self.cpu) };
        let queues = &self.queues[self.cpu.active as usize];
        let arrival = |level: u32, at: Option<usize>| {
            let queue = queues.get(level as usize);
            let thread = at.and_then(|at| queue?.get(at));
            thread.map_or(NO_ARRIVAL, |(_, state)| state.arrival)
        };
        let sharing = |level: u32| arrival(level, self.sharing(level));
        let prev = prev.filter(|prev| prev.array == self.cpu.active);
        Candidates {
            level,
            has_prev: prev.is_some().into(),
            prev_level: prev.map_or(0, |prev| prev.level),
            prev_shares: prev.is_some_and(|prev| prev.mm == self.cpu.mm).into(),
            prev: prev.map_or(0, |prev| prev.arrival),
            first: arrival(level, Some(0)),
            sharing: sharing(level),
            below: sharing(level + 1),
        }
    }

    /// Selects the next thread. `prev` is the running thread, which is still on the CPU.
    fn next(&mut self, prev: Option<(Thread, ThreadState)>) {
        let state = prev.as_ref().map(|(_, state)| state);
        let pointer = state.map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the first argument is a reference; `pointer` is null or points to `prev`, which
        // lives during the call.
        unsafe { c::o1_swap_if_empty(&mut self.cpu, pointer) };
        let of = self.candidates(state);
        // SAFETY: the argument is a reference, which is a valid pointer.
        let next = unsafe { c::o1_choose(&of, self.aggregate) };
        let (level, at) = match next {
            NEXT_NONE => return self.run(None),
            NEXT_PREV => return self.run(prev),
            NEXT_FIRST => (of.level, Some(0)),
            NEXT_SHARING => (of.level, self.sharing(of.level)),
            NEXT_BELOW => (of.level + 1, self.sharing(of.level + 1)),
            other => panic!("choose returned {other}"),
        };
        let active = self.cpu.active;
        let queue = self.queue(active, level);
        let next = queue.remove(at.unwrap());
        if queue.is_empty() {
            self.cpu.levels[active as usize] &= !c::o1_bit_of(level);
        }
        prev.into_iter().for_each(|prev| self.join(prev));
        self.run(Some(next));
    }

    fn run(&mut self, next: Option<(Thread, ThreadState)>) {
        self.running = next;
        self.cpu.level = next.map_or(0, |(_, state)| state.level);
        self.cpu.mm = next.map_or(self.cpu.mm, |(_, state)| state.mm);
    }
}

impl Scheduler for Arrays {
    fn wake(&mut self, thread: Thread) {
        let state = self.placed(thread, self.cpu.active);
        self.join((thread, state));
        // SAFETY: the arguments are references, which are valid pointers.
        let preempts = unsafe { c::o1_preempts(&state, &self.cpu, self.aggregate) };
        match self.running {
            None => self.next(None),
            Some(running) if preempts => self.next(Some(running)),
            Some(_) => {}
        }
    }

    fn expire(&mut self, level: u32, interactive: bool) {
        let Some((thread, _)) = self.running else {
            return;
        };
        let thread = Thread { level, ..thread };
        let array = self.cpu.active ^ u32::from(!interactive);
        let state = self.placed(thread, array);
        self.next(Some((thread, state)));
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
    /// Wakes the thread with this number, if the thread sleeps.
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

/// Draws from all levels or from a few levels, so that two threads often have the same level.
fn level() -> impl Strategy<Value = u32> {
    prop_oneof![LEVEL_FIRST..LEVELS, 118..122_u32]
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
    #[test]
    fn decisions_are_those_of_two_arrays_of_lists(
        aggregate: bool,
        events in proptest::collection::vec(event(), 1..120),
        arrivals in prop_oneof![Just(0_u64), 0..1_u64 << 62],
    ) {
        let mut arrays = Arrays::new(aggregate, arrivals);
        let ran = order(&mut arrays, &events);
        prop_assert_eq!(ran, order(&mut Lists::new(aggregate), &events));
    }
}

/// Runs the example of paper 4: the threads A, C and D share an address space, and each thread runs
/// once.
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
    for (aggregate, expected) in [(false, ("ABCDE", 3)), (true, ("ACDBE", 1))] {
        let expected = (expected.0.to_owned(), expected.1);
        assert_eq!(example(&mut Lists::new(aggregate)), expected);
        assert_eq!(example(&mut Arrays::new(aggregate, 0)), expected);
    }
}
