// SPDX-License-Identifier: MIT OR Apache-2.0
//! A slot with the useful and waiting time of one thread, written by that thread.
//!
//! A slot belongs to one thread at a time. Its owner changes the slot between two increments of a
//! sequence number, which is odd in between. A reader in another process therefore detects a torn
//! record, and the owner never waits. A released slot keeps its totals and the next owner adds to
//! them, so the sums over all slots only grow. If a thread dies between the two increments, the
//! number stays odd until the slot's next owner writes.
//!
//! A page has [`SLOTS`] slots. A claim searches them one after another; a thread that finds none free
//! is not counted.
//!
//! CPU time is kept beside wall time because a waiting OpenMP thread usually spins. Useful CPU time
//! is the work done on any number of cores. Wall time gives the parallel efficiency if each thread
//! has a core of its own.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use crate::layout::*;
use crate::map::Mapping;

/// What a thread does, as reported by the runtime that schedules it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// No thread owns the slot.
    Free,
    /// The thread does the program's own work.
    Useful,
    /// The thread waits at a barrier, for a lock or for work.
    Waiting,
}

impl SlotState {
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        [Self::Free, Self::Useful, Self::Waiting]
            .into_iter()
            .find(|state| state.code() == code)
    }

    fn code(self) -> u32 {
        match self {
            Self::Free => 0,
            Self::Useful => 1,
            Self::Waiting => 2,
        }
    }
}

/// The state of a slot between its claim and its first record. Readers keep the previous record of
/// such a slot.
const CLAIMED: u32 = 3;

/// A slot and the thread that owns it. [`ThreadSlot::release`] frees it; a slot that is only
/// dropped stays claimed.
#[derive(Debug)]
pub struct ThreadSlot<'page> {
    page: &'page Mapping,
    base: usize,
    state: SlotState,
    since_ns: u64,
    since_cpu_ns: u64,
    /// Wall and CPU time at the last reading of the CPU clock.
    anchor: (u64, u64),
}

/// Interval for which CPU time is extrapolated from the wall clock after a reading of the CPU
/// clock. A reading of the CPU clock is a system call (some 500 ns on a virtual machine, against 20
/// ns for the wall clock), which would slow down frequent barriers. A thread that is preempted
/// within the interval is credited with at most this much CPU time too many.
const CPU_CLOCK_EXTRAPOLATION_NS: u64 = 20_000;

impl<'page> ThreadSlot<'page> {
    /// Claims a free slot: a released slot if there is one, else the first slot that was never
    /// used.
    pub(crate) fn claim(page: &'page Mapping) -> Option<Self> {
        let requested = page.half(SLOTS_REQUESTED_AT);
        let used = (requested.load(Relaxed) as usize).min(SLOTS);
        let index = match (0..used).find(|&i| try_claim(page, i)) {
            Some(free) => free,
            None => {
                let mut fresh = requested.fetch_add(1, Relaxed) as usize;
                while fresh < SLOTS && !try_claim(page, fresh) {
                    fresh = requested.fetch_add(1, Relaxed) as usize;
                }
                (fresh < SLOTS).then_some(fresh)?
            }
        };
        let anchor = (now_ns(), thread_cpu_ns());
        let mut slot = Self {
            page,
            base: SLOTS_AT + index * SLOT_BYTES,
            state: SlotState::Useful,
            since_ns: anchor.0,
            since_cpu_ns: anchor.1,
            anchor,
        };
        slot.write(|slot| {
            slot.page
                .half(slot.base + TID_AT)
                .store(thread_id(), Relaxed);
        });
        Some(slot)
    }

    /// Returns the state of the thread.
    pub fn state(&self) -> SlotState {
        self.state
    }

    /// Changes the state, and adds the time since the last change to the previous state. Only the
    /// owning thread may call this function, because it reads the CPU clock of the calling thread.
    pub fn enter(&mut self, state: SlotState) {
        if state == self.state {
            return;
        }
        let (now_ns, now_cpu_ns) = self.clocks();
        let wall = now_ns.saturating_sub(self.since_ns);
        let cpu = now_cpu_ns.saturating_sub(self.since_cpu_ns);
        let left = self.state;
        (self.state, self.since_ns, self.since_cpu_ns) = (state, now_ns, now_cpu_ns);
        self.write(|slot| {
            let (wall_at, cpu_at) = match left {
                SlotState::Waiting => (WAITING_AT, WAITING_CPU_AT),
                SlotState::Useful | SlotState::Free => (USEFUL_AT, USEFUL_CPU_AT),
            };
            slot.add(wall_at, wall);
            slot.add(cpu_at, cpu);
            slot.add(EVENTS_AT, 1);
        });
    }

    /// Records a wait that lasted from `since_ns` ([`now_ns`]) until now. Intended for waits that
    /// are mostly too short to record, such as those for a lock, where two changes of state would
    /// cost more than the lock. The CPU time used in the wait is unknown, so the whole wait is
    /// assumed to be spinning.
    pub fn record_wait(&mut self, since_ns: u64) {
        let (now_ns, now_cpu_ns) = self.clocks();
        let whole = now_ns.saturating_sub(self.since_ns);
        let waited = now_ns.saturating_sub(since_ns).min(whole);
        let cpu = now_cpu_ns.saturating_sub(self.since_cpu_ns);
        let waited_cpu = cpu.min(waited);
        (self.since_ns, self.since_cpu_ns) = (now_ns, now_cpu_ns);
        self.write(|slot| {
            slot.add(WAITING_AT, waited);
            slot.add(WAITING_CPU_AT, waited_cpu);
            slot.add(USEFUL_AT, whole - waited);
            slot.add(USEFUL_CPU_AT, cpu - waited_cpu);
            slot.add(EVENTS_AT, 1);
        });
    }

    /// Frees the slot for another thread. The totals of the slot stay.
    pub fn release(mut self) {
        self.enter(SlotState::Free);
    }

    /// Returns wall and CPU time of the owning thread.
    fn clocks(&mut self) -> (u64, u64) {
        let now_ns = now_ns();
        let passed_ns = now_ns.saturating_sub(self.anchor.0);
        if passed_ns <= CPU_CLOCK_EXTRAPOLATION_NS {
            return (now_ns, self.anchor.1 + passed_ns);
        }
        self.anchor = (now_ns, thread_cpu_ns());
        self.anchor
    }

    /// Adds to a counter. Only the owner writes, so load and store need not be one atomic
    /// operation.
    fn add(&self, at: usize, amount: u64) {
        let word = self.page.word(self.base + at);
        word.store(word.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    /// Runs `change` within the sequence lock, and writes the state within the lock. `Free` is
    /// written after the lock instead, so that other threads see a slot as free only when its
    /// record is complete.
    fn write(&mut self, change: impl FnOnce(&Self)) {
        let sequence = self.page.half(self.base + SEQUENCE_AT);
        let before = sequence.load(Relaxed) & !1;
        sequence.store(before.wrapping_add(1), Relaxed);
        fence(Release);
        change(self);
        self.page
            .word(self.base + SINCE_AT)
            .store(self.since_ns, Relaxed);
        let state = self.page.half(self.base + STATE_AT);
        if self.state != SlotState::Free {
            state.store(self.state.code(), Relaxed);
        }
        sequence.store(before.wrapping_add(2), Release);
        if self.state == SlotState::Free {
            state.store(self.state.code(), Release);
        }
    }
}

fn try_claim(page: &Mapping, index: usize) -> bool {
    let state = page.half(SLOTS_AT + index * SLOT_BYTES + STATE_AT);
    state
        .compare_exchange(SlotState::Free.code(), CLAIMED, AcqRel, Acquire)
        .is_ok()
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds, the clock of the slots.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Returns the CPU time of the calling thread in nanoseconds.
fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec to a local variable. Both clocks exist on every Linux,
    // so the result is not checked. On failure the time would be 0, and intervals would saturate to
    // 0.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn thread_id() -> u32 {
    // SAFETY: gettid has no arguments and cannot fail.
    unsafe { libc::gettid() as u32 }
}
