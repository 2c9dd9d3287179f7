// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is next: the queues of address spaces (paper 4).
//!
//! Virtual times are in nanoseconds, and may overflow: what matters is how far they lie
//! apart. The queues themselves are the caller's, as they are the kernel's in the
//! scheduler; a [`Hall`] knows how many wait in each, and where its first one is.

use crate::c;
use crate::share::{ahead_at_most, later};

/// Queues of an LLC. More address spaces than these share some.
pub const SPACES: usize = 32;

/// `struct space`: a queue.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Whose it is; whose it was last, if it is empty.
    pub of: u64,
    /// Virtual time of its first.
    pub least: u64,
    /// The seat of those that wait, as of that version of all seats; 0: none, or several, or
    /// of several versions.
    pub seat: u64,
    /// How many wait.
    pub waiting: u32,
    /// The version.
    pub version: u32,
}

/// `struct moment`: what a CPU knows when it asks who is next.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moment {
    /// When the turn of the address space that has the CPU began.
    pub began_ns: u64,
    /// How long that may last.
    pub turn_ns: u64,
    /// How far ahead of those that wait it may get.
    pub lead_ns: u64,
    /// What time it is.
    pub now_ns: u64,
    /// 1: a thread has just used up its slice, and would go on.
    pub has_prev: u32,
    /// 1: address spaces have turns.
    pub aggregate: u32,
    /// The virtual time of that thread.
    pub prev_vtime: u64,
    /// The queue of the address space whose turn it is; [`SPACES`]: none.
    pub own: u32,
    /// Queues, by bit, that hold nobody who may run there.
    pub not: u32,
    /// Set as it is asked: queues, by bit, whose first the CPU passes by.
    pub passes: u32,
    /// Answered: the queue that is furthest behind; [`SPACES`]: nobody waits.
    pub hindmost: u32,
    /// Answered: where the first of that queue is.
    pub hindmost_at: u64,
    /// Answered: where whoever is furthest behind of all is, if anybody waits.
    pub least: u64,
    /// The CPU, for the scheduler itself.
    pub cpu: u32,
    /// Nothing.
    pub unused: u32,
}

/// `struct passed`: what a CPU knows of queues whose first it cannot run, and passes by.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passed {
    queues: u32,
    unused: u32,
    pub(crate) least: [u64; SPACES],
}

impl Passed {
    /// The CPU has taken a thread from that queue that was at `taken`, where `first` is the first
    /// now, if anybody waits; `next` is asked where the first is that the CPU can run.
    pub fn note(
        &mut self,
        at: usize,
        taken: u64,
        first: Option<u64>,
        next: impl FnOnce() -> Option<u64>,
    ) {
        let at = at as u32;
        let passed = first.is_some_and(|first| c::rules_has_passed(taken, first));
        // SAFETY: laid out as the header has it, and nobody else's.
        unsafe {
            match passed {
                true => c::rules_pass_by(self, at, next().unwrap_or(taken)),
                false => c::rules_face(self, at),
            }
        }
    }

    /// A thread that the CPU can run comes to wait in that queue.
    pub fn meet(&mut self, at: usize, vtime: u64) {
        // SAFETY: as above.
        unsafe { c::rules_meet(self, at as u32, vtime) };
    }
}

/// Who is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The thread that has used up its slice.
    Same,
    /// The first of that queue.
    Queue(usize),
    /// Nobody waits.
    Nobody,
}

/// How long, and how far ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long a thread runs before the CPU asks who is next.
    pub slice_ns: u64,
    /// How long threads of one address space may follow one another.
    pub turn_ns: u64,
    /// How far they may get ahead of whoever waits, in virtual time.
    pub lead_ns: u64,
    /// Address spaces have turns.
    pub aggregate: bool,
}

/// A thread that comes to wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Comer {
    /// Its address space.
    pub mm: u64,
    /// Its seat; 0: none.
    pub seat: u64,
    /// The version of all seats that this one is of.
    pub version: u32,
    /// Its virtual time.
    pub vtime: u64,
    /// Its weight.
    pub weight: u64,
    /// The only CPU that it may run on, counted from 1; 0: it may run on others.
    pub only: u32,
}

impl Comer {
    /// With whom it shares a queue: its address space's threads of the same seat and of the
    /// same only CPU; alone for those that have neither, its address space.
    pub fn sharers(&self) -> u64 {
        c::rules_sharers(self.mm, self.seat, self.version, self.only)
    }
}

/// The queues of an LLC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hall {
    spaces: [Space; SPACES],
    clock: u64,
}

impl Hall {
    /// Virtual time of whoever waits and is furthest behind, at its latest.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Moves the clock on, if it is behind that.
    pub fn advance(&mut self, vtime: u64) {
        self.clock = later(self.clock, vtime);
    }

    /// Threads that wait.
    pub fn waiting(&self) -> u32 {
        self.spaces.iter().map(|space| space.waiting).sum()
    }

    /// The queues.
    pub fn spaces(&self) -> &[Space; SPACES] {
        &self.spaces
    }

    /// Which of the queues is these sharers' from now on.
    pub fn queue_of(&self, sharers: u64) -> usize {
        // SAFETY: the array is as long as the header has it, and only read.
        unsafe { c::rules_space_of(&self.spaces, sharers) as usize }
    }

    /// The first of those that wait with this seat; 0: without.
    pub fn first_of_seat(&self, seat: u64) -> Option<u64> {
        let mut least = 0;
        // SAFETY: the array is only read; the number is this function's.
        let found = unsafe { c::rules_first_of_seat(&self.spaces, seat, &mut least) };
        found.then_some(least)
    }

    /// Where those that wait are on average; not behind the clock.
    pub fn average(&self) -> u64 {
        // SAFETY: the array is only read.
        unsafe { c::rules_average_of(&self.spaces, self.clock) }
    }

    /// Where a thread's virtual time is put that comes to wait here: no further ahead of those
    /// that wait than anybody gets. By the clock of the CPUs that may serve it, which may be
    /// behind this one's.
    pub fn place(&self, comer: &Comer, clock: u64, limits: &Limits) -> u64 {
        let ahead_ns = ahead_at_most(limits.lead_ns, limits.slice_ns, comer.weight);
        // SAFETY: the array is only read.
        unsafe { c::rules_place_at(&self.spaces, clock, comer.seat, comer.vtime, ahead_ns) }
    }

    /// A thread waits from now on; in which queue.
    pub fn join(&mut self, comer: &Comer) -> usize {
        let of = comer.sharers();
        let at = self.queue_of(of);
        // SAFETY: a space as the header has it, and nobody else's.
        unsafe {
            c::rules_join_space(
                &mut self.spaces[at],
                of,
                comer.seat,
                comer.version,
                comer.vtime,
            );
        }
        at
    }

    /// The queue that is furthest behind for a CPU that has passed those by.
    pub fn hindmost(&self, passed: &Passed) -> Option<usize> {
        // SAFETY: all are laid out as the header has them, and only read.
        let at = unsafe { c::rules_hindmost(&self.spaces, passed) } as usize;
        (at < SPACES).then_some(at)
    }

    /// Whether those that wait in a queue have one seat, as of that version.
    ///
    /// # Panics
    /// There is no such queue.
    pub fn is_seated(&self, at: usize, version: u32) -> bool {
        // SAFETY: a space as the header has it, and only read.
        unsafe { c::rules_is_seated(&self.spaces[at], version) }
    }

    /// One waits there no more; `first` is now the virtual time of the first, or its own.
    ///
    /// # Panics
    /// There is no such queue.
    pub fn leave(&mut self, at: usize, first: u64) {
        // SAFETY: a space as the header has it, and nobody else's.
        unsafe { c::rules_leave_space(&mut self.spaces[at], first) };
    }

    /// Who is next on a CPU that has passed those by; the clock goes on.
    pub fn ask(&mut self, moment: &mut Moment, passed: &Passed) -> Next {
        let mut queue = 0;
        moment.passes = passed.queues;
        // SAFETY: all are laid out as the header has them; the arrays are only read.
        let next = unsafe { c::rules_who_is_next(moment, &self.spaces, passed, &mut queue) };
        if next == c::NEXT_SAME {
            return Next::Same;
        }
        if (moment.hindmost as usize) < SPACES {
            self.advance(moment.hindmost_at);
        }
        match queue as usize {
            at if at < SPACES => Next::Queue(at),
            _ => Next::Nobody,
        }
    }
}
