// SPDX-License-Identifier: GPL-2.0-only
//! Decides between the admission of a program and the end of an idle daemon. A call either is
//! admitted, and the daemon stays, or is refused with `Stopping`, and its client starts another
//! daemon.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The state that the calls and the thread `idle` share.
#[derive(Debug, Clone, Default)]
pub struct Activity(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Number of admissions in progress.
    admissions: usize,
    /// The last time at which an admission ended or a program was managed.
    last_use: Option<Instant>,
    /// Whether the daemon ends and admits no more programs.
    is_ending: bool,
}

/// An admission in progress. While it exists, the daemon does not end for idleness.
#[derive(Debug)]
pub struct Admitting(Activity);

impl Activity {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid after each statement, so that a panic leaves a valid state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the admission of a program. `None` if the daemon ends.
    pub fn begin(&self) -> Option<Admitting> {
        let mut state = self.lock();
        if state.is_ending {
            return None;
        }
        state.admissions += 1;
        Some(Admitting(self.clone()))
    }

    /// Records that the daemon manages a program.
    pub fn record_use(&self) {
        self.lock().last_use = Some(Instant::now());
    }

    /// Returns the time since the last use; `None` if there was none.
    pub fn idle_for(&self) -> Option<Duration> {
        let last_use = self.lock().last_use;
        last_use.map(|at| at.elapsed())
    }

    /// Ends the admission of programs if no admission is in progress and `is_unused` returns true.
    /// Returns whether the daemon may end.
    pub fn end_if(&self, is_unused: impl FnOnce() -> bool) -> bool {
        let mut state = self.lock();
        state.is_ending |= state.admissions == 0 && is_unused();
        state.is_ending
    }
}

impl Drop for Admitting {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.admissions -= 1;
        state.last_use = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admission_in_progress_keeps_the_daemon_and_an_ending_daemon_admits_nothing() {
        let activity = Activity::default();
        assert_eq!(activity.idle_for(), None);
        let admitting = activity.begin().unwrap();
        assert!(!activity.end_if(|| true));
        drop(admitting);
        assert!(activity.idle_for().is_some());
        assert!(!activity.end_if(|| false));
        assert!(activity.begin().is_some());
        assert!(activity.end_if(|| true));
        assert!(activity.begin().is_none());
        // The decision is final.
        assert!(activity.end_if(|| false));
    }
}
