// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formatting of numbers, lists and keys for output. Missing and non-finite numbers become "–",
//! never "NaN". A no-break space joins number and unit. Lengths are in characters. The cost is
//! linear in the length of the input.

use std::fmt::Write as _;

/// Text in place of a missing number.
pub const NONE: &str = "–";

/// A number with the given decimals; from 10^9 on with an exponent.
pub fn number(value: impl Into<Option<f64>>, decimals: usize) -> String {
    match value.into().filter(|v| v.is_finite()) {
        Some(v) if v.abs() >= 1e9 => minus(&format!("{v:.decimals$e}")),
        Some(v) => minus(&format!("{v:.decimals$}")),
        None => NONE.to_owned(),
    }
}

fn minus(number: &str) -> String {
    number.replace('-', "\u{2212}")
}

/// A number with as few decimals as necessary, at most `decimals_max`: `12`, `1.5`.
pub fn short(value: f64, decimals_max: usize) -> String {
    let long = number(value, decimals_max);
    match long.contains('.') && !long.contains('e') {
        true => long.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => long,
    }
}

/// Seconds with about three significant digits.
pub fn seconds(value: impl Into<Option<f64>>) -> String {
    match value.into().filter(|v| v.is_finite()) {
        Some(v) if v.abs() < 10.0 => format!("{}\u{a0}s", number(v, 2)),
        Some(v) if v.abs() < 100.0 => format!("{}\u{a0}s", number(v, 1)),
        Some(v) => format!("{}\u{a0}s", number(v, 0)),
        None => NONE.to_owned(),
    }
}

/// The difference of a ratio from 1, with its sign: the text for 0.82 is `−18.0 %`.
pub fn change(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    if !percent.is_finite() {
        return NONE.to_owned();
    }
    let digits = format!("{:.1}\u{a0}%", percent.abs());
    match digits.as_str() {
        "0.0\u{a0}%" => digits,
        _ if percent < 0.0 => format!("\u{2212}{digits}"),
        _ => format!("+{digits}"),
    }
}

/// A share in whole per cent: 0.7 is `70 %`.
pub fn percent(share: impl Into<Option<f64>>) -> String {
    match share.into().filter(|v| v.is_finite()) {
        Some(v) => format!("{:.0}\u{a0}%", v * 100.0),
        None => NONE.to_owned(),
    }
}

/// Bytes in binary units: `32 MiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{}\u{a0}{}", short(scaled, 1), UNITS[unit])
}

/// `1 round`, `5 rounds`.
pub fn count(n: usize, noun: &str) -> String {
    match n {
        1 => format!("1 {noun}"),
        _ => format!("{n} {noun}s"),
    }
}

/// `CPU 3`, `CPUs 0-3,8`: a list of CPUs with its noun.
pub fn cpus(list: &str) -> String {
    match list.bytes().all(|byte| byte.is_ascii_digit()) {
        true => format!("CPU {list}"),
        false => format!("CPUs {list}"),
    }
}

/// `1 copy`, `4 copies`.
pub fn copies(n: usize) -> String {
    match n {
        1 => "1 copy".to_owned(),
        _ => format!("{n} copies"),
    }
}

/// `1 policy`, `4 policies`.
pub fn policies(n: usize) -> String {
    match n {
        1 => "1 policy".to_owned(),
        _ => format!("{n} policies"),
    }
}

/// `a, b and c`.
pub fn list(items: &[String]) -> String {
    let mut text = String::new();
    for (i, item) in items.iter().enumerate() {
        let separator = match i {
            0 => "",
            _ if i + 1 == items.len() => " and ",
            _ => ", ",
        };
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}{item}");
    }
    text
}

/// The text, truncated with an ellipsis to the given number of characters.
pub fn cut(text: &str, characters: usize) -> String {
    match text.chars().count() <= characters {
        true => text.to_owned(),
        false => {
            let kept: String = text.chars().take(characters.saturating_sub(1)).collect();
            format!("{}…", kept.trim_end())
        }
    }
}

/// The key letter of the program with this index: A..Z, AA, AB...
pub fn key(index: usize) -> String {
    let letter = char::from(b'A' + (index % 26) as u8);
    match index / 26 {
        0 => letter.to_string(),
        more => format!("{}{letter}", key(more - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_finite_numbers_become_a_dash() {
        for text in [
            number(f64::NAN, 2),
            number(None, 2),
            seconds(f64::INFINITY),
            change(f64::NAN),
            percent(None),
        ] {
            assert_eq!(text, NONE);
        }
    }

    #[test]
    fn formats_numbers_and_lists_for_reading() {
        assert_eq!(change(0.82), "\u{2212}18.0\u{a0}%");
        assert_eq!(change(1.031), "+3.1\u{a0}%");
        assert_eq!(change(0.9999), "0.0\u{a0}%");
        assert_eq!(
            (short(12.0, 2).as_str(), short(1.5, 2).as_str()),
            ("12", "1.5")
        );
        assert_eq!(short(100.0, 0), "100");
        assert_eq!(bytes(32 << 20), "32\u{a0}MiB");
        assert_eq!(bytes(1536), "1.5\u{a0}KiB");
        assert_eq!(["a", "b", "c"].map(str::to_owned).as_slice().len(), 3);
        assert_eq!(list(&["a".into(), "b".into(), "c".into()]), "a, b and c");
        assert_eq!(cut("lammps busy", 8), "lammps…");
        assert_eq!([0, 25, 26, 27, 52].map(key).join(" "), "A Z AA AB BA");
    }
}
