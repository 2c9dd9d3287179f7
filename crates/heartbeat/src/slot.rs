// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread's useful and waiting time, written by the thread itself.
//!
//! A slot belongs to one thread at a time. The owner changes it between two
//! steps of a sequence number (odd: being written), so that a reader in
//! another process can tell a whole record from a torn one without the owner
//! ever waiting. A slot that its owner gives back keeps its totals; the next
//! owner adds to them, so the sums over all slots only rise.
//!
//! CPU time is kept beside wall time because a waiting OpenMP thread usually
//! spins: useful CPU time is the work done on however many cores there were,
//! and wall time tells the parallel efficiency on cores of one's own.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use crate::layout::*;
use crate::map::Mapping;

/// What a thread does, by the runtime that schedules it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// No thread owns the slot.
    Free,
    /// The program's own work.
    Useful,
    /// Waiting for others: at a barrier, for a lock, for work.
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

/// The state of a slot between being taken and being written for the first
/// time; readers keep what they knew of it.
const BEING_TAKEN: u32 = 3;

/// A slot and the thread that owns it. Give it back with
/// [`ThreadSlot::release`]; a slot that is merely dropped stays taken.
#[derive(Debug)]
pub struct ThreadSlot<'page> {
    page: &'page Mapping,
    base: usize,
    state: SlotState,
    since_ns: u64,
    since_cpu_ns: u64,
    /// Wall and CPU time when the CPU clock was last read.
    anchor: (u64, u64),
}

/// For so long after the CPU clock was read it is taken to have gone on with
/// the wall clock. Reading it is a system call (some 500 ns on a virtual
/// machine, against 20 ns for the wall clock), which barriers in quick
/// succession could feel; a thread that loses its CPU within this time is
/// credited with at most so much more than it had.
const CPU_CLOCK_HOLDS_NS: u64 = 20_000;

impl<'page> ThreadSlot<'page> {
    /// Takes a slot nobody owns: one given back if there is one among those
    /// handed out, else a fresh one.
    pub(crate) fn claim(page: &'page Mapping) -> Option<Self> {
        let asked = page.half(SLOTS_ASKED_AT);
        let used = (asked.load(Relaxed) as usize).min(SLOTS);
        let index = match (0..used).find(|&i| take(page, i)) {
            Some(free) => free,
            None => {
                let mut fresh = asked.fetch_add(1, Relaxed) as usize;
                while fresh < SLOTS && !take(page, fresh) {
                    fresh = asked.fetch_add(1, Relaxed) as usize;
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

    /// The state the thread is in.
    pub fn state(&self) -> SlotState {
        self.state
    }

    /// The thread goes on to another state: the time since the last change is
    /// added to the state it leaves. Call it on the owning thread only, since
    /// it reads that thread's CPU clock.
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

    /// The thread waited from `since_ns` ([`now_ns`]) until now and did not say
    /// so before: for waits that are mostly too short to tell, such as a lock's,
    /// where two changes of state would cost more than the lock. What CPU time
    /// there was in the wait is not known; it is taken to be all, as in a spin.
    pub fn waited(&mut self, since_ns: u64) {
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

    /// Gives the slot back for another thread; its totals stay.
    pub fn release(mut self) {
        self.enter(SlotState::Free);
    }

    /// Wall and CPU time of the owning thread.
    fn clocks(&mut self) -> (u64, u64) {
        let now_ns = now_ns();
        let passed_ns = now_ns.saturating_sub(self.anchor.0);
        if passed_ns <= CPU_CLOCK_HOLDS_NS {
            return (now_ns, self.anchor.1 + passed_ns);
        }
        self.anchor = (now_ns, thread_cpu_ns());
        self.anchor
    }

    /// Only the owner writes, so a load and a store make an addition.
    fn add(&self, at: usize, amount: u64) {
        let word = self.page.word(self.base + at);
        word.store(word.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    /// Runs `change` inside the sequence lock. The state is written inside it
    /// too, but for `Free`: a slot looks free to others only once it is whole.
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

fn take(page: &Mapping, index: usize) -> bool {
    let state = page.half(SLOTS_AT + index * SLOT_BYTES + STATE_AT);
    state
        .compare_exchange(SlotState::Free.code(), BEING_TAKEN, AcqRel, Acquire)
        .is_ok()
}

/// `CLOCK_MONOTONIC` now, in nanoseconds: the clock of the slots.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CPU time of the calling thread in nanoseconds.
fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec to a place that is ours. Both
    // clocks exist on every Linux, so the result needs no check; were it to
    // fail, the time would read 0 and intervals would saturate to 0.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn thread_id() -> u32 {
    // SAFETY: gettid takes nothing, touches nothing and cannot fail.
    unsafe { libc::gettid() as u32 }
}
