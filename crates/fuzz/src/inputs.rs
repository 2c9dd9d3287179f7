// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates random inputs for the fuzz targets, from valid samples.
//!
//! 1. Select a sample.
//! 2. Apply 0 to 7 random edits to the sample. An edit sets a byte, removes or repeats a range of
//!    bytes, inserts one of [`WORDS`] once or up to 4095 times, cuts off the end, or replaces the
//!    end by the end of another sample.
//! 3. After each edit, cut the input to 1 MiB ([`BYTES_MAX`]).
//!
//! proptest draws the sample, the edits and their positions, so it can also reduce a failing input.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Words that parsers often handle wrongly: limits of number types, brackets, quotes and separators
/// (deeply nested if repeated), a character that changes the direction of text, bytes that are not
/// UTF-8.
const WORDS: [&[u8]; 40] = [
    b"0",
    b"-1",
    b"1",
    b"-0",
    b"255",
    b"256",
    b"65536",
    b"2147483647",
    b"2147483648",
    b"4294967295",
    b"4294967296",
    b"9223372036854775807",
    b"9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
    b"1e308",
    b"1e309",
    b"-1e309",
    b"1e-320",
    b"NaN",
    b"inf",
    b"null",
    b"true",
    b"\"",
    b"'",
    b"[",
    b"]",
    b"{",
    b"}",
    b"<",
    b"&",
    b":",
    b",",
    b"=",
    b"\n",
    b"\0",
    b"../",
    b"\xff\xfe",
    "\u{202e}".as_bytes(),
    "\u{1d7d8}".as_bytes(),
];
/// Exclusive upper limit of the number of edits of an input.
const EDITS_MAX: usize = 8;
/// Exclusive upper limit of the number of repetitions by one edit.
const REPEATS_MAX: usize = 4096;
/// Maximum length of an input in bytes.
const BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Clone)]
enum Edit {
    /// Sets a byte.
    Set(Index, u8),
    /// Removes the bytes between two positions.
    Remove(Index, Index),
    /// Repeats the bytes between two positions.
    Repeat(Index, Index, usize),
    /// Inserts one of [`WORDS`] at a position, once or repeatedly.
    Insert(Index, &'static [u8], usize),
    /// Removes all bytes from a position on.
    Cut(Index),
    /// Replaces all bytes from a position on by the end of another sample. The fields are the
    /// position, the sample, and the position in that sample.
    Splice(Index, Index, Index),
}

/// Generates inputs from these samples; without samples, from an empty input.
pub fn inputs(samples: &[&[u8]]) -> impl Strategy<Value = Vec<u8>> + use<> {
    let samples: Vec<Vec<u8>> = samples.iter().map(|sample| sample.to_vec()).collect();
    let changed = (any::<Index>(), vec(edit(), 0..EDITS_MAX));
    changed.prop_map(move |(which, edits)| {
        let mut bytes = match samples.is_empty() {
            true => Vec::new(),
            false => which.get(&samples).clone(),
        };
        for edit in &edits {
            apply(edit, &mut bytes, &samples);
        }
        bytes
    })
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<Index>;
    let repeats = prop_oneof![4 => Just(1_usize), 1 => 2..REPEATS_MAX];
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (at(), at()).prop_map(|(from, to)| Edit::Remove(from, to)),
        (at(), at(), repeats.clone()).prop_map(|(from, to, n)| Edit::Repeat(from, to, n)),
        (at(), select(&WORDS[..]), repeats).prop_map(|(at, word, n)| Edit::Insert(at, word, n)),
        at().prop_map(Edit::Cut),
        (at(), at(), at()).prop_map(|(at, which, from)| Edit::Splice(at, which, from)),
    ]
}

fn apply(edit: &Edit, bytes: &mut Vec<u8>, samples: &[Vec<u8>]) {
    let place = |index: &Index, length: usize| index.index(length + 1);
    let between = |a: &Index, b: &Index| {
        let (a, b) = (place(a, bytes.len()), place(b, bytes.len()));
        a.min(b)..a.max(b)
    };
    match edit {
        Edit::Set(at, byte) => {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
        }
        Edit::Remove(from, to) => drop(bytes.drain(between(from, to))),
        Edit::Repeat(from, to, count) => {
            let range = between(from, to);
            let count = (*count).min(BYTES_MAX / range.len().max(1));
            let part = bytes[range.clone()].repeat(count);
            bytes.splice(range.end..range.end, part);
        }
        Edit::Insert(at, word, count) => {
            let at = place(at, bytes.len());
            bytes.splice(at..at, word.repeat(*count));
        }
        Edit::Cut(at) => bytes.truncate(place(at, bytes.len())),
        Edit::Splice(at, which, from) => {
            if !samples.is_empty() {
                let other = which.get(samples);
                bytes.truncate(place(at, bytes.len()));
                bytes.extend_from_slice(&other[place(from, other.len())..]);
            }
        }
    }
    bytes.truncate(BYTES_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest! {
        #[test]
        fn inputs_stay_bounded(input in inputs(&[b"abc", b""])) {
            prop_assert!(input.len() <= BYTES_MAX);
        }
    }
}
