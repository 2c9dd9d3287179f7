// SPDX-License-Identifier: MIT OR Apache-2.0
//! Idle-period detection, as in paper 2 (section 5): observes whether the foreground has gone.
//!
//! A running program is checked every `PERIOD_NS` (module `eii`). Contention stops it and opens a
//! window of one period. At its end the program continues if *every* resource was idle, whether the
//! program uses it or not: more CPU time idle than the threshold (62 % of all CPUs in the paper),
//! no foreground disk request, and no foreground send on any interface. Otherwise the next window
//! opens.
//!
//! The paper sets no limit to a stop, and there is none here. But a program that blocks a
//! foreground process, which waits for something that it holds, continues at once and runs for at
//! least [`GRACE_NS`].

use usher_model::ProgramId;

use super::contention::{Window, describe};
use super::eii::{PERIOD_NS, is_over, period_end};
use super::regulator::{Change, Sight};

/// Least time for which a program runs after it blocked a foreground process.
pub const HELD_NS: u64 = 50_000_000;

/// State of one program.
#[derive(Debug, Clone, Default)]
pub(super) struct Ipd {
    phase: Phase,
    /// Time until which the program runs in any case.
    spared_until_ns: u64,
}

#[derive(Debug, Clone, Default)]
enum Phase {
    /// Before the first sample.
    #[default]
    New,
    Runs(Window),
    Stopped(Window),
}

impl Ipd {
    /// Processes a sample; returns the change to make.
    pub fn look(&mut self, id: ProgramId, sight: &Sight) -> Option<Change> {
        let held = sight.held_up_by(id);
        if held.is_some() {
            self.spared_until_ns = sight.at_ns + HELD_NS;
        }
        match std::mem::take(&mut self.phase) {
            Phase::New => {
                self.phase = Phase::Runs(Window::new(sight.at_ns, sight.metering));
                None
            }
            Phase::Runs(window) => self.running(id, window, sight),
            Phase::Stopped(window) => match held {
                Some(why) => {
                    self.phase = Phase::Runs(Window::new(sight.at_ns, sight.metering));
                    Some(Change::Run(why))
                }
                None => self.stopped(window, sight),
            },
        }
    }

    fn running(&mut self, id: ProgramId, mut window: Window, sight: &Sight) -> Option<Change> {
        window.see(sight.metering);
        let is_early = sight.at_ns < window.from_ns() + PERIOD_NS;
        if is_early || sight.at_ns < self.spared_until_ns {
            self.phase = Phase::Runs(window);
            return None;
        }
        let used = window.used_by(sight.metering, id);
        let found = window.contention(sight.at_ns, sight.metering, &used, sight.thresholds);
        let Some(found) = found else {
            self.phase = Phase::Runs(window.next(sight.at_ns, sight.metering));
            return None;
        };
        self.phase = Phase::Stopped(Window::new(sight.at_ns, sight.metering));
        let why = describe(&found);
        Some(Change::Stop(found, why))
    }

    fn stopped(&mut self, mut window: Window, sight: &Sight) -> Option<Change> {
        window.see(sight.metering);
        if !is_over(&window, sight) {
            self.phase = Phase::Stopped(window);
            return None;
        }
        let idle = window.idle_share(sight.metering).unwrap_or(0.0);
        if idle > sight.thresholds.ipd_idle && window.devices_quiet(sight.metering) {
            self.phase = Phase::Runs(Window::new(sight.at_ns, sight.metering));
            let percent = idle * 100.0;
            let why = format!("CPUs idle for {percent:.0} %, no request of a disk, nothing sent");
            return Some(Change::Run(why));
        }
        self.phase = Phase::Stopped(window.next(sight.at_ns, sight.metering));
        None
    }

    /// Time of the next check.
    pub fn wake_ns(&self, at_ns: u64) -> u64 {
        match &self.phase {
            Phase::New => at_ns,
            Phase::Runs(window) | Phase::Stopped(window) => period_end(window, at_ns),
        }
    }
}
