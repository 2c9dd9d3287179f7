// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serde's error messages for users: suggestions for misspelt keys, and words instead of the names
//! of Rust's types.
//!
//! Among the permitted names, the name with the least edit distance (optimal string alignment) to
//! the given name is suggested. A permitted name is considered if the distance is at most a third
//! of the length of the permitted name. A permitted name that starts with the given name is also
//! considered, if the given name has at least 3 bytes. Of equal distances, the alphabetically first
//! name is suggested. The time for each permitted name is the product of the lengths of the two
//! names.

/// Returns serde's message for users. The message about an unknown field or variant is followed by
/// the closest permitted name, if that name is close enough. An expected type of Rust's is
/// described.
pub fn with_suggestion(message: &str) -> String {
    let message = &without_types(message);
    let mut quoted = message.split('`').skip(1).step_by(2);
    let is_unknown = message.starts_with("unknown field") || message.starts_with("unknown variant");
    let closest = match quoted.next().filter(|_| is_unknown) {
        Some(unknown) => closest_name(unknown, quoted),
        None => None,
    };
    match closest {
        Some(name) => format!("{message}; a similar name exists: `{name}`"),
        None => message.to_owned(),
    }
}

/// Describes the type that a value should have, where serde names a type of Rust's: `expected u32`.
fn without_types(message: &str) -> String {
    const EXPECTED: &str = ", expected ";
    let Some((before, expected)) = message.rsplit_once(EXPECTED) else {
        return message.to_owned();
    };
    let whole = |max: u64| format!("a whole number from 0 to {max}");
    let described = match expected {
        "u8" => whole(u8::MAX.into()),
        "u16" => whole(u16::MAX.into()),
        "u32" => whole(u32::MAX.into()),
        "u64" | "usize" => "a whole number of at least 0".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a table".to_owned(),
        other if other.starts_with("struct ") => "a table".to_owned(),
        _ => return message.to_owned(),
    };
    format!("{before}{EXPECTED}{described}")
}

/// Minimum length of a given name for which a permitted name is suggested because it starts with
/// the given name.
const PREFIX_LENGTH_MIN: usize = 3;

/// The permitted name with the least edit distance from `given`, among the names that are close
/// enough. Close enough are names that start with `given` (of at least 3 bytes), and names with an
/// edit distance of at most a third of their length.
pub fn closest_name<'a>(
    given: &str,
    permitted: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let close = permitted.into_iter().filter_map(|name| {
        let distance = edit_distance(given, name);
        let is_prefix = given.len() >= PREFIX_LENGTH_MIN && name.starts_with(given);
        (is_prefix || distance * 3 <= name.chars().count()).then_some((distance, name))
    });
    close.min().map(|(_, name)| name)
}

/// The edit distance of two words: the least number of insertions, deletions, replacements and
/// swaps of adjacent characters (optimal string alignment).
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before_last[j - 2] + 1);
            }
            row.push(least);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_field_gets_the_closest_name() {
        let message = "unknown field `wieght`, expected one of `name`, `run`, `weight`";
        let expected = format!("{message}; a similar name exists: `weight`");
        assert_eq!(with_suggestion(message), expected);
    }

    #[test]
    fn a_prefix_of_a_name_is_completed() {
        assert_eq!(
            closest_name("slice", ["slice_ns", "turn_ns"]),
            Some("slice_ns")
        );
        assert_eq!(closest_name("sl", ["slice_ns", "turn_ns"]), None);
    }

    #[test]
    fn types_of_rust_are_described() {
        for (expected, described) in [
            ("u8", "a whole number from 0 to 255"),
            ("usize", "a whole number of at least 0"),
            ("f64", "a number"),
            ("struct RawProgram", "a table"),
            ("a sequence", "a list"),
            ("a boolean", "a boolean"),
        ] {
            let message = |what: &str| format!("invalid type: string \"x\", expected {what}");
            assert_eq!(with_suggestion(&message(expected)), message(described));
        }
    }

    #[test]
    fn a_distant_name_is_not_suggested() {
        for message in [
            "unknown field `creates`, expected `run` or `unless_exists`",
            "unknown field `x`",
            "missing field `run`",
            "invalid type: integer `3`, expected a string",
        ] {
            assert_eq!(with_suggestion(message), message);
        }
    }

    #[test]
    fn edits_are_counted() {
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("repeats", "repeat"), 1);
        assert_eq!(edit_distance("titel", "title"), 1);
        assert_eq!(edit_distance("ab", "ba"), 1);
    }
}
