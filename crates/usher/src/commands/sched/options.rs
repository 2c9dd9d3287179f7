// SPDX-License-Identifier: GPL-2.0-only
//! Options that `usher sched start` and `usher sched set` share: the values `on` and `off`, times
//! of 1 to 200 whole milliseconds, and a warning if `--turn-ms` has no effect.

use usher_scx::Settings;

use crate::daemon::scheduler::LIMIT_MS;

/// The value of an option that turns a part of the scheduler on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    On,
    Off,
}

impl Switch {
    /// Returns whether the part is on.
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

/// Parses `--turn-ms` and `--max-lag-ms`, in milliseconds.
///
/// # Errors
/// The value is out of range.
pub fn limit_ms(text: &str) -> Result<u64, &'static str> {
    let ms = text.parse().ok().filter(|ms| LIMIT_MS.contains(ms));
    ms.ok_or("the value must be a whole number of milliseconds from 1 to 200")
}

/// Returns the warning if a turn length is given, alone or with a maximum lag, and the settings
/// have no turns. `given` holds `--turn-ms` and `--max-lag-ms`, in this order.
pub fn turn_warning(given: [Option<u64>; 2], settings: &Settings) -> Option<&'static str> {
    let [turn_ms, max_lag_ms] = given;
    if turn_ms.is_none() || settings.aggregate {
        return None;
    }
    Some(
        match max_lag_ms.is_none() && settings.max_lag_ns == settings.turn_ns {
            true => "--turn-ms sets only the maximum lag, because turns require --aggregate on",
            false => "--turn-ms has no effect until --aggregate on is set",
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warns_of_a_turn_length_without_turns() {
        let on = Settings::default();
        let off = Settings {
            aggregate: false,
            ..on
        };
        let apart = Settings {
            max_lag_ns: 1,
            ..off
        };
        assert_eq!(turn_warning([Some(8), None], &on), None);
        assert_eq!(turn_warning([None, Some(8)], &off), None);
        let lag = "--turn-ms sets only the maximum lag, because turns require --aggregate on";
        let nothing = "--turn-ms has no effect until --aggregate on is set";
        assert_eq!(turn_warning([Some(8), None], &off), Some(lag));
        assert_eq!(turn_warning([Some(8), Some(8)], &off), Some(nothing));
        assert_eq!(turn_warning([Some(8), None], &apart), Some(nothing));
    }
}
