// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of one run for the profile of its program.

use usher_model::{CurvePoint, ProgressSource};

use crate::byte_trace::ByteRate;

/// The point of the curve that a run gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProfileSample {
    /// Repetitions per second at a number of cores.
    pub repetition: CurvePoint,
    /// The rate by the program's other source of progress in the same time. Comparing this rate
    /// with the repetitions shows whether the source is proportional to progress.
    pub by_source: Option<(ProgressSource, CurvePoint)>,
}

impl ProfileSample {
    /// Returns the sample of a run beside other programs, from which the effect of the waits is
    /// removed. The rate by another source of progress is unknown.
    pub fn corrected(repetition: CurvePoint) -> Self {
        Self {
            repetition,
            by_source: None,
        }
    }

    /// Adds the rate of bytes if bytes measured the progress of the run, and removes it if not.
    #[must_use]
    pub fn with_bytes(self, bytes: Option<ByteRate>) -> Self {
        let is_bytes = |by: &(ProgressSource, _)| by.0 == ProgressSource::Bytes;
        let by_source = match bytes {
            Some(rate) if rate.is_progress() => {
                let point = CurvePoint {
                    rate: rate.per_second,
                    ..self.repetition
                };
                let better = self.by_source.filter(|by| by.0 < ProgressSource::Bytes);
                better.or(Some((ProgressSource::Bytes, point)))
            }
            Some(_) => self.by_source.filter(|by| !is_bytes(by)),
            None => self.by_source,
        };
        Self { by_source, ..self }
    }
}

/// How the threads of a program wait, as observed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitBehaviour {
    /// Number of threads that busy-wait.
    pub spinners: u32,
    /// Whether the runtime of the program decided at the start to busy-wait; `None` if unknown.
    pub active_wait: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bytes_in_proportion_to_time_are_stored() {
        let point = CurvePoint {
            cores: 2.0,
            rate: 0.5,
            relative_error: 0.05,
            busy_cpus: None,
        };
        let sample = |source| ProfileSample {
            repetition: point,
            by_source: Some((source, point)),
        };
        let with = |source, error| {
            let rate = ByteRate {
                per_second: 1e6,
                error,
            };
            let by_source = sample(source).with_bytes(Some(rate)).by_source;
            by_source.map(|(source, point)| (source, point.rate))
        };
        use ProgressSource::{Bytes, CpuTime, Heartbeat};
        assert_eq!(with(CpuTime, 0.1), Some((Bytes, 1e6)));
        assert_eq!(with(CpuTime, 0.11), Some((CpuTime, 0.5)));
        assert_eq!(with(Bytes, 0.11), None);
        assert_eq!(with(Heartbeat, 0.1), Some((Heartbeat, 0.5)));
        assert_eq!(sample(Bytes).with_bytes(None), sample(Bytes));
    }
}
