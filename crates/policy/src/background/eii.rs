// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regulation by exponentially increasing interval (`eii`), as in paper 2 (section 5; from MS
//! Manners): a stopped program runs from time to time, to test whether the foreground has gone.
//!
//! 1. A running program is checked for contention (module `contention`) every [`PERIOD_NS`] (100
//!    ms). Contention stops the program for 1 s.
//! 2. After the stop, the program runs for one period, the *trial*.
//! 3. Contention in the trial stops the program for twice the duration of the previous stop, at
//!    most 16 s. Without contention in the trial, the program keeps running, and its next stop
//!    lasts 1 s again.
//!
//! The paper gives neither the sampling interval nor the length of the trial; this module uses one
//! period for the interval and for the trial. Only contention during the trial counts: the window
//! of the trial opens when the stopped program is continued. If CPU times are read less often than
//! once per period, the trial lasts until CPU times have been read, but at most 5 periods (500 ms).
//! Without CPU times, the CPUs then count as not contended.
//!
//! A check takes linear time in the number of background programs for each resource that the
//! program has used.

use std::collections::BTreeSet;

use usher_model::{ProgramId, Resource};

use super::contention::{MeteringWindow, describe};
use super::regulator::{RegulationChange, TickCtx};

/// Interval between checks, and least length of a trial.
pub const PERIOD_NS: u64 = 100_000_000;
/// The shortest stop.
pub const STOP_NS_MIN: u64 = 1_000_000_000;
/// The longest stop.
pub const STOP_NS_MAX: u64 = 16_000_000_000;
/// Number of periods after which a trial no longer waits for CPU times.
pub(super) const WAIT_PERIODS: u64 = 5;

/// State of one program.
#[derive(Debug, Clone, Default)]
pub(super) struct Eii {
    phase: Phase,
    /// Length of the last stop.
    stop_ns: u64,
    /// Resources used when the program was last stopped.
    used: BTreeSet<Resource>,
}

#[derive(Debug, Clone, Default)]
enum Phase {
    /// Before the first sample.
    #[default]
    New,
    Runs(MeteringWindow),
    Trial(MeteringWindow),
    Stopped {
        until_ns: u64,
    },
}

/// Whether the window is complete: a period has passed, and CPU times cover at least half a period.
/// After `WAIT_PERIODS` periods, the window is complete without CPU times.
pub(super) fn is_over(window: &MeteringWindow, ctx: &TickCtx) -> bool {
    let passed_ns = ctx.at_ns.saturating_sub(window.from_ns());
    let cpu = window.cpu_ns(ctx.metering) >= PERIOD_NS / 2;
    passed_ns >= PERIOD_NS && (cpu || passed_ns >= WAIT_PERIODS * PERIOD_NS)
}

impl Eii {
    /// Processes a sample; returns the change to make.
    pub fn update(&mut self, id: ProgramId, ctx: &TickCtx) -> Option<RegulationChange> {
        match std::mem::take(&mut self.phase) {
            Phase::New => {
                self.phase = Phase::Runs(MeteringWindow::new(ctx.at_ns, ctx.metering));
                None
            }
            Phase::Stopped { until_ns } if ctx.at_ns >= until_ns => {
                self.phase = Phase::Trial(MeteringWindow::new(ctx.at_ns, ctx.metering));
                let seconds = self.stop_ns / 1_000_000_000;
                Some(RegulationChange::Continue(format!(
                    "the program was stopped for {seconds} s, and now runs for a trial"
                )))
            }
            stopped @ Phase::Stopped { .. } => {
                self.phase = stopped;
                None
            }
            Phase::Runs(window) => self.running(id, window, ctx),
            Phase::Trial(window) => self.on_trial(id, window, ctx),
        }
    }

    fn running(
        &mut self,
        id: ProgramId,
        mut window: MeteringWindow,
        ctx: &TickCtx,
    ) -> Option<RegulationChange> {
        window.see(ctx.metering);
        if ctx.at_ns < window.from_ns() + PERIOD_NS {
            self.phase = Phase::Runs(window);
            return None;
        }
        self.used = window.used_by(ctx.metering, id);
        self.evaluate(window, STOP_NS_MIN, ctx)
    }

    fn on_trial(
        &mut self,
        id: ProgramId,
        mut window: MeteringWindow,
        ctx: &TickCtx,
    ) -> Option<RegulationChange> {
        window.see(ctx.metering);
        if !is_over(&window, ctx) {
            self.phase = Phase::Trial(window);
            return None;
        }
        self.used.extend(window.used_by(ctx.metering, id));
        let longer_ns = (self.stop_ns * 2).min(STOP_NS_MAX);
        self.evaluate(window, longer_ns, ctx)
    }

    /// Stops the program for `stop_ns` if the window shows contention; otherwise the program keeps
    /// running.
    fn evaluate(
        &mut self,
        window: MeteringWindow,
        stop_ns: u64,
        ctx: &TickCtx,
    ) -> Option<RegulationChange> {
        let found = window.contention(ctx.at_ns, ctx.metering, &self.used, ctx.thresholds);
        let Some(found) = found else {
            self.phase = Phase::Runs(window.next(ctx.at_ns, ctx.metering));
            return None;
        };
        self.stop_ns = stop_ns;
        self.phase = Phase::Stopped {
            until_ns: ctx.at_ns + stop_ns,
        };
        let seconds = stop_ns / 1_000_000_000;
        let why = format!(
            "{}; the program is stopped for {seconds} s",
            describe(&found)
        );
        Some(RegulationChange::Stop(found, why))
    }

    /// Time of the next check.
    pub fn wake_ns(&self, at_ns: u64) -> u64 {
        match &self.phase {
            Phase::New => at_ns,
            Phase::Stopped { until_ns } => *until_ns,
            Phase::Runs(window) | Phase::Trial(window) => period_end(window, at_ns),
        }
    }
}

/// End of the window's current period.
pub(super) fn period_end(window: &MeteringWindow, at_ns: u64) -> u64 {
    let periods = at_ns.saturating_sub(window.from_ns()) / PERIOD_NS + 1;
    window.from_ns() + periods * PERIOD_NS
}
