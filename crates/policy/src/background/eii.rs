// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exponentially increasing interval, as in paper 2 (section 5; from MS
//! Manners): whether the foreground has gone is found out by trying.
//!
//! A program runs, and is looked at every [`PERIOD_NS`]. Contention stops it for
//! 1 s. Then it runs for a period, the *trial*: contention in it stops it
//! for twice as long as the last time, at most 16 s; none lets it run on, and
//! the next stop is of 1 s again.
//!
//! The paper does not say how often it looks nor how long "briefly" is: both are
//! the period here. A trial is judged by what happened in it alone: its window
//! opens when the program goes on, and where CPU times are read more rarely, the
//! trial waits for them, `WAIT_PERIODS` periods at most.

use std::collections::BTreeSet;

use usher_model::{ProgramId, Resource};

use super::contention::{Window, describe};
use super::regulator::{Change, Sight};

/// Between two looks; how long a trial lasts.
pub const PERIOD_NS: u64 = 100_000_000;
/// The first stop, and the longest.
pub const STOP_NS_MIN: u64 = 1_000_000_000;
/// See [`STOP_NS_MIN`].
pub const STOP_NS_MAX: u64 = 16_000_000_000;
/// How many periods CPU times are waited for.
pub(super) const WAIT_PERIODS: u64 = 5;

/// One program's state.
#[derive(Debug, Clone, Default)]
pub(super) struct Eii {
    phase: Phase,
    /// Length of its last stop.
    stop_ns: u64,
    /// What it used when it was stopped.
    used: BTreeSet<Resource>,
}

#[derive(Debug, Clone, Default)]
enum Phase {
    /// Not looked at yet.
    #[default]
    New,
    Runs(Window),
    Trial(Window),
    Stopped {
        until_ns: u64,
    },
}

/// Whether the window is over: a period has passed, and CPU times of half of it
/// are there or have been waited for long enough.
pub(super) fn is_over(window: &Window, sight: &Sight) -> bool {
    let passed_ns = sight.at_ns.saturating_sub(window.from_ns());
    let cpu = window.cpu_ns(sight.metering) >= PERIOD_NS / 2;
    passed_ns >= PERIOD_NS && (cpu || passed_ns >= WAIT_PERIODS * PERIOD_NS)
}

impl Eii {
    /// Takes a look in: what is to change.
    pub fn look(&mut self, id: ProgramId, sight: &Sight) -> Option<Change> {
        match std::mem::take(&mut self.phase) {
            Phase::New => {
                self.phase = Phase::Runs(Window::new(sight.at_ns, sight.metering));
                None
            }
            Phase::Stopped { until_ns } if sight.at_ns >= until_ns => {
                self.phase = Phase::Trial(Window::new(sight.at_ns, sight.metering));
                let seconds = self.stop_ns / 1_000_000_000;
                Some(Change::Run(format!("on trial after {seconds} s")))
            }
            stopped @ Phase::Stopped { .. } => {
                self.phase = stopped;
                None
            }
            Phase::Runs(window) => self.running(id, window, sight),
            Phase::Trial(window) => self.on_trial(id, window, sight),
        }
    }

    fn running(&mut self, id: ProgramId, mut window: Window, sight: &Sight) -> Option<Change> {
        window.see(sight.metering);
        if sight.at_ns < window.from_ns() + PERIOD_NS {
            self.phase = Phase::Runs(window);
            return None;
        }
        self.used = window.used_by(sight.metering, id);
        self.judge(window, STOP_NS_MIN, sight)
    }

    fn on_trial(&mut self, id: ProgramId, mut window: Window, sight: &Sight) -> Option<Change> {
        window.see(sight.metering);
        if !is_over(&window, sight) {
            self.phase = Phase::Trial(window);
            return None;
        }
        self.used.extend(window.used_by(sight.metering, id));
        let longer_ns = (self.stop_ns * 2).min(STOP_NS_MAX);
        self.judge(window, longer_ns, sight)
    }

    /// Stops for that long where there is contention; runs on where not.
    fn judge(&mut self, window: Window, stop_ns: u64, sight: &Sight) -> Option<Change> {
        let found = window.contention(sight.at_ns, sight.metering, &self.used, sight.thresholds);
        let Some(found) = found else {
            self.phase = Phase::Runs(window.next(sight.at_ns, sight.metering));
            return None;
        };
        self.stop_ns = stop_ns;
        self.phase = Phase::Stopped {
            until_ns: sight.at_ns + stop_ns,
        };
        let seconds = stop_ns / 1_000_000_000;
        let why = format!("{}; for {seconds} s", describe(&found));
        Some(Change::Stop(found, why))
    }

    /// When to look again.
    pub fn wake_ns(&self, at_ns: u64) -> u64 {
        match &self.phase {
            Phase::New => at_ns,
            Phase::Stopped { until_ns } => *until_ns,
            Phase::Runs(window) | Phase::Trial(window) => period_end(window, at_ns),
        }
    }
}

/// The end of a window's period; once it is past, of the next.
pub(super) fn period_end(window: &Window, at_ns: u64) -> u64 {
    let periods = at_ns.saturating_sub(window.from_ns()) / PERIOD_NS + 1;
    window.from_ns() + periods * PERIOD_NS
}
