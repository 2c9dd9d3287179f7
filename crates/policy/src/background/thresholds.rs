// SPDX-License-Identifier: MIT OR Apache-2.0
//! Thresholds of paper 2's contention test (sections 4.3, 4.4 and 5): shares of CPU time, disk
//! sectors and network calls, each 0..=1. The defaults are the paper's values (0.85 where the paper
//! gives 80..90 %). All thresholds are fractions, not percentages. Parsing rejects values outside
//! of 0..=1.

use serde::{Deserialize, Serialize};

/// Shares of resource use that decide whether background work contends with the foreground and
/// whether the machine is idle, each 0..=1. The defaults are the values of paper 2; `usher bench
/// calibrate` finds the values for a machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedThresholds")]
pub struct Thresholds {
    /// Background share of the used CPU time below which foreground work wants CPUs: 80..90 %
    /// (section 4.4).
    pub cpu: f64,
    /// Background share of the synchronous sectors of a disk below which foreground work wants the
    /// disk: 100 % (section 4.4), which means that any foreground request counts.
    pub disk: f64,
    /// Background share of the calls that send on an interface below which foreground work wants
    /// the interface: 100 % (section 4.4).
    pub network: f64,
    /// Idle share of the CPUs from which on no program lacks CPU time: 25 % (section 4.3).
    pub idle: f64,
    /// `ipd`: idle share above which the CPUs count as idle: 62 %, the least idle share in 30
    /// minutes without foreground work (section 5).
    pub ipd_idle: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            cpu: 0.85,
            disk: 1.0,
            network: 1.0,
            idle: 0.25,
            ipd_idle: 0.62,
        }
    }
}

/// A threshold outside of 0..=1.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the threshold {name} must be from 0 to 1, not {value}")]
pub struct ThresholdError {
    /// Name of the threshold.
    pub name: &'static str,
    /// The rejected value.
    pub value: f64,
}

impl Thresholds {
    /// Returns the thresholds if each is in 0..=1.
    ///
    /// # Errors
    /// Returns the first threshold outside of 0..=1.
    pub fn checked(self) -> Result<Self, ThresholdError> {
        let all = [
            ("cpu", self.cpu),
            ("disk", self.disk),
            ("network", self.network),
            ("idle", self.idle),
            ("ipd_idle", self.ipd_idle),
        ];
        match all.into_iter().find(|(_, v)| !(0.0..=1.0).contains(v)) {
            Some((name, value)) => Err(ThresholdError { name, value }),
            None => Ok(self),
        }
    }
}

/// Thresholds as parsed, before the check; missing thresholds have the values of paper 2.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct UncheckedThresholds {
    cpu: f64,
    disk: f64,
    network: f64,
    idle: f64,
    ipd_idle: f64,
}

impl Default for UncheckedThresholds {
    fn default() -> Self {
        let Thresholds {
            cpu,
            disk,
            network,
            idle,
            ipd_idle,
        } = Thresholds::default();
        Self {
            cpu,
            disk,
            network,
            idle,
            ipd_idle,
        }
    }
}

impl TryFrom<UncheckedThresholds> for Thresholds {
    type Error = ThresholdError;

    fn try_from(read: UncheckedThresholds) -> Result<Self, ThresholdError> {
        let thresholds = Self {
            cpu: read.cpu,
            disk: read.disk,
            network: read.network,
            idle: read.idle,
            ipd_idle: read.ipd_idle,
        };
        thresholds.checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shares_are_thresholds() {
        let read = |text: &str| serde_json::from_str::<Thresholds>(text);
        assert_eq!(read("{}").unwrap(), Thresholds::default());
        assert_eq!(read(r#"{"cpu": 0.8}"#).unwrap().cpu, 0.8);
        for bad in [r#"{"cpu": 1.2}"#, r#"{"idle": -0.1}"#, r#"{"cup": 0.5}"#] {
            read(bad).unwrap_err();
        }
        let bad = Thresholds {
            disk: f64::NAN,
            ..Thresholds::default()
        };
        assert_eq!(bad.checked().unwrap_err().name, "disk");
        let text = serde_json::to_string(&Thresholds::default()).unwrap();
        assert_eq!(read(&text).unwrap(), Thresholds::default());
    }
}
