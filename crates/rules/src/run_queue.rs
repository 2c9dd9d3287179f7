// SPDX-License-Identifier: MIT OR Apache-2.0
//! Run queues of address spaces, and the selection of the next thread (paper 4). The functions call
//! those of `turns.h`, which describes the algorithm and its bounds.
//!
//! Virtual times are in nanoseconds and may overflow; only differences matter. The caller keeps the
//! order of the threads in each queue, as the kernel does for the scheduler. [`LlcRunQueue`] holds
//! only the number of waiting threads and the minimum virtual time of each queue. A selection
//! compares all [`MM_QUEUES_PER_LLC`] queues (32), and the search for the queue of a key examines
//! eight queues. The number of waiting threads does not matter. Address spaces share a queue when
//! the eight queues are in use. A queue number from 32 on panics.

use crate::c;
use crate::share::{later, max_lag};

/// Queues per LLC. With more address spaces than queues, some address spaces share a queue.
pub const MM_QUEUES_PER_LLC: usize = 32;

/// `struct mm_queue`: the run queue of one address space in one LLC.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MmQueue {
    /// Key of the threads in the queue; an empty queue keeps its last key.
    pub key: u64,
    /// Virtual time of the head, which is the first thread of the queue.
    pub min_vtime: u64,
    /// Seat that all waiting threads have, as of `version`. 0: the threads have no seat, different
    /// seats, or seats of different versions.
    pub seat: u64,
    /// Number of waiting threads.
    pub waiting: u32,
    /// Version of the seats.
    pub version: u32,
}

/// `struct pick_ctx`: arguments and results of one selection.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PickCtx {
    /// Start of the current turn.
    pub began_ns: u64,
    /// Longest turn.
    pub turn_ns: u64,
    /// Largest virtual time by which the turn may get ahead of waiting threads.
    pub max_lag_ns: u64,
    /// Present time.
    pub now_ns: u64,
    /// 1: the previous thread is runnable and has used up its slice.
    pub has_prev: u32,
    /// 1: address spaces have turns.
    pub aggregate: u32,
    /// Virtual time of the previous thread.
    pub prev_vtime: u64,
    /// Queue of the address space that has the turn; [`MM_QUEUES_PER_LLC`]: no queue has it.
    pub own: u32,
    /// Bitmask of queues without a thread that may run on this CPU.
    pub excluded: u32,
    /// Set by `pick_next`: bitmask of queues with a head that may not run on this CPU.
    pub skipped: u32,
    /// Result: the queue with the minimum virtual time; [`MM_QUEUES_PER_LLC`]: all are empty.
    pub min_vtime_queue: u32,
    /// Result: the minimum virtual time of that queue.
    pub min_vtime: u64,
    /// Result: the minimum virtual time including that of the previous thread; valid if a thread
    /// waits.
    pub min_vtime_with_prev: u64,
    /// CPU to which the `HeadSkip` belongs. Only the scheduler uses this field.
    pub cpu: u32,
    /// Padding.
    pub unused: u32,
}

/// `struct head_skip`: queues with a head that may not run on a CPU.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeadSkip {
    queues: u32,
    unused: u32,
    pub(crate) min_vtime: [u64; MM_QUEUES_PER_LLC],
}

/// Value of `enum next`: the previous thread continues.
pub(crate) const NEXT_SAME: u32 = 0;

// The wrappers in `rules.c` keep no pointer, and write only through `*mut` pointers.
unsafe extern "C" {
    fn rules_pick_next(
        ctx: *mut PickCtx,
        mm_queues: *const [MmQueue; MM_QUEUES_PER_LLC],
        head_skip: *const HeadSkip,
        queue: *mut u32,
    ) -> u32;
    fn rules_mark_head_unrunnable(head_skip: *mut HeadSkip, at: u32, min_vtime: u64);
    fn rules_clear_head_unrunnable(head_skip: *mut HeadSkip, at: u32);
    fn rules_lower_min(head_skip: *mut HeadSkip, at: u32, vtime: u64);
    fn rules_min_vtime_queue(
        mm_queues: *const [MmQueue; MM_QUEUES_PER_LLC],
        head_skip: *const HeadSkip,
    ) -> u32;
    fn rules_mm_queue_of(mm_queues: *const [MmQueue; MM_QUEUES_PER_LLC], key: u64) -> u32;
    fn rules_join_mm_queue(queue: *mut MmQueue, key: u64, seat: u64, version: u32, vtime: u64);
    fn rules_is_seated(queue: *const MmQueue, version: u32) -> bool;
    fn rules_leave_mm_queue(queue: *mut MmQueue, vtime: u64);
    fn rules_first_of_seat(
        mm_queues: *const [MmQueue; MM_QUEUES_PER_LLC],
        seat: u64,
        least: *mut u64,
    ) -> bool;
    fn rules_place_at(
        mm_queues: *const [MmQueue; MM_QUEUES_PER_LLC],
        clock: u64,
        seat: u64,
        vtime: u64,
        max_lag_ns: u64,
    ) -> u64;
    fn rules_average_of(mm_queues: *const [MmQueue; MM_QUEUES_PER_LLC], clock: u64) -> u64;
}

impl HeadSkip {
    /// Records that the CPU took a thread with virtual time `taken` from queue `at`. `first` is the
    /// virtual time of the queue's new head. `next` returns that of the first thread in the queue
    /// that may run on the CPU.
    pub fn note(
        &mut self,
        at: usize,
        taken: u64,
        first: Option<u64>,
        next: impl FnOnce() -> Option<u64>,
    ) {
        let at = at as u32;
        let unrunnable = first.is_some_and(|first| c::rules_has_unrunnable_head(taken, first));
        // SAFETY: the struct has the layout of the header's struct, and the reference to it is
        // exclusive.
        unsafe {
            match unrunnable {
                true => rules_mark_head_unrunnable(self, at, next().unwrap_or(taken)),
                false => rules_clear_head_unrunnable(self, at),
            }
        }
    }

    /// Records a new waiter in queue `at` that may run on the CPU.
    pub fn lower_min(&mut self, at: usize, vtime: u64) {
        // SAFETY: the struct has the layout of the header's struct, and the reference to it is
        // exclusive.
        unsafe { rules_lower_min(self, at as u32, vtime) };
    }
}

/// Next thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The previous thread continues.
    Same,
    /// The head of the queue with this number.
    Queue(usize),
    /// No thread waits.
    NoneWaiting,
}

/// Limits of the selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Length of a slice.
    pub slice_ns: u64,
    /// Longest turn of an address space.
    pub turn_ns: u64,
    /// Largest virtual time by which a turn may get ahead of waiting threads.
    pub max_lag_ns: u64,
    /// Whether address spaces have turns.
    pub aggregate: bool,
}

/// A thread that is about to wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewWaiter {
    /// Address space.
    pub mm: u64,
    /// Seat; 0: none.
    pub seat: u64,
    /// Version of the seats.
    pub version: u32,
    /// Virtual time.
    pub vtime: u64,
    /// Weight.
    pub weight: u64,
    /// CPU to which the thread is pinned, counted from 1; 0: not pinned.
    pub pinned_cpu: u32,
}

impl NewWaiter {
    /// Returns the key by which threads share a queue: address space, seat and pinned CPU.
    pub fn queue_key(&self) -> u64 {
        c::rules_queue_key(self.mm, self.seat, self.version, self.pinned_cpu)
    }
}

/// The run queues of an LLC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LlcRunQueue {
    mm_queues: [MmQueue; MM_QUEUES_PER_LLC],
    clock: u64,
}

impl LlcRunQueue {
    /// Returns the clock: the minimum virtual time of the waiting threads, which never decreases.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Advances the clock to `vtime`, if the clock is behind `vtime`.
    pub fn advance(&mut self, vtime: u64) {
        self.clock = later(self.clock, vtime);
    }

    /// Returns the number of waiting threads.
    pub fn waiting(&self) -> u32 {
        self.mm_queues.iter().map(|queue| queue.waiting).sum()
    }

    /// Returns the key and the counters of each queue.
    pub fn mm_queues(&self) -> &[MmQueue; MM_QUEUES_PER_LLC] {
        &self.mm_queues
    }

    /// Returns the queue for a key.
    pub fn queue_of(&self, queue_key: u64) -> usize {
        // SAFETY: the array has the length that the header declares, and is only read.
        unsafe { rules_mm_queue_of(&self.mm_queues, queue_key) as usize }
    }

    /// Returns the minimum virtual time of the waiting threads with this seat; seat 0: of the
    /// threads without a seat.
    pub fn first_of_seat(&self, seat: u64) -> Option<u64> {
        let mut least = 0;
        // SAFETY: the array is only read; `least`, which is written, is a local variable.
        let found = unsafe { rules_first_of_seat(&self.mm_queues, seat, &mut least) };
        found.then_some(least)
    }

    /// Returns the average virtual time of the waiting threads, but at least the clock.
    pub fn average(&self) -> u64 {
        // SAFETY: the array has the length that the header declares, and is only read.
        unsafe { rules_average_of(&self.mm_queues, self.clock) }
    }

    /// Returns the virtual time of a new waiter, limited to the largest lag ahead of the first
    /// waiting thread with the same seat. `clock` is the vtime clock of the CPUs on which the
    /// waiter may run. That clock may be behind the clock of the LLC.
    pub fn place(&self, waiter: &NewWaiter, clock: u64, limits: &Limits) -> u64 {
        let max_lag_ns = max_lag(limits.max_lag_ns, limits.slice_ns, waiter.weight);
        // SAFETY: the array has the length that the header declares, and is only read.
        unsafe {
            rules_place_at(
                &self.mm_queues,
                clock,
                waiter.seat,
                waiter.vtime,
                max_lag_ns,
            )
        }
    }

    /// Adds a waiting thread. Returns its queue.
    pub fn join(&mut self, waiter: &NewWaiter) -> usize {
        let key = waiter.queue_key();
        let at = self.queue_of(key);
        // SAFETY: the struct has the layout of the header's struct, and the reference to it is
        // exclusive.
        unsafe {
            rules_join_mm_queue(
                &mut self.mm_queues[at],
                key,
                waiter.seat,
                waiter.version,
                waiter.vtime,
            );
        }
        at
    }

    /// Returns the queue with the minimum virtual time for a CPU.
    pub fn min_vtime_queue(&self, head_skip: &HeadSkip) -> Option<usize> {
        // SAFETY: the structs have the layouts of the header's structs, and are only read.
        let at = unsafe { rules_min_vtime_queue(&self.mm_queues, head_skip) } as usize;
        (at < MM_QUEUES_PER_LLC).then_some(at)
    }

    /// Returns whether all threads of a queue have the same seat, as of this version of the seats.
    ///
    /// # Panics
    /// The queue `at` does not exist.
    pub fn is_seated(&self, at: usize, version: u32) -> bool {
        // SAFETY: the struct has the layout of the header's struct, and is only read.
        unsafe { rules_is_seated(&self.mm_queues[at], version) }
    }

    /// Removes a waiting thread. `first` is the virtual time of the new head; if the queue becomes
    /// empty, that of the removed thread.
    ///
    /// # Panics
    /// The queue `at` does not exist.
    pub fn leave(&mut self, at: usize, first: u64) {
        // SAFETY: the struct has the layout of the header's struct, and the reference to it is
        // exclusive.
        unsafe { rules_leave_mm_queue(&mut self.mm_queues[at], first) };
    }

    /// Selects the next thread of a CPU, and advances the clock.
    pub fn pick_next(&mut self, pick_ctx: &mut PickCtx, head_skip: &HeadSkip) -> Next {
        let mut queue = 0;
        pick_ctx.skipped = head_skip.queues;
        // SAFETY: the structs have the layouts of the header's structs; the queues are only read,
        // and `pick_ctx` and `queue` are exclusive references.
        let next = unsafe { rules_pick_next(pick_ctx, &self.mm_queues, head_skip, &mut queue) };
        if next == NEXT_SAME {
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
