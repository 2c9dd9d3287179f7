// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that start during a scan of a program, found by their numbers.
//!
//! The kernel assigns thread numbers in rising order, so a cursor over them finds each new thread
//! of the machine in microseconds, without a listing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::procs::Procs;
use crate::scan::{SETTLE, ScanPass, ThreadChange};

/// CPU time for which new threads are visited after the last that needed the change.
pub(crate) const VISIT_QUIET: Duration = Duration::from_micros(300);
/// Longest CPU time of one such visit.
const VISIT_MAX: Duration = Duration::from_millis(4);
/// If more numbers are new, only [`NEWEST`] of them are visited: most of these threads have ended,
/// and a listing finds the others.
const NUMBERS_MAX: i32 = 2048;
/// The newest numbers, which are visited in that case.
const NEWEST: i32 = 256;
/// Upper limit of free numbers that are visited again: the kernel assigns a number shortly before
/// the thread can be found.
const FREE_MAX: usize = 32;

/// A cursor over the thread numbers that the kernel assigns.
#[derive(Debug)]
pub(crate) struct NewThreads {
    /// The last visited number.
    last: i32,
    /// Numbers that were free when visited, with the time of the first visit.
    free: VecDeque<(i32, Instant)>,
}

impl NewThreads {
    /// Starts with the numbers assigned from now on. `None` if the kernel does not report the last
    /// number.
    pub(crate) fn from_now(procs: &Procs) -> Option<Self> {
        Some(Self {
            last: procs.last_pid()?,
            free: VecDeque::new(),
        })
    }

    /// Visits the numbers assigned since the last call, and those that were free a moment ago.
    /// `visit` returns `None` for a free number. Returns `false` if the numbers wrapped around.
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

/// Visits new threads until none of them needed the change for this CPU time.
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
    // The next pass visits a thread that is missed here, and reports it if it misses the thread
    // again.
    all.missed = false;
    all
}

/// Returns the CPU time of this thread.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
