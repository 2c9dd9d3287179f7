// SPDX-License-Identifier: GPL-2.0-only
//! The state of a scheduler, as the interface `org.usher.Scheduler1` reports it, and changes of its
//! settings: the permitted values, the settings that result from a change, and their description in
//! words. A turn and a maximum lag have 1 to 200 ms ([`LIMIT_MS`]). This file does no input or
//! output except for the time of day, and checks no limits itself.

use std::ops::RangeInclusive;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::bail;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_scx::{MapIds, QuotaCounts, Settings};

/// The permitted range of turn and maximum lag in milliseconds. With values in this range, no
/// thread waits until the kernel's watchdog ends the scheduler, even with a hundred threads per
/// CPU.
pub const LIMIT_MS: RangeInclusive<u64> = 1..=200;

/// State of a scheduler that was started.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SchedulerState {
    /// The process that holds the scheduler.
    pub pid: i32,
    /// The phase of the scheduler.
    pub state: Phase,
    /// The behaviour of the scheduler, as text.
    pub does: String,
    /// The settings of the scheduler.
    pub settings: Settings,
    /// Number of changes of the settings while the scheduler ran.
    pub changes: u32,
    /// The part of the last change that failed, and why.
    pub undone: Option<String>,
    /// The number of the change that last switched seats on or off.
    pub seats_since: u32,
    /// The kernel's ids of the scheduler's maps.
    pub maps: MapIds,
    /// Whether the kernel keeps idle CPUs per NUMA node for the scheduler.
    pub idle_by_node: bool,
    /// Number of restarts because CPUs appeared or disappeared.
    pub restarts: u32,
    /// Why the scheduler ended, or could not be started.
    pub ended: Option<String>,
    /// The last end by the kernel after which the daemon started the scheduler again.
    #[serde(default)]
    pub fault: Option<SchedulerFault>,
    /// Number of such ends.
    #[serde(default)]
    pub fault_restarts: u32,
    /// Numbers of cgroups with a CPU limit (`cpu.max`), while the scheduler runs.
    #[serde(default)]
    pub quotas: Option<QuotaCounts>,
}

/// An end of the scheduler by the kernel, because of a fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SchedulerFault {
    /// The kernel's reason.
    pub reason: String,
    /// Time of the end, in seconds since 1970.
    pub unix_seconds: u64,
}

/// The table `[scheduler]` of the configuration file: the scheduler that root's daemon loads at its
/// start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Whether the daemon loads the scheduler.
    pub enable: bool,
    /// The settings with which it is loaded.
    pub settings: Settings,
}

/// The reason of an end on request.
pub const STOPPED: &str = "stopped";

/// The phase of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The kernel verifies the scheduler's BPF programs; the scheduler does not run the threads
    /// yet.
    Starting,
    /// The scheduler runs the threads.
    Running,
    /// The kernel took the threads back because a CPU appeared or disappeared; the
    /// scheduler starts again.
    Restarting,
    /// The kernel ended the scheduler because of a fault; the daemon starts it again.
    Recovering,
    /// The scheduler has ended.
    Ended,
    /// The daemon could not start the scheduler that its configuration file enables.
    Failed,
}

impl Phase {
    /// Returns whether no scheduler is loaded or about to be loaded.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Ended | Self::Failed)
    }
}

impl SchedulerState {
    /// Returns the state of a scheduler that this process starts.
    pub fn starting(settings: &Settings) -> Self {
        Self {
            pid: std::process::id() as i32,
            state: Phase::Starting,
            does: described(settings),
            settings: *settings,
            changes: 0,
            undone: None,
            seats_since: 0,
            maps: MapIds::default(),
            idle_by_node: false,
            restarts: 0,
            ended: None,
            fault: None,
            fault_restarts: 0,
            quotas: None,
        }
    }

    /// Records the end and its reason.
    pub fn end(&mut self, reason: &str) {
        self.state = Phase::Ended;
        self.ended = Some(reason.to_owned());
    }

    /// Records an end by the kernel, after which the daemon starts the scheduler again.
    pub fn recover(&mut self, reason: String) {
        self.state = Phase::Recovering;
        self.fault = Some(SchedulerFault {
            reason,
            unix_seconds: unix_seconds(),
        });
        self.fault_restarts += 1;
    }

    /// Returns the sentence about an end that an administrator should know: a fault in the hour
    /// before `now` (seconds since 1970), an end that no request caused, or a failed start.
    pub fn notice(&self, now: u64) -> Option<String> {
        let because = |what: &str| {
            let reason = self.ended.as_deref().unwrap_or("unknown reason");
            format!("Usher's scheduler {what}: {reason}")
        };
        match self.state {
            Phase::Failed => Some(because("could not be started")),
            Phase::Ended if self.ended.as_deref() == Some(STOPPED) => None,
            Phase::Ended => Some(because("ended")),
            _ => self.fault_notice(now),
        }
    }

    /// Returns the sentence about the last fault, if it was in the hour before `now`.
    pub fn fault_notice(&self, now: u64) -> Option<String> {
        let fault = self.fault.as_ref()?;
        let minutes = now.saturating_sub(fault.unix_seconds) / 60;
        let then = match self.state {
            Phase::Recovering => "starts it again in a few seconds",
            _ => "started it again",
        };
        (minutes < 60).then(|| format!("{minutes} min ago, {}; the daemon {then}", fault.reason))
    }
}

/// Returns the time in seconds since 1970.
pub fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}

/// Rejects a start beside a running scheduler.
///
/// # Errors
/// A scheduler is held already.
pub fn refuse_beside(state: Option<&SchedulerState>) -> anyhow::Result<()> {
    match state.map(|state| state.state) {
        Some(Phase::Starting) => bail!("the scheduler is already starting"),
        Some(Phase::Running | Phase::Restarting) => {
            bail!(
                "the scheduler already runs: 'usher sched set' changes its settings, 'usher \
                 sched stop' ends it"
            )
        }
        Some(Phase::Recovering) => bail!(
            "the scheduler starts again in a few seconds, after a fault ('usher sched status')"
        ),
        Some(Phase::Ended | Phase::Failed) | None => Ok(()),
    }
}

/// Changes of the settings; `None` keeps a setting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SettingsChange {
    /// `--smt`.
    pub smt: Option<bool>,
    /// `--aggregate`.
    pub aggregate: Option<bool>,
    /// `--seats`.
    pub seats: Option<bool>,
    /// `--turn-ms`.
    pub turn_ms: Option<u64>,
    /// `--max-lag-ms`.
    pub max_lag_ms: Option<u64>,
}

impl SettingsChange {
    /// Returns the changed settings. A maximum lag of one turn follows the turn.
    pub fn apply(&self, now: Settings) -> Settings {
        let ns = |ms: Option<u64>| ms.map(|ms| ms * 1_000_000);
        let turn_ns = ns(self.turn_ms).unwrap_or(now.turn_ns);
        let max_lag_ns = match now.max_lag_ns == now.turn_ns {
            true => turn_ns,
            false => now.max_lag_ns,
        };
        Settings {
            smt: self.smt.unwrap_or(now.smt),
            aggregate: self.aggregate.unwrap_or(now.aggregate),
            seats: self.seats.unwrap_or(now.seats),
            turn_ns,
            max_lag_ns: ns(self.max_lag_ms).unwrap_or(max_lag_ns),
            ..now
        }
    }
}

/// Describes the scheduler's behaviour in a few words.
pub fn described(settings: &Settings) -> String {
    if settings.fifo {
        return "first-come, first-served order without SMT awareness".to_owned();
    }
    let on = |on: bool| if on { "on" } else { "off" };
    let ms = |ns: u64| ns / 1_000_000;
    let lag = match settings.max_lag_ns == settings.turn_ns {
        true => String::new(),
        false => format!(", maximum lag {} ms", ms(settings.max_lag_ns)),
    };
    let turns = match settings.aggregate {
        true => format!("on ({} ms{lag})", ms(settings.turn_ns)),
        false => "off".to_owned(),
    };
    format!(
        "preference for idle cores: {}, turns of address spaces: {turns}, soft seats: {}",
        on(settings.smt),
        on(settings.seats)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_names_each_feature() {
        let mut settings = Settings::default();
        let all =
            "preference for idle cores: on, turns of address spaces: on (24 ms), soft seats: on";
        assert_eq!(described(&settings), all);
        settings.max_lag_ns /= 2;
        settings.seats = false;
        let some = "turns of address spaces: on (24 ms, maximum lag 12 ms), soft seats: off";
        assert!(described(&settings).ends_with(some));
        settings.aggregate = false;
        assert!(described(&settings).contains("address spaces: off, soft seats"));
    }

    #[test]
    fn settings_without_a_change_keep_their_values() {
        let now = Settings::default();
        assert_eq!(SettingsChange::default().apply(now), now);
        let some = SettingsChange {
            smt: Some(false),
            seats: Some(false),
            ..SettingsChange::default()
        };
        let changed = some.apply(now);
        assert_eq!(
            (changed.smt, changed.aggregate, changed.seats),
            (false, now.aggregate, false)
        );
    }

    #[test]
    fn a_max_lag_of_one_turn_follows_the_turn() {
        let ms = |turn_ms, max_lag_ms, now| {
            let changed = SettingsChange {
                turn_ms,
                max_lag_ms,
                ..SettingsChange::default()
            };
            let changed = changed.apply(now);
            (changed.turn_ns / 1_000_000, changed.max_lag_ns / 1_000_000)
        };
        let now = Settings::default();
        assert_eq!(ms(Some(7), None, now), (7, 7));
        assert_eq!(ms(None, Some(3), now), (24, 3));
        let apart = Settings {
            max_lag_ns: 5_000_000,
            ..now
        };
        assert_eq!(ms(Some(7), None, apart), (7, 5));
    }

    #[test]
    fn rejects_a_second_scheduler_in_one_line() {
        let mut state = SchedulerState::starting(&Settings::default());
        let refused =
            |state: &SchedulerState| refuse_beside(Some(state)).map_err(|error| error.to_string());
        assert_eq!(
            refused(&state),
            Err("the scheduler is already starting".to_owned())
        );
        for phase in [Phase::Running, Phase::Restarting] {
            state.state = phase;
            let line = refused(&state).unwrap_err();
            assert!(line.starts_with("the scheduler already runs"));
        }
        state.end("stopped");
        assert_eq!(refused(&state), Ok(()));
        assert!(refuse_beside(None).is_ok());
    }

    #[test]
    fn a_notice_gives_the_reason_of_an_end_that_no_request_caused() {
        let mut state = SchedulerState::starting(&Settings::default());
        assert_eq!(state.notice(0), None);
        state.recover("the kernel ended the scheduler (stall)".to_owned());
        state.fault.as_mut().unwrap().unix_seconds = 1_000;
        let soon = "0 min ago, the kernel ended the scheduler (stall); the daemon starts it again \
                    in a few seconds";
        assert_eq!(state.notice(1_059).as_deref(), Some(soon));
        assert!(refuse_beside(Some(&state)).is_err());
        state.state = Phase::Running;
        let later = state.notice(1_000 + 59 * 60).unwrap();
        assert!(
            later.starts_with("59 min ago") && later.ends_with("the daemon started it again"),
            "{later}"
        );
        assert_eq!(state.notice(1_000 + 60 * 60), None);
        state.end(STOPPED);
        assert_eq!(state.notice(1_000), None);
        state.end("disabled by sysrq-S");
        let ended = "Usher's scheduler ended: disabled by sysrq-S";
        assert_eq!(state.notice(1_000).as_deref(), Some(ended));
        state.state = Phase::Failed;
        let failed = "Usher's scheduler could not be started: disabled by sysrq-S";
        assert_eq!(state.notice(1_000).as_deref(), Some(failed));
    }
}
