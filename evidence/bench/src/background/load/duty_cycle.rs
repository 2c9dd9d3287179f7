// SPDX-License-Identifier: MIT OR Apache-2.0
//! Duty cycles of load generators, and the loop that calls the steps of a generator.
//!
//! A generator with a timed cycle is active for a share of each period. A generator with a counted
//! cycle is active for a fixed number of units, then rests for a fixed time. A sleep is divided
//! into parts of at most 50 ms, after each of which the loop checks for a request to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::limits::LoadLimits;
use super::records::{WorkRecorder, monotonic_ns};

/// Maximum length of one sleep. The loop notices a request to end after each sleep.
const SLICE_NS: u64 = 50_000_000;

/// What a load generator does at a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DutyAction {
    /// Run the next step of work.
    On,
    /// Sleep for this time, in nanoseconds.
    Off(u64),
}

/// A duty cycle, which begins with an active phase.
#[derive(Debug, Clone, Copy)]
pub enum DutyCycle {
    /// The generator is active for the same time in each period, independent of the work done.
    Timed {
        /// Length of a period.
        period_ns: u64,
        /// Length of the active part.
        on_ns: u64,
    },
    /// The generator is active until `burst` units are done, then idle for a fixed time, like an
    /// interactive program between two inputs. If the work is delayed, all following phases are
    /// delayed.
    Counted {
        /// Number of units in an active phase.
        burst: u64,
        /// Length of each rest.
        rest_ns: u64,
        /// Total number of units done at the start of the present active phase.
        before: u64,
        /// End of the present rest, in ns since the start of the generator.
        rests_until_ns: u64,
    },
}

impl DutyCycle {
    /// Returns a cycle that is active for `usage` per cent of each period. With `burst`, it is
    /// active for that number of units, and its rest is as long as the timed cycle's.
    pub fn new(usage: f64, period_ms: f64, burst: Option<u64>) -> Self {
        let period_ns = (period_ms * 1e6).round().max(1.0) as u64;
        let on_ns = (period_ns as f64 * usage / 100.0).round() as u64;
        match burst {
            None => Self::Timed { period_ns, on_ns },
            Some(burst) => Self::Counted {
                burst,
                rest_ns: period_ns - on_ns,
                before: 0,
                rests_until_ns: 0,
            },
        }
    }

    /// Returns the action at the time `since_start_ns` after the start, when `done` units are done.
    pub fn at(&mut self, since_start_ns: u64, done: u64) -> DutyAction {
        match self {
            Self::Timed { period_ns, on_ns } => {
                let within = since_start_ns % *period_ns;
                match within < *on_ns {
                    true => DutyAction::On,
                    false => DutyAction::Off(*period_ns - within),
                }
            }
            Self::Counted {
                burst,
                rest_ns,
                before,
                rests_until_ns,
            } => {
                if done - *before >= *burst {
                    *before = done;
                    *rests_until_ns = since_start_ns + *rest_ns;
                }
                match rests_until_ns.saturating_sub(since_start_ns) {
                    0 => DutyAction::On,
                    left_ns => DutyAction::Off(left_ns),
                }
            }
        }
    }
}

/// Result of a run of a load generator.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Units of work done.
    pub work: u64,
    /// Duration of the run in seconds.
    pub seconds: f64,
}

/// Returns a flag that SIGTERM and SIGINT set.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Calls `step` in the active phases of the cycle, until a limit is reached or `stop` is set.
/// `step` returns the number of units it has done, or `None` if no work is left.
pub fn drive(
    limits: &LoadLimits,
    stop: &AtomicBool,
    mut step: impl FnMut() -> Result<Option<u64>>,
) -> Result<Summary> {
    let mut meter = WorkRecorder::new(limits)?;
    let mut duty = DutyCycle::new(limits.usage, limits.period_ms, limits.burst);
    let start_ns = monotonic_ns();
    let end_ns = limits.seconds.map(|s| start_ns + (s * 1e9) as u64);
    while !stop.load(Ordering::Relaxed) && limits.work.is_none_or(|all| meter.total() < all) {
        let now_ns = monotonic_ns();
        if end_ns.is_some_and(|end| now_ns >= end) {
            break;
        }
        match duty.at(now_ns - start_ns, meter.total()) {
            DutyAction::On => {
                meter.on(now_ns)?;
                let Some(units) = step()? else { break };
                meter.add(now_ns, units)?;
            }
            DutyAction::Off(left_ns) => {
                meter.off(now_ns)?;
                std::thread::sleep(Duration::from_nanos(left_ns.min(SLICE_NS)));
            }
        }
    }
    meter.off(monotonic_ns())?;
    let seconds = (monotonic_ns() - start_ns) as f64 / 1e9;
    Ok(Summary {
        work: meter.total(),
        seconds,
    })
}

/// Prints the result of a run as JSON.
pub fn print(summary: &Summary) -> Result<()> {
    crate::machine::print_line(serde_json::to_string(summary)?)
}
