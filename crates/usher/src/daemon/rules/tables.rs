// SPDX-License-Identifier: GPL-2.0-only
//! The tables `[daemon]` and `[scheduler]` of the configuration file, and their conversion to
//! settings. An error of a value names its line and key.

use std::path::PathBuf;

use log::LevelFilter;
use serde::Deserialize;
use toml::Spanned;
use usher_scx::Settings;

use super::file::{Source, one_of};
use crate::daemon::logging::LOG_LEVELS;
use crate::daemon::metrics::Address;
use crate::daemon::scheduler::{LIMIT_MS, SchedulerConfig};

/// Settings of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DaemonSettings {
    /// The policy's name.
    pub policy: Option<String>,
    /// The address of the metrics.
    pub metrics: Option<Address>,
    /// The file of the thresholds of background work.
    pub thresholds: Option<PathBuf>,
    /// Services that do not count as foreground.
    pub ignore: Vec<String>,
    /// The lowest level of messages that are logged.
    pub log_level: Option<LevelFilter>,
    /// Whether the policy varies the seats of known programs in order to measure them.
    pub variation: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DaemonTable {
    policy: Option<Spanned<String>>,
    metrics: Option<Spanned<String>>,
    thresholds: Option<Spanned<PathBuf>>,
    ignore: Vec<String>,
    log_level: Option<Spanned<String>>,
    variation: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SchedulerTable {
    enable: bool,
    smt: Option<bool>,
    aggregate: Option<bool>,
    seats: Option<bool>,
    turn_ms: Option<Spanned<i64>>,
    max_lag_ms: Option<Spanned<i64>>,
}

fn log_level(name: String) -> Result<LevelFilter, String> {
    let name = one_of(name, &LOG_LEVELS)?;
    name.parse().map_err(|_| format!("'{name}' is not a level"))
}

impl DaemonTable {
    /// Checks and converts the values.
    pub(super) fn settings(self, source: Source<'_>) -> anyhow::Result<DaemonSettings> {
        let policy = |name: String| one_of(name, &usher_policy::NAMES);
        let thresholds = |path: PathBuf| match path.is_absolute() {
            true => Ok(path),
            false => Err("the path must be absolute"),
        };
        Ok(DaemonSettings {
            policy: source.convert("policy", self.policy, policy)?,
            metrics: source.convert("metrics", self.metrics, |text| text.parse::<Address>())?,
            thresholds: source.convert("thresholds", self.thresholds, thresholds)?,
            ignore: self.ignore,
            log_level: source.convert("log_level", self.log_level, log_level)?,
            variation: self.variation,
        })
    }
}

impl SchedulerTable {
    /// Checks the values. Missing values are those of `usher sched start`.
    pub(super) fn config(self, source: Source<'_>) -> anyhow::Result<SchedulerConfig> {
        let default = Settings::default();
        let turn_ns = source.convert("turn_ms", self.turn_ms, limit_ns)?;
        let turn_ns = turn_ns.unwrap_or(default.turn_ns);
        let max_lag_ns = source.convert("max_lag_ms", self.max_lag_ms, limit_ns)?;
        Ok(SchedulerConfig {
            enable: self.enable,
            settings: Settings {
                smt: self.smt.unwrap_or(default.smt),
                aggregate: self.aggregate.unwrap_or(default.aggregate),
                seats: self.seats.unwrap_or(default.seats),
                turn_ns,
                max_lag_ns: max_lag_ns.unwrap_or(turn_ns),
                ..default
            },
        })
    }
}

/// Converts a turn or a maximum lag to nanoseconds.
fn limit_ns(ms: i64) -> Result<u64, String> {
    let checked = u64::try_from(ms).ok().filter(|ms| LIMIT_MS.contains(ms));
    let (least, most) = LIMIT_MS.into_inner();
    let checked = checked.map(|ms| ms * 1_000_000);
    checked.ok_or_else(|| format!("the value must be from {least} to {most} ms, not {ms} ms"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::daemon::rules::file;

    fn scheduler(text: &str) -> Result<SchedulerConfig, String> {
        let parsed = file::parse(Path::new("/etc/usher/usher.toml"), text);
        parsed
            .map(|file| file.scheduler)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_scheduler_is_off_by_default() {
        for text in ["", "[scheduler]\n", "[scheduler]\nsmt = true\n"] {
            assert_eq!(scheduler(text), Ok(SchedulerConfig::default()), "{text}");
        }
    }

    #[test]
    fn reads_the_settings_of_the_scheduler() {
        let some = scheduler("[scheduler]\nenable = true\nsmt = false\nturn_ms = 8\n").unwrap();
        assert!(some.enable && !some.settings.smt && some.settings.seats);
        let ns = (some.settings.turn_ns, some.settings.max_lag_ns);
        assert_eq!(ns, (8_000_000, 8_000_000));
        let all = "[scheduler]\nenable = true\naggregate = false\nseats = false\nmax_lag_ms = 4\n";
        let all = scheduler(all).unwrap().settings;
        assert!(!all.aggregate && !all.seats && !all.fifo);
        assert_eq!((all.turn_ns, all.max_lag_ns), (24_000_000, 4_000_000));
    }

    #[test]
    fn names_the_line_and_the_key_of_a_wrong_value() {
        for (line, part) in [
            (
                "turn_ms = 0",
                "`turn_ms`: the value must be from 1 to 200 ms, not 0 ms",
            ),
            (
                "max_lag_ms = -3",
                "`max_lag_ms`: the value must be from 1 to 200 ms, not -3 ms",
            ),
            ("enable = 1", "`enable`: "),
            ("smt = 'on'", "`smt`: "),
            ("enabel = true", "a similar name exists: `enable`"),
        ] {
            let error = scheduler(&format!("[scheduler]\n{line}\n")).unwrap_err();
            assert!(error.starts_with("/etc/usher/usher.toml:2: "), "{error}");
            assert!(error.contains(part), "{error}");
        }
    }
}
