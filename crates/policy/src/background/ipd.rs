// SPDX-License-Identifier: MIT OR Apache-2.0
//! Idle-period detection, as in paper 2 (section 5): whether the foreground has
//! gone is found out by watching it.
//!
//! A program runs, and is looked at every `PERIOD_NS` (module `eii`); contention
//! stops it, and opens a window of one period. At its end the program goes on if
//! *every* resource was at rest: more of the CPUs idle than the threshold (62 %
//! there, of all CPUs), no foreground request of any disk, no foreground send on
//! any interface, whether the program uses them or not. If not, the next window
//! opens.
//!
//! The paper sets no end to a stop, so neither is there one here; but a program
//! that keeps a foreground process waiting for what it holds is let go on at
//! once, and for [`HELD_NS`] beyond.

use usher_model::ProgramId;

use super::contention::{Window, describe};
use super::eii::{PERIOD_NS, is_over, period_end};
use super::regulator::{Change, Sight};

/// How long a program runs at least when it held somebody up.
pub const HELD_NS: u64 = 50_000_000;

/// One program's state.
#[derive(Debug, Clone, Default)]
pub(super) struct Ipd {
    phase: Phase,
    /// Until when it runs in any case.
    spared_until_ns: u64,
}

#[derive(Debug, Clone, Default)]
enum Phase {
    /// Not looked at yet.
    #[default]
    New,
    Runs(Window),
    Stopped(Window),
}

impl Ipd {
    /// Takes a look in: what is to change.
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

    /// When to look again.
    pub fn wake_ns(&self, at_ns: u64) -> u64 {
        match &self.phase {
            Phase::New => at_ns,
            Phase::Runs(window) | Phase::Stopped(window) => period_end(window, at_ns),
        }
    }
}
