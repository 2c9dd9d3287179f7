// SPDX-License-Identifier: MIT OR Apache-2.0
//! Claims, writes and releases thread slots: a slot on the heartbeat page contains the useful and
//! the waiting time of one thread, which the thread itself writes.
//!
//! 1. A thread claims a slot by a compare-and-exchange of the slot's state from free to claimed.
//!    The thread tries the slots that were used before, and then the first slot that was never
//!    used.
//! 2. At each change of its state (useful or waiting), the owner adds the time since the last
//!    change to the totals of the previous state. The owner increments the slot's sequence number
//!    before and after this update; during the update, the number is odd. By this number, a reader
//!    in another process detects a torn record (a mixture of old and new bytes). The owner never
//!    waits.
//! 3. A release marks the slot as free. The totals stay, and the next owner adds to them. Therefore
//!    the sums of all slots never decrease.
//!
//! If a thread dies during an update, the sequence number stays odd until the next owner of the
//! slot writes.
//!
//! A page has [`SLOTS`] slots (1024). A claim costs O([`SLOTS`]) steps in the worst case, a change
//! of state some 20 to 500 ns. A thread that finds no free slot is not measured.
//!
//! A slot contains CPU times in addition to wall times, because a waiting OpenMP thread usually
//! busy-waits. The useful CPU time measures the work on any number of cores. The wall times give
//! the parallel efficiency, if each thread has a core of its own.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use crate::layout::*;
use crate::map::Mapping;

/// The activity of a slot's owner, which the runtime that schedules the thread reports.
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

/// A slot that the calling thread owns. [`ThreadSlot::release`] frees the slot; if the value is
/// only dropped, the slot stays claimed.
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

/// The time after a reading of the CPU clock for which the CPU time is extrapolated from the wall
/// clock. A reading of the CPU clock is a system call, which takes some 500 ns on a virtual machine
/// and would slow down frequent barriers; a reading of the wall clock takes 20 ns. If the thread is
/// preempted within the interval, its CPU time is overestimated by at most this interval.
const CPU_CLOCK_EXTRAPOLATION_NS: u64 = 20_000;

impl<'page> ThreadSlot<'page> {
    /// Claims a free slot: a released slot if there is any, or else the first slot that was never
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

    /// Records a wait that lasted from `since_ns` ([`now_ns`]) until now. The function is intended
    /// for waits that are mostly too short to record, such as the wait for a lock: two changes of
    /// state would cost more than the lock. The CPU time of the wait is unknown; the thread is
    /// assumed to have busy-waited for the whole time.
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

    /// Adds to a counter of the slot. Load and store need not be one atomic operation, because only
    /// the owner writes.
    fn add(&self, at: usize, amount: u64) {
        let word = self.page.word(self.base + at);
        word.store(word.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    /// Runs `change` within the sequence lock, and writes the state within the lock. Only the state
    /// `Free` is written after the end of the sequence lock, so that other threads see a slot as
    /// free only when its record is complete.
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
    // SAFETY: the kernel writes one timespec to a local variable. The result is not checked,
    // because both clocks exist on every Linux. After a failure the time would be 0, and intervals
    // would saturate to 0.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn thread_id() -> u32 {
    // SAFETY: gettid has no arguments and cannot fail.
    unsafe { libc::gettid() as u32 }
}
