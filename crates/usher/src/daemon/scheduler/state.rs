// SPDX-License-Identifier: GPL-2.0-only
//! The state of a scheduler, as the interface `org.usher.Scheduler1` reports it, and changes of its
//! settings: the permitted values, the settings that result from a change, and their description in
//! words. A turn and a maximum lag have 1 to 200 ms ([`LIMIT_MS`]). This file does no input or
//! output, and checks no limits itself.

use std::ops::RangeInclusive;

use anyhow::bail;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_scx::{MapIds, Settings};

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
    /// Why the scheduler ended.
    pub ended: Option<String>,
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
    /// The scheduler has ended.
    Ended,
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
        }
    }

    /// Records the end and its reason.
    pub fn end(&mut self, reason: &str) {
        self.state = Phase::Ended;
        self.ended = Some(reason.to_owned());
    }
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
        Some(Phase::Ended) | None => Ok(()),
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
}
