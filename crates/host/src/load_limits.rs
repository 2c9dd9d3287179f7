// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits on the CPU time of other programs, beyond which a measurement counts as disturbed. The
//! measurements of module `quiet` and the engine's samples of repetitions use the same limits.
//!
//! With `n` CPUs, other programs may use `max(CPUS_MAX, SHARE_MAX * n)` CPUs on average over the
//! measurement, plus `SLACK_SECONDS` of CPU time in all.

/// Mean number of CPUs that other programs may use during a measurement.
pub const CPUS_MAX: f64 = 0.1;
/// Fraction of the machine's CPUs that other programs may use, if it is more than [`CPUS_MAX`].
pub const SHARE_MAX: f64 = 0.01;
/// CPU seconds of other programs that do not count, because of the resolution of the counters.
pub const SLACK_SECONDS: f64 = 0.05;
