// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is next: the queues of address spaces (paper 4).
//!
//! Virtual times are in nanoseconds, and may overflow: what matters is how far they lie
//! apart. The queues themselves are the caller's, as they are the kernel's in the
//! scheduler; a [`Hall`] knows how many wait in each, and where its first one is.

use crate::c;
use crate::share::{later, max_lag};

/// Queues of an LLC. More address spaces than these share some.
pub const MM_QUEUES_PER_LLC: usize = 32;

/// `struct space`: a queue.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MmQueue {
    /// Whose it is; whose it was last, if it is empty.
    pub key: u64,
    /// Virtual time of its first.
    pub min_vtime: u64,
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
pub struct PickCtx {
    /// When the turn of the address space that has the CPU began.
    pub began_ns: u64,
    /// How long that may last.
    pub turn_ns: u64,
    /// How far ahead of those that wait it may get.
    pub max_lag_ns: u64,
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
    pub excluded: u32,
    /// Set as it is asked: queues, by bit, whose first the CPU passes by.
    pub skipped: u32,
    /// Answered: the queue that is furthest behind; [`SPACES`]: nobody waits.
    pub min_vtime_queue: u32,
    /// Answered: where the first of that queue is.
    pub min_vtime: u64,
    /// Answered: where whoever is furthest behind of all is, if anybody waits.
    pub min_vtime_with_prev: u64,
    /// The CPU, for the scheduler itself.
    pub cpu: u32,
    /// Nothing.
    pub unused: u32,
}

/// `struct passed`: what a CPU knows of queues whose first it cannot run, and passes by.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeadSkip {
    queues: u32,
    unused: u32,
    pub(crate) min_vtime: [u64; MM_QUEUES_PER_LLC],
}

impl HeadSkip {
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
        let unrunnable = first.is_some_and(|first| c::rules_has_unrunnable_head(taken, first));
        // SAFETY: laid out as the header has it, and nobody else's.
        unsafe {
            match unrunnable {
                true => c::rules_mark_head_unrunnable(self, at, next().unwrap_or(taken)),
                false => c::rules_clear_head_unrunnable(self, at),
            }
        }
    }

    /// A thread that the CPU can run comes to wait in that queue.
    pub fn lower_min(&mut self, at: usize, vtime: u64) {
        // SAFETY: as above.
        unsafe { c::rules_lower_min(self, at as u32, vtime) };
    }
}

/// Who is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The thread that has used up its slice.
    Same,
    /// The first of that queue.
    Queue(usize),
    /// NoneWaiting waits.
    NoneWaiting,
}

/// How long, and how far ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long a thread runs before the CPU asks who is next.
    pub slice_ns: u64,
    /// How long threads of one address space may follow one another.
    pub turn_ns: u64,
    /// How far they may get ahead of whoever waits, in virtual time.
    pub max_lag_ns: u64,
    /// Address spaces have turns.
    pub aggregate: bool,
}

/// A thread that comes to wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewWaiter {
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
    pub pinned_cpu: u32,
}

impl NewWaiter {
    /// With whom it shares a queue: its address space's threads of the same seat and of the
    /// same only CPU; alone for those that have neither, its address space.
    pub fn queue_key(&self) -> u64 {
        c::rules_queue_key(self.mm, self.seat, self.version, self.pinned_cpu)
    }
}

/// The queues of an LLC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LlcRunQueue {
    mm_queues: [MmQueue; MM_QUEUES_PER_LLC],
    clock: u64,
}

impl LlcRunQueue {
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
        self.mm_queues.iter().map(|queue| queue.waiting).sum()
    }

    /// The queues.
    pub fn mm_queues(&self) -> &[MmQueue; MM_QUEUES_PER_LLC] {
        &self.mm_queues
    }

    /// Which of the queues is these sharers' from now on.
    pub fn queue_of(&self, queue_key: u64) -> usize {
        // SAFETY: the array is as long as the header has it, and only read.
        unsafe { c::rules_mm_queue_of(&self.mm_queues, queue_key) as usize }
    }

    /// The first of those that wait with this seat; 0: without.
    pub fn first_of_seat(&self, seat: u64) -> Option<u64> {
        let mut least = 0;
        // SAFETY: the array is only read; the number is this function's.
        let found = unsafe { c::rules_first_of_seat(&self.mm_queues, seat, &mut least) };
        found.then_some(least)
    }

    /// Where those that wait are on average; not behind the clock.
    pub fn average(&self) -> u64 {
        // SAFETY: the array is only read.
        unsafe { c::rules_average_of(&self.mm_queues, self.clock) }
    }

    /// Where a thread's virtual time is put that comes to wait here: no further ahead of those
    /// that wait than anybody gets. By the clock of the CPUs that may serve it, which may be
    /// behind this one's.
    pub fn place(&self, waiter: &NewWaiter, clock: u64, limits: &Limits) -> u64 {
        let max_lag_ns = max_lag(limits.max_lag_ns, limits.slice_ns, waiter.weight);
        // SAFETY: the array is only read.
        unsafe {
            c::rules_place_at(
                &self.mm_queues,
                clock,
                waiter.seat,
                waiter.vtime,
                max_lag_ns,
            )
        }
    }

    /// A thread waits from now on; in which queue.
    pub fn join(&mut self, waiter: &NewWaiter) -> usize {
        let key = waiter.queue_key();
        let at = self.queue_of(key);
        // SAFETY: a space as the header has it, and nobody else's.
        unsafe {
            c::rules_join_mm_queue(
                &mut self.mm_queues[at],
                key,
                waiter.seat,
                waiter.version,
                waiter.vtime,
            );
        }
        at
    }

    /// The queue that is furthest behind for a CPU that has passed those by.
    pub fn min_vtime_queue(&self, head_skip: &HeadSkip) -> Option<usize> {
        // SAFETY: all are laid out as the header has them, and only read.
        let at = unsafe { c::rules_min_vtime_queue(&self.mm_queues, head_skip) } as usize;
        (at < MM_QUEUES_PER_LLC).then_some(at)
    }

    /// Whether those that wait in a queue have one seat, as of that version.
    ///
    /// # Panics
    /// There is no such queue.
    pub fn is_seated(&self, at: usize, version: u32) -> bool {
        // SAFETY: a space as the header has it, and only read.
        unsafe { c::rules_is_seated(&self.mm_queues[at], version) }
    }

    /// One waits there no more; `first` is now the virtual time of the first, or its own.
    ///
    /// # Panics
    /// There is no such queue.
    pub fn leave(&mut self, at: usize, first: u64) {
        // SAFETY: a space as the header has it, and nobody else's.
        unsafe { c::rules_leave_mm_queue(&mut self.mm_queues[at], first) };
    }

    /// Who is next on a CPU that has passed those by; the clock goes on.
    pub fn pick_next(&mut self, pick_ctx: &mut PickCtx, head_skip: &HeadSkip) -> Next {
        let mut queue = 0;
        pick_ctx.skipped = head_skip.queues;
        // SAFETY: all are laid out as the header has them; the arrays are only read.
        let next = unsafe { c::rules_pick_next(pick_ctx, &self.mm_queues, head_skip, &mut queue) };
        if next == c::NEXT_SAME {
            return Next::Same;
        }
        if (pick_ctx.min_vtime_queue as usize) < MM_QUEUES_PER_LLC {
            self.advance(pick_ctx.min_vtime);
        }
        match queue as usize {
            at if at < MM_QUEUES_PER_LLC => Next::Queue(at),
            _ => Next::NoneWaiting,
        }
    }
}
