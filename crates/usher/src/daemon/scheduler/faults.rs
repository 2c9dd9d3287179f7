// SPDX-License-Identifier: GPL-2.0-only
//! Automatic restarts of the scheduler. After faults, there are at most two within an hour, so that
//! a fault that recurs leaves the machine to the kernel's own scheduler.
//!
//! A restart waits for [`PAUSE`] after a fault. In this time the kernel's own scheduler runs the
//! threads that have waited too long.

use std::time::{Duration, Instant};

use super::thread::ENDING;

/// Upper limit of the restarts within [`PERIOD`].
const RESTARTS_MAX: usize = 2;
/// The period of the limit.
const PERIOD: Duration = Duration::from_secs(3600);
/// Time from a fault to the restart.
pub const PAUSE: Duration = Duration::from_secs(5);

/// The restarts of the last hour.
#[derive(Debug, Default)]
pub struct FaultRestarts {
    times: Vec<Instant>,
}

impl FaultRestarts {
    /// Counts a restart. Returns false if the limit is reached.
    pub fn take(&mut self, now: Instant) -> bool {
        self.times.retain(|&at| now.duration_since(at) < PERIOD);
        let is_permitted = self.times.len() < RESTARTS_MAX;
        if is_permitted {
            self.times.push(now);
        }
        is_permitted
    }
}

/// A pending restart.
#[derive(Debug, Clone, Copy)]
pub struct Restart {
    /// Time of the first attempt.
    pub from: Instant,
    /// Time after which a failed attempt ends the scheduler.
    pub until: Instant,
}

impl Restart {
    /// Returns a restart that begins after a pause.
    pub fn after(pause: Duration) -> Self {
        let from = Instant::now() + pause;
        Self {
            from,
            until: from + ENDING,
        }
    }

    /// Returns the restart after a failed attempt, or `None` if the time of attempts is over. The
    /// time begins again if a CPU has come or gone during the attempt, because such an attempt fails,
    /// and may take longer than this time on a slow machine.
    pub fn after_failure(self, now: Instant, hotplugged: bool) -> Option<Self> {
        let until = match hotplugged {
            true => now + ENDING,
            false => self.until,
        };
        (now <= until).then_some(Self { until, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_a_hotplug_disturbed_do_not_count() {
        let restart = Restart::after(Duration::ZERO);
        let late = restart.until + Duration::from_secs(1);
        assert!(restart.after_failure(restart.until, false).is_some());
        assert!(restart.after_failure(late, false).is_none());
        let again = restart.after_failure(late, true).unwrap();
        assert_eq!(again.until, late + ENDING);
        assert!(again.after_failure(again.until, false).is_some());
    }

    #[test]
    fn permits_two_restarts_within_an_hour() {
        let begin = Instant::now();
        let mut restarts = FaultRestarts::default();
        let mut take = |seconds: u64| restarts.take(begin + Duration::from_secs(seconds));
        assert!(take(0) && take(1800));
        assert!(!take(1801) && !take(3599));
        assert!(take(3600));
        assert!(!take(5399) && take(5400));
    }
}
