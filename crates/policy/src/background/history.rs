// SPDX-License-Identifier: MIT OR Apache-2.0
//! History of a background program: the share of the last 10 s for which the program ran. Also a
//! limiter of log messages, which permits one message of each kind per second and counts suppressed
//! messages.
//!
//! [`History`] stores the time of each start and stop of the last 10 s, and the last change before
//! these 10 s.
//!
//! Both limits are constants: [`SHARE_NS`] and `LOG_NS_MIN`. The number of stored changes is
//! limited only by the number of samples in 10 s (10,000 at the least interval of 1 ms).
//! [`History::share`] takes linear time in the number of stored changes.

use std::collections::VecDeque;

/// Length of the interval for which the share of run time is reported, in nanoseconds.
pub const SHARE_NS: u64 = 10_000_000_000;
/// Least interval between two log messages of one kind.
const LOG_NS_MIN: u64 = 1_000_000_000;

/// Run and stop times of a program.
#[derive(Debug, Clone)]
pub(super) struct History {
    /// Times at which the program started to run (true) or was stopped (false), oldest first.
    changes: VecDeque<(u64, bool)>,
}

impl History {
    pub fn new(at_ns: u64) -> Self {
        Self {
            changes: VecDeque::from([(at_ns, true)]),
        }
    }

    pub fn record(&mut self, at_ns: u64, runs: bool) {
        self.changes.push_back((at_ns, runs));
        let from_ns = at_ns.saturating_sub(SHARE_NS);
        while self.changes.get(1).is_some_and(|next| next.0 <= from_ns) {
            self.changes.pop_front();
        }
    }

    /// Length of the interval that `share` covers: 10 s, or the age of a younger program.
    pub fn span_ns(&self, at_ns: u64) -> u64 {
        let first_ns = self.changes.front().map_or(at_ns, |first| first.0);
        at_ns.saturating_sub(first_ns).min(SHARE_NS)
    }

    /// Share of the interval `span_ns` for which the program ran.
    pub fn share(&self, at_ns: u64) -> f64 {
        let from_ns = at_ns - self.span_ns(at_ns);
        let ends = self.changes.iter().skip(1).map(|next| next.0);
        let spans = self.changes.iter().zip(ends.chain([at_ns]));
        let ran = spans.filter(|((_, runs), _)| *runs);
        let ran_ns: u64 = ran
            .map(|(&(begin_ns, _), end_ns)| end_ns.saturating_sub(begin_ns.max(from_ns)))
            .sum();
        match at_ns.saturating_sub(from_ns) {
            0 => self.changes.back().map_or(1.0, |last| f64::from(last.1)),
            all_ns => ran_ns as f64 / all_ns as f64,
        }
    }
}

/// Log messages of one kind, limited to one per second.
#[derive(Debug, Clone, Default)]
pub(super) struct RateLimitedLog {
    logged_ns: Option<u64>,
    suppressed: u32,
}

impl RateLimitedLog {
    /// Returns the message with the number of messages suppressed before it; `None` if the message
    /// is suppressed.
    pub fn log(&mut self, at_ns: u64, message: String) -> Option<String> {
        if self
            .logged_ns
            .is_some_and(|logged_ns| at_ns < logged_ns + LOG_NS_MIN)
        {
            self.suppressed += 1;
            return None;
        }
        self.logged_ns = Some(at_ns);
        Some(match std::mem::take(&mut self.suppressed) {
            0 => message,
            1 => format!("{message} (and 1 similar message since the last report)"),
            more => format!("{message} (and {more} similar messages since the last report)"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn the_share_covers_the_last_ten_seconds() {
        let mut history = History::new(0);
        assert_eq!(history.share(0), 1.0);
        history.record(S, false);
        assert_eq!(history.share(4 * S), 0.25);
        assert_eq!(
            (history.span_ns(4 * S), history.span_ns(11 * S)),
            (4 * S, SHARE_NS)
        );
        history.record(6 * S, true);
        assert_eq!(history.share(11 * S), 0.5);
        history.record(16 * S, false);
        assert_eq!(history.share(16 * S), 1.0);
        assert_eq!(history.share(100 * S), 0.0);
        assert_eq!(history.changes.len(), 2);
    }

    #[test]
    fn counts_suppressed_messages() {
        let mut log = RateLimitedLog::default();
        assert_eq!(log.log(5, "no".into()).unwrap(), "no");
        assert_eq!(log.log(6, "no".into()), None);
        assert_eq!(log.log(7, "no".into()), None);
        let text = log.log(5 + S, "no".into()).unwrap();
        assert_eq!(text, "no (and 2 similar messages since the last report)");
        assert_eq!(log.log(6 + S, "no".into()), None);
        let text = log.log(5 + 2 * S, "no".into()).unwrap();
        assert_eq!(text, "no (and 1 similar message since the last report)");
    }
}
