// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors of the sources of progress on one machine, as `usher doctor --calibrate` measures
//! them, and the confidence that follows from an error.
//!
//! A source counts units of its own, such as instructions. Its error is the relative error of the
//! speed-ups that it shows, as a fraction. Errors of programs with busy-waiting threads are separate
//! from errors of other programs, because a busy-waiting thread executes instructions and uses CPU
//! time without progress.

use std::collections::BTreeMap;

use crate::observation::ProgressSource;

/// Relative error of a speed-up, as a fraction, beyond which a source is not used for planning.
pub const SOURCE_ERROR_MAX: f64 = 0.10;

/// The calibrated errors of the sources of progress on one machine. A source without an error has
/// not been calibrated.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourceErrors(BTreeMap<(ProgressSource, bool), f64>);

impl SourceErrors {
    /// Sets the error of a source, for programs with or without busy-waiting threads.
    pub fn set(&mut self, source: ProgressSource, busy_waits: bool, error: f64) {
        self.0.insert((source, busy_waits), error);
    }

    /// Returns the error of a source; `None` if it has not been calibrated.
    pub fn get(&self, source: ProgressSource, busy_waits: bool) -> Option<f64> {
        self.0.get(&(source, busy_waits)).copied()
    }

    /// Returns the source, whether the programs have busy-waiting threads, and the error, by
    /// descending quality of the sources.
    pub fn iter(&self) -> impl Iterator<Item = (ProgressSource, bool, f64)> {
        (self.0.iter()).map(|(&(source, busy_waits), &error)| (source, busy_waits, error))
    }

    /// Returns whether no source has been calibrated.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Confidence in the figures of a source, 0..1: [`confidence_of_error`] of the calibrated error,
    /// or else the built-in value. Calibration can lower the confidence in CPU time, but does not
    /// raise it: the calibration programs do not cover all causes of CPU time without progress.
    pub fn confidence(&self, source: ProgressSource, busy_waits: bool) -> f64 {
        let built_in = source.confidence(busy_waits);
        let calibrated = self.get(source, busy_waits).map(confidence_of_error);
        match source {
            ProgressSource::CpuTime => calibrated.map_or(built_in, |c| c.min(built_in)),
            _ => calibrated.unwrap_or(built_in),
        }
    }
}

/// Confidence in a source with this error, 0..1. The confidence falls with the error, and is
/// [`PLAN_CONFIDENCE_MIN`](crate::PLAN_CONFIDENCE_MIN) at [`SOURCE_ERROR_MAX`].
pub fn confidence_of_error(error: f64) -> f64 {
    match error >= 0.0 {
        true => 1.0 / (1.0 + error / SOURCE_ERROR_MAX),
        // NaN, or an impossible error.
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PLAN_CONFIDENCE_MIN;
    use ProgressSource::{Bytes, CpuTime, Heartbeat, Instructions, Ompt};

    #[test]
    fn an_error_of_more_than_ten_per_cent_ends_planning() {
        assert_eq!(confidence_of_error(0.0), 1.0);
        assert!(confidence_of_error(SOURCE_ERROR_MAX) >= PLAN_CONFIDENCE_MIN);
        assert!(confidence_of_error(0.1001) < PLAN_CONFIDENCE_MIN);
        assert_eq!(confidence_of_error(f64::INFINITY), 0.0);
        assert_eq!(confidence_of_error(f64::NAN), 0.0);
    }

    #[test]
    fn a_calibrated_error_replaces_the_built_in_confidence() {
        let mut errors = SourceErrors::default();
        errors.set(Bytes, false, 0.02);
        errors.set(Bytes, true, 0.3);
        errors.set(Instructions, true, 0.01);
        errors.set(CpuTime, false, 0.0);
        errors.set(CpuTime, true, 1.9);
        assert!((errors.confidence(Bytes, false) - 1.0 / 1.2).abs() < 1e-12);
        assert!(errors.confidence(Bytes, true) < PLAN_CONFIDENCE_MIN);
        assert!(errors.confidence(Instructions, true) > PLAN_CONFIDENCE_MIN);
        // These sources have not been calibrated.
        for source in [Heartbeat, Ompt, Instructions] {
            assert_eq!(errors.confidence(source, false), source.confidence(false));
        }
        assert_eq!(errors.confidence(CpuTime, false), CpuTime.confidence(false));
        assert!((errors.confidence(CpuTime, true) - 0.05).abs() < 1e-12);
    }
}
