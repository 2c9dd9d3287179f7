// SPDX-License-Identifier: GPL-2.0-only
//! JSON documents: numbers have at most 12 significant digits, and characters that could disturb a
//! terminal are written as escapes. The time is linear in the length of the document.

use std::io::{self, Write};

use anyhow::Context;
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};

use super::is_invisible;

/// Returns a value as a JSON document.
///
/// # Errors
/// The value cannot be written as JSON.
pub fn document(value: &impl Serialize, is_indented: bool) -> anyhow::Result<String> {
    let mut text = Vec::new();
    let written = match is_indented {
        true => write_json(value, PrettyFormatter::new(), &mut text),
        false => write_json(value, CompactFormatter, &mut text),
    };
    written.context("writing JSON")?;
    let text = String::from_utf8(text).context("writing JSON")?;
    Ok(ascii_controls(&text))
}

/// Writes a value as JSON, with numbers of at most [`DIGITS_MAX`] significant digits.
fn write_json(
    value: &impl Serialize,
    formatter: impl Formatter,
    to: &mut Vec<u8>,
) -> serde_json::Result<()> {
    let rounded = RoundedNumbers(formatter);
    value.serialize(&mut serde_json::Serializer::with_formatter(to, rounded))
}

/// Number of significant digits of a fraction in JSON. More digits are the rounding errors of
/// arithmetic, as in 0.30000000000000004.
const DIGITS_MAX: usize = 12;

/// Rounds fractions, and leaves the rest to another formatter.
struct RoundedNumbers<F>(F);

/// Implements functions of `Formatter` by those of the inner formatter.
macro_rules! delegate {
    ($($name:ident($($arg:ident: $type:ty)?);)*) => {$(
        fn $name<W: ?Sized + Write>(&mut self, to: &mut W $(, $arg: $type)?) -> io::Result<()> {
            self.0.$name(to $(, $arg)?)
        }
    )*};
}

impl<F: Formatter> Formatter for RoundedNumbers<F> {
    fn write_f64<W: ?Sized + Write>(&mut self, to: &mut W, value: f64) -> io::Result<()> {
        self.0.write_f64(to, rounded(value))
    }

    delegate! {
        begin_array();
        end_array();
        begin_array_value(first: bool);
        end_array_value();
        begin_object();
        end_object();
        begin_object_key(first: bool);
        end_object_key();
        begin_object_value();
        end_object_value();
    }
}

fn rounded(value: f64) -> f64 {
    let text = format!("{value:.*e}", DIGITS_MAX - 1);
    text.parse().unwrap_or(value)
}

/// Returns a JSON text. Every character that [`super::shown`] escapes is written as a `\u` escape;
/// serde_json itself escapes only the characters below U+0020.
fn ascii_controls(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c != '\n' && (c.is_control() || is_invisible(c)) {
            true => {
                let mut units = [0; 2];
                let units = c.encode_utf16(&mut units).iter();
                text.extend(units.map(|unit| format!("\\u{unit:04x}")));
            }
            false => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_in_json_have_at_most_twelve_digits(value: f64) {
            let mut text = Vec::new();
            write_json(&value, CompactFormatter, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            let read: f64 = text.parse().unwrap();
            prop_assert!((read - value).abs() <= value.abs() * 5e-12, "{value} {text}");
            prop_assert_eq!(rounded(read), read);
            let mantissa = text.split('e').next().unwrap().replace(['-', '.'], "");
            prop_assert!(mantissa.trim_matches('0').len() <= DIGITS_MAX, "{text}");
        }

        #[test]
        fn json_stays_the_same_value_without_control_characters(text in "\\PC{0,40}|[\\u{0}-\\u{9f}\u{200b}\u{202e}]{0,40}") {
            let value = serde_json::json!({ "name": &text, &text: [1, 2] });
            let json = document(&value, true).unwrap();
            prop_assert!(json.chars().all(|c| c == '\n' || !(c.is_control() || is_invisible(c))), "{json:?}");
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
        }
    }
}
