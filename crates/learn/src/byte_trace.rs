// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks whether the bytes that a program reads and writes measure its progress: whether they were
//! proportional to time in a run with constant CPUs.
//!
//! 1. The trace keeps the bytes and the time of the samples of one run, at most 256
//!    ([`POINTS_MAX`]). A full trace drops every second point, and from then on keeps every second
//!    sample.
//! 2. At the end of the run, each point has a fraction of the bytes and a fraction of the time. The
//!    error of the bytes is the largest difference of the two fractions.
//! 3. Bytes measure progress if the error is at most 10 %. With fewer than four points, 0.5 s or 1
//!    MiB, nothing is known.
//!
//! A program that reads its input at the start, or writes its output at the end, therefore does not
//! use bytes. The result is valid only for a run that was undisturbed.

use usher_model::SOURCE_ERROR_MAX;

/// Maximum number of points of a trace.
const POINTS_MAX: usize = 256;
/// Minimum number of points and time of a run, for an evaluation of its bytes.
const POINTS_MIN: usize = 4;
const SPAN_NS_MIN: u64 = 500_000_000;
/// Minimum number of bytes of a run, for an evaluation of its bytes.
pub const BYTES_MIN: u64 = 1 << 20;

/// The bytes of one run over time.
#[derive(Debug, Clone, PartialEq)]
pub struct ByteTrace {
    start_ns: u64,
    /// Bytes at the start; `None` before the first sample.
    start_bytes: Option<u64>,
    /// Time and bytes since the start.
    points: Vec<(u64, u64)>,
    /// The trace keeps every N-th sample.
    stride: usize,
    skipped: usize,
}

/// The rate and the error of the bytes of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ByteRate {
    /// Bytes per second.
    pub per_second: f64,
    /// Largest difference of the fraction of bytes and the fraction of time.
    pub error: f64,
}

impl ByteRate {
    /// Returns whether bytes measured the progress of the run.
    pub fn is_progress(&self) -> bool {
        self.error <= SOURCE_ERROR_MAX
    }
}

impl ByteTrace {
    /// Starts the trace of a program's first run, which has read and written nothing.
    pub fn new(at_ns: u64) -> Self {
        Self {
            start_ns: at_ns,
            start_bytes: None,
            points: Vec::new(),
            stride: 1,
            skipped: 0,
        }
    }

    /// Adds a sample.
    pub fn add(&mut self, at_ns: u64, bytes: u64) {
        let start_bytes = *self.start_bytes.get_or_insert(bytes);
        self.skipped += 1;
        if self.skipped < self.stride || at_ns <= self.start_ns {
            return;
        }
        self.skipped = 0;
        let since = (at_ns - self.start_ns, bytes.saturating_sub(start_bytes));
        self.points.push(since);
        if self.points.len() == POINTS_MAX {
            let mut at = 0;
            self.points.retain(|_| {
                at += 1;
                at % 2 == 0
            });
            self.stride *= 2;
        }
    }

    /// Evaluates the run that has ended, and starts the trace of the next run.
    pub fn ended(&mut self, at_ns: u64) -> Option<ByteRate> {
        let result = self.evaluated();
        let last = self.points.last().map(|(_, bytes)| *bytes);
        let start_bytes = self.start_bytes.zip(last).map(|(start, last)| start + last);
        *self = Self {
            start_bytes,
            ..Self::new(at_ns)
        };
        result
    }

    fn evaluated(&self) -> Option<ByteRate> {
        let &(span_ns, total) = self.points.last()?;
        let is_short = self.points.len() < POINTS_MIN || span_ns < SPAN_NS_MIN;
        if is_short || total < BYTES_MIN {
            return None;
        }
        let (span, total) = (span_ns as f64, total as f64);
        let difference =
            |&(ns, bytes): &(u64, u64)| (bytes as f64 / total - ns as f64 / span).abs();
        Some(ByteRate {
            per_second: total / (span * 1e-9),
            error: self.points.iter().map(difference).fold(0.0, f64::max),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Evaluates a run with samples every 100 ms and these megabytes.
    fn evaluated(megabytes: &[u64]) -> Option<ByteRate> {
        let mut trace = ByteTrace::new(0);
        for (at, &count) in (1..).zip(megabytes) {
            trace.add(at * 100 * MS, count * 1_000_000);
        }
        trace.ended(megabytes.len() as u64 * 100 * MS)
    }

    #[test]
    fn bytes_in_proportion_to_time_are_progress() {
        let steady: Vec<u64> = (0..600).map(|at| 3 * at).collect();
        let rate = evaluated(&steady).unwrap();
        assert!(rate.is_progress() && rate.error < 0.01, "{rate:?}");
        assert!((rate.per_second / 30e6 - 1.0).abs() < 0.01, "{rate:?}");
        let at_the_start = evaluated(&[0, 90, 95, 96, 98, 98, 99, 100, 100, 100]).unwrap();
        assert!(!at_the_start.is_progress(), "{at_the_start:?}");
        let at_the_end = evaluated(&[0, 1, 1, 1, 2, 2, 2, 3, 50, 100]).unwrap();
        assert!(!at_the_end.is_progress(), "{at_the_end:?}");
    }

    #[test]
    fn short_runs_and_few_bytes_are_not_evaluated() {
        assert_eq!(evaluated(&[0, 10, 20]), None);
        assert_eq!(evaluated(&[0, 100, 200, 300]), None, "0.4 s");
        assert_eq!(evaluated(&[0, 0, 0, 0, 0, 1, 1]), None, "1 MB");
    }

    #[test]
    fn the_next_run_starts_at_zero() {
        let mut trace = ByteTrace::new(0);
        for run in 0..2 {
            for at in 1..=10 {
                trace.add((10 * run + at) * 100 * MS, (10 * run + at) * 1_000_000);
            }
            let rate = trace.ended((run + 1) * 1000 * MS).unwrap();
            assert!((rate.per_second / 1e7 - 1.0).abs() < 0.2, "{rate:?}");
        }
    }
}
