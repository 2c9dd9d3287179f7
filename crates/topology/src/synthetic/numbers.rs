// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the counts and the sizes in a description. Numbers consist of digits alone: a sign, a blank
//! or a fraction is an error. hwloc's parser accepts `+4`, and takes `-1` as a huge number.

use super::level::{CPUS_MAX, at};
use crate::error::quoted;

/// Returns the number of a level: 4 for the word `core:4` or for a bare `4`.
pub(super) fn count(digits: &str, word: &str) -> Result<u64, String> {
    if digits.is_empty() {
        return Err(format!(
            "the level '{0}' has no count, as in {0}2",
            quoted(word)
        ));
    }
    let invalid = || {
        Err(format!(
            "'{}' is not a valid count of the level '{}'; a count is a whole number from 1 to \
             {CPUS_MAX}",
            quoted(digits),
            quoted(word)
        ))
    };
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return invalid();
    }
    match digits.parse::<u64>() {
        Ok(0) => Err(format!(
            "the count of the level '{}' is 0; it must be at least 1",
            quoted(word)
        )),
        Ok(count) if count <= CPUS_MAX => Ok(count),
        // Too large, also for 64 bits.
        Ok(_) | Err(_) => Err(format!(
            "the description has more than {CPUS_MAX} CPUs at the level '{}'",
            quoted(word)
        )),
    }
}

/// Returns a size in bytes, such as 33554432, 0x2000000, 32MB (decimal) or 32MiB (binary). Case does
/// not matter.
pub(super) fn size(name: &str, text: &str, position: usize) -> Result<u64, String> {
    if text.is_empty() {
        let reason = format!("the attribute '{name}=' has no value; give a size such as 32MiB");
        return Err(at(position, reason));
    }
    let (digits, radix) = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => (text, 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix));
    let (digits, unit) = digits.split_at(end.unwrap_or(digits.len()));
    // A digit of a hexadecimal number may be the B of a unit: hwloc writes no such sizes.
    let number = u64::from_str_radix(digits, radix).ok();
    let factor: Option<u64> = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "kb" => Some(1000),
        "mb" => Some(1000 * 1000),
        "gb" => Some(1000 * 1000 * 1000),
        "tb" => Some(1000 * 1000 * 1000 * 1000),
        "kib" => Some(1 << 10),
        "mib" => Some(1 << 20),
        "gib" => Some(1 << 30),
        "tib" => Some(1 << 40),
        _ => None,
    };
    let bytes = number
        .zip(factor)
        .and_then(|(number, factor)| number.checked_mul(factor));
    bytes.ok_or_else(|| {
        let reason = format!(
            "'{}' is not a valid size in bytes; the units are kB, MB, GB, TB, KiB, MiB, GiB and TiB",
            quoted(text)
        );
        at(position, reason)
    })
}
