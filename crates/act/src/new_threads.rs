// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the threads that start during a scan of a program, by their thread numbers.
//!
//! The kernel assigns thread numbers in rising order. [`NewThreads`] remembers the last number that
//! it has visited, and finds each new thread of the machine in microseconds, without a listing of
//! `/proc`:
//!
//! 1. Read the number that the kernel assigned last.
//! 2. Visit each number since the last visited number; if there are more than 2048
//!    ([`NUMBERS_MAX`]), visit only the newest 256 ([`NEWEST`]).
//! 3. Visit again, for 20 ms after their first visit ([`SETTLE`]), at most 32 numbers
//!    ([`FREE_MAX`]) that belonged to no thread. The kernel assigns a number shortly before the
//!    thread can be found.
//! 4. Repeat until no visited thread has been changed for the CPU time that the caller passes, 0.3
//!    ms ([`VISIT_QUIET`]) or less. Begin no repetition after 4 ms of CPU time ([`VISIT_MAX`]).
//!
//! If the numbers have wrapped around, the visit ends, and only the next listing finds the new
//! threads.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::procs::Procs;
use crate::scan::{SETTLE, ScanPass, ThreadChange};

/// CPU time for which new threads are still visited after the last visited thread that needed the
/// change.
pub(crate) const VISIT_QUIET: Duration = Duration::from_micros(300);
/// CPU time after which one call of [`over_new`] begins no further repetition.
const VISIT_MAX: Duration = Duration::from_millis(4);
/// Upper limit of new numbers that are all visited. If there are more, only the newest [`NEWEST`]
/// are visited, because most of the other threads have ended, and a listing finds the rest.
const NUMBERS_MAX: i32 = 2048;
/// Number of newest numbers that are visited if more than [`NUMBERS_MAX`] are new.
const NEWEST: i32 = 256;
/// Upper limit of free numbers, which belonged to no thread when visited, that are visited again. A
/// number may be free only because the kernel assigns a number shortly before the thread can be
/// found.
const FREE_MAX: usize = 32;

/// A cursor over the thread numbers that the kernel assigns.
#[derive(Debug)]
pub(crate) struct NewThreads {
    /// The last visited number.
    last: i32,
    /// Numbers that belonged to no thread when they were visited, with the time of their first
    /// visit.
    free: VecDeque<(i32, Instant)>,
}

impl NewThreads {
    /// Creates a cursor that visits the numbers assigned from now on. Returns `None` if the kernel
    /// does not report the number that it assigned last.
    pub(crate) fn from_now(procs: &Procs) -> Option<Self> {
        Some(Self {
            last: procs.last_pid()?,
            free: VecDeque::new(),
        })
    }

    /// Visits the numbers that were assigned since the last call, and again the numbers that were
    /// free shortly before. `visit` returns `None` for a free number. Returns `false` if the
    /// numbers wrapped around.
    fn visit(&mut self, procs: &Procs, mut visit: impl FnMut(i32) -> Option<()>) -> bool {
        let now = Instant::now();
        for _ in 0..self.free.len() {
            if let Some((tid, since)) = self.free.pop_front()
                && visit(tid).is_none()
                && now.duration_since(since) < SETTLE
            {
                self.free.push_back((tid, since));
            }
        }
        let Some(last) = procs.last_pid() else {
            return false;
        };
        let first = match last - self.last {
            ..0 => {
                self.last = last;
                return false;
            }
            0..=NUMBERS_MAX => self.last + 1,
            _ => last - NEWEST,
        };
        for tid in first..=last {
            if visit(tid).is_none() {
                self.free.truncate(FREE_MAX - 1);
                self.free.push_front((tid, now));
            }
        }
        self.last = last;
        true
    }
}

/// Applies the change to new threads that need it, until no new thread has needed it for the CPU
/// time `hot`.
pub(crate) fn over_new(
    procs: &Procs,
    new: &mut NewThreads,
    change: &mut impl ThreadChange,
    hot: Duration,
) -> ScanPass {
    let mut all = ScanPass::default();
    let begun = cpu_time();
    let mut changed_at = begun;
    loop {
        let mut pass = ScanPass::default();
        let is_in_order = new.visit(procs, |tid| {
            if change.is_needed(tid)?
                && let Some(pid) = change.process_of(tid)
            {
                pass.note(change.apply(pid, tid));
            }
            Some(())
        });
        let now = cpu_time();
        if pass.changed {
            changed_at = now;
        }
        all.add(pass);
        let is_quiet = now.saturating_sub(changed_at) >= hot;
        if !is_in_order || is_quiet || now.saturating_sub(begun) >= VISIT_MAX {
            break;
        }
    }
    // A thread that is missed here is not reported as missed, because the next pass visits it and
    // reports it if necessary.
    all.missed = false;
    all
}

/// Returns the CPU time that the calling thread has used.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
