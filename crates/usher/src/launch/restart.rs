// SPDX-License-Identifier: GPL-2.0-only
//! Decides when a launcher starts the user's daemon again, after daemon and keeper were killed.
//!
//! 1. [`Restarts::permit`] permits a start. The launcher calls it if the daemon was started by a
//!    command, belongs to this user, and did not end by itself.
//! 2. [`Restarts::take`] returns whether an attempt is due. The first attempt is due at once, and the
//!    pause after an attempt doubles from 1 s.
//! 3. [`Restarts::managed`] ends the attempts: a daemon manages the program.
//!
//! Bound: at most 5 attempts ([`ATTEMPTS_MAX`]). The count restarts only after a daemon has managed
//! the program for 60 s ([`STABLE`]). A daemon that is always killed soon after its start is
//! therefore started at most 5 times.

use std::time::{Duration, Instant};

/// Maximum number of attempts without a daemon that manages the program for [`STABLE`].
const ATTEMPTS_MAX: u32 = 5;
/// Pause after the first attempt.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Time of management after which the count of the attempts begins again.
const STABLE: Duration = Duration::from_secs(60);

/// The attempts of a launcher to start a daemon again.
#[derive(Debug, Default)]
pub struct Restarts {
    is_permitted: bool,
    attempts: u32,
    /// When the next attempt is due; `None`: at once.
    next: Option<Instant>,
    /// When the present or last daemon admitted the program.
    managed_since: Option<Instant>,
}

impl Restarts {
    /// Permits a start, after the death of a daemon.
    pub fn permit(&mut self, now: Instant) {
        self.is_permitted = true;
        let managed = self.managed_since.take();
        if managed.is_some_and(|since| now.duration_since(since) >= STABLE) {
            self.attempts = 0;
            self.next = None;
        }
    }

    /// Ends the attempts, because a daemon has admitted the program.
    pub fn managed(&mut self, now: Instant) {
        self.is_permitted = false;
        self.managed_since = Some(now);
    }

    /// Returns whether an attempt is due now, and counts it.
    pub fn take(&mut self, now: Instant) -> bool {
        let is_due = self.next.is_none_or(|next| now >= next);
        if !self.is_permitted || self.has_given_up() || !is_due {
            return false;
        }
        self.next = Some(now + PAUSE_MIN * (1 << self.attempts));
        self.attempts += 1;
        true
    }

    /// Returns whether no attempt follows.
    pub fn has_given_up(&self) -> bool {
        self.attempts >= ATTEMPTS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times of the attempts in seconds after `from`, with 4 calls of `take` per second.
    fn attempts(restarts: &mut Restarts, from: Instant) -> Vec<f64> {
        let times = (0..400).map(|step| f64::from(step) * 0.25);
        let is_due = |at: &f64| restarts.take(from + Duration::from_secs_f64(*at));
        times.filter(is_due).collect()
    }

    #[test]
    fn attempts_are_bounded_and_their_pauses_double() {
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        assert!(attempts(&mut restarts, now).is_empty());
        restarts.permit(now);
        assert_eq!(attempts(&mut restarts, now), [0.0, 1.0, 3.0, 7.0, 15.0]);
        assert!(restarts.has_given_up());
    }

    #[test]
    fn only_a_stable_daemon_resets_the_attempts() {
        let (mut restarts, mut now) = (Restarts::default(), Instant::now());
        for _ in 0..ATTEMPTS_MAX {
            restarts.permit(now);
            now += PAUSE_MIN * (1 << ATTEMPTS_MAX);
            assert!(restarts.take(now));
            restarts.managed(now);
            assert!(!restarts.take(now + STABLE));
        }
        restarts.permit(now);
        assert!(!restarts.take(now + STABLE));
        restarts.managed(now);
        now += STABLE;
        restarts.permit(now);
        assert!(restarts.take(now));
    }
}
