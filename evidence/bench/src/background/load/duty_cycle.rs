// SPDX-License-Identifier: MIT OR Apache-2.0
//! Duty cycles of load generators: activity for a share of each period, or for a burst of units
//! followed by a rest, and the loop that calls the generator's steps. Sleeps are divided, so that a
//! request to end is noticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::limits::LoadLimits;
use super::records::{WorkRecorder, monotonic_ns};

/// Maximum length of one sleep, so that a request to end is noticed.
const SLICE_NS: u64 = 50_000_000;

/// Action at a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DutyAction {
    /// Work.
    On,
    /// Sleep for this time, in nanoseconds.
    Off(u64),
}

/// A duty cycle that begins with activity.
#[derive(Debug, Clone, Copy)]
pub enum DutyCycle {
    /// Active for the same time in each period, however much work is done.
    Timed {
        /// Length of a period.
        period_ns: u64,
        /// Length of the active part.
        on_ns: u64,
    },
    /// Active until `burst` units are done, then idle for a fixed time, like an interactive program
    /// between two inputs. A delay of the work shifts the following periods.
    Counted {
        /// Units in an active phase.
        burst: u64,
        /// Length of each rest.
        rest_ns: u64,
        /// Units done at the start of this phase.
        before: u64,
        /// End of the present rest, since the start.
        rests_until_ns: u64,
    },
}

impl DutyCycle {
    /// Active for `usage` per cent of each period, or for `burst` units and idle for the rest of a
    /// period.
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

    /// The action at this time since the start, after `done` units.
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

/// Result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Units of work done.
    pub work: u64,
    /// Duration of that work in seconds.
    pub seconds: f64,
}

/// A flag that SIGTERM and SIGINT set.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Calls `step` while active, until a limit is reached or `stop` is set.
/// A step returns the units it did, `None` when there is nothing more to do.
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
    println!("{}", serde_json::to_string(summary)?);
    Ok(())
}
