// SPDX-License-Identifier: GPL-2.0-only
//! Keys of a terminal in raw mode: splits the read bytes into keys.
//!
//! A read of a terminal returns whole key sequences, so that an escape character at the end of the
//! bytes is the Escape key. Unknown sequences are skipped.

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A printable character.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// Cursor up.
    Up,
    /// Cursor down.
    Down,
    /// Cursor left.
    Left,
    /// Cursor right.
    Right,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
    /// Control and a lower-case letter.
    Control(char),
}

/// Splits bytes into keys.
pub fn parse(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        let key = match first {
            0x1b => match rest.first() {
                Some(b'[' | b'O') => {
                    let (key, after) = sequence(&rest[1..]);
                    rest = after;
                    key
                }
                _ => Some(Key::Escape),
            },
            b'\r' | b'\n' => Some(Key::Enter),
            0x7f | 0x08 => Some(Key::Backspace),
            1..=26 => Some(Key::Control(char::from(b'a' + first - 1))),
            0..0x20 => None,
            _ => {
                let (key, after) = character(first, rest);
                rest = after;
                key
            }
        };
        keys.extend(key);
    }
    keys
}

/// Parses a control sequence after its introducer. Returns the remaining bytes, too.
fn sequence(bytes: &[u8]) -> (Option<Key>, &[u8]) {
    let end = bytes.iter().position(|byte| (0x40..=0x7e).contains(byte));
    let Some(end) = end else {
        return (None, &[]);
    };
    let key = match (&bytes[..end], bytes[end]) {
        (_, b'A') => Some(Key::Up),
        (_, b'B') => Some(Key::Down),
        (_, b'C') => Some(Key::Right),
        (_, b'D') => Some(Key::Left),
        (b"5", b'~') => Some(Key::PageUp),
        (b"6", b'~') => Some(Key::PageDown),
        _ => None,
    };
    (key, &bytes[end + 1..])
}

/// Parses a character of one or several bytes. Invalid bytes are skipped.
fn character(first: u8, rest: &[u8]) -> (Option<Key>, &[u8]) {
    let more = match first {
        0x20..=0x7e => 0,
        0xc2..=0xdf => 1,
        0xe0..=0xef => 2,
        0xf0..=0xf4 => 3,
        _ => return (None, rest),
    };
    let Some((tail, after)) = rest.split_at_checked(more) else {
        return (None, &[]);
    };
    let bytes: Vec<u8> = std::iter::once(first).chain(tail.iter().copied()).collect();
    let text = std::str::from_utf8(&bytes).ok();
    let c = text.and_then(|text| text.chars().next());
    let c = c.filter(|c| !c.is_control());
    (c.map(Key::Char), after)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_recognised() {
        let cases: [(&[u8], &[Key]); 8] = [
            (b"q", &[Key::Char('q')]),
            (b"\x1b", &[Key::Escape]),
            (b"\x1b[A\x1bOB", &[Key::Up, Key::Down]),
            (
                b"\x1b[5~x\x1b[6~",
                &[Key::PageUp, Key::Char('x'), Key::PageDown],
            ),
            (b"\x1b[1;5C", &[Key::Right]),
            (b"\x1b[200~\x03", &[Key::Control('c')]),
            (b"\r\x7f", &[Key::Enter, Key::Backspace]),
            ("é日\u{80}".as_bytes(), &[Key::Char('é'), Key::Char('日')]),
        ];
        for (bytes, keys) in cases {
            assert_eq!(parse(bytes), keys, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_accepted(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assert!(parse(&bytes).len() <= bytes.len());
        }
    }
}
