// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rate of progress over the last seconds, for display. The mean since a program's arrival hides
//! whether the program makes progress now.
//!
//! The window keeps figures at least [`SPACING_NS`] apart and drops figures older than
//! [`WINDOW_NS`], except the newest of them, from which the rate is computed. A change of the
//! source starts the window again, because the units differ. Adding a figure takes constant
//! amortised time; the window has at most 22 figures.

use std::collections::VecDeque;

use usher_model::Progress;

/// Length of the window.
pub const WINDOW_NS: u64 = 10_000_000_000;
/// Shortest distance between two kept figures.
const SPACING_NS: u64 = WINDOW_NS / 20;

/// The latest progress figures of a program.
#[derive(Debug, Default)]
pub(super) struct ProgressWindow {
    figures: VecDeque<(u64, Progress)>,
}

impl ProgressWindow {
    /// Adds a figure.
    pub fn add(&mut self, at_ns: u64, progress: Progress) {
        let last = self.figures.back();
        if last.is_some_and(|(_, known)| {
            known.source != progress.source || known.total > progress.total
        }) {
            self.figures.clear();
        }
        // The last figure is replaced while it is close to the figure before it.
        let at = |from_end: usize| {
            let index = self.figures.len().checked_sub(from_end)?;
            self.figures.get(index).map(|(at_ns, _)| *at_ns)
        };
        if let (Some(last), Some(before)) = (at(1), at(2))
            && last - before < SPACING_NS
        {
            self.figures.pop_back();
        }
        self.figures.push_back((at_ns, progress));
        let oldest_ns = at_ns.saturating_sub(WINDOW_NS);
        while self
            .figures
            .get(1)
            .is_some_and(|(at_ns, _)| *at_ns <= oldest_ns)
        {
            self.figures.pop_front();
        }
    }

    /// Returns the progress per second over the window; `None` with fewer than two figures.
    pub fn per_second(&self) -> Option<f64> {
        let (from_ns, from) = self.figures.front()?;
        let (to_ns, to) = self.figures.back()?;
        let seconds = to_ns.saturating_sub(*from_ns) as f64 / 1e9;
        (seconds > 0.0).then(|| (to.total - from.total) / seconds)
    }
}

#[cfg(test)]
mod tests {
    use usher_model::ProgressSource;

    use super::*;

    const MS: u64 = 1_000_000;

    fn figure(total: f64, source: ProgressSource) -> Progress {
        Progress {
            total,
            source,
            confidence: 1.0,
        }
    }

    /// Returns the window after `seconds` of samples every 20 ms, with this total at each time.
    fn after(seconds: u64, total: impl Fn(f64) -> f64) -> ProgressWindow {
        let mut window = ProgressWindow::default();
        for step in 0..=seconds * 50 {
            let progress = figure(total(step as f64 / 50.0), ProgressSource::Heartbeat);
            window.add(step * 20 * MS, progress);
        }
        window
    }

    #[test]
    fn the_rate_is_that_of_the_last_ten_seconds() {
        let changed = after(60, |at| {
            if at < 50.0 {
                at
            } else {
                50.0 + 3.0 * (at - 50.0)
            }
        });
        assert!((changed.per_second().unwrap() - 3.0).abs() < 0.15);
        let stalled = after(60, |at| at.min(45.0));
        assert_eq!(stalled.per_second(), Some(0.0));
    }

    #[test]
    fn frequent_samples_do_not_grow_the_window() {
        assert!(after(60, |at| at).figures.len() <= 22);
    }

    #[test]
    fn rare_samples_give_a_rate() {
        let mut window = ProgressWindow::default();
        window.add(0, figure(0.0, ProgressSource::Heartbeat));
        assert_eq!(window.per_second(), None, "one figure");
        window.add(30_000 * MS, figure(60.0, ProgressSource::Heartbeat));
        assert_eq!(window.per_second(), Some(2.0));
    }

    #[test]
    fn another_source_starts_the_window_again() {
        let mut window = after(5, |at| at);
        window.add(5_100 * MS, figure(1e9, ProgressSource::Instructions));
        assert_eq!(window.per_second(), None);
        window.add(6_100 * MS, figure(3e9, ProgressSource::Instructions));
        assert_eq!(window.per_second(), Some(2e9));
    }
}
