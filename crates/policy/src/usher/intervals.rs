// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intervals between samples and between comparisons, in nanoseconds, which several modules of
//! policy `usher` use.

/// Interval between samples while rates are measured.
pub(super) const MEASURE_NS: u64 = 100_000_000;
/// Interval between samples while seats are in use and no program waits.
pub(super) const CALM_NS: u64 = 20_000_000;
/// Least interval between comparisons.
pub(super) const COMPARE_AGAIN_NS: u64 = 30_000_000_000;
