// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the values of a measure under two schedulers; smaller values are better. Each scheduler
//! has one value per round.
//!
//! A scheduler wins if all of its values are smaller than all values of the other scheduler, and if
//! the medians differ by more than the error of the lab's virtual time: 1 %, or
//! [`RESOLUTION`] units of a measure near 0. Otherwise, the result is a tie.

use usher_report::stats::median;

/// Smallest difference of two medians, as a share of the larger median, that is not an error of
/// the lab's virtual time.
const RELATIVE_ERROR: f64 = 0.01;
/// Smallest difference of two medians, in the unit of the measure (ms or switches). The emulator
/// delays interrupts by a tenth of a millisecond and more.
const RESOLUTION: f64 = 0.1;

/// Result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The first scheduler is better.
    Win,
    /// The values overlap.
    Tie,
    /// The first scheduler is worse.
    Loss,
}

impl Outcome {
    /// Name of the outcome in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Win => "win",
            Self::Tie => "tie",
            Self::Loss => "LOSS",
        }
    }
}

/// Compares the values of two schedulers. Returns `None` if a scheduler has no value.
pub fn compare(ours: &[f64], theirs: &[f64]) -> Option<Outcome> {
    let (our_median, their_median) = (median(ours)?, median(theirs)?);
    let error = RESOLUTION.max(RELATIVE_ERROR * our_median.max(their_median));
    let is_below = |a: &[f64], b: &[f64]| a.iter().all(|a| b.iter().all(|b| a < b));
    Some(match (our_median - their_median).abs() > error {
        true if is_below(ours, theirs) => Outcome::Win,
        true if is_below(theirs, ours) => Outcome::Loss,
        _ => Outcome::Tie,
    })
}

/// Returns the smallest and the largest value.
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let pick = |pick: fn(f64, f64) -> f64| values.iter().copied().reduce(pick);
    Some((pick(f64::min)?, pick(f64::max)?))
}

/// Formats a median with the range of its values: `1.5 (1.2 to 1.9)`.
pub fn spread(values: &[f64], decimals: usize) -> String {
    let cell = |value| super::medians::cell(value, decimals);
    match range(values) {
        Some((least, most)) if values.len() > 1 => format!(
            "{} ({} to {})",
            cell(median(values)),
            cell(Some(least)),
            cell(Some(most))
        ),
        _ => cell(median(values)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_values_are_a_tie() {
        let theirs = [20.0, 22.0, 24.0];
        assert_eq!(compare(&[10.0, 11.0, 19.0], &theirs), Some(Outcome::Win));
        assert_eq!(compare(&[10.0, 11.0, 21.0], &theirs), Some(Outcome::Tie));
        assert_eq!(compare(&[30.0, 25.0, 26.0], &theirs), Some(Outcome::Loss));
        assert_eq!(compare(&theirs, &theirs), Some(Outcome::Tie));
    }

    #[test]
    fn differences_within_the_error_are_a_tie() {
        assert_eq!(compare(&[1_000.0], &[1_009.0]), Some(Outcome::Tie));
        assert_eq!(compare(&[1_000.0], &[1_011.0]), Some(Outcome::Win));
        assert_eq!(compare(&[0.09], &[0.0]), Some(Outcome::Tie));
        assert_eq!(compare(&[0.11], &[0.0]), Some(Outcome::Loss));
    }

    #[test]
    fn missing_values_have_no_outcome() {
        assert_eq!(compare(&[], &[1.0]), None);
        assert_eq!(compare(&[1.0], &[]), None);
    }

    #[test]
    fn spread_shows_median_and_range() {
        assert_eq!(spread(&[3.0, 1.0, 2.0], 1), "2.0 (1.0 to 3.0)");
        assert_eq!(spread(&[3.0], 0), "3");
        assert_eq!(spread(&[], 0), "–");
    }
}
