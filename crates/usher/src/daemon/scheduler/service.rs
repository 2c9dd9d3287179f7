// SPDX-License-Identifier: GPL-2.0-only
//! The server side of the interface `org.usher.Scheduler1`: checks the rights and arguments of one
//! peer, and passes its requests to the scheduler's thread.
//!
//! - Only root may start, change and stop the scheduler; every user may read its state.
//! - The length of a turn and the maximum lag are 1 to 200 ms ([`LIMIT_MS`]); other values are
//!   rejected.
//! - A start, a change or a stop waits for the scheduler's thread without a time limit; reading the
//!   state waits for no request.
//! - If the caller of a start has disconnected when the answer is ready, the scheduler is stopped
//!   again.

use std::sync::Arc;

use serde_json::Value;
use usher_scx::{QuotaCounts, Settings};
use varlink::Interface;

use super::api::{self, VarlinkCallError, VarlinkInterface};
use super::control::SchedulerControl;
use super::state::{LIMIT_MS, Phase, STOPPED, SchedulerState, SettingsChange};
use crate::daemon::server::Peer;
use crate::daemon::workers::if_undelivered;
use crate::failure;

/// State shared by the interfaces of all peers.
#[derive(Clone)]
pub struct SchedulerContext {
    /// The scheduler's thread.
    pub scheduler: SchedulerControl,
    /// Returns whether this process ends when its scheduler is stopped.
    pub exits: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// Returns the interface for one peer.
pub fn interface(context: &SchedulerContext, peer: Peer) -> Box<dyn Interface + Send + Sync> {
    let service = SchedulerService {
        context: context.clone(),
        is_root: peer.uid == 0,
    };
    Box::new(api::new(Box::new(service)))
}

struct SchedulerService {
    context: SchedulerContext,
    is_root: bool,
}

/// Why a call was refused.
enum Refusal {
    PermissionDenied,
    BadArgument(&'static str, String),
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl Refusal {
    fn reply(self, call: &mut (impl VarlinkCallError + ?Sized)) -> varlink::Result<()> {
        match self {
            Self::PermissionDenied => call.reply_permission_denied(),
            Self::BadArgument(argument, reason) => {
                call.reply_bad_argument(argument.to_owned(), reason)
            }
            Self::Failed(error) => call.reply_failed(failure::line(&error)),
        }
    }
}

impl SchedulerService {
    fn check_root(&self) -> Result<(), Refusal> {
        match self.is_root {
            true => Ok(()),
            false => Err(Refusal::PermissionDenied),
        }
    }

    fn started(&self, settings: Value) -> Result<Value, Refusal> {
        self.check_root()?;
        let settings = parse_settings(settings)?;
        let started = self.context.scheduler.start(settings)?;
        let scheduler = self.context.scheduler.clone();
        if_undelivered(move || {
            let _ = scheduler.stop(
                "'usher sched start' was interrupted while it waited for the start of the \
                 scheduler",
            );
        });
        to_value(&started)
    }

    fn changed(&self, change: SettingsChange) -> Result<Value, Refusal> {
        self.check_root()?;
        for (argument, ms) in [
            ("turn_ms", change.turn_ms),
            ("max_lag_ms", change.max_lag_ms),
        ] {
            ms.map_or(Ok(()), |ms| check_limit(argument, ms))?;
        }
        to_value(&self.context.scheduler.set(change)?)
    }

    fn stopped(&self) -> Result<Option<SchedulerState>, Refusal> {
        self.check_root()?;
        Ok(self.context.scheduler.stop(STOPPED)?)
    }
}

fn to_value(state: &SchedulerState) -> Result<Value, Refusal> {
    serde_json::to_value(state).map_err(|error| Refusal::Failed(error.into()))
}

fn parse_settings(settings: Value) -> Result<Settings, Refusal> {
    let parsed: Result<Settings, _> = serde_json::from_value(settings);
    let settings = parsed.map_err(|error| Refusal::BadArgument("settings", error.to_string()))?;
    for ns in [settings.turn_ns, settings.max_lag_ns] {
        check_limit("settings", ns / 1_000_000)?;
    }
    Ok(settings)
}

fn check_limit(argument: &'static str, ms: u64) -> Result<(), Refusal> {
    match LIMIT_MS.contains(&ms) {
        true => Ok(()),
        false => {
            let (least, most) = LIMIT_MS.into_inner();
            let reason = format!("the value must be from {least} to {most} ms, not {ms} ms");
            Err(Refusal::BadArgument(argument, reason))
        }
    }
}

/// Converts Varlink's signed integers; a negative number becomes 0, which is out of range.
fn to_ms(ms: Option<i64>) -> Option<u64> {
    ms.map(|ms| u64::try_from(ms).unwrap_or(0))
}

impl VarlinkInterface for SchedulerService {
    fn start(&self, call: &mut dyn api::Call_Start, settings: Value) -> varlink::Result<()> {
        match self.started(settings) {
            Ok(scheduler) => call.reply(scheduler),
            Err(refusal) => refusal.reply(call),
        }
    }

    fn set(
        &self,
        call: &mut dyn api::Call_Set,
        smt: Option<bool>,
        aggregate: Option<bool>,
        seats: Option<bool>,
        turn_ms: Option<i64>,
        max_lag_ms: Option<i64>,
    ) -> varlink::Result<()> {
        let change = SettingsChange {
            smt,
            aggregate,
            seats,
            turn_ms: to_ms(turn_ms),
            max_lag_ms: to_ms(max_lag_ms),
        };
        match self.changed(change) {
            Ok(scheduler) => call.reply(scheduler),
            Err(refusal) => refusal.reply(call),
        }
    }

    fn stop(&self, call: &mut dyn api::Call_Stop) -> varlink::Result<()> {
        match self.stopped() {
            Ok(state) => {
                let pid = state.map(|state| state.pid.into());
                call.reply(pid, (self.context.exits)())
            }
            Err(refusal) => refusal.reply(call),
        }
    }

    fn status(&self, call: &mut dyn api::Call_Status) -> varlink::Result<()> {
        let mut state = self.context.scheduler.state();
        if let Some(state) = state.as_mut().filter(|state| state.state == Phase::Running) {
            // The counts are missing if the scheduler has ended since.
            state.quotas = QuotaCounts::read(&state.maps).ok();
        }
        match state.as_ref().map(to_value).transpose() {
            Ok(scheduler) => call.reply(scheduler),
            Err(refusal) => refusal.reply(call),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rejects_settings_out_of_range_or_of_another_kind() {
        let default = serde_json::to_value(Settings::default()).unwrap();
        assert!(parse_settings(default.clone()).is_ok());
        for (key, value) in [
            ("turn_ns", json!(0)),
            ("max_lag_ns", json!(201_000_000)),
            ("smt", json!("on")),
        ] {
            let mut settings = default.clone();
            settings[key] = value;
            let refused = parse_settings(settings);
            assert!(
                matches!(refused, Err(Refusal::BadArgument("settings", _))),
                "{key}"
            );
        }
        assert!(check_limit("turn_ms", 200).is_ok());
        assert!(check_limit("turn_ms", to_ms(Some(-1)).unwrap()).is_err());
    }

    #[test]
    fn only_root_may_change_the_scheduler() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = usher_scx::Kernel::at(dir.path());
        let thread = crate::daemon::scheduler::SchedulerThread::start(dir.path(), kernel, None);
        let thread = thread.unwrap();
        let context = SchedulerContext {
            scheduler: thread.control().clone(),
            exits: Arc::new(|| false),
        };
        let of = |is_root| SchedulerService {
            context: context.clone(),
            is_root,
        };
        let settings = serde_json::to_value(Settings::default()).unwrap();
        let denied =
            |refused: Result<(), Refusal>| matches!(refused, Err(Refusal::PermissionDenied));
        for is_root in [false, true] {
            let service = of(is_root);
            let started = service.started(settings.clone()).map(drop);
            assert_eq!(denied(started), !is_root);
            let changed = service.changed(SettingsChange::default()).map(drop);
            assert_eq!(denied(changed), !is_root);
            assert_eq!(denied(service.stopped().map(drop)), !is_root);
        }
    }
}
