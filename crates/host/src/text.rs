// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations in messages.

/// Returns a duration with its unit: rounded to milliseconds ("0.3 s", "900 s"), or below 0.5 ms to
/// two significant digits ("0.12 ms").
pub fn seconds(seconds: f64) -> String {
    let milliseconds = seconds * 1000.0;
    match milliseconds.abs() {
        // Rounding to milliseconds would give 0 s.
        short if short > 0.0 && short < 0.5 => format!("{} ms", rounded(milliseconds)),
        _ => format!("{} s", milliseconds.round() / 1000.0),
    }
}

/// Rounds a number below 1 to two significant digits.
fn rounded(number: f64) -> f64 {
    let digits = 1 - number.abs().log10().floor() as i32;
    match 10f64.powi(digits) {
        scale if scale.is_finite() => (number * scale).round() / scale,
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_to_milliseconds() {
        let texts = [0.3, 0.3 * 4.0, 900.0, 1.5, 0.0005, 0.0].map(seconds);
        assert_eq!(
            texts,
            ["0.3 s", "1.2 s", "900 s", "1.5 s", "0.001 s", "0 s"]
        );
        let short = [0.0004, 0.000_123_4, 5e-9, -0.0002].map(seconds);
        assert_eq!(short, ["0.4 ms", "0.12 ms", "0.000005 ms", "-0.2 ms"]);
    }
}
