// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations in messages.

/// Returns a duration with its unit, rounded to milliseconds: "0.3 s", "900 s".
pub fn seconds(seconds: f64) -> String {
    format!("{} s", (seconds * 1000.0).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_to_milliseconds() {
        let texts = [0.3, 0.3 * 4.0, 900.0, 1.5, 0.0004].map(seconds);
        assert_eq!(texts, ["0.3 s", "1.2 s", "900 s", "1.5 s", "0 s"]);
    }
}
