// SPDX-License-Identifier: GPL-2.0-only
//! Quotes words of command lines that Usher prints, so that a POSIX shell reads them unchanged.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Quotes a word for a POSIX shell if the shell would change it. Words that are no UTF-8 are shown
/// with replacement characters.
pub fn quoted(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./=:,+@%{}".contains(byte);
    let bytes = word.as_bytes();
    if !bytes.is_empty() && bytes.iter().all(is_plain) && !expands_braces(bytes) {
        return word.to_string_lossy().into_owned();
    }
    // A path or an argument of a program contains no NUL byte, which is the only error.
    let quoted = shlex::bytes::try_quote(bytes).unwrap_or_default();
    String::from_utf8_lossy(&quoted).into_owned()
}

/// Returns whether bash could replace braces in the word: `{a,b}` or `{1..3}`. It keeps `{cpus}`.
fn expands_braces(word: &[u8]) -> bool {
    let has_list = word.contains(&b',') || word.windows(2).any(|pair| pair == b"..");
    word.contains(&b'{') && has_list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_a_shell_would_change_are_quoted() {
        for plain in [
            "/var/lib/usher/profiles.db",
            "{cpus}",
            "a,b",
            "..",
            "-t{cpus}",
        ] {
            assert_eq!(quoted(plain), plain);
        }
        for changed in ["", "a b", "~/a", "$a", "it's", "{a,b}", "{1..3}", "a;b"] {
            let shown = quoted(changed);
            assert_ne!(shown, changed);
            assert_eq!(shlex::split(&shown).unwrap(), [changed]);
        }
    }
}
