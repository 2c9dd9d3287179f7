// SPDX-License-Identifier: MIT OR Apache-2.0
//! Escapes foreign names: every byte that is not a printable ASCII character, spaces and `%` become
//! `%XX` with two upper-case hexadecimal digits. Equal bytes have equal texts, and different bytes
//! have different texts. `job_submit.lua` escapes in the same way.

use std::fmt::Write;

/// Returns whether a byte stands for itself.
fn is_plain(byte: u8) -> bool {
    (0x21..=0x7e).contains(&byte) && byte != b'%'
}

/// Returns the escaped text of a name.
pub fn escape(name: &[u8]) -> String {
    let mut text = String::new();
    for &byte in name {
        if is_plain(byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Returns the bytes of an escaped name; `None` if the text is not the result of [`escape`].
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, more) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = more;
    }
    (escape(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escapes_spaces_controls_and_percent_signs() {
        assert_eq!(escape(b"md run\n100%\x1b\xff"), "md%20run%0A100%25%1B%FF");
        assert_eq!(escape("Käse".as_bytes()), "K%C3%A4se");
    }

    #[test]
    fn rejects_text_that_escape_does_not_write() {
        for text in ["a b", "%", "%4", "%zz", "%41", "%0a", "%+1", "ä", "\n"] {
            assert_eq!(unescape(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn unescape_inverts_escape(bytes: Vec<u8>) {
            prop_assert_eq!(unescape(&escape(&bytes)), Some(bytes));
        }
    }
}
