// SPDX-License-Identifier: GPL-2.0-only
//! Replaces `{cpus}` and `{copy}` in the words of a command that runs in several copies. A text
//! that is not one of these two stays as it is; there is no way to quote them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The text that is replaced by the number of CPUs of a copy.
pub const CPUS: &str = "{cpus}";
/// The text that is replaced by the number of a copy, from 1.
pub const COPY: &str = "{copy}";

/// Returns whether a word contains a placeholder.
pub fn contains(command: &[OsString], placeholder: &str) -> bool {
    let found = |word: &OsString| find(word.as_bytes(), placeholder.as_bytes()).is_some();
    command.iter().any(found)
}

/// Returns the command with values in place of the placeholders.
pub fn replace(command: &[OsString], cpus: usize, copy: usize) -> Vec<OsString> {
    let replaced = |word: &OsString| {
        let word = replace_in(word, CPUS, &cpus.to_string());
        replace_in(&word, COPY, &copy.to_string())
    };
    command.iter().map(replaced).collect()
}

/// Returns the word with a value in place of a placeholder.
pub fn replace_in(word: &OsStr, placeholder: &str, value: &str) -> OsString {
    let mut rest = word.as_bytes();
    let mut bytes = Vec::new();
    while let Some(at) = find(rest, placeholder.as_bytes()) {
        bytes.extend_from_slice(&rest[..at]);
        bytes.extend_from_slice(value.as_bytes());
        rest = &rest[at + placeholder.len()..];
    }
    bytes.extend_from_slice(rest);
    OsString::from_vec(bytes)
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_occurrence_is_replaced_and_other_bytes_are_kept() {
        let word = OsString::from_vec(b"-t{cpus}:{cpus}-{copy}.{}\xff{cpu}".to_vec());
        let replaced = replace(&[word.clone(), "{cpus}".into()], 12, 3);
        let expected = OsString::from_vec(b"-t12:12-3.{}\xff{cpu}".to_vec());
        assert_eq!(replaced, [expected, "12".into()]);
        assert!(contains(std::slice::from_ref(&word), CPUS));
        assert!(!contains(&["{cpu}".into(), "cpus".into()], CPUS));
    }
}
