// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regulation by idle-period detection (`ipd`), as in paper 2 (section 5): a stopped program
//! continues when the whole machine has been idle for a period.
//!
//! 1. A running program is checked for contention (module `contention`) every `PERIOD_NS` (100 ms,
//!    module `eii`). Contention stops the program and opens a window of one period.
//! 2. The window ends after 100 ms, or after at most 500 ms while CPU times are missing. The
//!    program then continues if *every* resource was idle, whether the program uses the resource or
//!    not. The CPUs were idle if their idle share is above the threshold (62 % of all CPUs in the
//!    paper). Devices were idle if the foreground made no disk request and sent on no interface.
//! 3. If a resource was not idle, the next window opens.
//!
//! A stop has no maximum length, as in the paper. Exception: if a stopped program holds something
//! that a foreground process waits for, the program continues at once and runs for at least
//! [`GRACE_NS`] (50 ms).
//!
//! Without CPU times, the CPUs count as not idle, and the program stays stopped. A check takes
//! linear time in the number of background programs for each resource that the program has used.

use usher_model::ProgramId;

use super::contention::{MeteringWindow, describe};
use super::eii::{PERIOD_NS, is_over, period_end};
use super::regulator::{RegulationChange, TickCtx};

/// Least time for which a program runs after it blocked a foreground process.
pub const GRACE_NS: u64 = 50_000_000;

/// State of one program.
#[derive(Debug, Clone, Default)]
pub(super) struct Ipd {
    phase: Phase,
    /// Time until which the program runs even if there is contention.
    grace_until_ns: u64,
}

#[derive(Debug, Clone, Default)]
enum Phase {
    /// Before the first sample.
    #[default]
    New,
    Runs(MeteringWindow),
    Stopped(MeteringWindow),
}

impl Ipd {
    /// Processes a sample; returns the change to make.
    pub fn update(&mut self, id: ProgramId, ctx: &TickCtx) -> Option<RegulationChange> {
        let blocked = ctx.blocked_by(id);
        if blocked.is_some() {
            self.grace_until_ns = ctx.at_ns + GRACE_NS;
        }
        match std::mem::take(&mut self.phase) {
            Phase::New => {
                self.phase = Phase::Runs(MeteringWindow::new(ctx.at_ns, ctx.metering));
                None
            }
            Phase::Runs(window) => self.running(id, window, ctx),
            Phase::Stopped(window) => match blocked {
                Some(why) => {
                    self.phase = Phase::Runs(MeteringWindow::new(ctx.at_ns, ctx.metering));
                    Some(RegulationChange::Continue(why))
                }
                None => self.stopped(window, ctx),
            },
        }
    }

    fn running(
        &mut self,
        id: ProgramId,
        mut window: MeteringWindow,
        ctx: &TickCtx,
    ) -> Option<RegulationChange> {
        window.see(ctx.metering);
        let is_early = ctx.at_ns < window.from_ns() + PERIOD_NS;
        if is_early || ctx.at_ns < self.grace_until_ns {
            self.phase = Phase::Runs(window);
            return None;
        }
        let used = window.used_by(ctx.metering, id);
        let found = window.contention(ctx.at_ns, ctx.metering, &used, ctx.thresholds);
        let Some(found) = found else {
            self.phase = Phase::Runs(window.next(ctx.at_ns, ctx.metering));
            return None;
        };
        self.phase = Phase::Stopped(MeteringWindow::new(ctx.at_ns, ctx.metering));
        let why = describe(&found);
        Some(RegulationChange::Stop(found, why))
    }

    fn stopped(&mut self, mut window: MeteringWindow, ctx: &TickCtx) -> Option<RegulationChange> {
        window.see(ctx.metering);
        if !is_over(&window, ctx) {
            self.phase = Phase::Stopped(window);
            return None;
        }
        let idle = window.idle_share(ctx.metering).unwrap_or(0.0);
        if idle > ctx.thresholds.ipd_idle && window.devices_quiet(ctx.metering) {
            self.phase = Phase::Runs(MeteringWindow::new(ctx.at_ns, ctx.metering));
            let percent = idle * 100.0;
            let why = format!(
                "the CPUs were idle for {percent:.0} % of the last window, and no disk request or \
                 packet was sent"
            );
            return Some(RegulationChange::Continue(why));
        }
        self.phase = Phase::Stopped(window.next(ctx.at_ns, ctx.metering));
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
