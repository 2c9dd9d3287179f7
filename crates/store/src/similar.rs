// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides whether two lists of arguments are so similar that the scalability curve of one run is an
//! estimate for the other run of the same executable.
//!
//! The words of a profile's key are of three kinds:
//!
//! | word | rule |
//! |---|---|
//! | size of a file or of a large number, directory, device, output | ignored |
//! | option without a value (`--verbose`, `-d`), or a level (`-9`) | may differ |
//! | anything else: small numbers, values of options, `NAME=value`, names of scripts | must be equal, in the same order |
//!
//! Small numbers must be equal, because many of them are thread counts. Other words must be equal,
//! because the executable of a script is its interpreter: two scripts are different programs.
//!
//! The comparison takes n log n in the number of words.

use std::collections::BTreeSet;

/// Returns the number of words by which two similar lists of arguments differ; `None` if the lists
/// are not similar.
pub(crate) fn distance(first: &str, second: &str) -> Option<usize> {
    let (first, second) = (ArgumentWords::of(first), ArgumentWords::of(second));
    let differing = first.optional.symmetric_difference(&second.optional);
    (first.required == second.required).then(|| differing.count())
}

/// The words of a list of arguments, by whether similar lists must contain them.
struct ArgumentWords<'a> {
    required: Vec<&'a str>,
    optional: BTreeSet<&'a str>,
}

impl<'a> ArgumentWords<'a> {
    fn of(arguments: &'a str) -> Self {
        let mut words = Self {
            required: Vec::new(),
            optional: BTreeSet::new(),
        };
        for word in arguments.split(' ').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                _ if is_size(word) => {}
                Some((name, value)) if name.starts_with('-') && is_size(value) => {
                    words.optional.insert(name);
                }
                None if is_flag(word) => {
                    words.optional.insert(word);
                }
                _ => words.required.push(word),
            }
        }
        words
    }
}

fn is_size(word: &str) -> bool {
    let kinds = ["number:2^", "file:2^"];
    kinds.iter().any(|kind| word.starts_with(kind)) || ["dir", "device", "out"].contains(&word)
}

/// Returns whether a word is an option without a value, or a level such as `-9`.
fn is_flag(word: &str) -> bool {
    let Some(name) = word.strip_prefix('-') else {
        return false;
    };
    let is_level = !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
    is_level || !name.contains(|c: char| c.is_ascii_digit() || c == '~')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_flags_and_levels_may_differ() {
        assert_eq!(distance("-p2 file:2^20", "-p2 file:2^26"), Some(0));
        assert_eq!(
            distance("-p2 file:2^20", "-p2 file:2^20 file:2^21"),
            Some(0)
        );
        assert_eq!(distance("-p2 -9 file:2^20", "-p2 -6 file:2^20"), Some(2));
        assert_eq!(distance("-d out", "--quiet dir -d"), Some(1));
        assert_eq!(distance("--size=number:2^8", "--size=number:2^9"), Some(0));
        assert_eq!(distance("", "file:2^20"), Some(0));
    }

    #[test]
    fn thread_counts_scripts_and_values_must_be_equal() {
        for (a, b) in [
            ("-p2", "-p8"),
            ("-p 2", "-p 8"),
            ("--threads=2", "--threads=8"),
            ("OMP_NUM_THREADS=2 x", "OMP_NUM_THREADS=8 x"),
            ("OMP_NUM_THREADS=2", ""),
            ("word:0a1b2c3d", "word:0a1b2c3e"),
            ("--preset word:0a1b2c3d", "--preset word:0a1b2c3e"),
            ("-p~0a1b2c3d", "-p~0a1b2c3e"),
            ("2 3", "3 2"),
        ] {
            assert_eq!(distance(a, b), None, "{a} / {b}");
        }
    }
}
